"""Moves from a binary tree towards the mjoin: removes the intermediate states that save the least CPU for their size.

State-removal (Zhu, Raghavan and Rundensteiner 2010, alg. 4; Zhu 2006, alg. 4) starts at the min-state tree and, until
the plan fits or only the mjoin is left, removes the state with the smallest ratio of added CPU to freed memory: the
join that filled it is merged into the join that kept it. The added CPU is negative if upkeep cost more than
recomputing.
"""

from __future__ import annotations

from anabranch.optimize.proposals import Budget
from anabranch.optimize.shapes import Orderer, Shape, dissolved


def remove_states(orderer: Orderer, budget: Budget, tree: Shape) -> list[Shape]:
    """Returns the shapes visited, the given tree first and the result last; the result may still exceed the budget."""
    trail = [tree]
    while not budget.allows(orderer.price(trail[-1])) and len(trail[-1]) > 1:
        trail.append(_remove_one_state(orderer, trail[-1]))
    return trail


def _remove_one_state(orderer: Orderer, shape: Shape) -> Shape:
    best, least = shape, float("inf")
    above = {block: join for join, blocks in shape.items() for block in blocks}
    for state in shape:
        if state == orderer.everything:
            continue
        smaller = dissolved(shape, state)
        join = above[state]
        upper, lower, merged = orderer.order(shape[join]), orderer.order(shape[state]), orderer.order(smaller[join])
        added = merged.cpu - upper.cpu - lower.cpu - orderer.model.upkeep(state)
        freed = orderer.model.state_bytes(state) + upper.memory + lower.memory - merged.memory
        ratio = added / freed if freed > 0 else added
        if ratio < least or best is shape:
            best, least = smaller, ratio
    return best
