"""Orders the probes of one join by rank: the compiled inner loops.

Sets of relations are bit masks. `Numbers` is a `ResourceModel` as arrays. Invariant: a kernel computes the costs of the
model, without a Python call per step; tests compare both. Loops are written out, because slices and array expressions
would double the compile time of the first query on a machine.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from anabranch.cost.estimates import EVER
from anabranch.cost.resources import ResourceModel
from anabranch.optimize.compiled import looked_up, meeting
from anabranch.optimize.lookups import Floats, Integers, Thetas, Units, thetas_of, units_of

# Built on cost/estimates.py 7a34db93a484
# Built on optimize/lookups.py 12a110f05cb6


class Numbers(NamedTuple):
    """A resource model as arrays, one entry per relation."""

    rows: Floats
    windows: Floats
    distinct: Floats
    """Key class x relation; 0 where the relation is not a member."""
    thetas: Thetas
    units: Units
    batch: float
    lingers: bool


def numbers(model: ResourceModel) -> Numbers:
    """Returns the arrays of a model."""
    estimates, size = model.estimates, len(model.estimates.names)
    return Numbers(
        rows=np.array([model.rows(1 << i) for i in range(size)], dtype=np.float64),
        windows=np.array(estimates.windows, dtype=np.float64),
        distinct=np.array(estimates.keys, dtype=np.float64).reshape(len(estimates.keys), size),
        thetas=thetas_of(model),
        units=units_of(model),
        batch=float(model.batch),
        lingers=model.units.lingers,
    )


class Parts(NamedTuple):
    """The numbers of the inputs of one join."""

    masks: Integers
    size: Integers
    """The relations of each input."""
    rows: Floats
    held: Floats
    turnover: Floats
    least: Floats
    """Input x key class: the smallest number of distinct values, 0 if the input has no member."""
    classes: Integers
    """The key classes of each input, `class_count` of them."""
    class_count: Integers


@njit(cache=True)
def _describe(given: Numbers, masks: Integers) -> Parts:
    size, classes = masks.size, given.distinct.shape[0]
    rows, held, turnover = np.ones(size), np.zeros(size), np.zeros(size)
    least = np.zeros((size, classes))
    listed, listed_count = np.zeros((size, classes), np.int64), np.zeros(size, np.int64)
    relations = np.zeros(size, np.int64)
    for block in range(size):
        bound, shortest = np.int64(0), np.inf
        for relation in range(given.rows.size):
            bit = np.int64(1) << relation
            if masks[block] & bit == 0:
                continue
            relations[block] += 1
            rows[block] *= given.rows[relation]
            turnover[block] += 1 / given.windows[relation]
            shortest = min(shortest, given.windows[relation])
            for key in range(classes):
                values = given.distinct[key, relation]
                if values > 0:
                    if least[block, key] > 0:
                        rows[block] /= max(least[block, key], values)
                        least[block, key] = min(least[block, key], values)
                    else:
                        least[block, key] = values
                        listed[block, listed_count[block]] = key
                        listed_count[block] += 1
            rows[block] *= meeting(given.thetas, bound, bit)[0]
            bound |= bit
        held[block] = rows[block]
        if relations[block] == 1:
            held[block] *= turnover[block] * (shortest + given.batch)
        elif given.lingers and shortest < EVER:
            held[block] *= turnover[block] * (shortest + given.batch / 2)
    return Parts(
        masks=masks,
        size=relations,
        rows=rows,
        held=held,
        turnover=turnover,
        least=least,
        classes=listed,
        class_count=listed_count,
    )


@njit(cache=True)
def _linked_by_theta(thetas: Thetas, left: int, right: int) -> bool:
    for theta in range(thetas.relations.size):
        if thetas.relations[theta] & left != 0 and thetas.relations[theta] & right != 0:
            return True
    return False


@njit(cache=True)
def _chain_cost(given: Numbers, parts: Parts, start: int, order: Integers, known: Floats) -> float:
    """Returns the CPU of the new rows of one input that probe the others in an order; `known` is a buffer."""
    bound, alive, relations = parts.masks[start], parts.rows[start], parts.size[start]
    for key in range(known.size):
        known[key] = parts.least[start, key]
    total = 0.0
    for block in order:
        share, shares_key = 1.0, False
        for at in range(parts.class_count[block]):
            key = parts.classes[block, at]
            values = parts.least[block, key]
            if known[key] > 0:
                shares_key = True
                share /= max(known[key], values)
                known[key] = min(known[key], values)
            else:
                known[key] = values
        passing, count, band = meeting(given.thetas, bound, parts.masks[block])
        relations += parts.size[block]
        passed = looked_up(given.units.keyed, share, shares_key, band)
        match = given.units.match + given.units.match_relation * relations + given.units.check * count
        pair = passed * (given.units.compare * parts.held[block] + match * parts.rows[block])
        total += alive * (given.units.probe + pair)
        alive *= parts.rows[block] * share * passing
        bound |= parts.masks[block]
    return float(total * parts.turnover[start] + (order.size + 1) * given.units.call)


@njit(cache=True)
def _indexes(given: Numbers, parts: Parts, orders: Integers) -> tuple[float, float]:
    """Returns the CPU and bytes of the indexes that the inputs need for these orders."""
    size = parts.rows.size
    found, counts = np.zeros((size, size), np.int64), np.zeros(size, np.int64)
    classes = np.zeros(size, np.int64)
    for block in range(size):
        for at in range(parts.class_count[block]):
            classes[block] |= np.int64(1) << (parts.classes[block, at] % 62)
    for start in range(size):
        bound, known = parts.masks[start], classes[start]
        for step in range(size - 1):
            block = orders[start, step]
            index = known & classes[block]
            if index == 0:
                for theta in range(given.thetas.relations.size - 1, -1, -1):
                    relations = given.thetas.relations[theta]
                    if given.thetas.is_band[theta] and relations & bound != 0 and relations & parts.masks[block] != 0:
                        index = np.int64(-1 - theta)
            is_new = True
            for at in range(counts[block]):
                is_new = is_new and found[block, at] != index
            if is_new:
                found[block, counts[block]] = index
                counts[block] += 1
            bound |= parts.masks[block]
            known |= classes[block]
    born, held = 0.0, 0.0
    for block in range(size):
        born += parts.rows[block] * parts.turnover[block] * counts[block]
        held += parts.held[block] * counts[block]
    return float(born * given.units.link), float(held * given.units.index_bytes)


@njit(cache=True)
def _spanning_tree(weight: Floats, joined: NDArray[np.bool_], cross: bool) -> Integers:
    """Returns the minimum spanning tree (Prim) as a parent per block; without `cross`, cross products only if
    needed.
    """
    size = weight.shape[0]
    parent, inside = np.full(size, -1, np.int64), np.zeros(size, np.bool_)
    inside[0] = True
    for other in range(1, size):
        parent[other] = 0
    for _ in range(size - 1):
        chosen = -1
        for other in range(size):
            if not inside[other] and (
                chosen < 0 or _lighter(weight, joined, cross, parent[other], other, parent[chosen], chosen)
            ):
                chosen = other
        inside[chosen] = True
        for other in range(size):
            if not inside[other] and _lighter(weight, joined, cross, chosen, other, parent[other], other):
                parent[other] = chosen
    return parent


@njit(cache=True)
def _lighter(
    weight: Floats, joined: NDArray[np.bool_], cross: bool, one: int, end: int, other: int, other_end: int
) -> bool:
    if not cross and joined[one, end] != joined[other, other_end]:
        return bool(joined[one, end])
    return bool(weight[one, end] < weight[other, other_end])


@njit(cache=True)
def _rank(factor: float, cost: float) -> float:
    return (factor - 1) / cost if cost > 0 else -np.inf


@njit(cache=True)
def _ranked_order(parent: Integers, start: int, factor: Floats, cost: Floats) -> Integers:
    """Returns the cheapest order of a tree that begins at one block (Ibaraki and Kameda 1984).

    factor[p, b] is the number of remaining rows per row if b is probed after its tree neighbour p, and cost[p, b] the
    cost of that probe. Below each node, the chains of its children are merged by rising rank. A node with a higher rank
    than its successor is joined to it, because the tree forbids swapping the two.
    """
    size = parent.size
    above, visit = _rooted(parent, start)
    # A compound has the number of its first block; `inside` links its blocks, `after` the compounds of a chain.
    remaining, price = np.ones(size), np.zeros(size)
    inside, after, head = np.full(size, -1, np.int64), np.full(size, -1, np.int64), np.full(size, -1, np.int64)
    last = np.empty(size, np.int64)
    for block in range(size):
        last[block] = block
    for step in range(size - 1, 0, -1):
        node = visit[step]
        remaining[node], price[node] = factor[above[node], node], cost[above[node], node]
        following = head[node]
        while following >= 0 and _rank(remaining[node], price[node]) > _rank(remaining[following], price[following]):
            price[node] += remaining[node] * price[following]
            remaining[node] *= remaining[following]
            inside[last[node]] = following
            last[node] = last[following]
            following = after[following]
        after[node] = following
        one, other, tail, merged = head[above[node]], node, -1, -1
        while one >= 0 or other >= 0:
            if other < 0 or (one >= 0 and _rank(remaining[one], price[one]) <= _rank(remaining[other], price[other])):
                taken = one
                one = after[one]
            else:
                taken = other
                other = after[other]
            if tail < 0:
                merged = taken
            else:
                after[tail] = taken
            tail = taken
        after[tail] = -1
        head[above[node]] = merged
    order = np.empty(size - 1, np.int64)
    count, compound = 0, head[start]
    while compound >= 0:
        block = compound
        while block >= 0:
            order[count] = block
            count += 1
            block = inside[block]
        compound = after[compound]
    return order


@njit(cache=True)
def _rooted(parent: Integers, start: int) -> tuple[Integers, Integers]:
    """Returns the neighbour of each block on the path to `start`, and the blocks by distance from it."""
    size = parent.size
    degree, neighbour = np.zeros(size, np.int64), np.empty((size, size), np.int64)
    for block in range(size):
        other = parent[block]
        if other >= 0:
            neighbour[block, degree[block]], neighbour[other, degree[other]] = other, block
            degree[block] += 1
            degree[other] += 1
    above, visit = np.full(size, -1, np.int64), np.empty(size, np.int64)
    visit[0] = start
    reached = 1
    for done in range(size):
        node = visit[done]
        for at in range(degree[node]):
            other = neighbour[node, at]
            if other != above[node]:
                above[other] = node
                visit[reached] = other
                reached += 1
    return above, visit


@njit(cache=True)
def order_blocks(given: Numbers, masks: Integers) -> tuple[Integers, float, float]:
    """Returns a good probe order from each block, the CPU of all orders, and the bytes of the indexes they need.

    For each block, the better of the trees with and without cross products is used. The orders are optimal among those
    without cross products if the blocks form a tree and the unit costs are those of the papers.
    """
    size = masks.size
    parts = _describe(given, masks)
    weight, factor, cost = np.zeros((size, size)), np.zeros((size, size)), np.zeros((size, size))
    joined = np.zeros((size, size), np.bool_)
    for one in range(size):
        for other in range(size):
            if one == other:
                continue
            share, shares_key = 1.0, False
            for at in range(parts.class_count[one]):
                key = parts.classes[one, at]
                if parts.least[other, key] > 0:
                    share /= max(parts.least[one, key], parts.least[other, key])
                    shares_key = True
            passing, count, band = meeting(given.thetas, masks[one], masks[other])
            joined[one, other] = shares_key or _linked_by_theta(given.thetas, masks[one], masks[other])
            factor[one, other] = parts.rows[other] * share * passing
            weight[one, other] = parts.rows[one] * factor[one, other]
            relations = parts.size[one] + parts.size[other]
            passed = looked_up(given.units.keyed, share, shares_key, band)
            match = given.units.match + given.units.match_relation * relations + given.units.check * count
            pair = passed * (given.units.compare * parts.held[other] + match * parts.rows[other])
            cost[one, other] = given.units.probe + pair
    orders = np.empty((size, size - 1), np.int64)
    cpu = np.full(size, np.inf)
    known = np.empty(given.distinct.shape[0])
    previous = np.full(size, -1, np.int64)
    for cross in (False, True):
        parent = _spanning_tree(weight, joined, cross)
        changed = False
        for block in range(size):
            changed = changed or parent[block] != previous[block]
            previous[block] = parent[block]
        if cross and not changed:
            break
        for start in range(size):
            order = _ranked_order(parent, start, factor, cost)
            price = _chain_cost(given, parts, start, order, known)
            if price < cpu[start] or not cross:
                cpu[start] = price
                for step in range(size - 1):
                    orders[start, step] = order[step]
    total, index_bytes = _indexes(given, parts, orders)
    for start in range(size):
        total += cpu[start]
    return orders, total, index_bytes
