"""Searches all jtrees of a query: dynamic programming over sets of relations, with branch and bound.

A plan's cost is the sum of the costs of its joins and states, and the cost of a join depends only on how the join
partitions its set. So each set keeps only its plans that are undominated in CPU and memory: in any plan, a dominated
part can be replaced by the part that dominates it. The result is the whole Pareto set. Predicates are checked at the
earliest join; plans that defer one are outside the search space.

Probe orders are searched together with the indexes that they need (`search_orders`), up to a budget. Beyond the budget
each join gets only the orders that are cheapest without regard to indexes, and the result is not complete.

The partitions of a set are enumerated block by block. A branch is pruned if its lower bound is dominated by a plan of
the same set or by a complete plan that is known before (`seeds`). Only partitions that survive get
their probe orders.

Every function here runs as plain Python over lists for small queries, and as compiled code over arrays for large ones
(`compiled`). So the code uses only numbers, sequences and loops. Sets of relations are bit masks; `ternary` numbers
pairs of disjoint sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from anabranch.optimize.lookups import Thetas, Units, looked_up, meeting

# Built on optimize/lookups.py 2d933b8614c3

SLACK = 1 - 1e-9
"""Bounds are multiplied by this, so that rounding never prunes an undominated plan."""


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


class Limits(NamedTuple):
    """The bounds of a search: limits, known plans, and sets that a plan may or must join."""

    cpu: float
    memory: float
    seed_cpu: Sequence[float]
    """CPU of known complete plans, rising."""
    seed_memory: Sequence[float]
    """Memory of the known plans, falling."""
    allowed: Sequence[bool]
    """By set: whether a plan may join it."""
    needed: Sequence[int]
    """Sets that a plan must join."""
    widest: int
    """The maximum number of inputs of a join."""
    budget: int
    """The maximum number of lookups to compare beyond the first probe orders of each join."""


class Fronts(NamedTuple):
    """The undominated plans of each set: those of set s are entries first[s] to first[s] + counts[s], by rising CPU."""

    first: Sequence[int]
    counts: Sequence[int]
    cpu: Sequence[float]
    memory: Sequence[float]
    joins: Sequence[int]
    """For each entry its join."""
    entries: Sequence[int]
    """For each entry and input the entry of the input's plan."""
    blocks: Sequence[int]
    """For each join the sets of its inputs, padded with 0 to the number of relations of the query."""
    orders: Sequence[int]
    """For each join and input the positions of the inputs to probe, each padded to the number of relations."""
    is_complete: bool
    """Whether the budget sufficed, so that no undominated plan is missing."""


def floats(size: int) -> list[float]:
    """Returns a list of zeros, to be overwritten."""
    return [0.0] * size


def integers(size: int) -> list[int]:
    """Returns a list of zeros, to be overwritten."""
    return [0] * size


def longer_floats(values: list[float], size: int) -> list[float]:
    """Returns the values, padded with zeros."""
    return values + [0.0] * (size - len(values))


def longer_integers(values: list[int], size: int) -> list[int]:
    """Returns the values, padded with zeros."""
    return values + [0] * (size - len(values))


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


def price_probes(
    sets: Sets, lookups: Lookups, blocks: Sequence[int], size: int, union: list[int], price: list[float]
) -> None:
    """Fills in the ternary number of each group of blocks, and the price of each lookup of a block by a group."""
    full = (1 << size) - 1
    for block in range(size):
        number, start = sets.ternary[blocks[block]], 1 << block
        for group in range(start):
            union[start + group] = union[group] + number if group else number
    for group in range(1, full):
        bound = union[group]
        for block in range(size):
            if group >> block & 1 == 0:
                price[group * size + block] = lookups.cost[bound + 2 * union[1 << block]]


