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
from typing import Any

from anabranch.adapt.cost_trend import SEVERAL, CostTrend
from anabranch.adapt.experience import MOST_PLANS, Experience, longest_window
from anabranch.adapt.facts import COOLING, REMEMBERED, TEN_BATCHES, BatchFacts, Interval, Since
from anabranch.adapt.gate import Gate
from anabranch.adapt.knowledge import CHANGED, Knowledge, factor
from anabranch.adapt.stability import Stability
from anabranch.cost.resources import with_default_orders
from anabranch.cost.steps import price_of_step
from anabranch.cost.units import ENGINE, UnitCosts
from anabranch.errors import AnabranchError
from anabranch.mesh.drift import RouteTrend
from anabranch.plan.check import validate
from anabranch.plan.mesh import Mesh, Plan
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.physical import PhysicalPlan
from anabranch.plan.query import Query
from anabranch.plan.text import parse
from anabranch.stats.measured import arrivals, intermediate_rows, measured
from anabranch.stats.mesh.profiles import OperatorProfile
from anabranch.stats.step import StepStatistics, merge

TELLING_ROWS = 1_000
"""The minimum number of rows of each stream for the first decision."""


@dataclass(frozen=True)
class Observation:
    """One batch of slots that adapt together."""

    facts: BatchFacts
    plan: Plan
    read: Callable[[], StepStatistics]
    """Returns the summed statistics of the slots; called on demand, because most batches do not need them."""
    is_migrating: bool = False
    """Whether a change of the plan was in progress during the batch."""
    profiles: tuple[OperatorProfile, ...] | None = None
    """The profiles of all slots, if they were requested."""
    is_shared: bool = False
    """Whether the plan shares a join; then `advisors.sharing` decides on it."""

    @property
    def batch(self) -> int:
        return self.facts.batch

    @property
    def seconds(self) -> float:
        """Seconds of event time; 0 if unknown."""
        return self.facts.seconds or 0.0

    @cached_property
    def step(self) -> StepStatistics:
        return self.read()


@dataclass(frozen=True)
class Flow:
    """The counts of some slots in several batches of one plan."""

    step: StepStatistics
    batches: int
    seconds: float
    state_bytes: int
    """After the last of the batches."""

    @property
    def batch(self) -> float:
        """Seconds between batches."""
        return self.seconds / self.batches

    @cached_property
    def rates(self) -> dict[str, float]:
        """Rows per second of event time, by relation."""
        return {name: rows / self.seconds for name, rows in self.step.rows_in.items()}

    @property
    def results(self) -> float:
        """Results per second of event time."""
        return self.step.rows_out / self.seconds

    def held(self, relation: str) -> float:
        """Rows of a relation's state, on average over the batches."""
        return sum(state.rows for state in self.step.states if state.state == relation) / self.batches


