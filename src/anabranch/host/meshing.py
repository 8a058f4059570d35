"""Finding a mesh before a query or in the middle of it: operators are run on rows at hand, sampled or held.

Plan staging: a query that is to be run by a mesh begins with one route for each relation, unless a sample told more.
After some batches, and again whenever the routes no longer do what they did, each slot runs its operators on its
youngest rows between two steps, and what it saw travels in its report. The search itself is the driver's, beside the
batches; the mesh it finds is judged when some later batch ends. A change of mesh costs nothing. (Nehme et al. 2012,
sections 4.2 and 5.3.)
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np

from anabranch.adapt.policy import Interval
from anabranch.adapt.routing import Flow
from anabranch.engine.batch import RelationBatch
from anabranch.engine.engine import Engine
from anabranch.host.profiles import take_profiles
from anabranch.host.wire import wire_layout
from anabranch.mesh.drift import drifted, mesh_use
from anabranch.mesh.learn import CURRENT, SearchSetting
from anabranch.mesh.proposal import MeshProposal
from anabranch.mesh.search import Stop
from anabranch.mesh.whole import find_query_mesh
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.mesh import Mesh, Plan
from anabranch.plan.partitioning import choose_partitioning
from anabranch.plan.physical import mjoin
from anabranch.plan.query import Query
from anabranch.plan.query_set import alone
from anabranch.stats.mesh.learnt import LearntMesh, LearntRoutes
from anabranch.stats.mesh.operators import OperatorMatrix
from anabranch.stats.mesh.profiles import OperatorProfile
from anabranch.stats.mesh.routes import RouteStatistics, merge_routes
from anabranch.stats.step import StepStatistics, merge
from anabranch.window import FOREVER

SEARCH = SearchSetting(size=10, strategy="improve", stop=Stop(iterations=500, plateau=150))
BASELINE = 3
"""Batches after a change that tell what the routes of a mesh do."""
REMEMBERED = 8
"""Batches by which the rates of a slot are reckoned."""


@dataclass(frozen=True)
class Staging:
    """When a slot looks for a mesh: after the first batches, at doubling distances from then on, and on drift."""

    first: int = 4
    """Batches of the first stage."""
    waits: bool = False
    """Whether a batch waits for the searches: for experiments, in which the same rows are to give the same plans."""

    def is_due(self, batches: int) -> bool:
        return batches >= self.first and batches % self.first == 0 and (batches // self.first).bit_count() == 1


def learn_from_rows(
    query: Query, rows: Mapping[str, RelationBatch], held: Mapping[str, float], seed: int = 1
) -> LearntMesh:
    """The same from rows that were sampled before the query runs.

    `held` are the rows that each state will hold. A sample is thinner or shorter than that, so a row finds fewer
    partners in it than it will: what probes find is counted in proportion.
    """
    layout = wire_layout(alone(query), choose_partitioning(query.graph, 1))
    engine = Engine.alone(replace(query, grouping=None), mjoin(query.graph.names), codes=layout.codes)
    engine.restore(_alive(query, rows), None)
    factors = {name: held[name] / base.ring.live for name, base in engine.bases.items() if base.ring.live}
    return learn(query.graph, [_in_proportion(seen, factors) for seen in take_profiles(engine.only)], seed)


def learn(graph: JoinGraph, seen: Iterable[OperatorProfile], seed: int, current: Plan | None = None) -> LearntMesh:
    """The best mesh that the search finds, from the current one on if that is a mesh."""
    started = perf_counter()
    mesh = current if isinstance(current, Mesh) else None
    found = find_query_mesh(graph, seen, np.random.default_rng(seed), SEARCH, mesh)
    relations = {name: _learnt(each) for name, each in found.proposals.items()}
    return LearntMesh(found.mesh, relations, perf_counter() - started)


def _learnt(found: MeshProposal) -> LearntRoutes:
    held_out = found.held_out
    running = [seen.cost for seen in found.considered if seen.name == CURRENT]
    return LearntRoutes(
        found.reason,
        found.shares,
        found.route_costs,
        found.cost,
        found.single_cost,
        running[0] if running else found.single_cost,
        max(0.0, held_out.gain - held_out.error) if found.is_mesh and held_out is not None else 0.0,
    )


def _alive(query: Query, rows: Mapping[str, RelationBatch]) -> dict[str, RelationBatch]:
    """The rows that the states hold at the last moment of which all samples tell; none when there is no such."""
    every = [rows.get(name, ()) for name in query.graph.names]
    if not all(len(batch) for batch in every):
        return {}
    end = min(int(rows[name].times.max()) for name in query.graph.names)
    alive = {}
    for relation in query.graph.relations:
        batch, reach = rows[relation.name], relation.window.range
        start = end - (FOREVER if reach is None else reach)
        alive[relation.name] = batch.take(np.flatnonzero((batch.times <= end) & (batch.times >= start)))
    return alive


def _in_proportion(seen: OperatorProfile, factors: Mapping[str, float]) -> OperatorProfile:
    matrix = seen.matrix
    factor = np.array([factors.get(operator, 1.0) for operator in matrix.operators])
    selectivity = matrix.selectivity * factor
    # A lookup costs its probe and its matches, as `engine.fabric.profile` counts them.
    cost = matrix.cost * (1 + selectivity) / (1 + matrix.selectivity)
    return replace(seen, matrix=OperatorMatrix(matrix.operators, selectivity, cost))


@dataclass(frozen=True)
class Found:
    """What a search found for a slot that ran `plan` when it began, and why it was begun."""

    slot: int
    plan: Plan
    trigger: str
    learnt: LearntMesh


class Searches:
    """Searches beside the batches, one after another on a thread of the driver's; nobody waits for them."""

    def __init__(self, graph: JoinGraph) -> None:
        self._graph = graph
        self._thread = ThreadPoolExecutor(1, "anabranch-mesh")
        self._under_way: list[Future[Found]] = []

    def begin(self, slot: int, plan: Plan, trigger: str, profiles: Iterable[OperatorProfile], seed: int) -> None:
        """Searches from what a slot reported of its operators."""
        self._under_way.append(self._thread.submit(self._search, slot, plan, trigger, profiles, seed))

    def finished(self, *, wait: bool) -> list[Found]:
        """What was found since this was last asked, in the order in which it was begun."""
        done = [search for search in self._under_way if wait or search.done()]
        self._under_way = [search for search in self._under_way if search not in done]
        return [found for found in map(_outcome, done) if found is not None]

    def _search(self, slot: int, plan: Plan, trigger: str, profiles: Iterable[OperatorProfile], seed: int) -> Found:
        return Found(slot, plan, trigger, learn(self._graph, profiles, seed, plan))


