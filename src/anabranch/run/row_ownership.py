"""Which durable rows a slot owns after partition groups have moved since the rows were written.

A slot writes the rows that it receives to its own file, under the table of that batch. The file is authoritative for a
row as long as the slot has needed the row under *every* table since. When the table changes, a slot takes over the rows
that it needs under the new table and did not need under the last one. It finds them in the files of the slots that
needed them, reads each row from the first of these slots, and writes it into its own file of the batch. So a move needs
no protocol besides the commit of a batch: before the commit the old table applies, after it the new one, and files
never change.

Invariant: after every commit, and in every slot that needs a row, exactly one file is authoritative for the row.

This includes a group that leaves a slot and comes back. The old files of the slot still hold its rows, but the slot did
not need them under the table in between, so the files are no longer authoritative for them.

While groups move on parallel tracks, what a slot needs also depends on event times: the receiver needs the rows from
the mark on. So event times, which every row has, suffice to distinguish the two tracks after a crash or a compaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from anabranch.engine.batch import RelationBatch
from anabranch.engine.kernels import BoolArray, Int64Array
from anabranch.engine.ownership import cells_needed, needed_in, own_cells
from anabranch.plan.heavy import HeavyKey
from anabranch.plan.needs import places_of_both
from anabranch.plan.partitioning import Dimension, Partitioning

Grid: TypeAlias = tuple[tuple[Dimension, ...], tuple[HeavyKey, ...]]


def kept_rows(tables: Sequence[Partitioning], slot: int, relation: str, rows: RelationBatch) -> BoolArray:
    """Returns True for the rows of a slot's own file that the slot has needed under every table since it was written.

    `tables` begin with the one under which the file was written and end with the current one.
    """
    kept = np.ones(len(rows), dtype=np.bool_)
    settled: dict[Grid, tuple[Partitioning, BoolArray]] = {}
    for table in dict.fromkeys(tables):
        if table.mark is not None:
            kept &= is_needed(table, slot, relation, rows)
            continue
        # Tables over one grid require only one lookup of the rows' cells.
        needed = _needed_cells(table, slot, relation)
        _, so_far = settled.get(table.grid, (table, needed))
        settled[table.grid] = table, needed & so_far
    for table, needed in settled.values():
        if not needed.all():
            kept &= needed.take(own_cells(table, relation, rows))
    return kept


def taken_rows(
    tables: Sequence[Partitioning],
    new: Partitioning,
    written_by: int,
    slot: int,
    relation: str,
    rows: RelationBatch,
) -> BoolArray:
    """Returns True for the rows of another slot's file that a slot takes over when a new table takes effect.

    `tables` begin with the one under which the file was written and end with the one before the new one.
    """
    cells = taken_cells(tables, new, written_by, slot, relation)
    if cells is not None:
        if not cells.any():
            return np.zeros(len(rows), dtype=np.bool_)
        found: BoolArray = cells.take(own_cells(new, relation, rows))
        return found
    last = tables[-1]
    taken = is_needed(new, slot, relation, rows) & ~is_needed(last, slot, relation, rows)
    if not taken.any():
        return taken
    is_first: BoolArray = _needed(last, relation, rows).argmax(axis=1) == written_by
    return taken & is_first & kept_rows(tables, written_by, relation, rows)


def may_take(tables: Sequence[Partitioning], new: Partitioning, written_by: int, slot: int, relation: str) -> bool:
    """Returns False if the slot takes over no row of the relation from the other slot's file."""
    cells = taken_cells(tables, new, written_by, slot, relation)
    return cells is None or bool(cells.any())


def taken_cells(
    tables: Sequence[Partitioning], new: Partitioning, written_by: int, slot: int, relation: str
) -> BoolArray | None:
    """Returns the cells of the relation whose rows `taken_rows` takes; None if cells alone do not determine this.

    They do if all tables have the grid of the new one and no move on parallel tracks is in progress. So one part of a
    move hashes each row once, however many parts preceded it, and reads no file without rows for it.
    """
    if any(table.mark is not None or table.grid != new.grid for table in (*tables, new)):
        return None
    last = tables[-1]
    taken = _needed_cells(new, slot, relation) & ~_needed_cells(last, slot, relation)
    taken &= cells_needed(last, relation).argmax(axis=0) == written_by
    for table in dict.fromkeys(tables):
        taken &= _needed_cells(table, written_by, relation)
    return taken


def _needed_cells(table: Partitioning, slot: int, relation: str) -> BoolArray:
    """Returns the cells of the relation whose rows a slot needs; a slot that the table does not have needs none."""
    needed = cells_needed(table, relation)
    return needed[slot] if slot < table.slots else np.zeros(needed.shape[1], dtype=np.bool_)


def is_needed(table: Partitioning, slot: int, relation: str, rows: RelationBatch) -> BoolArray:
    """Returns True for the rows that a slot needs; a slot that the table does not have needs none."""
    if slot >= table.slots:
        return np.zeros(len(rows), dtype=np.bool_)
    needed: BoolArray = _needed(table, relation, rows)[:, slot]
    return needed


def first_slots(table: Partitioning, relation: str, rows: RelationBatch) -> Int64Array:
    """Returns the first of the slots that need each row."""
    first: Int64Array = _needed(table, relation, rows).argmax(axis=1)
    return first


def _needed(table: Partitioning, relation: str, rows: RelationBatch) -> BoolArray:
    """Returns one row of slot flags per row of the relation: True where the slot needs the row.

    Rows before the mark of a move on parallel tracks are needed where they were; the others in both slots.
    """
    if table.mark is None:
        return needed_in(table, relation, rows)
    is_new = (rows.times >= table.mark)[:, np.newaxis]
    before, after = (needed_in(each, relation, rows) for each in (table.before, table.settled))
    needed: BoolArray = before | (is_new & after)
    return needed


def gains_and_losses(before: Partitioning, after: Partitioning, slot: int) -> tuple[bool, bool]:
    """Returns whether a slot needs rows under the second table that it did not need under the first, and vice versa.

    Tables over different grids may differ in every row. So may tables that no single move connects.
    """
    if before == after:
        return False, False
    if before.dimensions != after.dimensions:
        return True, True
    if after.mark is not None and after.before == before.settled and before.mark is None:
        # No row has reached the mark yet, and those before it do not move.
        return False, False
    if before.mark is not None:
        if after != before.settled:
            return True, True
        # No row before the mark is alive any more, and those from it on are already in both slots.
        return False, gains_and_losses(before.before, after, slot)[1]
    gains = loses = False
    for relation in sorted(before.relations):
        for one, other in places_of_both(before, after, relation):
            gains |= slot in other and slot not in one
            loses |= slot in one and slot not in other
    return gains, loses
