"""Brings the engine of a slot to the state before a step: rebuilds it from durable rows, or follows a change of the
table.

Rows come as *sources*: the rows of one slot, and the tables since they were written. Usually a source is a row file
of the checkpoint; a host without a checkpoint reads its engines instead. `row_ownership` defines which rows of a
source count.

When the table changes, a running slot follows in place if it can. A receiver inserts the rows as already processed and
fills the states of its own plan with them, whatever plan the sender has (moving state, Zhu 2006, Section 22.1). A
sender drops the rows and their combinations at once; this copies the remaining rows and joins nothing. A slot is
rebuilt if more than rows and combinations would have to follow: in queries with outer joins, tables or count windows;
in grouped queries, whose pending groups hold the rows; if rows are buffered until the watermark; if rows of some
relation go to several slots; and while its plan migrates. A slot that gets a group back before its last rows have
expired is rebuilt as well, and so is a slot of a grouped query that had rows before it owned their combinations. Slots
that gain or lose neither rows nor groups keep their state unchanged.

A move on parallel tracks (Zhu 2006, Section 21.1) transfers no rows. Its slots change only their ownership test; when
it ends, the sender drops its rows, or is rebuilt, as with any move.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from anabranch.engine.batch import RelationBatch, deadlines, joined
from anabranch.engine.counting import still_counted
from anabranch.engine.engine import Engine
from anabranch.engine.expiry import expiry
from anabranch.engine.kernels import BoolArray
from anabranch.engine.ownership import cells_needed, own_cells, owner_test
from anabranch.engine.state.base import BaseState
from anabranch.plan.mesh import Mesh
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.physical import input_operators
from anabranch.run.row_ownership import gains_and_losses, kept_rows, may_take, taken_rows
from anabranch.run.slot import SlotTask, owners
from anabranch.run.store import Store
from anabranch.run.table_versions import ReadTable
from anabranch.run.tables import follow_tables, table_rows
from anabranch.run.wire import WireLayout, wire_layout

Rows = Mapping[str, RelationBatch]
"""Base rows by relation."""


@dataclass(frozen=True)
class RowSource:
    """Rows of one slot, read on demand, and the tables since they were written."""

    slot: int
    tables: tuple[Partitioning, ...]
    read: Callable[[Collection[str]], Rows]
    """Reads the rows of some relations."""


def durable_sources(task: SlotTask, store: Store, slot: int) -> Iterator[RowSource]:
    """Yields the row files that may hold rows of a slot; files of other slots only if the table has changed."""
    # The tables of that time determine which slots needed the rows of a file.
    layout = wire_layout(task.queries, *task.tables)
    for file in task.files:
        # The first stage has taken over the rows of other slots; they are in the slot's own file.
        if file.slot == slot or (task.is_moving and not task.stage):
            yield RowSource(
                file.slot, task.partitionings[file.partitioning :], partial(_read, layout, store, file.name)
            )
    for stage in range(task.stage):
        yield RowSource(slot, (task.partitioning,), partial(_read, layout, store, task.rows_name(slot, stage)))


def _read(layout: WireLayout, store: Store, name: str, relations: Collection[str]) -> Rows:
    return layout.split(store.read_rows(name), relations)


def rebuild(engine: Engine, task: SlotTask, slot: int, sources: Iterable[RowSource], read: ReadTable) -> Rows:
    """Brings a new engine to the state before the task's batch; returns the rows that it took over from others.

    `read` reads the files of versions of tables.
    """
    layout = wire_layout(task.queries, task.partitioning)
    if task.versions:
        engine.load(table_rows(layout, task.partitioning, slot, task.versions, read), task.versions)
    own: dict[str, list[RelationBatch]] = {}
    taken: dict[str, list[RelationBatch]] = {}
    for source in sources:
        into = own if source.slot == slot else taken
        for name, batch in _chosen(task, slot, source).items():
            into.setdefault(name, []).append(batch)
    streams = [relation.name for relation in task.queries.graph.streamed]
    rows = {name: joined([layout.empty(name), *own.get(name, ()), *taken.get(name, ())]) for name in streams}
    for name in task.queries.graph.counted:
        # Only all rows together determine which of them have expired.
        low = expiry(task.queries, task.floors, task.execution)[name]
        rows[name] = still_counted(task.queries.graph.relation(name), rows[name], low)
    engine.restore(rows, task.answered)
    return {name: joined(batches) for name, batches in taken.items()}


def refresh(engine: Engine, task: SlotTask, slot: int, read: ReadTable) -> None:
    """Brings the tables of a running engine, which can reach the task, to the task's versions."""
    if engine.versions != task.versions:
        layout = wire_layout(task.queries, task.partitioning)
        follow_tables(engine, layout, task.partitioning, slot, task.versions, task.answered, read)