def set_index(
    lookups: Lookups, size: int, union: Sequence[int], price: list[float], block: int, index: int, is_allowed: bool
) -> None:
    """Allows or forbids all lookups that use one index over a block."""
    bit = 1 << block
    for group in range(1, (1 << size) - 1):
        if group & bit == 0:
            pair = union[group] + 2 * union[bit]
            if lookups.indexes[pair] == index:
                price[group * size + block] = lookups.cost[pair] if is_allowed else inf


def order_probes(
    sets: Sets, blocks: Sequence[int], size: int, price: Sequence[float], onward: list[float], choice: list[int]
) -> float:
    """Orders the probes of a join of the first `size` blocks by CPU; returns the CPU of all, infinite if impossible.

    `choice[g]` becomes the block that rows which have bound the blocks of group g probe next.
    """
    full = (1 << size) - 1
    onward[full] = 0.0
    for group in range(full - 1, 0, -1):
        least, best, row = inf, -1, group * size
        for block in range(size):
            bit = 1 << block
            if group & bit == 0:
                cost = onward[group | bit] + price[row + block]
                # Orders that differ only by rounding count as equal: the first block is taken.
                if cost < least * SLACK or best < 0:
                    least, best = cost, block
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


def first_above(rising: Sequence[float], size: int, value: float) -> int:
    """Returns the position of the first number above a value, among the first `size` numbers."""
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        if rising[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return low


def is_beaten(cpu: float, memory: float, rising: Sequence[float], falling: Sequence[float], size: int) -> bool:
    """Whether a front, rising in CPU and falling in memory, has a plan that needs no more of either."""
    place = first_above(rising, size, cpu)
    return place > 0 and falling[place - 1] <= memory


def is_hopeless(
    cpu: float,
    memory: float,
    rest_cpu: float,
    rest_memory: float,
    limits: Limits,
    kept_cpu: Sequence[float],
    kept_memory: Sequence[float],
    kept: int,
) -> bool:
    """Whether plans of a set that cost at least this much can be pruned.

    They can if a kept plan of the set dominates them, or if together with the lower bound of the rest of a complete
    plan they exceed a limit or are dominated by a known plan.
    """
    all_cpu, all_memory = (cpu + rest_cpu) * SLACK, (memory + rest_memory) * SLACK
    return (
        all_cpu > limits.cpu
        or all_memory > limits.memory
        or is_beaten(cpu * SLACK, memory * SLACK, kept_cpu, kept_memory, kept)
        or is_beaten(all_cpu, all_memory, limits.seed_cpu, limits.seed_memory, len(limits.seed_cpu))
    )


def search_orders(
    sets: Sets,
    lookups: Lookups,
    blocks: Sequence[int],
    size: int,
    other_cpu: float,
    other_memory: float,
    rest_cpu: float,
    rest_memory: float,
    limits: Limits,
    kept_cpu: Sequence[float],
    kept_memory: Sequence[float],
    kept: int,
    budget: int,
) -> tuple[int, list[float], list[float], list[int], int]:
    """Searches the probe orders of one join together with the indexes that they need.

    Returns the number of orders found, their CPU and memory, the orders themselves, and what is left of the budget,
    negative if it was exceeded. The orders include all undominated ones that are not hopeless. `other_cpu` and
    `other_memory` is the least that a plan of the set needs besides the probes and indexes of this join.

    The first orders are the cheapest without regard to indexes. Other orders are better only if they lack an index over
    a block with several. So for each of these indexes in turn, the search forbids that index, demands those
    before it, and continues with the cheapest orders that remain. Demanded indexes are a lower bound.
    """
    groups = 1 << size
    union, price, onward, choice = integers(groups), floats(groups * size), floats(groups), integers(groups)
    price_probes(sets, lookups, blocks, size, union, price)
    counts, used, demanded = integers(size), integers(size * size), integers(size)
    room, count = 4, 0
    cpu, memory, orders = floats(room), floats(room), integers(room * size * size)
    # Each level lists the indexes to forbid in turn, from begin[level]; the one at at[level] is forbidden now.
    capacity, top, depth = size * size, 0, -1
    over, index, is_demanded = integers(capacity), integers(capacity), integers(capacity)
    begin, at, probing_above = integers(capacity), integers(capacity), floats(capacity)
    probing, is_new = 0.0, True
    while True:
        for is_ordered in (False, True):
            if not is_new:
                break
            if is_ordered:
                probing = order_probes(sets, blocks, size, price, onward, choice)
            now_cpu, now_memory = probing, 0.0
            for part in range(size):
                now_cpu += max(1, demanded[part]) * sets.link[blocks[part]]
                now_memory += max(1, demanded[part]) * sets.index_bytes[blocks[part]]
            for other in range(count):
                if cpu[other] <= now_cpu and memory[other] <= now_memory:
                    is_new = False
            all_cpu, all_memory = other_cpu + now_cpu, other_memory + now_memory
            if now_cpu == inf or is_hopeless(
                all_cpu, all_memory, rest_cpu, rest_memory, limits, kept_cpu, kept_memory, kept
            ):
                is_new = False
        if is_new:
            count_indexes(lookups, size, choice, union, counts, used)
            if count == room:
                room *= 2
                cpu, memory = longer_floats(cpu, room), longer_floats(memory, room)
                orders = longer_integers(orders, room * size * size)
            cpu[count], memory[count] = probing, 0.0
            for part in range(size):
                cpu[count] += counts[part] * sets.link[blocks[part]]
                memory[count] += counts[part] * sets.index_bytes[blocks[part]]
                group, place = 1 << part, (count * size + part) * size
                while group != groups - 1:
                    orders[place] = choice[group]
                    group |= 1 << choice[group]
                    place += 1
            count += 1
            depth += 1
            if max(depth + 1, top + size * size) > capacity:
                capacity *= 2
                over, index = longer_integers(over, capacity), longer_integers(index, capacity)
                is_demanded, probing_above = (
                    longer_integers(is_demanded, capacity),
                    longer_floats(probing_above, capacity),
                )
                begin, at = longer_integers(begin, capacity), longer_integers(at, capacity)
            begin[depth], at[depth], probing_above[depth] = top, top - 1, probing
            for part in range(size):
                for place in range(part * size, part * size + counts[part]):
                    is_free = counts[part] > 1
                    for other in range(begin[depth]):
                        if over[other] == part and index[other] == used[place] and is_demanded[other] == 1:
                            is_free = False
                    if is_free:
                        over[top], index[top] = part, used[place]
                        top += 1
        if depth < 0 or budget < 0:
            return count, cpu, memory, orders, budget
        place = at[depth]
        if place >= begin[depth]:
            set_index(lookups, size, union, price, over[place], index[place], True)
            is_demanded[place] = 1
            demanded[over[place]] += 1
        place += 1
        at[depth] = place
        is_new = place < top
        if is_new:
            set_index(lookups, size, union, price, over[place], index[place], False)
            probing = probing_above[depth]
            budget -= groups * size
        else:
            for done in range(begin[depth], top):
                is_demanded[done] = 0
                demanded[over[done]] -= 1
            top = begin[depth]
            depth -= 1


def cuts_needed(needed: Sequence[int], whole: int, blocks: Sequence[int], size: int) -> bool:
    """Whether a partition of a set splits a needed part of the set."""
    for want in needed:
        if whole & want == want and whole != want:
            is_held = False
            for part in range(size):
                is_held = is_held or blocks[part] & want == want
            if not is_held:
                return True
    return False


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


def open_place(
    cpu: list[float],
    memory: list[float],
    joins: list[int],
    entries: list[int],
    relations: int,
    kept: int,
    place: int,
    beaten: int,
) -> int:
    """Opens a position for an entry at `place`, which replaces those up to `beaten`; returns the new length."""
    shift = 1 - (beaten - place)
    moved, step, end = kept - 1, -1, beaten - 1
    if shift < 0:
        moved, step, end = beaten, 1, kept
    while shift != 0 and moved != end:
        to = moved + shift
        cpu[to], memory[to], joins[to] = cpu[moved], memory[moved], joins[moved]
        for part in range(relations):
            entries[to * relations + part] = entries[moved * relations + part]
        moved += step
    return kept + shift


def search(sets: Sets, lookups: Lookups, limits: Limits, units: Units, order: Sequence[int]) -> Fronts:
    """Returns the undominated plans of every set that a plan within the limits may join.

    `order` lists the sets of two or more relations, smaller ones first. CPU and memory exclude the base states, which
    all plans share.
    """
    total = len(sets.rows)
    full = total - 1
    relations = sets.relations[full]
    first, counts = integers(total), integers(total)
    capacity = 1024
    cpu, memory = floats(capacity), floats(capacity)
    joins, entries = integers(capacity), integers(capacity * relations)
    used = 1
    join_room, join_count = 1024, 0
    join_blocks, join_orders = integers(join_room * relations), integers(join_room * relations * relations)
    budget = limits.budget
    # The lower bound of a set as the input of a join: its plans, one probe of each new row, and one index.
    least_cpu, least_memory = floats(total), floats(total)
    # The lower bound of the relations of a set in any plan.
    single_cpu, single_memory = floats(total), floats(total)
    for mask in range(1, total):
        lowest = mask & -mask
        own_cpu = sets.turnover[lowest] * sets.rows[lowest] * units.probe + sets.link[lowest]
        single_cpu[mask] = single_cpu[mask ^ lowest] + own_cpu
        single_memory[mask] = single_memory[mask ^ lowest] + sets.index_bytes[lowest]
        if mask == lowest:
            counts[mask] = 1  # entry 0, without cost, represents every base state
            least_cpu[mask], least_memory[mask] = single_cpu[mask], single_memory[mask]
    room = 64
    kept_cpu, kept_memory = floats(room), floats(room)
    kept_joins, kept_entries = integers(room), integers(room * relations)
    left, extra, blocks = integers(relations + 1), integers(relations + 1), integers(relations + 1)
    low_cpu, low_memory = floats(relations + 1), floats(relations + 1)
    picked = integers(relations)
    for whole in order:
        if not limits.allowed[whole]:
            continue
        keep_cpu, keep_memory, rest_cpu, rest_memory = 0.0, 0.0, 0.0, 0.0
        if whole != full:
            keep_cpu, keep_memory = sets.upkeep[whole], sets.state_bytes[whole]
            outside = full ^ whole
            rest_cpu = sets.turnover[whole] * sets.rows[whole] * units.probe + sets.link[whole]
            rest_cpu += single_cpu[outside] + sets.results[full] + 4 * units.call
            rest_memory = sets.index_bytes[whole] + single_memory[outside]
        floor = keep_cpu + sets.results[whole] + 4 * units.call
        kept, depth = 0, 0
        bound_cpu, bound_memory = floor + single_cpu[whole], keep_memory + single_memory[whole]
        if is_hopeless(bound_cpu, bound_memory, rest_cpu, rest_memory, limits, kept_cpu, kept_memory, kept):
            continue
        is_mjoin = sets.relations[whole] <= limits.widest
        left[0], extra[0] = whole, -1
        low_cpu[0], low_memory[0] = floor, keep_memory
        while depth >= 0:
            # The next block at this depth: the lowest remaining relation, and some of the others.
            lowest = left[depth] & -left[depth]
            others = left[depth] ^ lowest
            if is_mjoin:
                # One join of single relations comes first: the front then has the plan of least memory.
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
            bound_cpu, bound_memory = now_cpu + single_cpu[outside], now_memory + single_memory[outside]
            if is_hopeless(bound_cpu, bound_memory, rest_cpu, rest_memory, limits, kept_cpu, kept_memory, kept):
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
            if cuts_needed(limits.needed, whole, blocks, size):
                continue
            # Increasingly tight bounds: the cheapest lookups, then all lookups, then the indexes that they use.
            least, bound_memory = keep_cpu + size * size * units.call, keep_memory
            for part in range(size):
                entry = first[blocks[part]]
                least += sets.link[blocks[part]] + cpu[entry]
                bound_memory += sets.index_bytes[blocks[part]] + memory[entry + counts[blocks[part]] - 1]
            bound_cpu = least + least_probing(sets, lookups, whole, blocks, size)
            if is_hopeless(bound_cpu, bound_memory, rest_cpu, rest_memory, limits, kept_cpu, kept_memory, kept):
                continue
            other_cpu, other_memory = least, bound_memory
            for part in range(size):
                other_cpu -= sets.link[blocks[part]]
                other_memory -= sets.index_bytes[blocks[part]]
            founds, found_cpu, found_memory, found_orders, budget = search_orders(
                sets,
                lookups,
                blocks,
                size,
                other_cpu,
                other_memory,
                rest_cpu,
                rest_memory,
                limits,
                kept_cpu,
                kept_memory,
                kept,
                budget,
            )
            # All combinations of the orders found and the plans kept for the blocks.
            for found in range(founds):
                is_kept = False
                for part in range(size):
                    picked[part] = 0
                while True:
                    now_cpu, now_memory = (
                        keep_cpu + size * size * units.call + found_cpu[found],
                        keep_memory + found_memory[found],
                    )
                    for part in range(size):
                        entry = first[blocks[part]] + picked[part]
                        now_cpu += cpu[entry]
                        now_memory += memory[entry]
                    place = first_above(kept_cpu, kept, now_cpu)
                    if (
                        now_cpu <= limits.cpu
                        and now_memory <= limits.memory
                        and (place == 0 or kept_memory[place - 1] > now_memory)
                    ):
                        if place > 0 and kept_cpu[place - 1] == now_cpu:
                            place -= 1
                        beaten = place
                        while beaten < kept and kept_memory[beaten] >= now_memory:
                            beaten += 1
                        if kept + 1 > room:
                            room *= 2
                            kept_cpu, kept_memory = longer_floats(kept_cpu, room), longer_floats(kept_memory, room)
                            kept_joins = longer_integers(kept_joins, room)
                            kept_entries = longer_integers(kept_entries, room * relations)
                        kept = open_place(
                            kept_cpu, kept_memory, kept_joins, kept_entries, relations, kept, place, beaten
                        )
                        kept_cpu[place], kept_memory[place], kept_joins[place] = now_cpu, now_memory, join_count
                        is_kept = True
                        for part in range(size):
                            kept_entries[place * relations + part] = first[blocks[part]] + picked[part]
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
                    for part in range(size):
                        join_blocks[join_count * relations + part] = blocks[part]
                        to, place = (join_count * relations + part) * relations, (found * size + part) * size
                        for step in range(size - 1):
                            join_orders[to + step] = found_orders[place + step]
                    join_count += 1
                    if join_count == join_room:
                        join_room *= 2
                        join_blocks = longer_integers(join_blocks, join_room * relations)
                        join_orders = longer_integers(join_orders, join_room * relations * relations)
        while used + kept > capacity:
            capacity *= 2
            cpu, memory = longer_floats(cpu, capacity), longer_floats(memory, capacity)
            joins = longer_integers(joins, capacity)
            entries = longer_integers(entries, capacity * relations)
        first[whole], counts[whole] = used, kept
        for entry in range(kept):
            cpu[used + entry], memory[used + entry] = kept_cpu[entry], kept_memory[entry]
            joins[used + entry] = kept_joins[entry]
            for part in range(relations):
                entries[(used + entry) * relations + part] = kept_entries[entry * relations + part]
        if kept:
            probes = sets.turnover[whole] * sets.rows[whole] * units.probe
            least_cpu[whole] = kept_cpu[0] + probes + sets.link[whole]
            least_memory[whole] = kept_memory[kept - 1] + sets.index_bytes[whole]
        used += kept
    return Fronts(first, counts, cpu, memory, joins, entries, join_blocks, join_orders, budget >= 0)
