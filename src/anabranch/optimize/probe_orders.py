"""Searches the probe orders of one join together with the indexes that they need.

Each input of a join probes the others in an order of its own. The cheapest way from a bound part to the whole does not
depend on the input that reached it, so one pass over the unions of the inputs finds the orders of least CPU
(`order_probes`). An index costs CPU and memory once, however many orders use it, so orders that share indexes may cost
less in both. `search_orders` finds all undominated ones, and counts the lookups that it compares against a budget.

Limit: a join with more than `MOST_MARKS` indexes to decide about is not searched to the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from anabranch.optimize.dominance import (
    SLACK,
    Bar,
    floats,
    integers,
    is_hopeless,
    longer_floats,
    longer_integers,
)
from anabranch.optimize.lookups import Thetas, Units, looked_up, meeting

# Built on optimize/dominance.py e79040c6a996
# Built on optimize/lookups.py 12a110f05cb6

MOST_MARKS = 62
"""The maximum number of indexes that one search of orders decides about: the bits of a mask."""


class Sets(NamedTuple):
    """Numbers of each set of relations, by mask."""

    relations: Sequence[int]
    """The number of relations of the set."""
    ternary: Sequence[int]
    """One ternary digit per relation, 1 for members; `ternary[a] + 2 * ternary[b]` numbers the pair (a, b)."""
    rows: Sequence[float]
    held: Sequence[float]
    copies: Sequence[float]
    """The number of slots that hold a combination of the set."""
    classes: Sequence[int]
    """The key classes with a member in the set, as a mask."""
    agreeing: Sequence[float]
    """The fraction of all combinations whose keys agree."""
    turnover: Sequence[float]
    upkeep: Sequence[float]
    """CPU of keeping the set as a state."""
    state_bytes: Sequence[float]
    link: Sequence[float]
    """CPU of one index over the set."""
    index_bytes: Sequence[float]
    """Bytes of one index over the set."""
    results: Sequence[float]
    """CPU of finding all combinations of the set once: a lower bound for any join of the set."""


class Lookups(NamedTuple):
    """Numbers of each lookup, by pair of sets: rows of the first set probe the state of the second."""

    cost: Sequence[float]
    indexes: Sequence[int]
    """The index that the lookup uses; each number identifies one index over the second set."""


class Buffers(NamedTuple):
    """Space for the orders of one join: by group of its inputs, and by input."""

    onward: list[float]
    choice: list[int]
    union: list[int]
    counts: list[int]
    used: list[int]


class Orders(NamedTuple):
    """Probe orders of one join, several alternatives."""

    alternatives: int
    cpu: Sequence[float]
    """CPU of probes and indexes."""
    memory: Sequence[float]
    """Bytes of the indexes."""
    orders: Sequence[int]
    """For each alternative and input the positions of the inputs to probe, each padded to the number of inputs."""
    budget: int
    """What is left of the budget; negative if it was exceeded, so that alternatives may be missing."""


def price_lookups(sets: Sets, thetas: Thetas, units: Units) -> Lookups:
    """Returns the cost and the index of every lookup; equal to `ResourceModel.step` and `ResourceModel.index`."""
    rows, held, classes, relations = sets.rows, sets.held, sets.classes, sets.relations
    agree, ternary, copies = sets.agreeing, sets.ternary, sets.copies
    full = len(rows) - 1
    size = ternary[full] * 2 + 1
    cost, index = floats(size), integers(size)
    has_thetas = len(thetas.relations) > 0
    for bound in range(1, full):
        outside = full ^ bound
        block = outside
        while block:
            apart = agree[bound] * agree[block]
            agreeing = agree[bound | block] / apart if apart > 0 else 0.0
            shared = classes[bound] & classes[block]
            checks, band = 0.0, 1.0
            if has_thetas:
                _, checks, band = meeting(thetas, bound, block)
                if shared == 0:
                    for theta in range(len(thetas.relations) - 1, -1, -1):
                        members = thetas.relations[theta]
                        if thetas.is_band[theta] and members & bound and members & block:
                            shared = -1 - theta
            passed = looked_up(units.keyed, agreeing, shared > 0, band)
            both = relations[bound] + relations[block]
            match = units.match + units.match_relation * both + units.check * checks
            pair = ternary[bound] + 2 * ternary[block]
            found = passed * (units.compare * held[block] + match * rows[block])
            cost[pair] = rows[bound] * (units.probe * copies[bound] + found * copies[bound | block])
            index[pair] = shared
            block = (block - 1) & outside
    return Lookups(cost, index)


def number_unions(sets: Sets, blocks: Sequence[int], size: int, union: list[int]) -> None:
    """Fills in the ternary number of each group of the first `size` blocks."""
    for block in range(size):
        number, start = sets.ternary[blocks[block]], 1 << block
        for group in range(start):
            union[start + group] = union[group] + number if group else number


def order_probes(
    sets: Sets,
    lookups: Lookups,
    blocks: Sequence[int],
    size: int,
    onward: list[float],
    choice: list[int],
    union: list[int],
    marks: Sequence[int],
    forbidden: int,
) -> float:
    """Orders the probes of a join of the first `size` blocks; returns the CPU of all probes, inf if there is no order.

    `choice[g]` becomes the block that rows which have bound the blocks of group g probe next. `union[g]` is the ternary
    number of the blocks of group g. `marks` has the mark of each group's lookup of each block; lookups with a forbidden
    mark are not used.
    """
    cost = lookups.cost
    full = (1 << size) - 1
    onward[full] = 0.0
    for group in range(full - 1, 0, -1):
        bound, least, best = union[group], inf, -1
        for block in range(size):
            bit = 1 << block
            if group & bit == 0 and (forbidden == 0 or forbidden >> marks[group * size + block] & 1 == 0):
                price = onward[group | bit] + cost[bound + 2 * union[bit]]
                # Orders that differ only by rounding count as equal: the first block is taken.
                if price < least * SLACK or best < 0:
                    least, best = price, block
        onward[group] = least
        choice[group] = best
    total = 0.0
    for block in range(size):
        if onward[1 << block] == inf:
            return inf
        total += sets.turnover[blocks[block]] * onward[1 << block]
    return total


def count_indexes(
    lookups: Lookups, size: int, choice: Sequence[int], union: Sequence[int], counts: list[int], found: list[int]
) -> None:
    """Counts the indexes that the orders in `choice` need over each block; `found` is a buffer of size^2 numbers."""
    for block in range(size):
        counts[block] = 0
    full = (1 << size) - 1
    for start in range(size):
        group = 1 << start
        while group != full:
            target = choice[group]
            index, place, end = lookups.indexes[union[group] + 2 * union[1 << target]], target * size, counts[target]
            while place < target * size + end and found[place] != index:
                place += 1
            if place == target * size + end:
                found[place] = index
                counts[target] = end + 1
            group |= 1 << target


def mark_index(
    lookups: Lookups,
    size: int,
    union: Sequence[int],
    marks: list[int],
    over: list[int],
    marked: list[int],
    block: int,
    index: int,
) -> int:
    """Returns the mark of one index over a block, from 1; gives the index the next mark if it has none.

    `over[m]` becomes the block of mark m, and `over[0]` is the number of marks. Returns 0 if there is no mark left.
    """
    bit, mark = 1 << block, 0
    for group in range(1, (1 << size) - 1):
        place = group * size + block
        if group & bit == 0 and lookups.indexes[union[group] + 2 * union[bit]] == index:
            if marks[place]:
                return marks[place]
            if mark == 0:
                if over[0] == MOST_MARKS:
                    return 0
                over[0] += 1
                mark = over[0]
                over[mark], marked[mark] = block, index
            marks[place] = mark
    return mark


def mark_needed(
    lookups: Lookups, size: int, union: Sequence[int], marks: list[int], over: list[int], marked: list[int]
) -> int:
    """Marks the indexes that all orders need; returns their marks.

    An input that shares all keys of a block always looks it up by all of them.
    """
    needed, full = 0, (1 << size) - 1
    for block in range(size):
        most = lookups.indexes[union[full ^ (1 << block)] + 2 * union[1 << block]]
        for start in range(size):
            if start != block and lookups.indexes[union[1 << start] + 2 * union[1 << block]] == most:
                needed |= 1 << mark_index(lookups, size, union, marks, over, marked, block, most)
                break
    return needed


def least_indexes(
    lookups: Lookups,
    size: int,
    union: Sequence[int],
    over: Sequence[int],
    marked: Sequence[int],
    demanded: int,
    needs: list[int],
) -> None:
    """Fills in, for each block, the least number of indexes over it if those with a demanded mark are used.

    Rows of an input look up a block by at least the keys that the two share, so the demanded indexes do not suffice if
    none of them has all these keys.
    """
    for block in range(size):
        count = 0
        for mark in range(1, over[0] + 1):
            if over[mark] == block:
                count += demanded >> mark & 1
        is_enough = count > 0
        for start in range(size):
            if start != block:
                keys = lookups.indexes[union[1 << start] + 2 * union[1 << block]]
                is_served = keys <= 0
                for mark in range(1, over[0] + 1):
                    if over[mark] == block and demanded >> mark & 1 and marked[mark] > 0:
                        is_served = is_served or marked[mark] & keys == keys
                is_enough = is_enough and is_served
        needs[block] = count if is_enough else count + 1


def search_orders(
    sets: Sets,
    lookups: Lookups,
    blocks: Sequence[int],
    size: int,
    other_cpu: float,
    other_memory: float,
    bar: Bar,
    budget: int,
    buffers: Buffers,
    cheapest: float,
) -> Orders:
    """Returns the probe orders of a join of the first `size` blocks: all undominated ones that are not hopeless.

    `other_cpu` and `other_memory` are a lower bound of a plan of the set without the probes and indexes of this join.
    `cheapest` is the CPU of the cheapest probes, whose orders are in `buffers`.

    Why it is complete: take the orders of least CPU, which use the indexes U. Any orders with at least as many indexes
    over each block cost at least as much. All others lack an index of U over a block with several. For each of these
    indexes in turn, the search forbids that index, demands those before it, and takes the cheapest orders that remain;
    so it divides all other orders into disjoint parts, and continues in each part. A part ends if its lower bound,
    the cheapest orders with one index over each block and all demanded ones, is hopeless or dominated by orders found.
    """
    groups = 1 << size
    onward, choice, union, counts, used = buffers
    needs = integers(size)
    room, count = 4, 0
    cpu, memory, orders = floats(room), floats(room), integers(room * size * size)
    marks, over, marked = integers(0), integers(0), integers(0)
    # The parts to search: their forbidden and demanded marks, and the CPU of the probes above.
    capacity, top = 1, 1
    forbidden, demanded, above = integers(capacity), integers(capacity), floats(capacity)
    above[0] = cheapest
    while top > 0:
        top -= 1
        without, beside, probing = forbidden[top], demanded[top], above[top]
        if count > 0:
            least_indexes(lookups, size, union, over, marked, beside, needs)
            indexing, bytes_needed = 0.0, 0.0
            for part in range(size):
                indexing += needs[part] * sets.link[blocks[part]]
                bytes_needed += needs[part] * sets.index_bytes[blocks[part]]
            if is_useless(probing + indexing, bytes_needed, other_cpu, other_memory, bar, count, cpu, memory):
                continue
            budget -= groups * size
            if budget < 0:
                break
            probing = order_probes(sets, lookups, blocks, size, onward, choice, union, marks, without)
            if is_useless(probing + indexing, bytes_needed, other_cpu, other_memory, bar, count, cpu, memory):
                continue
        count_indexes(lookups, size, choice, union, counts, used)
        if count == room:
            room *= 2
            cpu, memory = longer_floats(cpu, room), longer_floats(memory, room)
            orders = longer_integers(orders, room * size * size)
        cpu[count], memory[count] = probing, 0.0
        several = 0
        for part in range(size):
            cpu[count] += counts[part] * sets.link[blocks[part]]
            memory[count] += counts[part] * sets.index_bytes[blocks[part]]
            several += counts[part] - 1
            group, place = 1 << part, (count * size + part) * size
            while group != groups - 1:
                orders[place] = choice[group]
                group |= 1 << choice[group]
                place += 1
        count += 1
        if budget < 0:
            break
        if several > 0 and len(over) == 0:
            marks, over, marked = integers(groups * size), integers(MOST_MARKS + 1), integers(MOST_MARKS + 1)
            beside = mark_needed(lookups, size, union, marks, over, marked)
        if top + size * size > capacity:
            capacity = 2 * capacity + size * size
            forbidden, demanded = longer_integers(forbidden, capacity), longer_integers(demanded, capacity)
            above = longer_floats(above, capacity)
        for part in range(size):
            for place in range(part * size, part * size + counts[part]):
                if counts[part] > 1:
                    mark = mark_index(lookups, size, union, marks, over, marked, part, used[place])
                    if mark == 0:
                        return Orders(count, cpu, memory, orders, -1)
                    if beside >> mark & 1 == 0:
                        forbidden[top], demanded[top], above[top] = without | 1 << mark, beside, probing
                        beside |= 1 << mark
                        top += 1
    return Orders(count, cpu, memory, orders, budget)


def is_useless(
    cpu: float,
    memory: float,
    other_cpu: float,
    other_memory: float,
    bar: Bar,
    count: int,
    found_cpu: Sequence[float],
    found_memory: Sequence[float],
) -> bool:
    """Returns True if orders that cost at least this much are hopeless, or dominated by orders found before."""
    if cpu == inf or is_hopeless(other_cpu + cpu, other_memory + memory, bar):
        return True
    if (other_cpu + cpu) * SLACK > bar.reach:
        return True
    is_dominated = False
    for other in range(count):
        is_dominated = is_dominated or (found_cpu[other] <= cpu and found_memory[other] <= memory)
    return is_dominated


def least_probing(sets: Sets, lookups: Lookups, whole: int, blocks: Sequence[int], size: int) -> float:
    """Returns a lower bound of the CPU of all probes of a join: the cheapest first and last lookup of each input.

    For two inputs the first lookup is the last one.
    """
    last, second, last_part = inf, inf, -1
    for part in range(size):
        price = lookups.cost[sets.ternary[whole ^ blocks[part]] + 2 * sets.ternary[blocks[part]]]
        if price < last:
            last, second, last_part = price, last, part
        elif price < second:
            second = price
    total = 0.0
    for part in range(size):
        own, nearest = sets.ternary[blocks[part]], inf
        for other in range(size):
            if other != part:
                nearest = min(nearest, lookups.cost[own + 2 * sets.ternary[blocks[other]]])
        if size > 2:
            nearest += second if part == last_part else last
        total += sets.turnover[blocks[part]] * nearest
    return total
