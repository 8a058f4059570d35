"""The measured history of slots that adapt together: recent batches, statistics, phases, and the trend of costs.

A `History` is a frozen value. Each batch and each decision makes a new one, and every question about it is a pure
function: whether the streams have settled, how far they have drifted, whether the last change is too recent. Limit: a
selectivity that the running plan never evaluates keeps its last known value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import sqrt
from typing import Any

from anabranch.adapt.cost_trend import REMEMBERED, USUAL, CostTrend, priced
from anabranch.adapt.experience import Experience, longest_window
from anabranch.adapt.facts import rows_waiting
from anabranch.adapt.knowledge import Knowledge
from anabranch.adapt.policy import TEN_BATCHES, Interval
from anabranch.adapt.stability import CHANGED, Stability
from anabranch.cost.resources import with_default_orders
from anabranch.cost.units import ENGINE, UnitCosts
from anabranch.errors import AnabranchError
from anabranch.mesh.drift import RouteTrend
from anabranch.plan.check import validate
from anabranch.plan.mesh import Mesh, Plan
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.physical import PhysicalPlan
from anabranch.plan.query import Query
from anabranch.plan.text import parse
from anabranch.stats.measured import intermediate_rows, measured
from anabranch.stats.mesh.profiles import OperatorProfile
from anabranch.stats.step import StepStatistics, merge

TREND = 64
"""Batches in which a trend is looked for."""
MOST_PATIENCE = 8
"""Intervals that a change of statistics waits at most."""
TELLING_BATCHES, TELLING_ROWS = 3, 1_000
"""Batches, and rows of each stream in them, that are enough for the first decision."""
MOST_PLANS = 32
"""Plans that are remembered as candidates of later decisions."""
CHANCE = 3.0
"""Standard deviations up to which a difference of counts is chance: one count in 370 differs by more."""


@dataclass(frozen=True)
class Observation:
    """One batch of slots that adapt together."""

    batch: int
    plan: Plan
    read: Callable[[], StepStatistics]
    """Adds up the statistics of the slots; most batches of a set are never asked for them."""
    seconds: float | None
    """Event time that passed with it; None when that is not known, as with the first batch."""
    waiting: int | None = None
    """Rows that waited at the inputs when it began and that it took."""
    behind: float | None = None
    """Seconds from its newest event time to the time of day when it was done."""
    is_migrating: bool = False
    """Whether the plan was being changed during any of it."""
    backlog: float | None = None
    """Rows that wait in the sources; None where no source reports it."""
    trigger: float | None = None
    """Seconds of the whole trigger; None where the host does not know it."""
    profiles: tuple[OperatorProfile, ...] | None = None
    """The profiles of all slots together, if they were asked for."""
    is_shared: bool = False
    """Whether the plan shares a join: then it is decided on with the other queries."""

    @cached_property
    def step(self) -> StepStatistics:
        return self.read()

    @cached_property
    def matches(self) -> tuple[int, int]:
        """Rows, and the matches that they found."""
        return sum(self.step.rows_in.values()), sum(probe.matches for probe in self.step.probes)


@dataclass(frozen=True)
class Since:
    """The stretch since the last decision, or since the plan was last being changed."""

    batches: int = 0
    seconds: float = 0.0
    waiting: tuple[float, ...] = ()
    behind: float | None = None
    """How far behind the first batch of the stretch was."""

    def after(self, seen: Observation) -> Since:
        behind = seen.behind if self.behind is None else self.behind
        rows = rows_waiting(seen.waiting, seen.backlog, seen.behind, behind, seen.seconds)
        return Since(
            self.batches + 1,
            self.seconds + (seen.seconds or 0.0),
            (self.waiting if rows is None else (*self.waiting, rows))[-TREND:],
            behind,
        )


@dataclass(frozen=True)
class Flow:
    """The rates of some slots, per second of event time, and the size of their state."""

    rates: Mapping[str, float]
    """Rows, by relation."""
    results: float
    state_bytes: float
    batch: float
    """Seconds between batches."""
    step: StepStatistics = field(default_factory=StepStatistics, compare=False)
    """What the slots counted in the batches."""
    batches: int = field(default=1, compare=False)

    @property
    def seconds(self) -> float:
        return self.batch * self.batches

    def held(self, relation: str) -> float:
        """Rows of a relation's state, on average over the batches."""
        return sum(state.rows for state in self.step.states if state.state == relation) / self.batches


@dataclass(frozen=True)
class Promise:
    """The expected cost of a row under a mesh, in seconds of a core, when the mesh was taken."""

    each: float
    left: Plan | None = None
    """The plan that it replaced; None for a mesh that the query began with."""
    before: float = 0.0
    """The counted cost of a row under that plan."""


