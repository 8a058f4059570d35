"""All jtrees of a query by dynamic programming over sets of relations, compiled.

The cost of a plan is the sum of the costs of its joins and states, and the cost of a join depends only on how it
partitions its set. So for each set it is enough to keep the plans that no other plan of the set dominates: whatever is
built above, a dominated part can be exchanged for the one that dominates it. For each set all partitions are priced,
with exact probe orders: the cheapest way from any bound part to the whole is the same for every input that gets there,
so one pass over the 2^m unions of m blocks orders all inputs at once. Predicates are checked as early as they can be;
no plan that puts one off is built here.

N relations have Bell(N + 1) partitions of subsets in all (678,570 at N = 10).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from anabranch.optimize.lookups import Floats, Integers, Thetas, Units, looked_up, meeting

# Built on optimize/lookups.py c2a758f5d8f6

MOST_BLOCKS = 15
"""A partition is kept as four bits per relation."""


class Tables(NamedTuple):
    """What the search needs to know of each set of relations, by mask."""

    rows: Floats
    held: Floats
    relations: Integers
    """How many relations are in the set."""
    classes: Integers
    """The key classes that the set has a member of, as a mask."""
    agreeing: Floats
    """The share of all combinations whose keys agree."""
    turnover: Floats
    upkeep: Floats
    state_bytes: Floats
    allowed: NDArray[np.bool_]
    """Sets that may be joined."""
    needed: Integers
    """Sets that must be joined."""
    thetas: Thetas
    units: Units


class Fronts(NamedTuple):
    """The plans kept for each set: those of set s are first[s] to first[s] + counts[s], by rising CPU."""

    first: Integers
    counts: Integers
    cpu: Floats
    memory: Floats
    partition: Integers
    """The block of each relation of the set, four bits each, the lowest relation first."""
    chosen: Integers
    """For each block, which of the plans kept for it."""


@njit(cache=True)
def onward_costs(tables: Tables, blocks: Integers, size: int, cost: Floats, choice: Integers, union: Integers) -> None:
    """cost[s]: the least cost from the union of the blocks in s to the whole; choice[s]: the block to probe next."""
    # Locals: reading a field of a named tuple in the innermost loop costs more than the arithmetic.
    rows, held, classes, relations, agree = tables.rows, tables.held, tables.classes, tables.relations, tables.agreeing
    units, has_thetas = tables.units, tables.thetas.relations.size > 0
    probe, compare, match, keyed = units.probe, units.compare, units.match, units.keyed
    match_relation, check = units.match_relation, units.check
    full = (1 << size) - 1
    union[0] = 0
    for group in range(1, full + 1):
        lowest = 0
        while group >> lowest & 1 == 0:
            lowest += 1
        union[group] = union[group & (group - 1)] | blocks[lowest]
    cost[full] = 0.0
    for group in range(full - 1, 0, -1):
        bound = union[group]
        least, best = np.inf, -1
        for block in range(size):
            if group >> block & 1:
                continue
            other = blocks[block]
            both = bound | other
            apart = agree[bound] * agree[other]
            agreeing = agree[both] / apart if apart > 0 else 0.0
            count, band = 0, 1.0
            if has_thetas:
                _, count, band = meeting(tables.thetas, bound, other)
            passed = looked_up(keyed, agreeing, classes[bound] & classes[other] != 0, band)
            pair = compare * held[other] + (match + match_relation * relations[both] + check * count) * rows[other]
            price = cost[group | 1 << block] + rows[bound] * (probe + passed * pair)
            if price < least or best < 0:
                least, best = price, block
        cost[group] = least
        choice[group] = best


@njit(cache=True)
def best_orders(tables: Tables, blocks: Integers) -> Integers:
    """The cheapest probe order from each block."""
    size = blocks.size
    cost, choice, union = np.empty(1 << size), np.empty(1 << size, np.int64), np.empty(1 << size, np.int64)
    onward_costs(tables, blocks, size, cost, choice, union)
    orders = np.empty((size, size - 1), np.int64)
    for start in range(size):
        group = 1 << start
        for step in range(size - 1):
            orders[start, step] = choice[group]
            group |= 1 << choice[group]
    return orders


@njit(cache=True)
def _indexes(
    tables: Tables, blocks: Integers, size: int, choice: Integers, union: Integers, found: Integers
) -> tuple[float, float]:
    """CPU and bytes of the indexes for the orders in `choice`; `found` is room for their numbers."""
    born, held = 0.0, 0.0
    for target in range(size):
        count = 0
        for start in range(size):
            if start == target:
                continue
            group = 1 << start
            while choice[group] != target:
                group |= 1 << choice[group]
            index = tables.classes[union[group]] & tables.classes[blocks[target]]
            if index == 0:
                for theta in range(tables.thetas.relations.size - 1, -1, -1):
                    relations = tables.thetas.relations[theta]
                    if (
                        tables.thetas.is_band[theta]
                        and relations & union[group] != 0
                        and relations & blocks[target] != 0
                    ):
                        index = np.int64(-1 - theta)
            is_new = True
            for at in range(count):
                is_new = is_new and found[at] != index
            if is_new:
                found[count] = index
                count += 1
        born += tables.rows[blocks[target]] * tables.turnover[blocks[target]] * count
        held += tables.held[blocks[target]] * count
    return float(born * tables.units.link), float(held * tables.units.index_bytes)


@njit(cache=True)
def _next_partition(labels: Integers, highest: Integers, size: int) -> bool:
    """Steps to the next restricted growth string; False after the last."""
    for position in range(size - 1, 0, -1):
        if labels[position] <= highest[position - 1]:
            labels[position] += 1
            highest[position] = max(highest[position - 1], labels[position])
            for after in range(position + 1, size):
                labels[after] = 0
                highest[after] = highest[position]
            return True
    return False


@njit(cache=True)
def _first_above(rising: Floats, size: int, value: float) -> int:
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        if rising[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True)
def search(tables: Tables, sets: Integers, relations: int, most_cpu: float, most_memory: float) -> Fronts:
    """The undominated plans of every set within the two bounds; `sets` lists the sets, smaller ones first.

    CPU and memory leave out the base states, which all plans share.
    """
    total = 1 << relations
    full = total - 1
    first, counts = np.zeros(total, np.int64), np.zeros(total, np.int64)
    capacity = 1024
    cpu, memory = np.zeros(capacity), np.zeros(capacity)
    partition, chosen = np.zeros(capacity, np.int64), np.zeros((capacity, relations), np.int64)
    used = 1
    for relation in range(relations):
        counts[1 << relation] = 1  # entry 0, free of cost, stands for every base state
    room = 64
    own_cpu, own_memory = np.zeros(room), np.zeros(room)
    own_partition, own_chosen = np.zeros(room, np.int64), np.zeros((room, relations), np.int64)
    labels, highest = np.zeros(relations, np.int64), np.zeros(relations, np.int64)
    elements, blocks = np.zeros(relations, np.int64), np.zeros(relations, np.int64)
    onward, choice, union = np.empty(total), np.empty(total, np.int64), np.empty(total, np.int64)
    picked, found = np.zeros(relations, np.int64), np.zeros(relations, np.int64)
    for whole in sets:
        if not tables.allowed[whole]:
            continue
        size = 0
        for relation in range(relations):
            if whole >> relation & 1:
                elements[size] = 1 << relation
                size += 1
        for position in range(size):
            labels[position] = highest[position] = 0
        keep_cpu = tables.upkeep[whole] if whole != full else 0.0
        keep_memory = tables.state_bytes[whole] if whole != full else 0.0
        kept = 0
        while _next_partition(labels, highest, size):
            parts = highest[size - 1] + 1
            for part in range(parts):
                blocks[part] = 0
            for position in range(size):
                blocks[labels[position]] |= elements[position]
            low_cpu, low_memory, possible = keep_cpu, keep_memory, True
            for part in range(parts):
                here = counts[blocks[part]]
                if here == 0:
                    possible = False
                    break
                low_cpu += cpu[first[blocks[part]]]
                low_memory += memory[first[blocks[part]] + here - 1]
            for want in tables.needed:
                if whole & want == want and whole != want:
                    held = False
                    for part in range(parts):
                        held = held or blocks[part] & want == want
                    possible = possible and held
            if not possible or low_memory > most_memory or low_cpu > most_cpu:
                continue
            onward_costs(tables, blocks, parts, onward, choice, union)
            join = keep_cpu
            for part in range(parts):
                join += tables.turnover[blocks[part]] * onward[1 << part]
            join += parts * parts * tables.units.call
            links, indexes = 0.0, 0.0
            if tables.units.index_bytes > 0 or tables.units.link > 0:
                links, indexes = _indexes(tables, blocks, parts, choice, union, found)
            join += links
            low_cpu += join - keep_cpu
            low_memory += indexes
            place = _first_above(own_cpu, kept, low_cpu)
            if low_cpu > most_cpu or (place > 0 and own_memory[place - 1] <= low_memory):
                continue
            for part in range(parts):
                picked[part] = 0
            while True:
                now_cpu, now_memory = join, keep_memory + indexes
                for part in range(parts):
                    entry = first[blocks[part]] + picked[part]
                    now_cpu += cpu[entry]
                    now_memory += memory[entry]
                place = _first_above(own_cpu, kept, now_cpu)
                if (
                    now_cpu <= most_cpu
                    and now_memory <= most_memory
                    and (place == 0 or own_memory[place - 1] > now_memory)
                ):
                    if place > 0 and own_cpu[place - 1] == now_cpu:
                        place -= 1
                    beaten = place
                    while beaten < kept and own_memory[beaten] >= now_memory:
                        beaten += 1
                    if kept + 1 > room:
                        room *= 2
                        own_cpu, own_memory = _longer(own_cpu, room), _longer(own_memory, room)
                        own_partition, own_chosen = _longer(own_partition, room), _taller(own_chosen, room)
                    shift = 1 - (beaten - place)
                    if shift == 1:
                        for entry in range(kept, place, -1):
                            own_cpu[entry], own_memory[entry] = own_cpu[entry - 1], own_memory[entry - 1]
                            own_partition[entry] = own_partition[entry - 1]
                            for part in range(relations):
                                own_chosen[entry, part] = own_chosen[entry - 1, part]
                    elif shift < 0:
                        for entry in range(beaten, kept):
                            own_cpu[entry + shift], own_memory[entry + shift] = own_cpu[entry], own_memory[entry]
                            own_partition[entry + shift] = own_partition[entry]
                            for part in range(relations):
                                own_chosen[entry + shift, part] = own_chosen[entry, part]
                    kept += shift
                    own_cpu[place], own_memory[place] = now_cpu, now_memory
                    code = np.int64(0)
                    for position in range(size):
                        code |= labels[position] << (4 * position)
                    own_partition[place] = code
                    for part in range(parts):
                        own_chosen[place, part] = picked[part]
                part = 0
                while part < parts:
                    picked[part] += 1
                    if picked[part] < counts[blocks[part]]:
                        break
                    picked[part] = 0
                    part += 1
                if part == parts:
                    break
        while used + kept > capacity:
            capacity *= 2
            cpu, memory = _longer(cpu, capacity), _longer(memory, capacity)
            partition, chosen = _longer(partition, capacity), _taller(chosen, capacity)
        first[whole], counts[whole] = used, kept
        for entry in range(kept):
            cpu[used + entry], memory[used + entry] = own_cpu[entry], own_memory[entry]
            partition[used + entry] = own_partition[entry]
            for part in range(relations):
                chosen[used + entry, part] = own_chosen[entry, part]
        used += kept
    return Fronts(first, counts, cpu, memory, partition, chosen)


@njit(cache=True)
def _longer(values, size):  # type: ignore[no-untyped-def]
    grown = np.zeros(size, values.dtype)
    for at in range(values.size):
        grown[at] = values[at]
    return grown


@njit(cache=True)
def _taller(values: Integers, size: int) -> Integers:
    grown = np.zeros((size, values.shape[1]), np.int64)
    for row in range(values.shape[0]):
        for column in range(values.shape[1]):
            grown[row, column] = values[row, column]
    return grown
