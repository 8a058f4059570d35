"""Rows of a micro-batch that a slot reads from the files of its streams, without Spark in between.

Every slot reads all files of the batch and keeps the rows that are its own. Reading a row takes a fraction of what it
costs to send it (Parquet to rows of the JVM, through a shuffle, into Arrow), so this pays up to `MOST_READERS` slots.

Law: the rows, their times and their codes are those that Spark would send. How files are read, and which are left to
Spark, is a matter of their form (`run/files`).

Limit: local files; columns of plain types; filters and keys without functions of the user's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from anabranch.engine.batch import RelationBatch, joined
from anabranch.engine.ownership import own_cells, rows_for_slot
from anabranch.errors import HostError
from anabranch.lang.expr import Call, columns, walk
from anabranch.lang.schema import TIMESTAMP
from anabranch.plan.join_graph import Relation
from anabranch.plan.query_set import QuerySet
from anabranch.run.files.form import Reading
from anabranch.run.rows import relation_batch, times
from anabranch.run.side_output import Bounds
from anabranch.run.slot import SlotTask
from anabranch.run.wire import refuse_what_arrow_cuts, wire_layout

MOST_READERS = 8
"""With more slots, all that they read together costs more than to send each its rows."""


class SlotRows(NamedTuple):
    """What a slot has read."""

    rows: dict[str, RelationBatch]
    """The rows of each relation that the slot takes, in time order."""
    rejected: dict[str, int]
    """The newest time of rows that a filter rejects, by relation."""
    rejected_rows: dict[str, int]
    """The rows that a filter rejects, by relation; the first slot counts them for all."""


@dataclass(frozen=True)
class SlotFiles:
    """The files of a micro-batch, by stream; is pickled on its way to the workers."""

    files: Mapping[str, tuple[str, ...]]
    readings: Mapping[str, Reading]
    """How the rows of each stream are made from its files."""

    def rows(self, task: SlotTask, slot: int) -> SlotRows:
        """Reads the rows of each relation that a slot takes."""
        layout = wire_layout(task.queries, task.partitioning)
        several = dict[str, list[RelationBatch]]()
        rejected, rejected_rows = dict[str, int](), Counter[str]()
        is_first = slot == task.partitioning.working[0]
        for relation in _read_from_files(task.queries):
            several[relation.name] = [layout.empty(relation.name)]
        for stream, paths in self.files.items():
            relations = [each for each in _read_from_files(task.queries) if each.stream == stream]
            for path in paths:
                table = self.readings[stream].read(path)
                refuse_what_arrow_cuts(table)
                for relation in relations:
                    batch = relation_batch(relation, layout, table)
                    timed = table.column(relation.event_time)
                    if lost := len(timed) - timed.null_count - len(batch):
                        _note_rejected(task, relation, timed, rejected)
                        rejected_rows[relation.name] += lost if is_first else 0
                    if task.partitioning.slots > 1:
                        cells = own_cells(task.partitioning, relation.name, batch)
                        batch = _taken(batch, rows_for_slot(task.partitioning, relation.name, cells, slot))
                    several[relation.name].append(batch)
        rows = {name: _in_order(_together(batches)) for name, batches in several.items()}
        return SlotRows(rows, rejected, dict(rejected_rows))

    def newest(self, queries: QuerySet, ceilings: Mapping[str, int]) -> dict[str, int]:
        """The largest event time of each relation in the batch, up to its ceiling; what filters reject counts, too."""
        found = dict[str, int]()
        for relation in _read_from_files(queries):
            bounds = Bounds({}, ceilings)
            times_alone = self.readings[relation.stream].only([relation.event_time])
            for path in self.files.get(relation.stream, ()):
                timed = times_alone.read(path).column(0)
                moving = bounds.below(relation.name, times(timed.combine_chunks()))
                if len(moving):
                    found[relation.name] = max(int(moving.max()), found.get(relation.name, int(moving.max())))
        return found


def _note_rejected(task: SlotTask, relation: Relation, timed: pa.ChunkedArray, rejected: dict[str, int]) -> None:
    """Rows that a filter rejects move the clock of their stream; those that pass do so anyway, so all count here."""
    moving = task.bounds.below(relation.name, times(timed.combine_chunks()))
    if len(moving):
        newest = int(moving.max())
        rejected[relation.name] = max(newest, rejected.get(relation.name, newest))


def _taken(batch: RelationBatch, mine: np.ndarray) -> RelationBatch:
    return batch if len(mine) == len(batch) else batch.take(mine)


def _together(batches: list[RelationBatch]) -> RelationBatch:
    some = [batch for batch in batches if len(batch)] or batches[:1]
    try:
        return some[0] if len(some) == 1 else joined(some)
    except pa.ArrowInvalid as error:
        raise HostError(
            "one slot has more texts to take at once than fit one array",
            detail=str(error),
            hint="let the sources give fewer rows at a time (maxFilesPerTrigger, …), or use more slots",
        ) from error


def _in_order(batch: RelationBatch) -> RelationBatch:
    own = batch.times
    return batch if bool((own[1:] >= own[:-1]).all()) else batch.take(np.argsort(own, kind="stable"))


# --- what can be read -------------------------------------------------------------------------------------------------


def columns_to_read(queries: QuerySet) -> dict[str, dict[str, pa.DataType]] | None:
    """The columns that the queries read of each stream, by type; None where only Spark can make their rows."""
    found = dict[str, dict[str, pa.DataType]]()
    for relation in _read_from_files(queries):
        if relation.is_derived:
            return None
        expressions = [key.expression(relation.name) for key in queries.graph.keys_of([relation.name])]
        expressions += [] if relation.filter is None else [relation.filter]
        if any(isinstance(node, Call) and node.own is not None for each in expressions for node in walk(each)):
            return None
        wanted = found.setdefault(relation.stream, {})
        wanted |= {field.name: field.type for field in relation.schema}
        wanted |= {each.name: each.type for expression in expressions for each in columns(expression)}
        wanted |= {each.column: each.type if each.column == each.attribute else TIMESTAMP for each in relation.classes}
        wanted[relation.event_time] = TIMESTAMP
    return found


def _read_from_files(queries: QuerySet) -> Sequence[Relation]:
    return [each for each in queries.graph.streamed if not each.is_result]
