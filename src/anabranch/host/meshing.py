"""Finding a mesh in the middle of a query: operators are run on rows at hand, and what is found is a slot's proposal.

Plan staging: a query that is to be run by a mesh begins with one route for each relation. After some batches, and again
whenever the routes no longer do what they did, each slot profiles its operators between two steps and searches; its
proposal travels in its report, and the driver decides. The search costs a slot a moment once; a change of mesh costs
nothing. (Nehme et al. 2012, sections 4.2 and 5.3.)
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from anabranch.engine.engine import Engine
from anabranch.engine.fabric.profile import profile
from anabranch.mesh.drift import drifted, mesh_use
from anabranch.mesh.learn import SearchSetting
from anabranch.mesh.search import Stop
from anabranch.mesh.whole import find_query_mesh
from anabranch.plan.mesh import Mesh, Plan
from anabranch.stats.routes import RouteStatistics, merge_routes

SAMPLED = 1_000
"""Rows of each relation that a mesh is learnt from."""
SEARCH = SearchSetting(size=10, strategy="improve", stop=Stop(iterations=500, plateau=150))
BASELINE = 3
"""Batches after a change that tell what the routes of a mesh do."""
LEAST_IMPROVEMENT = 0.05
"""A mesh must be cheaper than what runs by this share."""


@dataclass(frozen=True)
class Staging:
    """When a slot looks for a mesh: after the first batches, at doubling distances from then on, and on drift."""

    first: int = 4
    """Batches of the first stage."""

    def is_due(self, batches: int) -> bool:
        return batches >= self.first and batches % self.first == 0 and (batches // self.first).bit_count() == 1


def propose(engine: Engine, seed: int) -> dict[str, Any]:
    """What a mesh would gain over the plan at work, as a mapping that JSON can hold."""
    started = perf_counter()
    graph, current = engine.query.graph, engine.plan if isinstance(engine.plan, Mesh) else None
    seen = [profile(graph, name, engine.bases, rows=SAMPLED) for name in graph.names]
    found = find_query_mesh(graph, seen, np.random.default_rng(seed), SEARCH, current)
    return {
        "plan": str(found.mesh),
        "isMesh": found.is_mesh,
        "gain": found.gain(),
        "improvement": found.improvement(),
        "relations": {
            name: {
                "reason": each.reason,
                "shares": list(each.shares),
                "routeSeconds": list(each.route_costs),
                "seconds": each.cost,
                "singleSeconds": each.single_cost,
            }
            for name, each in found.proposals.items()
        },
        "seconds": perf_counter() - started,
    }


class MeshWatch:
    """What the routes of one slot have done since they were taken up, and whether they still do it."""

    def __init__(self) -> None:
        self._plan: Plan | None = None
        self._before: tuple[RouteStatistics, ...] = ()
        self._batches = 0

    def note(self, plan: Plan, routes: tuple[RouteStatistics, ...]) -> str | None:
        """Takes in a batch; the reason when the mesh may no longer fit, told once."""
        if plan != self._plan:
            self._plan, self._before, self._batches = plan, (), 0
        if not isinstance(plan, Mesh):
            return None
        self._batches += 1
        if self._batches <= BASELINE:
            self._before = merge_routes([*self._before, *routes])
            return None
        reasons = (drifted(mesh_use(way, self._before), mesh_use(way, routes)) for way in plan.ways)
        reason = next((reason for reason in reasons if reason is not None), None)
        if reason is not None:
            self._plan = None
        return reason