def _outcome(search: Future[Found]) -> Found | None:
    """What was found; a search that failed is told, and the query goes on by the plan that it has."""
    try:
        return search.result()
    except Exception as error:
        warnings.warn(f"a search for routes failed: {error!r}", stacklevel=2)
        return None


class MeshWatch:
    """What one slot has done since its plan was last changed, and whether its routes still do it."""

    def __init__(self, cool_down: Interval) -> None:
        self._cool_down = cool_down
        self._plan: Plan | None = None
        self._is_cooling = False
        self._batches, self._seconds = 0, 0.0
        self._recent: deque[tuple[StepStatistics, float]] = deque(maxlen=REMEMBERED)
        self._looked = 0
        self._before: tuple[RouteStatistics, ...] = ()

    def note(self, plan: Plan, step: StepStatistics, seconds: float | None) -> str | None:
        """Takes in a batch and the event time that passed; the reason when the mesh may no longer fit, told once."""
        if plan != self._plan:
            self._is_cooling = self._plan is not None
            self._plan, self._batches, self._seconds, self._looked, self._before = plan, 0, 0.0, 0, ()
            self._recent.clear()
        self._batches, self._seconds = self._batches + 1, self._seconds + (seconds or 0.0)
        if seconds is not None:
            self._recent.append((step, seconds))
        if self._cool_down.has_passed(self._batches, self._seconds):
            self._is_cooling = False
        if not isinstance(plan, Mesh):
            return None
        self._looked += 1
        if self._looked <= BASELINE:
            self._before = merge_routes([*self._before, *step.routes])
        if self._looked <= BASELINE or self._is_cooling:
            return None
        reasons = (drifted(mesh_use(way, self._before), mesh_use(way, step.routes)) for way in plan.ways)
        reason = next((reason for reason in reasons if reason is not None), None)
        if reason is not None:
            self._looked, self._before = 0, ()
        return reason

    @property
    def is_cooling(self) -> bool:
        """Whether the plan was changed too short a time ago to be changed again."""
        return self._is_cooling

    @property
    def flow(self) -> Flow | None:
        """What the latest batches were like; None while their event time is not known."""
        seconds = sum(passed for _, passed in self._recent)
        if not seconds:
            return None
        steps = merge(step for step, _ in self._recent)
        return Flow(
            {name: rows / seconds for name, rows in steps.rows_in.items()},
            steps.rows_out / seconds,
            self._recent[-1][0].state_bytes,
            seconds / len(self._recent),
        )
