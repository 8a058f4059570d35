"""Selects one of several plans for a running query: the one that gains most until the streams change again.

Every plan must pass the gate, with the time that the statistics are expected to last (`stability`) as its horizon. Its
price has the migration and, if the statistics of the previous phase may return, half of what their return would cost:
the migration back, and the new plan under those statistics until their return is noticed.

Invariant: no plan is chosen that does not pass the gate. Limit: a migration is priced only for the optimizer's proposal
and for plans whose cost can pass the gate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from anabranch.adapt.advisors.ways import way
from anabranch.adapt.gate import Gate, Resource, Verdict, amount_of, judge, scarce
from anabranch.adapt.history import History
from anabranch.adapt.records import Decision
from anabranch.adapt.rules import Criteria
from anabranch.adapt.settings import Settings
from anabranch.cost.resources import ResourceModel, Resources, with_default_orders
from anabranch.migrate.strategies.strategy import Price
from anabranch.plan.physical import PhysicalPlan


@dataclass(frozen=True)
class Payback:
    """The input of a choice between plans while one of them runs."""

    settings: Settings
    criteria: Criteria
    history: History
    model: ResourceModel
    """The cost model under the current statistics."""
    current: PhysicalPlan
    """The running plan, with its probe orders."""

    def price(self, plan: PhysicalPlan) -> Resources:
        """Returns the cost of a plan now: the model's price, corrected by counts of plans that ran."""
        return self.history.experience.price(plan, self.model, self.current)

    def choose(self, decision: Decision, plans: Sequence[PhysicalPlan]) -> tuple[Decision, float | None]:
        """Returns the decision on the best of the plans, of which the first is the optimizer's proposal.

        The second value is the length of the phase, in seconds, at which a plan pays that does not pay yet, if any.
        """
        first, *others = (plan for plan in plans if plan is plans[0] or self._may_pass(plan))
        judged = [self._judged(decision, plan) for plan in (first, *others) if str(plan) != str(self.current)]
        best = max((each for each in judged if each[1].passed), key=self._gain, default=None)
        # Plans that are cheaper now, and that would pay if the statistics lasted longer.
        kept = self._amount(decision.cost if best is None else best[0].proposed_cost)
        cheaper = [each for each in judged if self._amount(each[0].proposed_cost) < kept]
        later = min(cheaper, key=lambda each: each[1].pays_after, default=None)
        if later is None or later[1].pays_after == inf or not self.settings.foresight:
            chosen = best or next(iter(judged), None)
            return (decision if chosen is None else chosen[0]), None
        # Once the usual length of a phase is known, a plan is not considered again before twice that length.
        phases = self.history.phases
        due, lasted = max(later[1].pays_after, 2 * phases.usual), phases.lasted
        return (best or later)[0], due if due > lasted else 2 * lasted

    # --- inside -------------------------------------------------------------------------------------------------------

    def _judged(self, decision: Decision, plan: PhysicalPlan) -> tuple[Decision, Verdict]:
        """Returns the decision on one plan, and the verdict of the gate."""
        wished, criteria, graph, cost = (
            self.settings.strategy,
            self.criteria,
            self.history.query.graph,
            self.price(plan),
        )
        proposed = replace(decision, proposed=plan, proposed_cost=cost)
        price = way(criteria, graph, self.current, with_default_orders(plan, graph), self.model, self._now, wished)
        if price is None:
            reason = f"{wished} cannot serve this change"
            return replace(proposed, reason=reason), Verdict(False, reason)
        gate = self._gate.without_state() if price.strategy == "none" else self._gate
        if criteria.budget.allows(self._now):
            gate = replace(gate, horizon=self._horizon)
        verdict = judge(gate, self._now, cost, price, criteria.objective, criteria.budget, self._risk(plan))
        return replace(proposed, action=verdict.action, price=price, reason=verdict.reason), verdict

    def _may_pass(self, plan: PhysicalPlan) -> bool:
        """Returns True if the hints allow a plan, and it saves enough or the running plan exceeds its limits."""
        if self.criteria.hints.objection(plan):
            return False
        saves = self._amount(self._now) >= self._gate.without_state().ratio * self._amount(self.price(plan))
        return saves or not self.criteria.budget.allows(self._now)

    def _gain(self, judged: tuple[Decision, Verdict]) -> float:
        """Returns what a change saves within the horizon, less its price."""
        decision, verdict = judged
        saved = self._amount(decision.cost) - self._amount(decision.proposed_cost)
        return saved * (self._horizon - verdict.pays_after)

    def _risk(self, plan: PhysicalPlan) -> float:
        """Returns half of what a return of the previous statistics would cost; less than 0 if the plan suits them."""
        before = self._model_before
        if before is None or not self.settings.foresight:
            return 0.0
        back: tuple[Price, ...] = self.criteria.pricing(self.history.query.graph, plan, self.current, before)
        new, old = (
            self._amount(self.history.experience.price(each, before, self.current)) for each in (plan, self.current)
        )
        unnoticed = self.settings.remember * before.batch
        price = amount_of(back[0], self._scarce) if back else 0.0
        return (price + (new - old) * unnoticed) / 2

    @cached_property
    def _gate(self) -> Gate:
        """The gate for the length of the current triggers."""
        return self.history.in_triggers(self.settings.gate, self.criteria.budget.slots)

    @cached_property
    def _now(self) -> Resources:
        """The cost of the running plan."""
        return self.price(self.current)

    @cached_property
    def _scarce(self) -> Resource:
        return scarce(self._now, self.criteria.objective, self.criteria.budget)

    def _amount(self, cost: Resources) -> float:
        """Returns what a plan needs of the scarce resource."""
        return cost.cpu if self._scarce == "cpu" else cost.memory

    @property
    def _horizon(self) -> float:
        most = self._gate.horizon
        return self.history.phases.horizon(most) if self.settings.foresight else most

    @cached_property
    def _model_before(self) -> ResourceModel | None:
        """The cost model under the statistics of the previous phase."""
        before = self.history.phases.before
        return None if before is None else self.criteria.model(self.history.query, before)