@dataclass(frozen=True)
class Promise:
    """The expected cost of a row under a mesh, in seconds of one core, as `cost_trend` counts them."""

    mesh: Mesh
    each: float
    left: Plan | None = None
    """The plan that it replaced; None for a mesh that the query began with."""
    before: float = 0.0
    """The cost of a row under that plan."""


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
    """The expected cost of the running mesh, until the next decision."""
    correction: float = 1.0
    """The counted cost of the last tested mesh divided by its expected cost, at least 1."""
    experience: Experience = field(default_factory=Experience)
    plans: Mapping[str, PhysicalPlan] = field(default_factory=dict)
    """Plans that ran or were listed, by their texts; candidates of later decisions."""
    passed: float = 0.0
    """Seconds of event time so far."""
    unsettled: int = 0
    """How many batches a decision has waited because the streams were changing."""
    fruitless: Mapping[str, int] = field(default_factory=dict)
    """The number of consecutive decisions that kept the plan, by advisor."""
    retry: float | None = None
    """Length of the phase, in seconds, at which a postponed change is reconsidered; None if nothing was postponed."""

    @classmethod
    def empty(cls, query: Query, partitioning: Partitioning | None, units: UnitCosts, **settings: Any) -> History:
        return cls(query, partitioning, units, trend=CostTrend(longest_window(query)), **settings)

    # --- what happened ------------------------------------------------------------------------------------------------

    def after(self, seen: Observation) -> History:
        """Returns the history after a batch; batches with a plan change in progress are not kept."""
        if seen.is_migrating:
            return replace(self.forgetting(), since=COOLING)
        now = self if not self.recent or self.recent[-1].plan == seen.plan else self.forgetting()
        now = replace(now, since=now.since.after(seen.facts, now.cool_down))
        if seen.facts.seconds is None:
            return now
        return replace(
            now,
            recent=(*now.recent, seen)[-self.remember :],
            phases=now.phases.after(seen.seconds),
            trend=now.trend.after(price_of_step(seen.step, self.units), sum(seen.step.rows_in.values()), seen.seconds),
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
        return replace(self, unsettled=self.unsettled + 1, recent=self._halves[1])

    def decided(self, known: Knowledge) -> History:
        """Returns the history after a decision with these statistics, which become the baseline."""
        return replace(
            self,
            known=self.statistics,
            baseline=known,
            since=Since(),
            unsettled=0,
            phases=self.phases.decided(known, self.measured_seconds),
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
    def batch(self) -> int:
        """The latest batch."""
        return self.recent[-1].batch

    @property
    def plan(self) -> Plan:
        """The plan of the latest batch."""
        return self.recent[-1].plan

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
        one, two = (self._measure(half, Knowledge()) for half in (earlier, later))
        if isinstance(later[-1].plan, Mesh) and self.trend.is_filled:
            return max(one.drift(two), factor(_matches(earlier), _matches(later))) <= CHANGED
        return one.drift(two) <= CHANGED

    @property
    def state_bytes(self) -> int:
        return self.recent[-1].step.state_bytes if self.recent else 0

    @property
    def change(self) -> float | None:
        """The largest factor by which a rate or selectivity differs from the last decision; None before the first."""
        return None if self.baseline is None else self.statistics.distance(self.baseline)

    @property
    def patience(self) -> int:
        """The number of intervals to wait, which grows with consecutive decisions that kept the plan, to a limit."""
        advisor = "routes" if self.recent and isinstance(self.recent[-1].plan, Mesh) else "plan"
        return min(REMEMBERED, 1 + self.fruitless.get(advisor, 0))

    @property
    def is_telling(self) -> bool:
        """True if there was no decision yet and the first batches have enough rows for one."""
        if self.baseline is not None or len(self.recent) < SEVERAL:
            return False
        rows = merge(each.step for each in self.recent).rows_in
        return all(rows.get(relation.name, 0) >= TELLING_ROWS for relation in self.query.graph.streamed)

    @property
    def between(self) -> Sequence[float]:
        """Intermediate rows of each batch since the last decision."""
        return [
            float(intermediate_rows(each.step, each.plan, self.query.graph))
            for each in self.recent[-self.since.batches :]
            if not isinstance(each.plan, Mesh)
        ]

    def in_triggers(self, gate: Gate, slots: int) -> Gate:
        """Returns the gate in which the CPU to save is a fraction of the recent triggers, if their length is known."""
        known = [each.facts.trigger for each in self.recent if each.facts.trigger is not None]
        if not known or not self.measured_seconds:
            return gate
        return gate.within(sum(known) / len(known), self.measured_seconds / len(self.recent), slots)

    @cached_property
    def flow(self) -> Flow | None:
        """The counts of the recent batches; None if there are none."""
        if not self.measured_seconds:
            return None
        step = merge(each.step for each in self.recent)
        return Flow(step, len(self.recent), self.measured_seconds, self.state_bytes)

    # --- inside -------------------------------------------------------------------------------------------------------

    @property
    def _halves(self) -> tuple[tuple[Observation, ...], tuple[Observation, ...]]:
        middle = len(self.recent) // 2
        return self.recent[:middle], self.recent[middle:]

    def _measure(self, recent: tuple[Observation, ...], before: Knowledge) -> Knowledge:
        seconds, plan = _seconds(recent), recent[-1].plan
        steps = [each.step for each in recent]
        if isinstance(plan, Mesh):
            # A mesh evaluates no join for all rows of a relation, so no selectivity is measured.
            numbers = arrivals(self.query.graph, steps, seconds, self.partitioning)
        else:
            known = before.selectivities
            numbers = measured(self.query, plan, steps, seconds, partitioning=self.partitioning, before=known)
        return before.renewed(numbers, seconds / len(recent))


def _seconds(several: Sequence[Observation]) -> float:
    return sum(each.seconds for each in several)


def _matches(several: Sequence[Observation]) -> float:
    """Returns the matches per row in some batches."""
    rows = sum(sum(each.step.rows_in.values()) for each in several)
    return sum(probe.matches for each in several for probe in each.step.probes) / max(1, rows)
