"""Watches the routes of a slot's mesh, and searches for a better mesh from what slots report.

Plan staging (Nehme et al. 2012, sections 4.2 and 5.3): a query that is to run by a mesh begins with one route for each
relation, unless a sample was taken before. After some batches, and whenever the routes drift, a slot runs its operators
on its youngest rows between two steps and reports the outcome. The driver searches a mesh from the report.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import sqrt
from time import perf_counter

import numpy as np
import pyarrow as pa

from anabranch.adapt.excess import ALIKE
from anabranch.adapt.policy import Interval
from anabranch.adapt.routing import Flow
from anabranch.mesh.drift import MeshUse, drifted, mesh_use
from anabranch.mesh.learn import CURRENT, SearchSetting
from anabranch.mesh.proposal import MeshProposal
from anabranch.mesh.search import MeshCosts
from anabranch.mesh.whole import find_query_mesh
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.mesh import Mesh, Plan, one_route, orders_of
from anabranch.stats.mesh.learnt import LearntMesh, LearntRoutes, Profiled
from anabranch.stats.mesh.operators import OperatorMatrix
from anabranch.stats.mesh.profiles import OperatorProfile
from anabranch.stats.mesh.routes import RouteStatistics, merge_routes
from anabranch.stats.step import StepStatistics, merge

SEARCH = SearchSetting(size=10, method="merge", early_out=True, asks=True)
BASELINE = 3
"""Batches after a change of plan that give the baseline of the routes."""
MOST_PATIENCE = 96
"""Batches after which a drift is told, however many before it led to nothing."""
CHANCE = 3.0
"""Standard deviations up to which a difference of counts is chance: one count in 370 differs by more."""
REMEMBERED = 8
"""Batches that the rates of a slot are computed from."""


def learn_mesh(
    graph: JoinGraph,
    seen: Iterable[OperatorProfile],
    seed: int,
    current: Plan | None = None,
    is_worth: Callable[[LearntMesh], bool] | None = None,
    *,
    may_ask: bool = True,
) -> LearntMesh:
    """Searches the best mesh, beginning with the current plan if that is a mesh.

    No classifier is searched if a mesh that takes the least that any could take is not worth it. Where the current plan
    is an mjoin, relations that gain nothing by routes keep its probe orders.
    """
    started, profiles = perf_counter(), list(seen)
    mesh = current if isinstance(current, Mesh) else None
    profiled = _profiled(graph, profiles)

    def asked(least: Mapping[str, float]) -> bool:
        ideal = {name: LearntRoutes("", (1.0,), (cost,), cost, cost, cost) for name, cost in least.items()}
        return is_worth is None or is_worth(LearntMesh(one_route(graph), ideal, profiled=profiled))

    setting = replace(SEARCH, asks=SEARCH.asks and may_ask)
    orders = orders_of(current, graph)
    found = find_query_mesh(graph, profiles, np.random.default_rng(seed), setting, mesh, asked, orders)
    overheads = {each.relation: _overhead(each) for each in profiles}
    relations = {name: _learnt(each, overheads[name]) for name, each in found.proposals.items()}
    return LearntMesh(found.mesh, relations, perf_counter() - started, profiled)


def pooled(several: Iterable[Sequence[OperatorProfile]]) -> list[OperatorProfile]:
    """The profiles of several slots as if one had made them: what each learnt counts for all."""
    by_relation: dict[str, list[OperatorProfile]] = {}
    for profiles in several:
        for each in profiles:
            by_relation.setdefault(each.relation, []).append(each)
    return [_together(parts) for parts in by_relation.values()]


def _together(parts: list[OperatorProfile]) -> OperatorProfile:
    seen = [part for part in parts if part.matrix.rows] or parts[:1]
    first = seen[0]
    matrix = OperatorMatrix(
        first.matrix.operators,
        np.vstack([part.matrix.selectivity for part in seen]),
        np.vstack([part.matrix.cost for part in seen]),
    )
    columns = pa.concat_tables([part.columns for part in seen])
    # Each slot pays its calls for its own rows.
    turn, call = sum(part.turn for part in seen), sum(part.call for part in seen)
    return OperatorProfile(first.relation, columns, matrix, turn, call)


def _overhead(seen: OperatorProfile) -> float:
    """Seconds per row that one route costs however few rows it has."""
    return seen.call / seen.turn if seen.turn else MeshCosts().route


def _profiled(graph: JoinGraph, seen: Iterable[OperatorProfile]) -> Profiled:
    lookups = matches = seconds = 0.0
    fan_outs = {}
    for each in seen:
        if not each.matrix.rows:
            continue
        means = each.matrix.selectivity.mean(axis=0)
        lookups += len(means)
        matches += float(means.sum())
        seconds += float(each.matrix.cost.mean(axis=0).sum())
        for name, mean in zip(each.matrix.operators, means, strict=True):
            if graph.keys_between([each.relation], [name]):
                fan_outs[f"{each.relation} {name}"] = float(mean)
    return Profiled(lookups, matches, seconds, fan_outs)


def _learnt(found: MeshProposal, overhead: float) -> LearntRoutes:
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
        overhead * sum(len(route.operators) for route in found.ways.routes) / max(1, len(found.single.operators)),
    )


class MeshWatch:
    """The batches of one slot since its plan last changed; notices when the routes of its mesh drift."""

    def __init__(self, cool_down: Interval, filling: float = 0.0) -> None:
        """For so many seconds of event time windows fill, and routes differ from batch to batch."""
        self._cool_down = cool_down
        self._filling = filling
        self._plan: Plan | None = None
        self._is_cooling = False
        self._batches, self._seconds = 0, 0.0
        self._recent: deque[tuple[StepStatistics, float]] = deque(maxlen=REMEMBERED)
        self._totals: deque[tuple[int, int]] = deque(maxlen=REMEMBERED)
        """Of these batches, rows and matches."""
        self._looked = 0
        self._patience = 0
        self._before: tuple[RouteStatistics, ...] = ()
        self._uses: tuple[MeshUse, ...] = ()
        """The baseline of each relation of the mesh, once it is complete."""

    def note(self, plan: Plan, step: StepStatistics, seconds: float | None) -> str | None:
        """Takes in a batch and the event time that passed; returns the reason when the mesh may not fit any more.

        Each drift gives its reason once. While drifts lead to no other plan, it takes twice as many batches each time
        until the next one is told: what swings all the time is no news.
        """
        if plan != self._plan:
            self._is_cooling = self._plan is not None
            self._plan, self._batches, self._seconds, self._looked, self._before = plan, 0, 0.0, 0, ()
            self._patience = 0
            self._recent.clear()
            self._totals.clear()
        self._batches, self._seconds = self._batches + 1, self._seconds + (seconds or 0.0)
        if seconds is not None:
            rows, matches = sum(step.rows_in.values()), 0
            for probe in step.probes:
                matches += probe.matches
            if not self._is_like(rows, matches):
                # What came before the change says nothing of what a plan takes now.
                self._recent.clear()
                self._totals.clear()
            self._recent.append((step, seconds))
            self._totals.append((rows, matches))
        if self._cool_down.has_passed(self._batches, self._seconds):
            self._is_cooling = False
        self._filling -= seconds or 0.0
        if not isinstance(plan, Mesh) or self._filling > 0:
            return None
        self._looked += 1
        if self._looked <= BASELINE:
            self._before = merge_routes([*self._before, *step.routes])
            self._uses = tuple(mesh_use(way, self._before) for way in plan.ways) if self._looked == BASELINE else ()
        if self._looked <= max(BASELINE, self._patience) or self._is_cooling:
            return None
        reasons = (
            drifted(before, mesh_use(way, step.routes)) for way, before in zip(plan.ways, self._uses, strict=True)
        )
        reason = next((reason for reason in reasons if reason is not None), None)
        if reason is not None:
            self._looked, self._before = 0, ()
            self._patience = min(MOST_PATIENCE, max(2 * self._patience, 2 * BASELINE))
        return reason

    def _is_like(self, rows: int, matches: int) -> bool:
        """Whether the rows of a batch find as many matches as those of the remembered ones."""
        known_rows = known_matches = 0
        for count, found in self._totals:
            known_rows += count
            known_matches += found
        if not known_rows:
            return True
        expected = known_matches / known_rows * rows
        return abs(matches - expected) <= (ALIKE - 1) * expected + CHANCE * sqrt(max(expected, matches))

    @property
    def is_cooling(self) -> bool:
        """True while the last change of plan is too recent for another."""
        return self._is_cooling

    @property
    def latest(self) -> tuple[StepStatistics, float] | None:
        """What the latest batch counted, and its event time; None while that is not known."""
        return self._recent[-1] if self._recent else None

    @property
    def flow(self) -> Flow | None:
        """The rates of the latest batches; None while their event time is not known."""
        seconds = sum(passed for _, passed in self._recent)
        if not seconds:
            return None
        steps = merge(step for step, _ in self._recent)
        return Flow(
            {name: rows / seconds for name, rows in steps.rows_in.items()},
            steps.rows_out / seconds,
            self._recent[-1][0].state_bytes,
            seconds / len(self._recent),
            steps,
            len(self._recent),
        )
