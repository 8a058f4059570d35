"""Rows of a micro-batch that a slot reads from the files of its streams, without Spark in between.

Every slot reads all files of the batch and keeps the rows that are its own. Reading a row takes a fraction of what it
costs to send it (Parquet to rows of the JVM, through a shuffle, into Arrow), so this pays up to `MOST_READERS` slots.

Law: the rows, their times and their codes are those that Spark would send. A file in which a column is missing, or has
another type than the stream, or was written by the old rules for dates, is left to Spark (`look_into`).

Limit: local files in Parquet; columns of plain types; filters and keys without functions of the user's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from anabranch.engine.batch import RelationBatch, joined
from anabranch.engine.ownership import own_cells, rows_for_slot
from anabranch.errors import CatalogError, HostError
from anabranch.expr import Call, columns, walk
from anabranch.host.diverted import Bounds
from anabranch.host.rows import relation_batch, times
from anabranch.host.slot import SlotTask
from anabranch.host.wire import refuse_what_arrow_cuts, wire_layout
from anabranch.plan.join_graph import Relation
from anabranch.plan.query_set import QuerySet
from anabranch.schema import TIMESTAMP, is_decimal, is_float, is_integer
from anabranch.stats.step import CheckStatistics, merged_checks

MOST_READERS = 8
"""With more slots, all that they read together costs more than to send each its rows."""
_LEGACY = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
"""In the footer of files whose old dates count days otherwise."""

Columns = Mapping[str, pa.DataType]


class SlotRows(NamedTuple):
    """What a slot has read."""

    rows: dict[str, RelationBatch]
    rejected: dict[str, int]
    """The newest time of rows that a filter rejects, by relation."""
    checked: tuple[CheckStatistics, ...]
    """What dear parts of the filters did; every slot checks all rows."""


@dataclass(frozen=True)
class SlotFiles:
    """The files of a micro-batch, by stream; is pickled on its way to the workers."""

    files: Mapping[str, tuple[str, ...]]
    columns: Mapping[str, Columns]
    """The columns to read, by stream."""

    def rows(self, task: SlotTask, slot: int) -> SlotRows:
        """The rows of each relation that a slot takes, in time order, and what their filters did."""
        layout = wire_layout(task.queries, task.partitioning)
        several = dict[str, list[RelationBatch]]()
        rejected, checked = dict[str, int](), list[CheckStatistics]()
        for relation in _read_from_files(task.queries):
            several[relation.name] = [layout.empty(relation.name)]
        for stream, paths in self.files.items():
            relations = [each for each in _read_from_files(task.queries) if each.stream == stream]
            for path in paths:
                table = read(path, self.columns[stream])
                refuse_what_arrow_cuts(table)
                for relation in relations:
                    batch = relation_batch(relation, layout, table, checked)
                    timed = table.column(relation.event_time)
                    if len(batch) < len(timed) - timed.null_count:
                        _note_rejected(task, relation, timed, rejected)
                    if task.partitioning.slots > 1:
                        cells = own_cells(task.partitioning, relation.name, batch)
                        batch = _taken(batch, rows_for_slot(task.partitioning, relation.name, cells, slot))
                    several[relation.name].append(batch)
        rows = {name: _in_order(_together(batches)) for name, batches in several.items()}
        return SlotRows(rows, rejected, merged_checks(checked))

    def newest(self, queries: QuerySet, ceilings: Mapping[str, int]) -> dict[str, int]:
        """The largest event time of each relation in the batch, up to its ceiling; what filters reject counts, too."""
        found = dict[str, int]()
        for relation in _read_from_files(queries):
            bounds = Bounds({}, ceilings)
            for path in self.files.get(relation.stream, ()):
                timed = read(path, {relation.event_time: TIMESTAMP}).column(0)
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
    """The columns that the queries read of each stream; None where only Spark can make their rows."""
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
    return found if all(_is_plain(kind) for wanted in found.values() for kind in wanted.values()) else None


@dataclass(frozen=True)
class Footer:
    """What a file says of itself: its rows, and whether a slot can read it."""

    rows: int
    is_readable: bool


def look_into(path: str, wanted: Columns) -> Footer:
    """Reads the footer of a file; one that cannot be read at all is left to Spark, too."""
    try:
        with parquet.ParquetFile(path) as file:
            metadata, schema = file.metadata, file.schema_arrow
            leaves = [file.schema.column(place) for place in range(len(file.schema.names))]
    except (OSError, pa.ArrowException):
        return Footer(0, is_readable=False)
    names, physical = schema.names, {leaf.path: leaf.physical_type for leaf in leaves}
    is_readable = not any(key in (metadata.metadata or {}) for key in _LEGACY) and _can_unpack(metadata)
    is_readable = is_readable and all(
        names.count(name) == 1 and _is_read_as(schema.field(name).type, physical.get(name), kind)
        for name, kind in wanted.items()
    )
    return Footer(int(metadata.num_rows), is_readable)


def _can_unpack(metadata: parquet.FileMetaData) -> bool:
    """True where Arrow knows the compression; a file has one for all its row groups."""
    group = metadata.row_group(0) if metadata.num_row_groups else None
    kinds = {group.column(place).compression.lower() for place in range(group.num_columns)} if group else set()
    return all(kind == "uncompressed" or pa.Codec.is_available(kind) for kind in kinds)


def read(path: str, wanted: Columns) -> pa.Table:
    """The columns of a file, as the types of its stream."""
    try:
        with parquet.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
            # Threads of Arrow's own would compete with the other slots.
            table = file.read(columns=list(wanted), use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise CatalogError(
            f"file '{path}' of a stream cannot be read",
            detail=str(error).partition("\n")[0],
            hint="the batch is not committed; fix the file, or write the columns that it has into the schema",
        ) from error
    return pa.table({name: _cast(table.column(name), kind) for name, kind in wanted.items()})


def _read_from_files(queries: QuerySet) -> Sequence[Relation]:
    return [each for each in queries.graph.streamed if not each.is_result]


def _cast(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if kind == TIMESTAMP and values.type.tz is None:
        values = values.cast(pa.timestamp("us"))  # of INT96, which is an instant
    return values if values.type == kind else values.cast(kind)


def _is_plain(kind: pa.DataType) -> bool:
    return (
        is_integer(kind)
        or is_float(kind)
        or is_decimal(kind)
        or kind in (pa.string(), pa.bool_(), pa.date32(), pa.binary(), TIMESTAMP)
    )


def _is_read_as(found: pa.DataType, physical: str | None, wanted: pa.DataType) -> bool:
    """True where the values of a file are those that Spark would read as the type of the stream."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    if wanted == TIMESTAMP:
        is_instant = pa.types.is_timestamp(found) and found.tz is not None and found.unit != "ns"
        return physical == "INT96" or is_instant
    if wanted == pa.string():
        return found in (pa.string(), pa.large_string())
    return bool(found == wanted)
