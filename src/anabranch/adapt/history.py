"""The measured history of slots that adapt together: recent batches, statistics, phases, and the trend of costs.

Invariant: a `History` is a frozen value. Each batch and each decision creates a new one, and everything derived from it
is a pure function: whether the streams have settled, how far they have drifted, whether the last change is too recent.
Limit: a selectivity that the running plan never evaluates keeps its last known value.
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
"""The maximum number of batches in which policies look for a trend."""
MOST_PATIENCE = 8
"""The maximum number of intervals that a change of statistics waits."""
TELLING_BATCHES, TELLING_ROWS = 3, 1_000
"""The minimum number of batches, and of rows of each stream in them, for the first decision."""
MOST_PLANS = 32
"""The maximum number of plans that are kept as candidates of later decisions."""
CHANCE = 3.0
"""A difference of counts of up to this many standard deviations is attributed to chance (exceeded once in 370)."""


@dataclass(frozen=True)
class Observation:
    """One batch of slots that adapt together."""

    batch: int
    plan: Plan
    read: Callable[[], StepStatistics]
    """Returns the summed statistics of the slots; called on demand, because most batches do not need them."""
    seconds: float | None
    """Seconds of event time that it covers; None if unknown, as for the first batch."""
    waiting: int | None = None
    """The rows of the batch, which waited at the inputs when it began."""
    behind: float | None = None
    """Seconds from its newest event time to the time of day at its end."""
    is_migrating: bool = False
    """Whether a change of the plan was in progress during the batch."""
    backlog: float | None = None
    """Rows that wait in the sources; None if no source reports them."""
    trigger: float | None = None
    """Seconds of the whole trigger; None if unknown."""
    profiles: tuple[OperatorProfile, ...] | None = None
    """The profiles of all slots, if they were requested."""
    is_shared: bool = False
    """Whether the plan shares a join; then `advisors.sharing` decides on it."""

    @cached_property
    def step(self) -> StepStatistics:
        return self.read()

    @cached_property
    def matches(self) -> tuple[int, int]:
        """The number of rows, and of matches that they found."""
        return sum(self.step.rows_in.values()), sum(probe.matches for probe in self.step.probes)


@dataclass(frozen=True)
class Since:
    """Counts since the last decision, or since the last batch with a plan change in progress."""

    batches: int = 0
    seconds: float = 0.0
    waiting: tuple[float, ...] = ()
    behind: float | None = None
    """Seconds by which the first of these batches was behind the time of day."""

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
    """Rows per second, by relation."""
    results: float
    state_bytes: float
    batch: float
    """Seconds between batches."""
    step: StepStatistics = field(default_factory=StepStatistics, compare=False)
    """The counts of the slots in the batches."""
    batches: int = field(default=1, compare=False)

    @property
    def seconds(self) -> float:
        return self.batch * self.batches

    def held(self, relation: str) -> float:
        """Rows of a relation's state, on average over the batches."""
        return sum(state.rows for state in self.step.states if state.state == relation) / self.batches


@dataclass(frozen=True)
class Promise:
    """The expected cost of a row under a mesh at its decision, in seconds of one core."""

    each: float
    left: Plan | None = None
    """The plan that it replaced; None for a mesh that the query began with."""
    before: float = 0.0
    """The counted cost of a row under that plan."""


