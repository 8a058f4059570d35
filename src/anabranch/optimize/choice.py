"""Chooses the plan of a query: runs every optimizer, then ranks all their candidates together.

Up to `jtree_finder.LARGEST` relations the candidates include every undominated plan, so `choose` finds a plan within
the budget if there is one. The result includes every candidate with its cost and the reason it lost.

Limit: merging rows and deferring predicates are searched greedily, from the best plans without them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from anabranch.cost.estimates import Estimates
from anabranch.cost.host import HostNeed
from anabranch.cost.resources import ResourceModel
from anabranch.cost.units import unit_costs
from anabranch.errors import SpecError
from anabranch.optimize.deferring import deferring_variants
from anabranch.optimize.hints import Hints, Objective
from anabranch.optimize.merging import merging_variants
from anabranch.optimize.optimizers import NAMED, OPTIMIZERS, Optimizer
from anabranch.optimize.problem import Problem
from anabranch.optimize.proposals import Budget, Candidate, Infeasible, MeshOffer, Proposal, distinct
from anabranch.optimize.settle import settle
from anabranch.optimize.shapes import in_order
from anabranch.plan.physical import Leaf, PhysicalPlan
from anabranch.stats.view import Provenance, StatisticsView

COMPARED = ("mjoin ordering", "min-state")
"""The optimizers whose plans are shown beside an explicit plan: the two extremes."""


@dataclass(frozen=True)
class Choice:
    """The answer to a problem, and what else is known about the first plan."""

    answer: Proposal | Infeasible
    problem: Problem
    mesh: MeshOffer | None = None
    """The mesh considered, if any."""
    written: PhysicalPlan | None = None
    """The plan as the user wrote it, if it shares a join with other queries."""
    host: HostNeed | None = None
    """The host's resources in each slot, independent of the plan; already subtracted from the budget.

    None in process.
    """
    is_sampled: bool = False
    """True if the sources were sampled, so that sampling cannot replace the remaining assumptions."""

    @property
    def model(self) -> ResourceModel:
        return self.problem.model

    @property
    def budget(self) -> Budget:
        return self.problem.budget

    @property
    def objective(self) -> Objective:
        return self.problem.objective

    @property
    def statistics(self) -> StatisticsView:
        """The known statistics at the time of the choice; the model has assumed the rest."""
        return self.problem.statistics

    @property
    def units_from(self) -> Provenance:
        """The source of the unit costs."""
        return unit_costs(self.statistics)[1]

    @property
    def estimates(self) -> Estimates:
        return self.model.estimates


def choose(
    problem: Problem,
    *,
    around: Callable[[ResourceModel], HostNeed] | None = None,
    optimizers: Mapping[str, Optimizer] = OPTIMIZERS,
) -> Choice:
    """Returns the best plan by the objective among those that keep the budget and obey the hints.

    With the `grouping` of a grouped query, plans that merge rows before they join are considered too. `around` returns
    the host's resources; the budget is for host and plan together.
    """
    host = None if around is None else around(problem.model)
    if host is not None:
        problem = replace(problem, budget=within(problem.budget, host))
    return Choice(answer_to(problem, optimizers), problem, host=host)


def within(budget: Budget, host: HostNeed) -> Budget:
    """Returns the part of a budget that a host leaves to plans."""
    return replace(budget, taken=host.resources, room=host.room)


def answer_to(problem: Problem, optimizers: Mapping[str, Optimizer] = OPTIMIZERS) -> Proposal | Infeasible:
    """Returns the best plan of a problem, or the bound that no plan keeps."""
    hints = problem.hints
    if len(problem.graph.names) == 1:
        only = problem.candidate(Leaf(problem.graph.names[0]), "only plan")
        return settle(replace(problem, hints=Hints()), [only], is_complete=True)
    if hints.plan is not None:
        forced = problem.candidate(problem.orderer.complete(hints.plan), "given")
        problem = replace(problem, hints=replace(hints, plan=forced.plan))
        others = [each for name in COMPARED for each in OPTIMIZERS[name](problem).considered]
        return settle(problem, [forced, *others], is_complete=True)
    asked = optimizers if hints.optimizer is None else {hints.optimizer: NAMED[hints.optimizer]}
    answers = [optimizer(problem) for optimizer in asked.values()]
    found = distinct(each for answer in answers for each in answer.considered)
    is_complete = any(isinstance(answer, Infeasible) and answer.is_proven for answer in answers)
    if problem.grouping is not None and hints.may_merge:
        obeying = [each for each in found if not problem.objection(each.plan)]
        found += merging_variants(obeying, problem.model, problem.graph, problem.grouping, problem.statistics)
        # The choice of rows to merge is not searched exhaustively.
        is_complete = False
    found += deferring_variants(
        [each for each in found if not hints.objection(each.plan)], problem.model, problem.graph
    )
    answer = settle(problem, found, is_complete=is_complete)
    if isinstance(answer, Infeasible) and answer.bound == "hints":
        answer = settle(problem, [*found, _obeying(problem)], is_complete=is_complete)
    if isinstance(answer, Infeasible) and answer.bound != "memory" and problem.graph.thetas:
        # A predicate that is checked later may save CPU, and where it is checked is not searched exhaustively.
        return replace(answer, is_proven=False)
    return answer


def _obeying(problem: Problem) -> Candidate:
    """Returns a plan built from the required joins alone, if no optimizer found a plan that obeys the hints."""
    orderer, hints = problem.orderer, problem.hints
    parts, shape = orderer.leaves, {}
    for wanted in sorted(problem.needed, key=lambda mask: (mask.bit_count(), mask)):
        inside = tuple(part for part in parts if part & wanted == part)
        if sum(inside) != wanted:
            raise SpecError("two hints keep overlapping joins", hint="keep joins that are disjoint or nested")
        if wanted != orderer.everything:
            shape[wanted] = inside
            parts = in_order([*(part for part in parts if part not in inside), wanted])
    shape[orderer.everything] = parts
    plan = hints.amended(orderer.plan(shape), problem.model)
    if objection := problem.objection(plan):
        raise SpecError("the hints exclude every plan", detail=f"{plan} {objection}", hint="remove a 'forbid' hint")
    return problem.candidate(plan, "hints")
