"""Changes the number of slots: computes which groups each used slot has afterwards.

A grid is created once, for the maximum number of slots of a run. Using fewer slots only changes the table:
`spread_over` computes the table for a number of slots from the grid alone, `rescale` from measured loads.

On a grid with one axis, a change moves as few groups as even loads allow. On a grid with several axes, moving groups
one by one would scatter the cells and copy more rows than additional slots can process. Such a grid is divided into new
blocks and balanced from there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from anabranch.balance.loads import Loads
from anabranch.balance.rule import Rebalancing, even_out, moves_between
from anabranch.errors import PlanError
from anabranch.plan.partitioning import Partitioning


def spread_over(partitioning: Partitioning, slots: int) -> Partitioning:
    """Returns the grid over its first slots: in blocks that copy few rows and differ little in size.

    A grid with fewer groups than slots uses one slot for each group: not every query can be spread.
    """
    slots = min(slots, partitioning.groups)
    require_count(partitioning, slots)
    tables = [table for table in _tables(partitioning, slots) if len(set(table)) == slots]
    return min(map(partitioning.with_table, tables), key=_price)


def rescale(
    partitioning: Partitioning,
    loads: Loads,
    available: Sequence[int],
    copying: Callable[[Partitioning], float] = lambda _: 0.0,
    least_bytes: float = math.inf,
    speeds: Sequence[float] | None = None,
) -> Rebalancing:
    """Returns the moves after which exactly the available slots share the measured load, by their relative speeds.

    State counts under the condition of `balance.rule`.
    """
    even = partial(even_out, speeds=speeds, available=available, copying=copying, least_bytes=least_bytes)
    if _has_one_axis(partitioning):
        return even(partitioning, loads)
    order, before = sorted(available), tuple(loads.cpu.tolist())
    blocks = spread_over(partitioning, len(order))
    blocks = blocks.with_table(order[slot] for slot in blocks.table)
    if speeds is not None:
        pairs = zip(loads.groups, partitioning.table, blocks.table, strict=True)
        loads = replace(loads, groups=tuple(load * speeds[now] / speeds[then] for load, now, then in pairs))
    found = even(blocks, loads.on(blocks.table))
    moves = moves_between(partitioning, found.applied(blocks))
    moved = sum(loads.group_bytes[group] for move in moves for group in move.groups)
    held = tuple(slot.bytes for slot in loads.slots)
    return replace(found, moves=moves, before=before, bytes=moved, held_before=held)


def require_count(partitioning: Partitioning, slots: int) -> None:
    """Raises an error for a number of slots that the run does not have."""
    if not 1 <= slots <= partitioning.slots:
        raise PlanError(
            f"{slots} slots cannot be used: the query has {partitioning.slots}",
            hint=f"write 1 to {partitioning.slots}; a query started with slots: {{least: 1, most: 8}} has up to 8",
        )
    if slots > partitioning.groups:
        raise PlanError(
            f"{slots} slots cannot be used: the grid has {partitioning.groups} partition groups",
            hint="compare keys with '=', so that rows can be spread over more slots",
        )


def _has_one_axis(partitioning: Partitioning) -> bool:
    return sum(dimension.share > 1 for dimension in partitioning.dimensions) <= 1


def _tables(partitioning: Partitioning, slots: int) -> list[tuple[int, ...]]:
    """Returns the groups in runs of equal length, and every way to divide the axes into blocks.

    The groups of heavy keys follow those of the grid, and go to the slots in runs.
    """
    shares = [dimension.share for dimension in partitioning.dimensions]
    tables = [tuple(group * slots // partitioning.groups for group in range(partitioning.groups))]
    cuts = itertools.product(*(range(1, min(share, slots) + 1) for share in shares))
    sizes = [partitioning.region(n + 1) - partitioning.region(n) for n in range(len(partitioning.heavy))]
    regions = tuple(group * slots // size for size in sizes for group in range(size))
    tables += [
        tuple(_block(place, shares, factors) for place in itertools.product(*map(range, shares))) + regions
        for factors in cuts
        if math.prod(factors) == slots
    ]
    return tables


def _block(place: Sequence[int], shares: Sequence[int], factors: Sequence[int]) -> int:
    slot = 0
    for coordinate, share, factor in zip(place, shares, factors, strict=True):
        slot = slot * factor + coordinate * factor // share
    return slot


def _price(partitioning: Partitioning) -> float:
    """Returns the rows sent at equal rates, times the ratio of the largest slot to the average."""
    sent = sum(partitioning.copies([name]) for name in sorted(partitioning.relations))
    largest = max(len(partitioning.groups_of(slot)) for slot in partitioning.working)
    return sent * largest * len(partitioning.working) / partitioning.groups
