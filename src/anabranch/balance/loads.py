"""The work of slots and of partition groups, as far as it was measured.

A slot reports its CPU time and its state. Nobody measures a group: its share of its slot's CPU time is estimated from
how many rows of each relation fall into it. Rows cost in proportion to their number, matches in proportion to the
product of the rows of two relations. The split between the two is that of the slot's own operators.

Law: the loads of the groups of a slot add up to the load of the slot.

Limit: keys inside a group are taken as equally frequent. A group with one heavy key is estimated too light; the next
measurement corrects the slot, not the split.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from anabranch.plan.partitioning import Partitioning

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SlotLoad:
    """The work of one slot over some batches."""

    cpu: float
    """Seconds of one core."""
    bytes: float
    """Bytes of state at the end."""
    matching: float = 0.5
    """The share of the CPU time that grows with matches rather than with rows; 0 to 1."""


@dataclass(frozen=True)
class Loads:
    """The loads of all slots and an estimate for every group."""

    slots: tuple[SlotLoad, ...]
    groups: tuple[float, ...]
    """Seconds of one core, each on the slot that has the group now."""
    group_bytes: tuple[float, ...]
    group_rows: tuple[float, ...] = ()
    """Base rows in their windows that go with each group, where they were counted."""

    def on(self, table: Sequence[int]) -> Loads:
        """The loads as they would be with the groups on other slots."""
        cpu, held = np.zeros(len(self.slots)), np.zeros(len(self.slots))
        np.add.at(cpu, list(table), self.groups)
        np.add.at(held, list(table), self.group_bytes)
        slots = (
            replace(slot, cpu=float(spent), bytes=float(kept))
            for slot, spent, kept in zip(self.slots, cpu, held, strict=True)
        )
        return replace(self, slots=tuple(slots))

    @property
    def cpu(self) -> Floats:
        return np.array([slot.cpu for slot in self.slots])

    @property
    def skew(self) -> float:
        """The CPU time of the slowest slot over that of an average one; 1.0 is even."""
        return skew(self.cpu)


def skew(loads: Sequence[float] | Floats) -> float:
    """The largest load over the mean; 1.0 where there is no load.

    >>> skew([3.0, 1.0])
    1.5
    """
    mean = float(np.mean(loads)) if len(loads) else 0.0
    return float(np.max(loads)) / mean if mean > 0 else 1.0


def estimate_loads(
    partitioning: Partitioning,
    rows: Mapping[str, Sequence[float] | Floats],
    slots: Sequence[SlotLoad],
    held: Mapping[str, Sequence[float] | Floats] | None = None,
) -> Loads:
    """Spreads the measured loads of slots over their groups.

    `rows` has, for each relation, how many rows fell on each of its own coordinates (as `Partitioning.slots_of`
    numbers them): every row once, however many slots it went to. `held` has the same of the rows in their windows;
    without it, state is taken to lie where the new rows fell.
    """
    owner = np.array(partitioning.table)
    by_row, by_match = _work(partitioning, rows)
    kept = by_row if held is None else _work(partitioning, held)[0]
    cpu, state = np.zeros(partitioning.groups), np.zeros(partitioning.groups)
    for slot, load in enumerate(slots):
        mine = owner == slot
        if mine.any():
            cpu[mine] = _spread(by_row[mine], load.cpu * (1 - load.matching))
            cpu[mine] += _spread(by_match[mine], load.cpu * load.matching)
            state[mine] = _spread(kept[mine], load.bytes)
    counted = () if held is None else tuple(kept.tolist())
    return Loads(tuple(slots), tuple(cpu.tolist()), tuple(state.tolist()), counted)


def _spread(weights: Floats, total: float) -> Floats:
    """A total in proportion to weights; evenly where all weights are zero."""
    whole = float(weights.sum())
    return weights * (total / whole) if whole > 0 else np.full(len(weights), total / len(weights))


def _work(partitioning: Partitioning, rows: Mapping[str, Sequence[float] | Floats]) -> tuple[Floats, Floats]:
    """For every group: its share of rows to take in, and the pairs of rows that may match in it."""
    dimensions = partitioning.dimensions
    grid = list(itertools.product(*(range(dimension.share) for dimension in dimensions)))
    in_group: list[Floats] = []
    taken = np.zeros(len(grid))
    for relation, counts in rows.items():
        own = [position for position, d in enumerate(dimensions) if relation in d.relations]
        places = np.array([_place(cell, own, partitioning) for cell in grid])
        here = np.asarray(counts, dtype=np.float64)[places]
        in_group.append(here)
        # A slot takes a row in once, even if several of its groups need the row.
        keys = np.array(partitioning.table) * (places.max() + 1) + places
        _, inverse, sharing = np.unique(keys, return_inverse=True, return_counts=True)
        taken += here / sharing[inverse]
    matches = np.zeros(len(grid))
    for one, other in itertools.combinations(in_group, 2):
        matches += one * other
    return taken, matches


def _place(cell: tuple[int, ...], own: Sequence[int], partitioning: Partitioning) -> int:
    place = 0
    for position in own:
        place = place * partitioning.dimensions[position].share + cell[position]
    return place
