"""The measured work of slots, and the estimated work of their partition groups.

A slot reports its CPU time and its state. Groups are not measured: a group's share of its slot's CPU time is estimated
from how many rows of each relation fall into it. The cost of rows is proportional to their number, that of matches to
the product of the rows of two relations. The ratio between the two is that of the slot's own operators.

Invariant: the loads of the groups of a slot add up to the load of the slot.

Limit: keys reported as frequent count by their own rows; the others inside a group are assumed to be equally frequent.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from anabranch.plan.heavy import xxhash64_long
from anabranch.plan.partitioning import Dimension, Partitioning
from anabranch.stats.keys import KeyCounts

Floats = NDArray[np.float64]
NO_KEYS: Mapping[str, KeyCounts] = MappingProxyType({})


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
    """Seconds of one core, each on the slot that currently has the group."""
    group_bytes: tuple[float, ...]
    group_rows: tuple[float, ...] = ()
    """Base rows in their windows that belong to each group, if they were counted."""
    units: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
    """The seconds of one core per row, and per pair of matching rows, for each slot; None if not measured."""

    def on(self, table: Sequence[int]) -> Loads:
        """Returns the loads with the groups on other slots."""
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
        """The CPU time of the slowest slot divided by that of an average slot; 1.0 is even."""
        return skew(self.cpu)


def skew(loads: Sequence[float] | Floats) -> float:
    """Returns the largest load divided by the mean; 1.0 without any load.

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
    keys: Mapping[str, KeyCounts] = NO_KEYS,
) -> Loads:
    """Distributes the measured loads of slots over their groups.

    `rows` has, for each relation, how many rows fell into each of its cells (as `Partitioning.slots_of` numbers them):
    every row once, however many slots it went to. `held` has the same for the rows in their windows; without it, state
    is assumed to be where the new rows fell. `keys` has the frequent values among the rows.
    """
    owner = np.array(partitioning.table)
    by_row, by_match = group_work(partitioning, rows, keys)
    kept = by_row if held is None else group_work(partitioning, held, NO_KEYS)[0]
    cpu, state = np.zeros(partitioning.groups), np.zeros(partitioning.groups)
    units = np.zeros((2, len(slots)))
    for slot, load in enumerate(slots):
        mine = owner == slot
        if mine.any():
            cpu[mine] = _spread(by_row[mine], load.cpu * (1 - load.matching))
            cpu[mine] += _spread(by_match[mine], load.cpu * load.matching)
            state[mine] = _spread(kept[mine], load.bytes)
            units[0, slot] = load.cpu * (1 - load.matching) / max(float(by_row[mine].sum()), 1.0)
            units[1, slot] = load.cpu * load.matching / max(float(by_match[mine].sum()), 1.0)
    counted = () if held is None else tuple(kept.tolist())
    each = tuple(units[0].tolist()), tuple(units[1].tolist())
    return Loads(tuple(slots), tuple(cpu.tolist()), tuple(state.tolist()), counted, each)


def _spread(weights: Floats, total: float) -> Floats:
    """Distributes a total in proportion to weights; evenly if all weights are zero."""
    whole = float(weights.sum())
    return weights * (total / whole) if whole > 0 else np.full(len(weights), total / len(weights))


def group_work(
    partitioning: Partitioning, rows: Mapping[str, Sequence[float] | Floats], keys: Mapping[str, KeyCounts]
) -> tuple[Floats, Floats]:
    """Returns, for every group, its share of rows to insert, and the pairs of rows that may match in it."""
    in_group: dict[str, Floats] = {}
    taken = np.zeros(partitioning.groups)
    slots = np.array(partitioning.table)
    for relation, counts in rows.items():
        needs = [(group, cell) for group, cells in enumerate(partitioning.cells_of_groups(relation)) for cell in cells]
        groups, cells = np.array(needs).T
        here = np.asarray(counts, dtype=np.float64)[cells]
        in_group[relation] = np.bincount(groups, here, partitioning.groups).astype(np.float64)
        # A slot inserts a row once, even if several of its groups need the row.
        places = slots[groups] * partitioning.cells(relation) + cells
        _, inverse, sharing = np.unique(places, return_inverse=True, return_counts=True)
        taken += np.bincount(groups, here / sharing[inverse], partitioning.groups)
    matches = np.zeros(partitioning.groups)
    for one, other in itertools.combinations(in_group, 2):
        shared = next((d for d in partitioning.dimensions if {one, other} <= d.relations and d.code in keys), None)
        if shared is None:
            matches += in_group[one] * in_group[other]
        else:
            matches += _pairs(partitioning, shared, keys[shared.code], (one, other), in_group)
    return taken, matches


def _pairs(
    partitioning: Partitioning,
    shared: Dimension,
    keys: KeyCounts,
    pair: tuple[str, str],
    in_group: Mapping[str, Floats],
) -> Floats:
    """Returns, for every group, the pairs of rows of two relations with the same value of a shared key."""
    rest = [in_group[name].copy() for name in pair]
    found = np.zeros(partitioning.groups)
    along = np.array(partitioning.coordinates_of_groups(shared.code))
    values = np.full(partitioning.groups, max(1.0, keys.distinct / shared.share))
    heavy = {key.value for key in partitioning.heavy if key.code == shared.code}
    for value, rows in keys.frequent.items():
        if value in heavy:
            continue
        here = along == xxhash64_long(value) % shared.share
        own = []
        for name, left in zip(pair, rest, strict=True):
            whole = float(in_group[name][here].sum())
            mine = rows.get(name, 0) * in_group[name][here] / whole if whole else np.zeros(int(here.sum()))
            left[here] = np.maximum(left[here] - mine, 0.0)
            own.append(mine)
        found[here] += own[0] * own[1]
        values[here] = np.maximum(values[here] - 1, 1.0)
    # The rows of a heavy key's own groups have one value.
    values[along < 0] = 1.0
    pairs: Floats = found + rest[0] * rest[1] / values
    return pairs
