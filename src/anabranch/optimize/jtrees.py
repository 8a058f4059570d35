"""Searches all jtrees of a query: dynamic programming over sets of relations, with branch and bound.

A plan's cost is the sum of the costs of its joins and states, and the cost of a join depends only on how the join
partitions its set and on its probe orders. So each set keeps only its plans that are undominated in CPU and memory: in
any plan, a dominated part can be replaced by the part that dominates it. The result is the whole Pareto set, unless the
search of probe orders exceeded its budget (`Fronts.is_complete`). Predicates are checked at the earliest join; plans
that defer one are outside the search space.

The partitions of a set are enumerated block by block. A branch is pruned if its lower bound is dominated by a plan of
the same set or by a complete plan that is known before (`seeds`). Only partitions that survive get their probe orders.

Every function here runs as plain Python over lists for small queries, and as compiled code over arrays for large ones
(`compiled`). So the code uses only numbers, sequences and loops. Sets of relations are bit masks; `ternary` numbers
pairs of disjoint sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from anabranch.optimize.dominance import (
    Bar,
    Limits,
    Plans,
    bar_of,
    copy_plan,
    floats,
    integers,
    is_hopeless,
    longer_integers,
    longer_plans,
    open_place,
    place_for,
    plans_table,
)
from anabranch.optimize.lookups import Units
from anabranch.optimize.probe_orders import (
    Buffers,
    Lookups,
    Sets,
    least_probing,
    number_unions,
    order_probes,
    search_orders,
)

# Built on optimize/dominance.py e79040c6a996
# Built on optimize/lookups.py 12a110f05cb6
# Built on optimize/probe_orders.py b2348e39045b


class Joins(NamedTuple):
    """A table of joins, one row each."""

    blocks: list[int]
    """For each join the sets of its inputs, padded with 0 to the number of relations of the query."""
    orders: list[int]
    """For each join and input the positions of the inputs to probe, each padded to the number of relations."""


class Fronts(NamedTuple):
    """The undominated plans of each set: those of set s are rows first[s] to first[s] + counts[s], by rising CPU."""

    first: Sequence[int]
    counts: Sequence[int]
    plans: Plans
    joins: Joins
    is_complete: bool
    """True if no undominated plan is missing: every search of probe orders ended within the budget."""


class Least(NamedTuple):
    """Lower bounds, by set."""

    cpu: list[float]
    """The cost of the set as the input of a join: its plans, one probe of each new row, and one index."""
    memory: list[float]
    single_cpu: list[float]
    """The cost of the relations of the set in any plan."""
    single_memory: list[float]


def cuts_needed(needed: Sequence[int], whole: int, blocks: Sequence[int], size: int) -> bool:
    """Returns True if a partition of a set splits a needed part of the set."""
    for want in needed:
        if whole & want == want and whole != want:
            is_held = False
            for part in range(size):
                is_held = is_held or blocks[part] & want == want
            if not is_held:
                return True
    return False


def least_costs(sets: Sets, units: Units) -> Least:
    """Returns the lower bounds of all sets; those of inputs for single relations only."""
    total = len(sets.rows)
    least = Least(floats(total), floats(total), floats(total), floats(total))
    for mask in range(1, total):
        lowest = mask & -mask
        own_cpu = sets.turnover[lowest] * sets.rows[lowest] * units.probe + sets.link[lowest]
        least.single_cpu[mask] = least.single_cpu[mask ^ lowest] + own_cpu
        least.single_memory[mask] = least.single_memory[mask ^ lowest] + sets.index_bytes[lowest]
        if mask == lowest:
            least.cpu[mask], least.memory[mask] = least.single_cpu[mask], least.single_memory[mask]
    return least


def search(sets: Sets, lookups: Lookups, limits: Limits, units: Units, order: Sequence[int]) -> Fronts:
    """Returns the undominated plans of every set that a plan within the limits may join.

    `order` lists the sets of two or more relations, smaller ones first. CPU and memory exclude the base states, which
    all plans share.
    """
    total = len(sets.rows)
    full = total - 1
    relations = sets.relations[full]
    first, counts = integers(total), integers(total)
    for relation in range(relations):
        counts[1 << relation] = 1  # row 0, without cost, represents every base state
    plans, used = plans_table(1024, relations), 1
    joins, joined = Joins(integers(1024 * relations), integers(1024 * relations * relations)), 0
    least, budget = least_costs(sets, units), limits.budget
    buffers = Buffers(floats(total), integers(total), integers(total), integers(relations), integers(relations**2))
    for whole in order:
        if not limits.allowed[whole]:
            continue
        rest_cpu, rest_memory = 0.0, 0.0
        if whole != full:
            outside = full ^ whole
            rest_cpu = sets.turnover[whole] * sets.rows[whole] * units.probe + sets.link[whole]
            rest_cpu += least.single_cpu[outside] + sets.results[full] + 4 * units.call
            rest_memory = sets.index_bytes[whole] + least.single_memory[outside]
        kept_plans, kept, joins, joined, budget = plans_of_set(
            sets,
            lookups,
            limits,
            units,
            whole,
            rest_cpu,
            rest_memory,
            least,
            first,
            counts,
            plans,
            joins,
            joined,
            budget,
            buffers,
        )
        plans = longer_plans(plans, used + kept, relations)
        first[whole], counts[whole] = used, kept
        for row in range(kept):
            copy_plan(kept_plans, row, plans, used + row, relations)
        if kept:
            probes = sets.turnover[whole] * sets.rows[whole] * units.probe
            least.cpu[whole] = kept_plans.cpu[0] + probes + sets.link[whole]
            least.memory[whole] = kept_plans.memory[kept - 1] + sets.index_bytes[whole]
        used += kept
    return Fronts(first, counts, plans, joins, budget >= 0)


def plans_of_set(
    sets: Sets,
    lookups: Lookups,
    limits: Limits,
    units: Units,
    whole: int,
    rest_cpu: float,
    rest_memory: float,
    least: Least,
    first: Sequence[int],
    counts: Sequence[int],
    plans: Plans,
    joins: Joins,
    joined: int,
    budget: int,
    buffers: Buffers,
) -> tuple[Plans, int, Joins, int, int]:
    """Returns the undominated plans of one set, from those of its parts, and their number.

    Enumerates the partitions of the set: each block is the lowest remaining relation with some of the others. Also
    returns the table of joins with its new length, and what is left of the budget.
    """
    full = len(sets.rows) - 1
    relations = sets.relations[full]
    found, kept = plans_table(64, relations), 0
    keep_cpu, keep_memory = 0.0, 0.0
    if whole != full:
        keep_cpu, keep_memory = sets.upkeep[whole], sets.state_bytes[whole]
    floor = keep_cpu + sets.results[whole] + 4 * units.call
    bar = bar_of(limits, rest_cpu, rest_memory, found, kept)
    if is_hopeless(floor + least.single_cpu[whole], keep_memory + least.single_memory[whole], bar):
        return found, kept, joins, joined, budget
    least_cpu, least_memory = least.cpu, least.memory
    single_cpu, single_memory = least.single_cpu, least.single_memory
    left, extra, blocks = integers(relations + 1), integers(relations + 1), integers(relations + 1)
    low_cpu, low_memory = floats(relations + 1), floats(relations + 1)
    is_mjoin, depth = sets.relations[whole] <= limits.widest, 0
    left[0], extra[0] = whole, -1
    low_cpu[0], low_memory[0] = floor, keep_memory
    while depth >= 0:
        # The next block at this depth.
        lowest = left[depth] & -left[depth]
        others = left[depth] ^ lowest
        if is_mjoin:
            # One join of single relations comes first: the front then has plans of little memory.
            extra[depth] = 0
        elif extra[depth] < 0:
            extra[depth] = others
        elif extra[depth] == 0 or depth + 1 == limits.widest:
            depth -= 1
            continue
        else:
            extra[depth] = (extra[depth] - 1) & others
        block = lowest | extra[depth]
        if block == whole or counts[block] == 0:
            continue
        outside = left[depth] ^ block
        now_cpu, now_memory = low_cpu[depth] + least_cpu[block], low_memory[depth] + least_memory[block]
        if is_hopeless(now_cpu + single_cpu[outside], now_memory + single_memory[outside], bar):
            if is_mjoin:
                is_mjoin, depth, extra[0] = False, 0, -1
            continue
        blocks[depth] = block
        if outside:
            depth += 1
            left[depth], extra[depth] = outside, -1
            low_cpu[depth], low_memory[depth] = now_cpu, now_memory
            continue
        size = depth + 1
        if is_mjoin:
            is_mjoin, depth, extra[0] = False, 0, -1
        elif size == sets.relations[whole]:
            continue  # the join of single relations was the first
        if cuts_needed(limits.needed, whole, blocks, size):
            continue
        own_cpu = keep_cpu + size * size * units.call
        found, kept, joins, joined, budget = plans_of_join(
            sets,
            lookups,
            bar,
            whole,
            blocks,
            size,
            own_cpu,
            keep_memory,
            first,
            counts,
            plans,
            found,
            joins,
            joined,
            budget,
            buffers,
        )
        bar = bar_of(limits, rest_cpu, rest_memory, found, kept)
    return found, kept, joins, joined, budget


def plans_of_join(
    sets: Sets,
    lookups: Lookups,
    bar: Bar,
    whole: int,
    blocks: Sequence[int],
    size: int,
    own_cpu: float,
    own_memory: float,
    first: Sequence[int],
    counts: Sequence[int],
    plans: Plans,
    found: Plans,
    joins: Joins,
    joined: int,
    budget: int,
    buffers: Buffers,
) -> tuple[Plans, int, Joins, int, int]:
    """Adds the plans of one join to those kept for its set; returns the kept plans and their number.

    Combines all probe orders that could matter with all plans of the inputs. `own_cpu` and `own_memory` are the costs
    of the join besides its probes and indexes. Increasingly tight bounds come first: the cheapest lookups, then all.
    """
    kept, relations = bar.size, sets.relations[len(sets.rows) - 1]
    other_cpu, other_memory, indexing, bytes_needed = own_cpu, own_memory, 0.0, 0.0
    for part in range(size):
        row = first[blocks[part]]
        other_cpu += plans.cpu[row]
        other_memory += plans.memory[row + counts[blocks[part]] - 1]
        indexing += sets.link[blocks[part]]
        bytes_needed += sets.index_bytes[blocks[part]]
    probing = least_probing(sets, lookups, whole, blocks, size)
    if is_hopeless(other_cpu + indexing + probing, other_memory + bytes_needed, bar):
        return found, kept, joins, joined, budget
    number_unions(sets, blocks, size, buffers.union)
    cheapest = order_probes(sets, lookups, blocks, size, buffers.onward, buffers.choice, buffers.union, buffers.used, 0)
    if is_hopeless(other_cpu + indexing + cheapest, other_memory + bytes_needed, bar):
        return found, kept, joins, joined, budget
    orders = search_orders(sets, lookups, blocks, size, other_cpu, other_memory, bar, budget, buffers, cheapest)
    picked = integers(size)
    for each in range(orders.alternatives):
        is_kept = False
        while True:
            now_cpu, now_memory = own_cpu + orders.cpu[each], own_memory + orders.memory[each]
            for part in range(size):
                row = first[blocks[part]] + picked[part]
                now_cpu += plans.cpu[row]
                now_memory += plans.memory[row]
            place = place_for(found, kept, now_cpu, now_memory)
            if place >= 0 and now_cpu <= bar.most_cpu and now_memory <= bar.most_memory:
                found = longer_plans(found, kept + 1, relations)
                kept = open_place(found, kept, place, now_memory, relations)
                found.cpu[place], found.memory[place], found.joins[place] = now_cpu, now_memory, joined
                for part in range(size):
                    found.entries[place * relations + part] = first[blocks[part]] + picked[part]
                is_kept = True
            part = 0
            while part < size:
                picked[part] += 1
                if picked[part] < counts[blocks[part]]:
                    break
                picked[part] = 0
                part += 1
            if part == size:
                break
        if is_kept:
            joins = with_join(joins, joined, blocks, size, orders.orders, each, relations)
            joined += 1
    return found, kept, joins, joined, orders.budget


def with_join(
    joins: Joins, row: int, blocks: Sequence[int], size: int, orders: Sequence[int], each: int, relations: int
) -> Joins:
    """Returns the table of joins with one more row: these blocks, and one of several alternative orders."""
    if (row + 1) * relations > len(joins.blocks):
        room = 2 * (row + 1) * relations
        joins = Joins(longer_integers(joins.blocks, room), longer_integers(joins.orders, room * relations))
    for part in range(size):
        joins.blocks[row * relations + part] = blocks[part]
        for step in range(size - 1):
            place = (row * relations + part) * relations + step
            joins.orders[place] = orders[(each * size + part) * size + step]
    return joins
