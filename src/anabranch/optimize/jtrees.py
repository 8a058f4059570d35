"""Searches all jtrees of a query: dynamic programming over sets of relations, with branch and bound.

A plan's cost is the sum of the costs of its joins and states, and the cost of a join depends only on how the join
partitions its set. So each set keeps only its plans that are undominated in CPU and memory: in any plan, a dominated
part can be replaced by the part that dominates it. The result is the whole Pareto set. Predicates are checked at the
earliest join; plans that defer one are outside the search space.

The partitions of a set are enumerated block by block. A branch is pruned if its lower bound is dominated by a plan of
the same set or by a complete plan that is known before (`seeds`). Only partitions that survive get their probe orders:
the cheapest way from a bound part to the whole is the same for every input that reaches it, so one pass over the unions
of the blocks orders all inputs.

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


class Fronts(NamedTuple):
    """The undominated plans of each set: those of set s are entries first[s] to first[s] + counts[s], by rising CPU."""

    first: Sequence[int]
    counts: Sequence[int]
    cpu: Sequence[float]
    memory: Sequence[float]
    blocks: Sequence[int]
    """For each entry the sets of its inputs, padded with 0 to the number of relations of the query."""
    entries: Sequence[int]
    """For each entry and input the entry of the input's plan."""


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


def order_probes(
    sets: Sets,
    lookups: Lookups,
    blocks: Sequence[int],
    size: int,
    onward: list[float],
    choice: list[int],
    union: list[int],
) -> float:
    """Orders the probes of a join of the first `size` blocks; returns the CPU of all probes.

    `choice[g]` becomes the block that rows which have bound the blocks of group g probe next, and `union[g]` the
    ternary number of the blocks of group g. The three lists have at least 2^size elements.
    """
    ternary, cost = sets.ternary, lookups.cost
    full = (1 << size) - 1
    for block in range(size):
        number, start = ternary[blocks[block]], 1 << block
        for group in range(start):
            union[start + group] = union[group] + number if group else number
    onward[full] = 0.0
    for group in range(full - 1, 0, -1):
        bound, least, best = union[group], inf, -1
        for block in range(size):
            bit = 1 << block
            if group & bit == 0:
                price = onward[group | bit] + cost[bound + 2 * union[bit]]
                # Orders that differ only by rounding count as equal: the first block is taken.
                if price < least * SLACK or best < 0:
                    least, best = price, block
        onward[group] = least
        choice[group] = best
    total = 0.0
    for block in range(size):
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
    inputs: list[int],
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
        cpu[to], memory[to] = cpu[moved], memory[moved]
        for part in range(relations):
            inputs[to * relations + part] = inputs[moved * relations + part]
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
    inputs, entries = integers(capacity * relations), integers(capacity * relations)
    used = 1
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
    kept_inputs, kept_entries = integers(room * relations), integers(room * relations)
    left, extra, blocks = integers(relations + 1), integers(relations + 1), integers(relations + 1)
    low_cpu, low_memory = floats(relations + 1), floats(relations + 1)
    onward, choice, union = floats(total), integers(total), integers(total)
    picked, indexes, found = integers(relations), integers(relations), integers(relations * relations)
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
            probing = order_probes(sets, lookups, blocks, size, onward, choice, union)
            bound_cpu = least + probing
            if is_hopeless(bound_cpu, bound_memory, rest_cpu, rest_memory, limits, kept_cpu, kept_memory, kept):
                continue
            count_indexes(lookups, size, choice, union, indexes, found)
            join, join_memory = keep_cpu + size * size * units.call + probing, keep_memory
            for part in range(size):
                join += indexes[part] * sets.link[blocks[part]]
                join_memory += indexes[part] * sets.index_bytes[blocks[part]]
            # All combinations of the plans kept for the blocks.
            for part in range(size):
                picked[part] = 0
            while True:
                now_cpu, now_memory = join, join_memory
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
                        kept_inputs = longer_integers(kept_inputs, room * relations)
                        kept_entries = longer_integers(kept_entries, room * relations)
                    kept = open_place(kept_cpu, kept_memory, kept_inputs, kept_entries, relations, kept, place, beaten)
                    kept_cpu[place], kept_memory[place] = now_cpu, now_memory
                    for part in range(relations):
                        is_used = part < size
                        kept_inputs[place * relations + part] = blocks[part] if is_used else 0
                        kept_entries[place * relations + part] = first[blocks[part]] + picked[part] if is_used else 0
                part = 0
                while part < size:
                    picked[part] += 1
                    if picked[part] < counts[blocks[part]]:
                        break
                    picked[part] = 0
                    part += 1
                if part == size:
                    break
        while used + kept > capacity:
            capacity *= 2
            cpu, memory = longer_floats(cpu, capacity), longer_floats(memory, capacity)
            inputs = longer_integers(inputs, capacity * relations)
            entries = longer_integers(entries, capacity * relations)
        first[whole], counts[whole] = used, kept
        for entry in range(kept):
            cpu[used + entry], memory[used + entry] = kept_cpu[entry], kept_memory[entry]
            for part in range(relations):
                inputs[(used + entry) * relations + part] = kept_inputs[entry * relations + part]
                entries[(used + entry) * relations + part] = kept_entries[entry * relations + part]
        if kept:
            probes = sets.turnover[whole] * sets.rows[whole] * units.probe
            least_cpu[whole] = kept_cpu[0] + probes + sets.link[whole]
            least_memory[whole] = kept_memory[kept - 1] + sets.index_bytes[whole]
        used += kept
    return Fronts(first, counts, cpu, memory, inputs, entries)
