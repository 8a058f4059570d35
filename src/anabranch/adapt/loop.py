"""The loop around a running query: statistics in after every batch, now and then a decision out.

A state machine over batches. A policy suggests; the library, else the optimizer, proposes; the gate judges; the
decision is recorded. What policies compare with moves only when a decision is taken.

- While the streams are just changing, what was measured belongs half to yesterday: a decision waits until the later
  half of the remembered batches agrees with the earlier, though not for ever.
- While the plan is being changed, and for the cool-down after it, nothing is decided. Batches in which it is being
  changed are not learned from: two plans at once measure neither.
- Statistics are worked out when a policy or a decision asks for them, so that a batch in which nothing is due costs
  next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from anabranch.adapt.decision import Decision, Origin
from anabranch.adapt.gate import Price, Verdict, judge
from anabranch.adapt.knowledge import Knowledge
from anabranch.adapt.library import Library
from anabranch.adapt.memory import LoopMemory
from anabranch.adapt.policy import Situation, suggestion
from anabranch.adapt.pricing import prices
from anabranch.adapt.settings import Settings
from anabranch.cost.resources import ResourceModel, with_default_orders
from anabranch.optimize.choice import choose, resource_model
from anabranch.optimize.hints import Hints, Objective
from anabranch.optimize.strategy import Budget, Proposal
from anabranch.plan.check import validate
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.physical import PhysicalPlan
from anabranch.plan.query import Query
from anabranch.stats.measured import intermediate_rows, measured
from anabranch.stats.step import StepStatistics
from anabranch.stats.view import NOTHING_KNOWN, Layered, StatisticsView

REMEMBERED_WAITING = 64
"""Batches in which a trend is looked for."""

SETTLED = 1.5
"""The factor up to which two halves of the remembered batches agree."""

Pricing = Callable[[JoinGraph, PhysicalPlan, PhysicalPlan, ResourceModel], tuple[Price, ...]]
"""The ways from one plan of a join graph to another, each with its price, the best first."""


@dataclass(frozen=True)
class Observation:
    """What one batch tells."""

    batch: int
    plan: PhysicalPlan
    read: Callable[[], StepStatistics]
    """Reads what its slots did, which costs something, and most batches are never asked."""
    seconds: float | None
    """Event time that passed with it; None when that is not known, as with the first batch."""
    waiting: int | None = None
    """Rows that waited at the inputs when it began and that it took, as far as a source lets a batch take them all."""
    behind: float | None = None
    """Seconds from its newest event time to the time of day when it was done."""
    is_migrating: bool = False
    """Whether the plan was being changed during any of it."""

    @cached_property
    def step(self) -> StepStatistics:
        return self.read()


@dataclass(frozen=True)
class Means:
    """What a loop may decide with, beside its settings: as for the choice of the first plan."""

    given: StatisticsView = NOTHING_KNOWN
    budget: Budget = field(default_factory=Budget)
    objective: Objective = field(default_factory=Objective)
    hints: Hints = field(default_factory=Hints)
    partitioning: Partitioning | None = None
    """How the rows were spread over the slots that are observed together."""
    pricing: Pricing = prices


@dataclass(frozen=True)
class _Since:
    """The stretch since the last decision, or since the plan was last being changed."""

    batches: int = 0
    seconds: float = 0.0
    waiting: tuple[float, ...] = ()
    behind: float | None = None
    """How far behind the first batch of the stretch was."""

    def after(self, seen: Observation) -> _Since:
        behind = seen.behind if self.behind is None else self.behind
        waiting = () if seen.waiting is None else (seen.waiting + _left_waiting(seen, behind),)
        return _Since(
            self.batches + 1,
            self.seconds + (seen.seconds or 0.0),
            (*self.waiting, *waiting)[-REMEMBERED_WAITING:],
            behind,
        )


def _left_waiting(seen: Observation, behind: float | None) -> float:
    """Rows that a batch did not take: what came in the time by which the query has fallen further behind."""
    if seen.waiting is None or seen.behind is None or behind is None or not seen.seconds:
        return 0.0
    return max(0.0, seen.behind - behind) * seen.waiting / seen.seconds


class Loop:
    """The adaptation of one query, or of one of its slots."""

    def __init__(self, query: Query, settings: Settings, means: Means) -> None:
        self.settings = settings
        self.means = means
        self.library = Library()
        self._query = query
        self._known = Knowledge()
        self._baseline: Knowledge | None = None
        self._is_cooling = False
        self._since = _Since()
        self._put_off = 0
        self._recent: tuple[Observation, ...] = ()

    @property
    def view(self) -> StatisticsView:
        """What is known by now, over what was given."""
        return Layered((self._known.view, self.means.given))

    @property
    def memory(self) -> LoopMemory:
        """The statistics and plans that the loop has learnt, and the wishes they hold for."""
        return LoopMemory(self._wishes, self._known, self.library)

    def recall(self, memory: LoopMemory) -> None:
        """Begins with what another loop of the query has learnt, unless that loop had other wishes."""
        if memory.wishes != self._wishes:
            return
        graph, grouping = self._query.graph, self._query.grouping
        entries = tuple(
            # A plan can be priced once it has its orders, which a plan that was written by hand may lack.
            replace(entry, plan=with_default_orders(validate(entry.plan, graph, grouping), graph))
            for entry in memory.library.entries
        )
        self._known, self.library = memory.known, replace(memory.library, entries=entries)

    @property
    def _wishes(self) -> str:
        return f"{self.means.budget} {self.means.objective} {self.means.hints}"

    def observe(self, seen: Observation) -> Decision | None:
        """Takes in a batch; a decision when one was due."""
        if seen.is_migrating:
            self._since, self._recent, self._is_cooling = _Since(), (), True
            return None
        self._note(seen)
        since = self._since
        if self._is_cooling and not self.settings.gate.cool_down.has_passed(since.batches, since.seconds):
            return None
        self._is_cooling = False
        situation = Situation(
            since.batches, since.seconds, lambda: seen.step.state_bytes, self._change, since.waiting, self._between
        )
        trigger = suggestion(self.settings.policy, situation)
        if trigger is None or not self._learned_seconds or not self._is_settled():
            return None
        decision = self._decide(seen, trigger)
        self._baseline, self._since, self._put_off = decision.statistics, _Since(), 0
        return decision

    # --- what was seen ------------------------------------------------------------------------------------------------

    def _note(self, seen: Observation) -> None:
        self._since = self._since.after(seen)
        if self._recent and self._recent[-1].plan != seen.plan:
            self._recent = ()
        if seen.seconds is not None:
            self._recent = (*self._recent, seen)[-self.settings.remember :]

    @property
    def _learned_seconds(self) -> float:
        return _seconds(self._recent)

    def _learn(self) -> Knowledge:
        if self._learned_seconds:
            self._known = self._measure(self._recent, self._known)
        return self._known

    def _measure(self, recent: tuple[Observation, ...], before: Knowledge) -> Knowledge:
        seconds = _seconds(recent)
        steps = [each.step for each in recent]
        numbers = measured(self._query, recent[-1].plan, steps, seconds, partitioning=self.means.partitioning)
        return before.renewed(numbers, seconds / len(recent))

    def _is_settled(self) -> bool:
        """Whether the later batches are like the earlier ones; yes, too, when that has been waited for long enough."""
        earlier, later = self._recent[: len(self._recent) // 2], self._recent[len(self._recent) // 2 :]
        if not _seconds(earlier) or not _seconds(later) or self._put_off >= self.settings.remember:
            return True
        if self._measure(earlier, Knowledge()).drift(self._measure(later, Knowledge())) <= SETTLED:
            return True
        self._put_off += 1
        return False

    def _change(self) -> float | None:
        known = self._learn()
        return None if self._baseline is None else known.distance(self._baseline)

    def _between(self) -> tuple[float, ...]:
        recent = self._recent[-self._since.batches :]
        return tuple(float(intermediate_rows(each.step, each.plan, self._query.graph)) for each in recent)

    # --- what to do ---------------------------------------------------------------------------------------------------

    def _decide(self, seen: Observation, trigger: str) -> Decision:
        known, means = self._learn(), self.means
        view = self.view
        model = resource_model(self._query.graph, view, known.batch, self._query.grouping)
        current = with_default_orders(seen.plan, self._query.graph)
        proposed, origin = self._proposed(known, view)
        decision = Decision(
            batch=seen.batch,
            action="keep",
            policy=self.settings.policy.name,
            trigger=trigger,
            plan=seen.plan,
            cost=model.price(current),
            proposed=proposed,
            proposed_cost=model.price(proposed),
            origin=origin,
            price=None,
            reason="the plan in force is the best that is known",
            statistics=known,
        )
        if str(proposed) == str(current):
            return decision
        wished = self.settings.strategy
        ways = means.pricing(self._query.graph, current, proposed, model)
        price = next((way for way in ways if wished in ("auto", way.strategy) or way.strategy == "none"), None)
        if price is None:
            return replace(decision, reason=f"{wished} cannot serve this change")
        verdict = judge(self.settings.gate, decision.cost, decision.proposed_cost, price, means.objective, means.budget)
        if verdict.passed and self.settings.freeze:
            verdict = Verdict(False, f"frozen; otherwise: {verdict.reason}")
        return replace(decision, action="migrate" if verdict.passed else "keep", price=price, reason=verdict.reason)

    def _proposed(self, known: Knowledge, view: StatisticsView) -> tuple[PhysicalPlan, Origin]:
        entry = self.library.find(known)
        if entry is not None:
            self.library = self.library.used(entry)
            return entry.plan, "library"
        means = self.means
        answer = choose(
            self._query.graph,
            view,
            means.budget,
            means.objective,
            means.hints,
            batch=known.batch,
            grouping=self._query.grouping,
        ).answer
        proposed = answer.plan if isinstance(answer, Proposal) else answer.best
        self.library = self.library.learn(known, proposed)
        return proposed, "optimizer"


def _seconds(several: tuple[Observation, ...]) -> float:
    return sum(each.seconds or 0.0 for each in several)
