"""Decides on the plan of slots that adapt together, with their history and the advisors.

After each batch the controller updates the frozen history, looks for a reason to search (`policy`, or an advisor's
own), waits until the streams have settled, runs the advisor's search and returns its decision. Invariant: at most one
search runs at a time, and none is started during a change of plan or its cool-down. Limit: the controller never changes
a plan; `query_steering` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from anabranch.adapt.advisors.advisor import Advisor, Suggestion
from anabranch.adapt.advisors.plan import PlanAdvisor
from anabranch.adapt.advisors.routes import RouteAdvisor
from anabranch.adapt.gate import Gate
from anabranch.adapt.history import History, Observation
from anabranch.adapt.knowledge import Knowledge
from anabranch.adapt.policy import Reason
from anabranch.adapt.records import Decision
from anabranch.adapt.rules import ChangeRules, Criteria
from anabranch.adapt.searches import Searches, outcome
from anabranch.adapt.settings import Settings
from anabranch.cost.units import unit_costs
from anabranch.mesh.drift import RouteTrend
from anabranch.plan.mesh import Plan
from anabranch.plan.query import Query


@dataclass(frozen=True)
class _Pending:
    """A started search, and its situation: the plan and the statistics."""

    advisor: Advisor
    reason: Reason
    plan: Plan
    known: Knowledge
    found: Future[Any]


class Controller:
    """Adapts some slots of one query."""

    def __init__(
        self, query: Query, rules: ChangeRules, slots: tuple[int, ...], searches: Searches | None = None
    ) -> None:
        self.slots = slots
        self.rules = rules
        self.searches = searches or Searches(waits=rules.waits)
        settings = self.settings
        units = unit_costs(rules.criteria.given)[0]
        self.history = History.empty(
            query,
            rules.criteria.partitioning,
            units,
            remember=settings.remember,
            cool_down=settings.gate.cool_down,
            promise=rules.promise,
        )
        self._is_join = len(query.graph.names) > 1
        self._pending: _Pending | None = None
        self.is_frozen = settings.freeze
        """Whether decisions are only recorded."""
        self._asked: tuple[Advisor, Reason] | None = None
        """The advisor that waits for profiles, and its reason."""

    # --- settings -----------------------------------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        return self.rules.adapt or Settings()

    @property
    def criteria(self) -> Criteria:
        return self.rules.criteria

    @property
    def adapts(self) -> bool:
        """True if any plan is allowed; otherwise only meshes are learnt."""
        return self.rules.adapt is not None and self._is_join

    @property
    def is_active(self) -> bool:
        """True if an advisor may propose a change of the plan."""
        return self.adapts or (self.rules.first_search is not None and self._is_join)

    @property
    def gate(self) -> Gate:
        """The gate for the length of the current triggers."""
        return self.history.in_triggers(self.settings.gate, self.criteria.budget.slots)

    def spread(self, rules: ChangeRules) -> None:
        """Takes rules with another partitioning; discards the search for the old one."""
        self.rules = rules
        self.history, self._pending = self.history.spread(rules.criteria.partitioning), None

    @property
    def _advisors(self) -> tuple[Advisor, ...]:
        """The advisors in the order in which they are asked."""
        advisors: list[Advisor] = [PlanAdvisor(self.settings, self.criteria)] if self.adapts else []
        if (first := self.rules.first_search) is not None:
            advisors.append(RouteAdvisor(self.settings, self.criteria, first, self.adapts))
        return tuple(advisors)

    # --- batches ------------------------------------------------------------------------------------------------------

    @property
    def wants_profiles(self) -> bool:
        """True if the slots should profile their operators after the next step."""
        return self._asked is not None

    def after(self, seen: Observation, *, is_busy: bool = False) -> Decision | None:
        """Adds a batch; returns a decision if one was due and its search has ended.

        While the query `is_busy` with another change, profiles are not requested, and every decision keeps the plan.
        """
        self.history = self.history.after(seen)
        if seen.is_migrating or seen.is_shared:
            # A search that still runs was started for another plan.
            self._pending = self._asked = None
            return None
        if self.history.since.is_cooling:
            return None
        if self._pending is None:
            self._consider(seen, is_busy)
        pending = self._pending
        if pending is None or not pending.found.done():
            return None
        self._pending = None
        found = outcome(pending.found, pending.advisor.name)
        if found is None or pending.plan != seen.plan or self.history.flow is None:
            return None
        before, now = self.history, self.history.decided(pending.known)
        suggestion = pending.advisor.propose(now, pending.reason, found)
        decision = self._final(suggestion.decision, is_busy)
        self.history = self._counted(pending.advisor.name, suggestion, decision, is_first=before.baseline is None)
        if decision.action == "keep" and pending.reason.is_change and not is_busy:
            names = [each.name for each in self._advisors]
            self._ask(before, seen, pending.reason, self._advisors[names.index(pending.advisor.name) + 1 :])
        return decision

    # --- inside -------------------------------------------------------------------------------------------------------

    def _consider(self, seen: Observation, is_busy: bool) -> None:
        """Starts the search that is due after a batch, or requests profiles from the slots."""
        if self._asked is not None:
            (advisor, why), self._asked = self._asked, None
            if seen.profiles is not None:
                self._begin(advisor, why, seen)
                return
        if not self.history.measured_seconds:
            return
        if self.history.unsettled and not self.history.is_settled:
            self.history = self.history.waiting_to_settle()
            return
        reason = self._reason()
        if reason is None:
            return
        if reason.cause != "schedule" and not self.history.is_settled:
            self.history = self.history.waiting_to_settle()
            return
        if not self._ask(self.history, seen, reason, self._advisors, is_busy=is_busy) and reason.cause != "schedule":
            self.history = self.history.decided(self.history.statistics)
        if reason.cause == "routes":
            self.history = replace(self.history, routes=RouteTrend())

    def _reason(self) -> Reason | None:
        """Returns the first reason to search: an advisor's own, the policy's, or the schedule of mesh searches."""
        asked = (each.occasion(self.history) for each in self._advisors)
        own = [each for each in asked if each is not None]
        reason = next((each for each in own if each.cause != "schedule"), None)
        if reason is None and self.adapts:
            reason = self.settings.policy.suggestion(self.history, self.criteria.budget.total_memory)
        return reason or next(iter(own), None)

    def _ask(
        self, history: History, seen: Observation, reason: Reason, advisors: Sequence[Advisor], *, is_busy: bool = False
    ) -> bool:
        """Passes the reason to the advisors in turn; returns True if one of them acts."""
        for advisor in advisors:
            match advisor.wants(history, reason):
                case "search":
                    self._begin(advisor, reason, seen)
                    return True
                case "profile" if not is_busy:
                    self._asked = advisor, reason
                    return True
        return False

    def _begin(self, advisor: Advisor, reason: Reason, seen: Observation) -> None:
        search, is_long = advisor.search(self.history)
        found = self.searches.begin(search, is_long=is_long)
        self._pending = _Pending(advisor, reason, seen.plan, self.history.statistics, found)

    def _final(self, decision: Decision, is_busy: bool) -> Decision:
        decision = replace(decision, slots=self.slots)
        if decision.action == "keep" or not (is_busy or self.is_frozen):
            return decision
        why = "frozen" if self.is_frozen else "another change is under way"
        return replace(decision, action="keep", reason=f"{why}; otherwise: {decision.reason}")

    def _counted(self, name: str, suggestion: Suggestion, decision: Decision, *, is_first: bool) -> History:
        """Returns the history with the count of consecutive decisions that kept the plan, which delay the next."""
        history, is_kept = suggestion.history, decision.action == "keep"
        count = history.fruitless.get(name, 0) + 1 if is_kept and history.retry is None and not is_first else 0
        return replace(history, fruitless={**history.fruitless, name: count})
