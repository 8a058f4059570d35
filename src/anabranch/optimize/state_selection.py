"""Moves from the mjoin towards a tree: keeps the intermediate results that save the most CPU for their size.

State-selection (Zhu, Raghavan and Rundensteiner 2010, alg. 3; Zhu 2006, alg. 2) starts at the mjoin, which has the
least memory, and joins pairs of inputs of the top join below it, those with the largest frequency / weight first, as
long as that lowers the CPU and the memory allows it. The frequency of a pair is the number of probe orders in which the
two are adjacent, its weight the rows of their join. If one of the pair is a join itself, it is dissolved into the new
join if that saves both resources (operator merging). A pair that would exceed the memory limit is skipped, where the
published algorithm stops.
"""

from __future__ import annotations

from itertools import combinations

from anabranch.optimize.proposals import Budget
from anabranch.optimize.shapes import Blocks, Orderer, Shape, dissolved, in_order


def select_states(orderer: Orderer, budget: Budget) -> list[Shape]:
    """Returns the shapes visited, the mjoin first and the result last; the result may still exceed the budget."""
    trail = [orderer.mjoin()]
    cost = orderer.price(trail[0])
    while cost.cpu > budget.total_cpu and (better := _keep_one_state(orderer, trail[-1], cost.cpu, budget)):
        trail.append(better)
        cost = orderer.price(better)
    return trail


def _keep_one_state(orderer: Orderer, shape: Shape, cpu: float, budget: Budget) -> Shape | None:
    top = shape.get(orderer.everything, ())
    if len(top) < 3:
        return None
    room = budget.total_memory - orderer.price(shape).memory
    for pair in _promising(orderer, top):
        if orderer.model.state_bytes(sum(pair)) > room:
            continue
        tried = _merge_operators(orderer, _with_pair(orderer, shape, pair), sum(pair))
        cost = orderer.price(tried)
        if cost.cpu < cpu and cost.memory <= budget.total_memory:
            return tried
    return None


def _promising(orderer: Orderer, top: Blocks) -> list[Blocks]:
    """Returns the pairs of inputs of the top join by falling frequency / weight."""
    frequency: dict[frozenset[int], int] = {}
    for start, order in enumerate(orderer.order(top).orders):
        sequence = (start, *order)
        for step in range(len(order)):
            pair = frozenset(sequence[step : step + 2])
            frequency[pair] = frequency.get(pair, 0) + 1

    def ratio(pair: tuple[int, int]) -> float:
        weight = orderer.model.rows(top[pair[0]] | top[pair[1]])
        return frequency.get(frozenset(pair), 0) / weight if weight else float("inf")

    ranked = sorted(combinations(range(len(top)), 2), key=lambda pair: (-ratio(pair), pair))
    return [(top[one], top[other]) for one, other in ranked]


def _with_pair(orderer: Orderer, shape: Shape, pair: Blocks) -> Shape:
    top = [block for block in shape[orderer.everything] if block not in pair]
    return {**shape, sum(pair): pair, orderer.everything: in_order([*top, sum(pair)])}


def _merge_operators(orderer: Orderer, shape: Shape, new: int) -> Shape:
    """Dissolves the joins below the new one into it if both resources gain."""
    for child in shape[new]:
        if child in shape:
            merged = dissolved(shape, child)
            before, after = orderer.price(shape), orderer.price(merged)
            if after.cpu < before.cpu and after.memory < before.memory:
                shape = merged
    return shape
