"""Selects one of the plans that a decision lists, by its payback (`bets`).

Of the plans that pass the gate, the one with the least total is chosen; the running plan takes part in the comparison.
A change that would pay later is reconsidered when the phase has lasted long enough (`Choice.retry`). If the phases are
too short for any change to pay, the plan that was best on average over the phases is chosen.

Invariant: no plan is chosen that does not pass the gate. Limit: the migration to an alternative is priced only if
its cost can pass the gate, or if a limit is exceeded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from anabranch.adapt.advisors.bets import Bet, weighed
from anabranch.adapt.advisors.ways import way
from anabranch.adapt.decision import Decision
from anabranch.adapt.experience import Experience
from anabranch.adapt.gate import Gate, judge, scarce
from anabranch.adapt.knowledge import Knowledge
from anabranch.adapt.rules import Criteria
from anabranch.adapt.settings import Settings
from anabranch.adapt.stability import Stability
from anabranch.cost.intra_batch_order import in_turns, takes_turns
from anabranch.cost.resources import ResourceModel, Resources, with_default_orders
from anabranch.migrate.strategies.strategy import Price
from anabranch.optimize.jtree_finder import Space
from anabranch.optimize.problem import resource_model
from anabranch.plan.mesh import Mesh
from anabranch.plan.physical import PhysicalPlan
from anabranch.plan.query import Query
from anabranch.stats.view import Layered

IN_LINE = 6
"""Up to this number of relations, searches take a few milliseconds and compile no kernels."""
MOST_REORDERED = 8
"""The maximum number of plans that are also considered with other probe orders."""
FREE = 0.25
"""The part of the gate's margin that is required of a change without state to move: its only risk is a model error."""


@dataclass(frozen=True)
class Choice:
    """The selected decision."""

    decision: Decision
    retry: float | None = None
    """Length of the phase, in seconds, at which a plan would pay that does not pay yet; None if there is none."""


