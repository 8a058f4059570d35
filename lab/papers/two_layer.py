"""A plan within CPU and memory in polynomial time: the two-layer framework.

Zhu, Raghavan and Rundensteiner 2010, alg. 2. The first layer lets both resources fall together: the best-ordered mjoin,
which has the least memory of all plans, and the min-state tree, which recomputes nothing. If neither fits, the second
layer trades one resource for the other: state-selection from the mjoin, then state-removal from the tree. The base
states are a true lower bound of memory, so a budget below them is infeasible for certain. The tree's CPU is none (a
mixture can be cheaper where upkeep is dear, and min-state is greedy), so where the printed algorithm gives up on it,
this one still tries the second layer.
"""

from __future__ import annotations

from anabranch.optimize.min_state import min_state
from anabranch.optimize.proposals import Budget, Candidate, Infeasible, Proposal, over_budget
from anabranch.optimize.settle import infeasible
from anabranch.optimize.shapes import Orderer, Shape
from anabranch.optimize.state_removal import remove_states
from anabranch.optimize.state_selection import select_states


def two_layer(orderer: Orderer, budget: Budget) -> Proposal | Infeasible:
    """The first plan found within the budget, with all that were passed on the way."""
    considered: list[Candidate] = []

    def qualified(shape: Shape, origin: str) -> Candidate | None:
        cost = orderer.price(shape)
        excess = over_budget(cost, budget)
        plan = Candidate(orderer.plan(shape), cost, origin, excess)
        if all(plan.plan != earlier.plan for earlier in considered):
            considered.append(plan)
        return None if excess else plan

    def proposal(found: Candidate, reason: str) -> Proposal:
        return Proposal(found.plan, found.cost, reason, tuple(considered))

    if found := qualified(orderer.mjoin(), "mjoin ordering"):
        return proposal(found, "the mjoin is within the budget")
    if orderer.model.least_memory > budget.total_memory:
        return Infeasible("memory", considered[0].plan, considered[0].cost, tuple(considered))
    tree = min_state(orderer)
    if found := qualified(tree, "min-state"):
        return proposal(found, "the mjoin is over the budget, the tree is not")
    for shape in select_states(orderer, budget)[1:]:
        if found := qualified(shape, "state-selection"):
            return proposal(found, "keeping some intermediate states makes the mjoin fit")
    for shape in remove_states(orderer, budget, tree)[1:]:
        if found := qualified(shape, "state-removal"):
            return proposal(found, "giving up some intermediate states makes the tree fit")
    return infeasible(considered, budget)