def follow(engine: Engine, task: SlotTask, slot: int, sources: Iterable[RowSource]) -> Rows | None:
    """Adapts a running engine from the last table to the task's; returns None if the engine must be rebuilt.

    Returns the rows that the slot took over. `sources` are read only if the slot gains rows.
    """
    before, now = task.partitionings[-1], task.partitioning
    if task.queries.has_sides or task.versions:
        return None
    gains, loses = gains_and_losses(before, now, slot)
    if task.queries.graph.counted and (gains or loses):
        return None
    if _merged_rows_differ(engine, task, slot) or (loses and not _may_leave(engine, task, before)):
        return None
    if task.queries.grouped and _owns_others(before, now, slot):
        return None
    if gains and (engine.has_leftovers or before.dimensions != now.dimensions):
        return None
    taken: dict[str, list[RelationBatch]] = {}
    if gains:
        for source in sources:
            if source.slot != slot:
                for name, batch in _chosen(task, slot, source).items():
                    taken.setdefault(name, []).append(batch)
    rows = {name: joined(batches) for name, batches in taken.items()}
    engine.own(owners(task, slot))
    if loses:
        engine.leave({name: _is_wanted(state, now, slot) for name, state in engine.bases.items()})
    if rows:
        engine.restore(rows, task.answered)
    return rows


def _is_wanted(state: BaseState, table: Partitioning, slot: int) -> BoolArray:
    """Returns True for the live rows of a base state that a slot needs under a table."""
    rows = state.export() if table.heavy else state.keys()
    wanted: BoolArray = cells_needed(table, state.relation)[slot].take(own_cells(table, state.relation, rows))
    return wanted


def _owns_others(before: Partitioning, now: Partitioning, slot: int) -> bool:
    """Returns True if combinations of rows that a slot keeps belong to the slot under only one of the tables.

    Pending groups hold what the slot owned. If no row goes to two slots, what a slot owns changes only with its rows.
    When a move on parallel tracks begins or ends, no live combination changes its owner.
    """
    if before.is_partition and now.is_partition:
        return False
    is_on_tracks = before.mark is not None or now.mark is not None
    return not is_on_tracks and before.groups_of(slot) != now.groups_of(slot)


def _may_leave(engine: Engine, task: SlotTask, before: Partitioning) -> bool:
    return (
        not task.queries.grouped
        and engine.watermark_buffer is None
        and not engine.is_migrating
        and before.before.is_partition
        and task.partitioning.is_partition
    )


def _merged_rows_differ(engine: Engine, task: SlotTask, slot: int) -> bool:
    """Returns True if rows that were merged under the last table must stay separate under the new one.

    Rows that different slots will own are not merged. So merged rows differ if results need an ownership test under
    only one of the tables, and if a move on parallel tracks begins that involves the slot.
    """
    before, now = task.partitionings[-1], task.partitioning
    is_marked = now.mark is not None and now.mark != before.mark and now.is_on_track(slot)
    for member in task.queries.members:
        plan, names = engine.engines[member.name].plan, member.query.graph.names
        is_merging = not isinstance(plan, Mesh) and any(True for _ in input_operators(plan))
        flips = (owner_test(before, slot, names) is None) != (owner_test(now, slot, names) is None)
        if (flips or is_marked) and (is_merging or engine.engines[member.name].is_migrating):
            return True
    return False


def _chosen(task: SlotTask, slot: int, source: RowSource) -> dict[str, RelationBatch]:
    """Returns the live rows of a source that a slot keeps, or takes over from another slot."""
    now, is_own = task.partitioning, source.slot == slot
    names = [
        relation.name
        for relation in task.queries.graph.streamed
        if is_own or may_take(source.tables, now, source.slot, slot, relation.name)
    ]
    chosen = {}
    for name, batch in source.read(names).items() if names else ():
        if not len(batch):
            continue
        if is_own:
            mine = kept_rows((*source.tables, now), slot, name, batch)
        else:
            mine = taken_rows(source.tables, now, source.slot, slot, name, batch)
        rows = batch if mine.all() else batch.take(np.flatnonzero(mine))
        alive = _alive(task, name, rows)
        if alive.any():
            chosen[name] = rows if alive.all() else rows.take(np.flatnonzero(alive))
    return chosen


def _alive(task: SlotTask, name: str, batch: RelationBatch) -> BoolArray:
    alive: BoolArray = (
        deadlines(task.queries.graph.relation(name), batch) >= expiry(task.queries, task.floors, task.execution)[name]
    )
    return alive