@dataclass(frozen=True)
class History:
    """The measurements and decisions of some slots of one query."""

    query: Query
    partitioning: Partitioning | None = None
    units: UnitCosts = ENGINE
    remember: int = REMEMBERED
    """The number of batches that are measured together."""
    cool_down: Interval = TEN_BATCHES
    """The time after a change of plan during which nothing is decided."""
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
    """The expected cost of the running mesh; compared with its counted cost once."""
    correction: float = 1.0
    """The counted cost of the last tested mesh divided by its expected cost, at least 1."""
    experience: Experience = field(default_factory=Experience)
    plans: Mapping[str, PhysicalPlan] = field(default_factory=dict)
    """Plans that ran or were listed, by their texts; candidates of later decisions."""
    passed: float = 0.0
    """Seconds of event time so far."""
    spent: float = 0.0
    """Seconds of work so far: of whole triggers or, if their length is unknown, of one core."""
    profiled: int = 0
    """How many times the slots have profiled their operators."""
    is_cooling: bool = False
    unsettled: int = 0
    """How many batches a decision has waited because the streams were changing."""
    changed_at: float | None = None
    """The event time, on the scale of `passed`, at which a change began that no decision has used yet."""
    fruitless: Mapping[str, int] = field(default_factory=dict)
    """The number of consecutive decisions that kept the plan, by advisor."""
    retry: float | None = None
    """Length of the phase, in seconds, at which a postponed change is reconsidered; None if nothing was postponed."""

    @classmethod
    def empty(cls, query: Query, partitioning: Partitioning | None, units: UnitCosts, **settings: Any) -> History:
        trend = CostTrend(longest_window(query))
        return cls(query, partitioning, units, trend=trend, **settings)

    # --- what happened ------------------------------------------------------------------------------------------------

    def after(self, seen: Observation) -> History:
        """Returns the history after a batch; batches with a plan change in progress are not kept."""
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
        """Returns the history without the counts of recent batches, which apply to one plan; keeps the statistics."""
        return replace(self, known=self.statistics, recent=(), trend=self.trend.restarted(), routes=RouteTrend())

    def spread(self, partitioning: Partitioning | None) -> History:
        """Returns the history for another partitioning, without the counts under the old one."""
        return replace(self, partitioning=partitioning, known=self.statistics, recent=())

    def waiting_to_settle(self) -> History:
        """Returns the history after a decision was delayed because the streams are changing.

        Drops the earlier half of the recent batches, which may precede the change.
        """
        earlier, later = self._halves
        now = replace(self, unsettled=self.unsettled + 1, recent=later)
        if self.changed_at is not None:
            return now
        phases = self.phases.began(self._measure(earlier, self.known), self.passed)
        return replace(now, changed_at=self.passed - _seconds(later), phases=phases)

    def decided(self, known: Knowledge) -> History:
        """Returns the history after a decision with these statistics, which become the baseline."""
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
        """Returns the history with additional candidates of later decisions; plans that ran are kept the longest."""
        tried = {name: plan for name, plan in self.plans.items() if name in self.experience.factors}
        latest = {**self.plans, **{str(plan): plan for plan in found}}
        return replace(self, plans={**tried, **dict(list(latest.items())[-MOST_PLANS:])})

    def recalling(self, decisions: Sequence[Mapping[str, Any]]) -> History:
        """Returns the history with statistics and plans of an earlier run's decisions, given as JSON.

        Skips decisions that cannot be read.
        """
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
        """Seconds of event time of the recent batches."""
        return _seconds(self.recent)

    @cached_property
    def statistics(self) -> Knowledge:
        """The statistics of the recent batches, completed by those of earlier ones."""
        return self._measure(self.recent, self.known) if self.measured_seconds else self.known

    @cached_property
    def is_settled(self) -> bool:
        """True if both halves of the recent batches have similar statistics, or a decision has waited long enough."""
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
        """True if the running mesh has an expected cost and runs its first batches over full windows."""
        return self.promise is not None and self.remember <= self.trend.batches < 2 * self.remember

    @property
    def trigger(self) -> float | None:
        """The mean seconds of a whole trigger over the recent batches; None if unknown."""
        known = [each.trigger for each in self.recent if each.trigger is not None]
        return sum(known) / len(known) if known else None

    @cached_property
    def flow(self) -> Flow | None:
        """The rates of the latest batches with similar numbers of matches per row; None if there are none."""
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
        """The number of latest batches that each have as many matches per row as those after it."""
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
