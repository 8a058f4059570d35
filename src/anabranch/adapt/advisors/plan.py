"""Proposes join trees, mixtures and mjoins for a running query.

The optimizer proposes a plan. Plans that ran earlier and those that the optimizer listed are candidates too, priced
with the current statistics (query logging, Zhu 2006, 26.1.4). The cost of the running plan is corrected by its counts
(`experience`), and the candidates are selected by their payback (`payback`). Limit: the other advisors decide on plans
that share a join or route rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from anabranch.adapt.advisors.advisor import Suggestion, Wanted
from anabranch.adapt.advisors.payback import Payback
from anabranch.adapt.experience import MOST_PLANS
from anabranch.adapt.history import History
from anabranch.adapt.policy import Reason
from anabranch.adapt.records import Decision, Rival
from anabranch.adapt.rules import IN_LINE, LISTED, Criteria
from anabranch.adapt.settings import Settings
from anabranch.cost.intra_batch_order import in_turns, takes_turns
from anabranch.cost.resources import with_default_orders
from anabranch.optimize.choice import answer_to
from anabranch.optimize.problem import Problem
from anabranch.optimize.proposals import Proposal
from anabranch.optimize.validity import validity
from anabranch.plan.mesh import Mesh
from anabranch.plan.physical import PhysicalPlan


@dataclass(frozen=True)
class Found:
    """The outcome of a search."""

    plan: PhysicalPlan
    others: tuple[Rival, ...] = ()
    """The other plans, the best first."""


@dataclass(frozen=True)
class PlanAdvisor:
    """Proposes plans without routes."""

    settings: Settings
    criteria: Criteria
    name: ClassVar[str] = "plan"

    def occasion(self, history: History) -> Reason | None:
        """Returns a reason besides those of the policies: a postponed change pays now."""
        lasted = history.phases.lasted
        if history.retry is None or lasted < history.retry:
            return None
        return Reason("lasting", f"the streams have stayed as they are for {lasted:.3g} s")

    def wants(self, history: History, reason: Reason) -> Wanted:
        return "nothing" if isinstance(history.plan, Mesh) or reason.cause in ("schedule", "routes") else "search"

    def search(self, history: History) -> tuple[Callable[[], Found], bool]:
        problem = self.criteria.problem(history.query, history.statistics)
        return partial(best_plan, problem), len(history.query.graph.names) > IN_LINE

    def propose(self, history: History, reason: Reason, found: Found) -> Suggestion:
        plan = history.plan
        assert not isinstance(plan, Mesh)
        query, graph, known = history.query, history.query.graph, history.statistics
        problem, model = self.criteria.problem(query, known), self.criteria.model(query, known)
        current = with_default_orders(plan, graph)
        steps = [each.step for each in history.recent]
        experience = history.experience.after(current, steps, history.measured_seconds, model, graph)
        now = replace(history, experience=experience)
        payback = Payback(self.settings, replace(self.criteria, budget=problem.budget), now, model, current)
        decision = Decision(
            batch=history.batch,
            action="keep",
            policy=self.settings.policy.name,
            trigger=reason.text,
            plan=plan,
            cost=payback.price(current),
            proposed=found.plan,
            proposed_cost=payback.price(found.plan),
            origin="optimizer",
            price=None,
            reason="the running plan is the best one known",
            statistics=known,
            rivals=found.others[:LISTED],
        )
        listed = [each.plan for each in found.others if not isinstance(each.plan, Mesh)]
        now = now.remembering([found.plan, *listed, current])
        candidates = {str(each): each for each in (found.plan, *listed)} | dict(now.plans)
        if takes_turns(model):
            # Searches ignore the intra-batch order, which matters if windows are as short as batches.
            reordered = [in_turns(each, model) for each in candidates.values()]
            candidates |= {str(each): each for each in reordered}
        chosen, retry = payback.choose(decision, list(candidates.values()))
        if chosen.action == "migrate" and not isinstance(chosen.proposed, Mesh):
            chosen = replace(chosen, best_while=tuple(map(str, validity(problem, chosen.proposed))))
        return Suggestion(chosen, replace(now, retry=retry))


def best_plan(problem: Problem) -> Found:
    """Returns the plan that the optimizer chooses now; if no plan keeps the limits, the one closest to them."""
    answer = answer_to(problem)
    plan = answer.plan if isinstance(answer, Proposal) else answer.best
    lost = [each for each in answer.considered if each.plan != plan]
    best = sorted(lost, key=lambda each: (each.standing != "lost", each.cost.cpu))[:MOST_PLANS]
    return Found(plan, tuple(Rival(each.plan, each.cost, each.reason) for each in best))