@dataclass(frozen=True)
class Weighing:
    """The input of a plan selection while one of the plans runs."""

    query: Query
    settings: Settings
    criteria: Criteria
    stability: Stability
    experience: Experience
    model: ResourceModel
    """The cost model under the current statistics."""
    current: PhysicalPlan
    """The running plan, with its probe orders."""
    trigger: float | None = None
    """Seconds of a whole trigger; None if unknown."""

    def price(self, plan: PhysicalPlan) -> Resources:
        """Returns the cost of a plan now: the model's price, corrected by counts of plans that ran."""
        found = self._prices.get(plan)
        if found is None:
            found = self._prices[plan] = self.experience.price(plan, self.model, self.current)
        return found

    @cached_property
    def _gate(self) -> Gate:
        """The gate, with the CPU that a change must save in relation to a whole trigger."""
        return self.settings.gate.within(self.trigger, self.model.batch, self.criteria.budget.slots)

    @cached_property
    def _prices(self) -> dict[PhysicalPlan, Resources]:
        return {}

    def choose(self, decision: Decision, plans: Sequence[PhysicalPlan]) -> Choice:
        """Selects one of the plans; the first is the optimizer's proposal, the others must satisfy the hints."""
        if not self.settings.foresight:
            return Choice(self._judged(decision, plans[0], is_first=True))
        allowed = [plan for plan in self._reordered(plans) if not self.criteria.hints.objection(plan)]
        plans = [plans[0], *(plan for plan in allowed if plan != plans[0])]
        judged = [self._judged(decision, plan, is_first=not place) for place, plan in enumerate(plans)]
        choice = self._lasting(decision, judged)
        would_pay = any(each.action == "migrate" for each in judged)
        if choice.decision.action == "keep" and would_pay and (steadier := self._steadier(decision, plans)) is not None:
            return replace(choice, decision=steadier)
        return choice

    def _reordered(self, plans: Sequence[PhysicalPlan]) -> list[PhysicalPlan]:
        """Returns the plans, and the cheapest of them with probe orders for two other cases.

        The orders are those for the statistics of the previous phase and, if the intra-batch order affects costs, those
        that take it into account; searches ignore it.
        """
        found = {str(plan): plan for plan in plans}
        models = [self.model] if takes_turns(self.model) else []
        models += [] if self._model_before is None else [self._model_before]
        if models and len(self.query.graph.names) <= IN_LINE:
            likely = sorted(plans, key=lambda each: self.price(each).cpu)[:MOST_REORDERED]
            for model in models:
                reorder = partial(in_turns, model=model) if takes_turns(model) else Space(model).orderer.anew
                for ordered in map(reorder, likely):
                    found.setdefault(str(ordered), ordered)
        return list(found.values())

    # --- one plan -----------------------------------------------------------------------------------------------------

    def _judged(self, decision: Decision, plan: PhysicalPlan, *, is_first: bool) -> Decision:
        """Returns the decision on one plan by the gate, assuming that the statistics do not change.

        Prices no migration to a plan that could not pass, unless it is the optimizer's proposal or limits are exceeded.
        """
        if str(plan) == str(self.current):
            return decision
        cost = self.price(plan)
        proposed = replace(decision, proposed=plan, proposed_cost=cost)
        if not is_first and self.criteria.budget.allows(decision.cost):
            resource = self._scarce(decision)
            if getattr(decision.cost, resource) < self._easier_gate.ratio * getattr(cost, resource):
                return proposed
        return self._at_the_gate(proposed)

    @property
    def _easier_gate(self) -> Gate:
        gate = self._gate
        return replace(gate, ratio=1 + FREE * (gate.ratio - 1))

    def _at_the_gate(self, decision: Decision) -> Decision:
        """Returns the gate's decision on the proposed plan, whose cost is known."""
        wished, criteria, plan = self.settings.strategy, self.criteria, self._proposed(decision)
        price = way(
            self.query.graph, self.current, plan, self.model, criteria.pricing, wished, decision.cost, criteria.budget
        )
        if price is None:
            return replace(decision, reason=f"{wished} cannot serve this change")
        gate = self._easier_gate if price.strategy == "none" else self._gate
        verdict = judge(gate, decision.cost, decision.proposed_cost, price, criteria.objective, criteria.budget)
        return replace(decision, action="migrate" if verdict.passed else "keep", price=price, reason=verdict.reason)

    # --- several ------------------------------------------------------------------------------------------------------

    def _lasting(self, decision: Decision, judged: Sequence[Decision]) -> Choice:
        """Returns the best of the changes that passed the gate, or the decision to stay if none pays."""
        passed = [each for each in judged if each.action == "migrate"]
        if not passed:
            return Choice(judged[0])
        outcome = weighed(
            self._bet(decision),
            [self._bet(each) for each in passed],
            self.stability,
            self.settings.gate.horizon,
            self._unnoticed,
        )
        best = passed[outcome.place]
        if not self.criteria.budget.allows(decision.cost):
            return Choice(best)
        if not outcome.is_loss:
            return Choice(best, outcome.retry)
        reason = outcome.reason(self.stability, best.reason)
        return Choice(replace(best, action="keep", reason=reason), outcome.retry)

    @property
    def _unnoticed(self) -> float:
        """The seconds until a reversal of the statistics is detected, times the probability of a reversal."""
        before = self.stability.before
        return 0.0 if before is None else self.stability.odds * self.settings.remember * before.batch

    def _bet(self, decision: Decision) -> Bet:
        """Returns the bet on a decision's plan; on staying, if the decision has no migration price."""
        resource, price, before = self._scarce(decision), decision.price, self._model_before
        plan = self.current if price is None else self._proposed(decision)
        cost = decision.cost if price is None else decision.proposed_cost
        way = 0.0
        if price is not None:
            back = () if before is None else self.criteria.pricing(self.query.graph, plan, self.current, before)
            way = sum(_amount(each, resource) for each in (price, *back[:1]))
        if before is None:
            return Bet(getattr(cost, resource), 0.0, way)
        then = self.experience.price(plan, before, self.current)
        return Bet(getattr(cost, resource), getattr(then, resource), way)

    def _steadier(self, decision: Decision, plans: Sequence[PhysicalPlan]) -> Decision | None:
        """Returns the change to the plan with the lowest mean cost over all phases so far; None if it does not pay.

        Called only if a change would pay under constant statistics; returns None unless phases are known to be short.
        """
        if not self.stability.is_restless(self.settings.gate.horizon):
            return None
        known = {str(plan): plan for plan in (*plans, self.current)}
        means = self.stability.mean_costs(known, self._model_of)
        mean = means[str(self.current)]
        resource = scarce(mean, self.criteria.objective, self.criteria.budget)
        best = min(means, key=lambda name: getattr(means[name], resource))
        if best == str(self.current):
            return None
        steadier = replace(decision, cost=mean, origin="phases", proposed=known[best], proposed_cost=means[best])
        judged = self._at_the_gate(steadier)
        return judged if judged.action == "migrate" else None

    # --- inside -------------------------------------------------------------------------------------------------------

    def _scarce(self, decision: Decision) -> str:
        return scarce(decision.cost, self.criteria.objective, self.criteria.budget)

    def _proposed(self, decision: Decision) -> PhysicalPlan:
        assert not isinstance(decision.proposed, Mesh)
        return with_default_orders(decision.proposed, self.query.graph)

    @cached_property
    def _model_before(self) -> ResourceModel | None:
        """The cost model under the statistics of the previous phase."""
        before = self.stability.before
        return None if before is None else self._model_of(before)

    def _model_of(self, known: Knowledge) -> ResourceModel:
        view = Layered((known.view, self.criteria.given))
        return resource_model(self.query.graph, view, known.batch, self.query.merging, self.criteria.partitioning)


def _amount(price: Price, resource: str) -> float:
    return price.cpu if resource == "cpu" else price.memory * price.seconds
