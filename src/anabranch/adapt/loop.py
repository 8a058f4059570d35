"""The adaptation loop of a running query: takes in the statistics of every batch, and decides now and then.

A state machine over batches. A policy suggests; the optimizer proposes; the gate judges. Policies compare with the
situation of the last decision.

- While the streams are changing, the measured numbers are a mix of old and new. A decision waits until the later half
  of the remembered batches agrees with the earlier, but not for ever.
- While the plan is being changed, and for the cool-down after it, the loop decides nothing. It does not learn from
  batches in which the plan was being changed: two plans at once measure neither.
- The loop computes statistics when a policy or a decision needs them.
- Plans that ran, and those that an optimizer listed, are remembered. They are candidates of every later decision, and
  are priced by its statistics (query logging, Zhu 2006, 26.1.4). A restart reads them from the history.
- A plan that runs, or has run, is priced by what was counted of it (`cost.counted`): the model's price times the factor
  by which the counts differed from it. A plan that never ran gets the factor of the one that runs, so an error that all
  plans share decides nothing.
- A change must pay back while the streams stay as they are. How long that is, is learnt from how long they stayed so
  before (`stability`), and a plan is charged for the next change too (`weighing`).
- A batch does not wait for the optimizer where that takes long (`searches`): the proposal is judged when a later batch
  ends, by the statistics of then. The decision still counts as one about the statistics that the search began with, so
  a drift during the search is noticed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from anabranch.adapt.decision import Decision, Rival
from anabranch.adapt.excess import Excess
from anabranch.adapt.experience import Experience, longest_window
from anabranch.adapt.knowledge import Knowledge
from anabranch.adapt.observation import Observation, Since
from anabranch.adapt.policy import Situation
from anabranch.adapt.rules import Criteria
from anabranch.adapt.searches import Search, Searches
from anabranch.adapt.settings import Settings
from anabranch.adapt.stability import Stability
from anabranch.adapt.weighing import IN_LINE, Weighing
from anabranch.cost.resources import ResourceModel, with_default_orders
from anabranch.cost.units import unit_costs
from anabranch.errors import AnabranchError
from anabranch.optimize.beside import price_of_sides
from anabranch.optimize.choice import choose
from anabranch.optimize.problem import resource_model
from anabranch.optimize.proposals import Proposal
from anabranch.plan.check import validate
from anabranch.plan.mesh import Mesh
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.physical import PhysicalPlan
from anabranch.plan.query import Query
from anabranch.plan.text import parse
from anabranch.stats.measured import intermediate_rows, measured
from anabranch.stats.view import Layered, StatisticsView

SETTLED = 1.5
"""The factor up to which two halves of the remembered batches agree."""

MOST_RIVALS = 6
"""The number of plans that a decision lists beside the one proposed."""

MOST_SEEN = 32
"""Plans that are remembered once they were proposed or listed: one of them may be never best and never bad."""

DECIDING = 0.002
"""Seconds of a core that a decision is taken to need for each relation."""

SHARE = 0.1
"""The share of what the plan has taken so far that decisions may take on statistics that did not make it dearer."""

MOST_PATIENCE = 8
"""Intervals that a change of statistics waits at most, however many before it changed nothing."""

DEAR = 10
"""Decisions by whose price the first batches may be dear: then the first one is made as soon as rows enough are in."""

TELLING_BATCHES, TELLING_ROWS = 3, 1_000
"""Batches, and rows of each stream in them, by which a query decides for the first time."""


@dataclass(frozen=True)
class _Found:
    """The outcome of a search."""

    plan: PhysicalPlan
    others: tuple[Rival, ...] = ()
    """The plans that lost, the best first."""


@dataclass(frozen=True)
class _Proposed:
    """A search for a better plan, and the situation in which it began."""

    batch: int
    trigger: str
    known: Knowledge
    found: Search[_Found]


class Loop:
    """The adaptation of one query, or of one of its slots."""

    def __init__(self, query: Query, settings: Settings, criteria: Criteria, searches: Searches | None = None) -> None:
        self.settings = settings
        self.criteria = criteria
        self._searches = searches or Searches()
        self._search: _Proposed | None = None
        self._query = query
        self._known = Knowledge()
        self._baseline: Knowledge | None = None
        self._is_cooling = False
        self._since = Since()
        self._put_off = 0
        self._recent: tuple[Observation, ...] = ()
        self._stability = Stability()
        self._passed = 0.0
        self._tried = Experience()
        self._seen: dict[str, PhysicalPlan] = {}
        self._changed_at: float | None = None
        """Event time at which a change began that no decision has taken in yet."""
        self._look_again: float | None = None
        """Seconds of a phase after which a plan is looked at again that was put off."""
        self._units = unit_costs(criteria.given)[0]
        self._excess = Excess(longest_window(query))
        self._models: dict[int, tuple[Knowledge, ResourceModel]] = {}
        self._owed: str | None = None
        """Why a decision is due that has been put off because it would be dear."""
        self._fruitless = 0
        """Decisions on news since the last change of plan that found the plan in force to be the best, or as good."""

    def spread(self, partitioning: Partitioning | None) -> None:
        """Takes another way of spreading rows over slots; what was counted under the last one no longer counts."""
        self.criteria = replace(self.criteria, partitioning=partitioning)
        self._recent, self._search, self._models = (), None, {}

    @property
    def view(self) -> StatisticsView:
        """The measured statistics, over those from before the run."""
        return Layered((self._known.view, self.criteria.given))

    def recall(self, decisions: Sequence[Mapping[str, Any]]) -> None:
        """Takes over the measured statistics and the plans in force of earlier decisions, given as JSON.

        A record that cannot be read, or whose plan does not fit the query, is skipped.
        """
        graph, grouping = self._query.graph, self._query.merging
        for record in decisions[-MOST_SEEN:]:
            with suppress(AnabranchError, AttributeError, KeyError, TypeError, ValueError):
                known = Knowledge.from_json(record["statistics"])
                plan = with_default_orders(validate(parse(record["plan"]), graph, grouping), graph)
                self._known, self._seen[str(plan)] = known, plan

    @property
    def known(self) -> Knowledge:
        """What has been measured so far."""
        return self._known

    @property
    def experience(self) -> Experience:
        """What was counted of the plans that ran."""
        return self._tried

    @property
    def has_learned(self) -> bool:
        """True once batches have been measured; measures the latest ones."""
        self._learn()
        return bool(self._known.rates)

    def watch(self, seen: Observation) -> None:
        """Takes in a batch without deciding anything: others decide."""
        if seen.is_migrating:
            self._since, self._recent, self._is_cooling, self._search = Since(), (), True, None
        else:
            self._take_in(seen)

    def observe(self, seen: Observation) -> Decision | None:
        """Takes in a batch; returns a decision when one was due and its search has ended."""
        if seen.is_migrating:
            # A search that still runs was begun for another plan.
            self._since, self._recent, self._is_cooling, self._search = Since(), (), True, None
            return None
        self._take_in(seen)
        since = self._since
        if self._is_cooling and not self.settings.gate.cool_down.has_passed(since.batches, since.seconds):
            return None
        self._is_cooling = False
        if self._search is None:
            situation = Situation(
                since.batches,
                since.seconds,
                lambda: seen.step.state_bytes,
                self._change,
                since.waiting,
                self._between,
                self._is_telling,
                self.criteria.budget.total_memory,
                self._patience,
            )
            if self._put_off and not self._is_settled():
                return None
            trigger = self._outlasted() or self._overspent()
            news = None if trigger is not None else self.settings.policy.suggestion(situation)
            trigger = trigger or news or (self._owed if self._is_cheap else None)
            if trigger is None or not self._learned_seconds or (not self._put_off and not self._is_settled()):
                return None
            if trigger is news and not self._is_cheap:
                self._notice(trigger)
                return None
            self._search = self._begin_search(seen.batch, trigger)
        if not self._search.found.is_done:
            return None
        search, self._search = self._search, None
        is_first = self._baseline is None
        self._renew(search.known)
        self._excess.judged()
        self._owed = None
        decision = self._decide(seen, search)
        if decision is not None:
            is_fruitless = decision.action == "keep" and self._look_again is None and not is_first
            self._fruitless = self._fruitless + 1 if is_fruitless else 0
        return decision

    # --- what was seen ------------------------------------------------------------------------------------------------

    def _take_in(self, seen: Observation) -> None:
        """Takes in a batch without deciding anything."""
        if self._recent and self._recent[-1].plan != seen.plan:
            # What was counted of another plan says nothing of this one.
            self._recent = ()
            self._excess.begin()
        self._since = self._since.after(seen)
        if seen.seconds is None:
            return
        self._excess.note(seen.priced(self._units), seen.seconds)
        self._passed += seen.seconds
        self._stability = self._stability.after(seen.seconds)
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
        numbers = measured(self._query, recent[-1].plan, steps, seconds, partitioning=self.criteria.partitioning)
        return before.renewed(numbers, seconds / len(recent))

    def _is_settled(self) -> bool:
        """True when the later batches are like the earlier ones, or when the loop has waited long enough for that."""
        earlier, later = self._recent[: len(self._recent) // 2], self._recent[len(self._recent) // 2 :]
        if not _seconds(earlier) or not _seconds(later) or self._put_off >= self.settings.remember:
            return True
        if self._measure(earlier, Knowledge()).drift(self._measure(later, Knowledge())) <= SETTLED:
            return True
        self._put_off += 1
        if self._changed_at is None:
            self._changed_at = self._passed - _seconds(later)
            self._stability = self._stability.began(self._measure(earlier, self._known), self._passed)
        # What came before the change says nothing of what comes after it.
        self._recent = later
        return False

    def _change(self) -> float | None:
        return None if self._baseline is None else self._learn().distance(self._baseline)

    def _is_telling(self) -> bool:
        """True when nothing has been decided yet, and the first batches have rows enough to decide by."""
        is_dear = self._excess.taken > DEAR * self._price
        if self._baseline is not None or len(self._recent) < (1 if is_dear else TELLING_BATCHES):
            return False
        steps = [each.step for each in self._recent]
        names = [relation.name for relation in self._query.graph.streamed]
        return all(sum(step.rows_in.get(name, 0) for step in steps) >= TELLING_ROWS for name in names)

    def _between(self) -> tuple[float, ...]:
        recent = self._recent[-self._since.batches :]
        return tuple(float(intermediate_rows(each.step, each.plan, self._query.graph)) for each in recent)

    # --- what to do ---------------------------------------------------------------------------------------------------

    def _begin_search(self, batch: int, trigger: str) -> _Proposed:
        """Asks the optimizer, in line where that is quick."""
        known = self._learn()
        search = partial(_best_plan, self._query, self.view, self.criteria, known.batch)
        found = self._searches.begin("a plan", search, is_long=len(self._query.graph.names) > IN_LINE)
        return _Proposed(batch, trigger, known, found)

    def _decide(self, seen: Observation, search: _Proposed) -> Decision | None:
        """Judges the plan that a search has found; None when the search failed."""
        outcome = search.found.outcome()
        if outcome is None:
            return None
        proposed = outcome.plan
        known = search.known if search.batch == seen.batch else self._learn()
        criteria = self.criteria
        spread = criteria.partitioning
        model = resource_model(self._query.graph, self.view, known.batch, self._query.merging, spread)
        self.criteria = criteria = criteria.met(self._query, self.view, model)
        current = with_default_orders(seen.plan, self._query.graph)
        steps = [each.step for each in self._recent]
        self._tried = self._tried.after(current, steps, self._learned_seconds, model, self._query.graph)
        lasting = {id(phase.known) for phase in self._stability.phases}
        self._models = {known: each for known, each in self._models.items() if known in lasting}
        weighing = Weighing(
            self._query, self.settings, criteria, self._stability, self._tried, model, current, self._models
        )
        decision = Decision(
            batch=seen.batch,
            action="keep",
            policy=self.settings.policy.name,
            trigger=search.trigger,
            plan=seen.plan,
            cost=weighing.price(current),
            proposed=proposed,
            proposed_cost=weighing.price(proposed),
            origin="optimizer",
            price=None,
            reason="the plan in force is the best that is known",
            statistics=known,
            rivals=outcome.others[:MOST_RIVALS],
        )
        chosen = weighing.choose(decision, self._candidates(proposed, outcome.others, current))
        best, self._look_again = chosen.decision, chosen.look_again
        if best.action == "migrate" and self.settings.freeze:
            best = replace(best, action="keep", reason=f"frozen; otherwise: {best.reason}")
        return best

    def _candidates(
        self, proposed: PhysicalPlan, rivals: tuple[Rival, ...], current: PhysicalPlan
    ) -> list[PhysicalPlan]:
        """The plan that is proposed, those listed beside it, and those that were proposed or listed before."""
        listed = [each.plan for each in rivals if not isinstance(each.plan, Mesh)]
        found = {str(plan): plan for plan in (proposed, *listed)}
        tried = {name: plan for name, plan in self._seen.items() if name in self._tried.factors}
        self._seen = {**tried, **dict(list({**self._seen, **found}.items())[-MOST_SEEN:]), str(current): current}
        return list({**found, **self._seen}.values())

    def _outlasted(self) -> str | None:
        """The reason to look again at what was put off: the streams have stayed as they are for long."""
        if self._look_again is None or self._stability.lasted < self._look_again:
            return None
        self._look_again = None
        return f"the streams have stayed as they are for {self._stability.lasted:.3g} s"

    @property
    def _patience(self) -> int:
        """How many intervals a change of statistics has to wait: what swings and changes nothing is no news."""
        return min(MOST_PATIENCE, 1 + self._fruitless)

    @property
    def _is_cheap(self) -> bool:
        """Whether a decision, and those before it that led to nothing, take a small share of what the plan took."""
        is_free = self.settings.policy.is_strict or not self._fruitless or not self.settings.foresight
        return is_free or (1 + self._fruitless) * self._price <= SHARE * self._excess.taken

    @property
    def _price(self) -> float:
        """Seconds of a core that a decision is taken to need."""
        return DECIDING * len(self._query.graph.names)

    def _notice(self, trigger: str) -> None:
        """Takes in that the streams have changed; the decision is owed until it is cheap, or waiting has its price."""
        self._renew(self._learn())
        self._owed = trigger

    def _renew(self, known: Knowledge) -> None:
        """Takes other statistics as those that later ones are compared with; another phase may have begun."""
        self._baseline, self._since, self._put_off = known, Since(), 0
        changed = self._passed - self._changed_at if self._changed_at is not None else 0.0
        self._stability = self._stability.decided(known, max(self._learned_seconds, changed))
        self._changed_at = None

    def _overspent(self) -> str | None:
        """The reason not to wait for the interval: waiting has cost what deciding costs.

        Where a change was put off, it is known how long it is waited for.
        """
        if not self.settings.foresight or self.settings.policy.is_strict or self._look_again is not None:
            return None
        if self._excess.paid <= self._price * (1 + self._fruitless):
            return None
        return f"what a row takes changed by a factor of {self._excess.factor:.3g}"


def _best_plan(query: Query, view: StatisticsView, criteria: Criteria, batch: float) -> _Found:
    """The plan that the optimizer would choose now; the nearest one where no plan keeps the limits."""
    answer = choose(
        query.graph,
        view,
        criteria.budget,
        criteria.objective,
        criteria.hints,
        batch=batch,
        grouping=query.merging,
        partitioning=criteria.partitioning,
        beside=price_of_sides(query, view, batch),
        around=criteria.around(query, view),
    ).answer
    plan = answer.plan if isinstance(answer, Proposal) else answer.best
    lost = [each for each in answer.considered if each.plan != plan]
    best = sorted(lost, key=lambda each: (each.standing != "lost", each.cost.cpu))[:MOST_SEEN]
    return _Found(plan, tuple(Rival(each.plan, each.cost, each.reason) for each in best))


def _seconds(several: tuple[Observation, ...]) -> float:
    return sum(each.seconds or 0.0 for each in several)
