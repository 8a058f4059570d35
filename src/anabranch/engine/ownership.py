"""Which slots need a row, and which slot owns a finished combination, computed for whole batches.

The coordinate of a code along a dimension is Spark's `pmod(xxhash64(code), share)`. Rows of heavy keys are placed by
the hash of `evaluate.rows`.

Invariant: every finished combination has exactly one owner, and its owner has all of its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

import numpy as np

from anabranch.engine import kernels
from anabranch.engine.batch import Combinations, RelationBatch
from anabranch.engine.evaluate.codes import xxhash64_remainders
from anabranch.engine.evaluate.rows import row_hashes
from anabranch.engine.kernels import BoolArray, Int64Array
from anabranch.engine.operators.join import read_code
from anabranch.engine.state.base import BaseState
from anabranch.plan.heavy import HeavyKey
from anabranch.plan.partitioning import Dimension, Partitioning


def coordinates(codes: Int64Array, share: int) -> Int64Array:
    return xxhash64_remainders(codes, share)


def needed_in(partitioning: Partitioning, relation: str, batch: RelationBatch) -> BoolArray:
    """Returns one row of slot flags per row of the relation: True where the slot needs the row."""
    own = own_cells(partitioning, relation, batch)
    # Slot by slot, which is several times faster than gathering a few flags for every row.
    needed: BoolArray = np.stack([flags.take(own) for flags in cells_needed(partitioning, relation)])
    return needed.T


def rows_for_slot(partitioning: Partitioning, relation: str, cells: Int64Array, slot: int) -> Int64Array:
    """Returns the positions, in order, of the rows that a slot needs, given the cells of the relation's rows."""
    return kernels.places(cells, cells_needed(partitioning, relation)[slot])


def own_cells(partitioning: Partitioning, relation: str, batch: RelationBatch) -> Int64Array:
    """Returns the cells of rows: their place in the relation's own dimensions, or among the rows of their heavy key."""
    own = _mixed(partitioning.members(relation), batch.codes, len(batch))
    # The first heavy key of a row decides, so it is applied last.
    for number, key in reversed(list(enumerate(partitioning.heavy))):
        share = key.share(relation)
        if share is None:
            continue
        mine = np.flatnonzero(batch.codes[key.code] == key.value)
        if len(mine):
            rows = batch if len(mine) == len(batch) else batch.take(mine)
            others = tuple(d for d in partitioning.members(relation) if d.code != key.code)
            place = _mixed(others, rows.codes, len(rows)) * share
            if share > 1:
                place += coordinates(row_hashes(rows), share)
            own[mine] = place + partitioning.first_cell(relation, number)
    return own


def _mixed(dimensions: Iterable[Dimension], codes: Mapping[str, Int64Array], count: int) -> Int64Array:
    """Coordinates along some dimensions in mixed radix."""
    own: Int64Array | None = None
    for dimension in dimensions:
        along = coordinates(codes[dimension.code], dimension.share)
        own = along if own is None else own * dimension.share + along
    return np.zeros(count, dtype=np.int64) if own is None else own


@lru_cache(maxsize=512)
def cells_needed(partitioning: Partitioning, relation: str) -> BoolArray:
    """Returns, for every slot, which of the relation's cells it needs. Cached: a move in parts repeats many tables."""
    slots = partitioning.slots_of(relation)
    flags = np.zeros((partitioning.slots, len(slots)), dtype=np.bool_)
    for place, several in enumerate(slots):
        flags[list(several), place] = True
    return flags


def first_cells(partitioning: Partitioning, relation: str, slot: int) -> BoolArray:
    """Returns the relation's cells for which this slot is the first of those that need their rows."""
    first: BoolArray = cells_needed(partitioning, relation).argmax(axis=0) == slot
    return first


class Ownership:
    """Selects the combinations that one slot owns where several slots find them."""

    def __init__(self, partitioning: Partitioning, slot: int) -> None:
        self.partitioning = partitioning
        self.slot = slot
        self._owners = np.array(partitioning.table, dtype=np.int64)
        self._leaving = None if partitioning.leaving is None else np.array(partitioning.leaving, dtype=np.int64)

    @property
    def spread(self) -> frozenset[str]:
        """The relations whose rows a heavy key splits; their states must keep row hashes."""
        return frozenset(name for key in self.partitioning.heavy for name, share in key.shares if share > 1)

    def holds(self, found: Combinations, bases: Mapping[str, BaseState]) -> BoolArray:
        """True for finished combinations that this slot owns."""
        group = self.group(found, bases)
        mine: BoolArray = self._owners[group] == self.slot
        if self._leaving is None:
            return mine
        was_mine: BoolArray = self._leaving[group] == self.slot
        return np.where(self.is_old(found, bases), was_mine, mine)

    def is_old(self, found: Combinations, bases: Mapping[str, BaseState]) -> BoolArray:
        """True for combinations with a row before the mark of a move on parallel tracks."""
        mark = self.partitioning.mark
        old = np.zeros(len(found), dtype=np.bool_)
        if mark is not None and len(found):
            for relation, rows in found.rows.items():
                old |= bases[relation].times(rows) < mark
        return old

    def group(self, found: Combinations, bases: Mapping[str, BaseState]) -> Int64Array:
        """Returns the partition group of each combination; for a partial one, as far as bound relations allow."""
        group = self._place(self.partitioning.dimensions, found, bases)
        # The first heavy key of a combination decides, so it is applied last.
        for number, key in reversed(list(enumerate(self.partitioning.heavy))):
            dimension = self.partitioning.dimension(key.code)
            if dimension.relations.isdisjoint(found.rows):
                continue
            mine = np.flatnonzero(read_code(bases, key.code, dimension.relations, found) == key.value)
            if len(mine):
                part = found if len(mine) == len(found) else found.take(mine)
                group[mine] = self._place_of_heavy(key, part, bases) + self.partitioning.region(number)
        return group

    def _place(
        self, dimensions: Iterable[Dimension], found: Combinations, bases: Mapping[str, BaseState]
    ) -> Int64Array:
        place = np.zeros(len(found), dtype=np.int64)
        for dimension in dimensions:
            place *= dimension.share
            if dimension.share > 1 and not dimension.relations.isdisjoint(found.rows):
                place += coordinates(read_code(bases, dimension.code, dimension.relations, found), dimension.share)
        return place

    def _place_of_heavy(self, key: HeavyKey, found: Combinations, bases: Mapping[str, BaseState]) -> Int64Array:
        others = (dimension for dimension in self.partitioning.dimensions if dimension.code != key.code)
        place = self._place(others, found, bases)
        for relation, share in key.shares:
            place *= share
            if share > 1 and relation in found.rows:
                place += coordinates(bases[relation].row_hashes(found.rows[relation]), share)
        return place


def owner_test(partitioning: Partitioning, slot: int, relations: Iterable[str]) -> Ownership | None:
    """Returns the test that keeps combinations of the relations in one slot; None when no other slot can find them."""
    if partitioning.mark is not None and not partitioning.is_on_track(slot):
        # The groups of the other slots do not move.
        partitioning = partitioning.settled
    return None if partitioning.finds_once(relations) else Ownership(partitioning, slot)
