"""Fronts of plans by CPU and memory: which costs can still matter, and the plans that are kept.

Invariant: the kept plans rise in CPU and fall in memory, so one binary search decides whether a plan is dominated.
Like all parts of the search, the functions run as plain Python over lists and as compiled code over arrays
(`compiled`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

SLACK = 1 - 1e-9
"""Bounds are multiplied by this, so that rounding never prunes an undominated plan."""


class Limits(NamedTuple):
    """The bounds of a search: limits, known plans, and sets that a plan may or must join."""

    cpu: float
    memory: float
    seed_cpu: Sequence[float]
    """CPU of known complete plans, rising."""
    seed_memory: Sequence[float]
    """Memory of the known plans, falling."""
    allowed: Sequence[bool]
    """True for each set that a plan may join."""
    needed: Sequence[int]
    """Sets that a plan must join."""
    widest: int
    """The maximum number of inputs of a join."""
    reach: float
    """The CPU beyond which a join gets only its cheapest probe orders."""
    budget: int
    """The maximum number of lookups to compare in searches of probe orders, beyond the first orders of each join."""


class Bar(NamedTuple):
    """The costs that a plan of one set must undercut: the limits, the known complete plans, and the plans kept for the
    set.
    """

    most_cpu: float
    """The limit of CPU less a lower bound of what a complete plan needs besides its plan of the set."""
    most_memory: float
    reach: float
    """The CPU beyond which a join gets only its cheapest probe orders, likewise."""
    rest_cpu: float
    """A lower bound of the CPU that a complete plan needs besides its plan of the set."""
    rest_memory: float
    seed_cpu: Sequence[float]
    seed_memory: Sequence[float]
    cpu: Sequence[float]
    """CPU of the kept plans, rising."""
    memory: Sequence[float]
    """Memory of the kept plans, falling."""
    size: int
    """The number of kept plans."""


class Plans(NamedTuple):
    """A table of plans, one row each."""

    cpu: list[float]
    memory: list[float]
    joins: list[int]
    """The top join of each plan, as a row of `Joins`."""
    entries: list[int]
    """For each plan and input of its top join, the row of the input's plan."""


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


def plans_table(rows: int, relations: int) -> Plans:
    """Returns an empty table of plans."""
    return Plans(floats(rows), floats(rows), integers(rows), integers(rows * relations))


def longer_plans(plans: Plans, rows: int, relations: int) -> Plans:
    """Returns the table with space for that many rows; it at least doubles if it grows."""
    room = len(plans.cpu)
    if rows <= room:
        return plans
    rows = max(rows, 2 * room)
    return Plans(
        longer_floats(plans.cpu, rows),
        longer_floats(plans.memory, rows),
        longer_integers(plans.joins, rows),
        longer_integers(plans.entries, rows * relations),
    )


def copy_plan(source: Plans, row: int, to: Plans, place: int, relations: int) -> None:
    """Copies one row of a table into another table."""
    to.cpu[place], to.memory[place], to.joins[place] = source.cpu[row], source.memory[row], source.joins[row]
    for part in range(relations):
        to.entries[place * relations + part] = source.entries[row * relations + part]


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
    """Returns True if a front, rising in CPU and falling in memory, has a plan that needs no more of either."""
    place = first_above(rising, size, cpu)
    return place > 0 and falling[place - 1] <= memory


def bar_of(limits: Limits, rest_cpu: float, rest_memory: float, kept: Plans, size: int) -> Bar:
    """Returns the costs that a plan of a set must undercut if `size` plans of the set are kept."""
    return Bar(
        limits.cpu - rest_cpu * SLACK,
        limits.memory - rest_memory * SLACK,
        limits.reach - rest_cpu * SLACK,
        rest_cpu,
        rest_memory,
        limits.seed_cpu,
        limits.seed_memory,
        kept.cpu,
        kept.memory,
        size,
    )


def is_hopeless(cpu: float, memory: float, bar: Bar) -> bool:
    """Returns True if plans of a set that cost at least this much can be pruned.

    They can if a kept plan of the set dominates them, or if together with the lower bound of the rest of a complete
    plan they exceed a limit or are dominated by a known plan.
    """
    least_cpu, least_memory = cpu * SLACK, memory * SLACK
    if least_cpu > bar.most_cpu or least_memory > bar.most_memory:
        return True
    if is_beaten(least_cpu, least_memory, bar.cpu, bar.memory, bar.size):
        return True
    all_cpu, all_memory = (cpu + bar.rest_cpu) * SLACK, (memory + bar.rest_memory) * SLACK
    return is_beaten(all_cpu, all_memory, bar.seed_cpu, bar.seed_memory, len(bar.seed_cpu))


def place_for(plans: Plans, kept: int, cpu: float, memory: float) -> int:
    """Returns the row at which a plan of that cost belongs; -1 if a kept plan dominates it."""
    place = first_above(plans.cpu, kept, cpu)
    if place > 0 and plans.memory[place - 1] <= memory:
        return -1
    return place - 1 if place > 0 and plans.cpu[place - 1] == cpu else place


def open_place(plans: Plans, kept: int, place: int, memory: float, relations: int) -> int:
    """Opens a row for a plan of that memory, in place of the rows that it dominates; returns the new length."""
    beaten = place
    while beaten < kept and plans.memory[beaten] >= memory:
        beaten += 1
    shift = 1 - (beaten - place)
    moved, step, end = kept - 1, -1, beaten - 1
    if shift < 0:
        moved, step, end = beaten, 1, kept
    while shift != 0 and moved != end:
        copy_plan(plans, moved, plans, moved + shift, relations)
        moved += step
    return kept + shift