@dataclass(frozen=True)
class History:
    """Everything that is known of the batches of some slots of a query."""

    query: Query
    partitioning: Partitioning | None = None
    units: UnitCosts = ENGINE
    remember: int = REMEMBERED
    """Batches that are measured together."""
    cool_down: Interval = TEN_BATCHES
    """After a change of plan nothing is decided for so long."""
    recent: tuple[Observation, ...] = ()
    """The latest batches of the running plan."""
    known: Knowledge = field(default_factory=Knowledge)
    """Statistics of batches before the recent ones."""
    baseline: Knowledge | None = None
    """The statistics of the last decision; None before the first."""
    since: Since = field(default_factory=Since)
    phases: Stability = field(default_factory=Stability)
    trend: CostTrend = field(default_factory=CostTrend)
    routes: RouteTrend = field(default_factory=RouteTrend)
    promise: Promise | None = None
    """The promise of the running mesh, until it is tested."""
    correction: float = 1.0
    """The cost of the last mesh that was tested over its promise, at least 1."""
    experience: Experience = field(default_factory=Experience)
    plans: Mapping[str, PhysicalPlan] = field(default_factory=dict)
    """Plans that ran or were listed, by their texts: candidates of later decisions."""
    passed: float = 0.0
    """Event time so far."""
    spent: float = 0.0
    """Seconds so far: of whole triggers, or of a core where their length is not known."""
    profiled: int = 0
    """Times that the slots profiled their operators."""
    is_cooling: bool = False
    unsettled: int = 0
    """Times that a decision waited because the streams were changing."""
    changed_at: float | None = None
    """Event time at which a change began that no decision has taken in yet."""
    fruitless: Mapping[str, int] = field(default_factory=dict)
    """Decisions in a row that kept the plan, by the advisor that proposed."""
    retry: float | None = None
    """Seconds of a phase after which a postponed change is considered again."""

    @classmethod
    def empty(cls, query: Query, partitioning: Partitioning | None, units: UnitCosts, **settings: Any) -> History:
        trend = CostTrend(longest_window(query))
        return cls(query, partitioning, units, trend=trend, **settings)

    # --- what happened ------------------------------------------------------------------------------------------------

    def after(self, seen: Observation) -> History:
        """Takes in a batch. Batches in which the plan was being changed measure neither plan, and are not kept."""
        if seen.is_migrating:
            return replace(self.forgetting(), since=Since(), is_cooling=True)
        now = self if not self.recent or self.recent[-1].plan == seen.plan else self.forgetting()
        since = now.since.after(seen)
        is_cooling = now.is_cooling and not now.cool_down.has_passed(since.batches, since.seconds)
        if seen.seconds is None:
            return replace(now, since=since, is_cooling=is_cooling)
        work = priced(seen.step, self.units)
        return replace(
            now,
            since=since,
            is_cooling=is_cooling,
            spent=now.spent + max(work.work, seen.trigger or 0.0),
            recent=(*now.recent, seen)[-self.remember :],
            phases=now.phases.after(seen.seconds),
            trend=now.trend.after(work, seen.seconds),
            routes=now.routes.after(seen.step.routes) if now.trend.is_filled else now.routes,
            passed=now.passed + seen.seconds,
        )

    def forgetting(self) -> History:
        """Drops the recent batches: counts of another plan say nothing of the next one. Statistics are kept."""
        return replace(self, known=self.statistics, recent=(), trend=self.trend.restarted(), routes=RouteTrend())

    def spread(self, partitioning: Partitioning | None) -> History:
        """Takes another way of spreading rows over slots; counts under the last one no longer hold."""
        return replace(self, partitioning=partitioning, known=self.statistics, recent=())

    def waiting_to_settle(self) -> History:
        """Takes in that a decision waits because the streams are changing; batches before the change do not count."""
        earlier, later = self._halves
        now = replace(self, unsettled=self.unsettled + 1, recent=later)
        if self.changed_at is not None:
            return now
        phases = self.phases.began(self._measure(earlier, self.known), self.passed)
        return replace(now, changed_at=self.passed - _seconds(later), phases=phases)

    def decided(self, known: Knowledge) -> History:
        """Takes in that a decision was made with these statistics; later ones are compared with them."""
        changed = self.passed - self.changed_at if self.changed_at is not None else 0.0
        return replace(
            self,
            known=self.statistics,
            baseline=known,
            since=Since(),
            unsettled=0,
            changed_at=None,
            phases=self.phases.decided(known, max(self.measured_seconds, changed)),
            trend=self.trend.judged(),
        )

    def remembering(self, found: Iterable[PhysicalPlan]) -> History:
        """Adds plans to the candidates of later decisions; plans that ran are kept the longest."""
        tried = {name: plan for name, plan in self.plans.items() if name in self.experience.factors}
        latest = {**self.plans, **{str(plan): plan for plan in found}}
        return replace(self, plans={**tried, **dict(list(latest.items())[-MOST_PLANS:])})

    def recalling(self, decisions: Sequence[Mapping[str, Any]]) -> History:
        """Takes over statistics and plans of decisions of an earlier run, given as JSON; skips what cannot be read."""
        graph, grouping, now = self.query.graph, self.query.merging, self
        for record in decisions[-MOST_PLANS:]:
            with suppress(AnabranchError, AttributeError, KeyError, TypeError, ValueError):
                known = Knowledge.from_json(record["statistics"])
                plan = with_default_orders(validate(parse(record["plan"]), graph, grouping), graph)
                now = replace(now, known=known, plans={**now.plans, str(plan): plan})
        return now

    # --- questions ----------------------------------------------------------------------------------------------------

    @property
    def measured_seconds(self) -> float:
        """Event time of the recent batches."""
        return _seconds(self.recent)

    @cached_property
    def statistics(self) -> Knowledge:
        """The statistics of the recent batches, over those of earlier ones."""
        return self._measure(self.recent, self.known) if self.measured_seconds else self.known

    @cached_property
    def is_settled(self) -> bool:
        """True when the later batches are like the earlier ones, or when a decision has waited for that long enough."""
        earlier, later = self._halves
        if not _seconds(earlier) or not _seconds(later) or self.unsettled >= self.remember:
            return True
        empty = Knowledge()
        return self._measure(earlier, empty).drift(self._measure(later, empty)) <= CHANGED

    @property
    def batches(self) -> int:
        return self.since.batches

    @property
    def seconds(self) -> float:
        return self.since.seconds

    @property
    def waiting(self) -> Sequence[float]:
        return self.since.waiting

    @property
    def state_bytes(self) -> int:
        return self.recent[-1].step.state_bytes if self.recent else 0

    @property
    def change(self) -> float | None:
        return None if self.baseline is None else self.statistics.distance(self.baseline)

    @property
    def patience(self) -> int:
        return min(MOST_PATIENCE, 1 + self.fruitless.get("plan", 0))

    @property
    def is_telling(self) -> bool:
        if self.baseline is not None or len(self.recent) < TELLING_BATCHES:
            return False
        steps = [each.step for each in self.recent]
        names = [relation.name for relation in self.query.graph.streamed]
        return all(sum(step.rows_in.get(name, 0) for step in steps) >= TELLING_ROWS for name in names)

    @property
    def between(self) -> Sequence[float]:
        recent = self.recent[-self.since.batches :]
        return [
            float(intermediate_rows(each.step, each.plan, self.query.graph))
            for each in recent
            if not isinstance(each.plan, Mesh)
        ]

    @property
    def tests_promise(self) -> bool:
        """Whether the running mesh is held against its promise: with its first batches over full windows."""
        return self.promise is not None and self.remember <= self.trend.batches < 2 * self.remember

    @property
    def trigger(self) -> float | None:
        """Seconds of a whole trigger, on average over the recent batches; None where it is not known."""
        known = [each.trigger for each in self.recent if each.trigger is not None]
        return sum(known) / len(known) if known else None

    @cached_property
    def flow(self) -> Flow | None:
        """The rates of the recent batches whose rows match as those of the latest do; None while not known."""
        alike = self.recent[len(self.recent) - self._alike :]
        seconds = _seconds(alike)
        if not seconds:
            return None
        steps = merge(each.step for each in alike)
        return Flow(
            {name: rows / seconds for name, rows in steps.rows_in.items()},
            steps.rows_out / seconds,
            alike[-1].step.state_bytes,
            seconds / len(alike),
            steps,
            len(alike),
        )

    # --- inside -------------------------------------------------------------------------------------------------------

    @property
    def _halves(self) -> tuple[tuple[Observation, ...], tuple[Observation, ...]]:
        middle = len(self.recent) // 2
        return self.recent[:middle], self.recent[middle:]

    @property
    def _alike(self) -> int:
        """Of the recent batches, how many of the latest find as many matches for a row as those after them."""
        rows = matches = count = 0
        for seen in reversed(self.recent):
            more, found = seen.matches
            expected = matches / rows * more if rows else found
            if abs(found - expected) > (USUAL - 1) * expected + CHANCE * sqrt(max(expected, found)):
                break
            rows, matches, count = rows + more, matches + found, count + 1
        return count

    def _measure(self, recent: tuple[Observation, ...], before: Knowledge) -> Knowledge:
        seconds, plan = _seconds(recent), recent[-1].plan
        if isinstance(plan, Mesh):
            # A mesh evaluates no join for all rows of a relation, so only rates are measured.
            rows = merge(each.step for each in recent).rows_in
            return replace(before, rates={**before.rates, **{name: rows[name] / seconds for name in rows}})
        steps = [each.step for each in recent]
        numbers = measured(self.query, plan, steps, seconds, partitioning=self.partitioning)
        return before.renewed(numbers, seconds / len(recent))


def _seconds(several: Sequence[Observation]) -> float:
    return sum(each.seconds or 0.0 for each in several)
