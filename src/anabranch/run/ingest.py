"""Converts rows of streams to rows of relations for slots; every host and every reader uses this code.

A reader converts its part of a micro-batch to tables of streams. `take` computes the rows of each relation from a table
(filter, event time, codes, classes), drops rows that are late or ahead, and counts; `part` selects the rows of a slot.
Invariant: these are pure functions of the task and the table, so the rows of a batch may be divided among readers in
any way. Limit: the rows of one reader are in memory at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from anabranch.engine.batch import RelationBatch, deadlines, joined
from anabranch.engine.evaluate.expression import evaluate_mask
from anabranch.engine.kernels import Int64Array
from anabranch.engine.ownership import own_cells, rows_for_slot
from anabranch.errors import HostError
from anabranch.lang.expr import columns
from anabranch.lang.schema import TIMESTAMP
from anabranch.lang.window import FOREVER
from anabranch.plan.join_graph import Relation
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.query_set import QuerySet
from anabranch.run.functions import functions_named
from anabranch.run.prefilter import TableKeys
from anabranch.run.rows import coded, flat, times
from anabranch.run.shedding import kept_rows, shedding_key
from anabranch.run.side_output import Bounds, SideOutputLayout
from anabranch.run.slot import SlotTask
from anabranch.run.wire import WireLayout, refuse_what_arrow_cuts, wire_layout
from anabranch.stats.intake import NOTHING_READ, Intake, merged_intakes


@dataclass(frozen=True)
class Read:
    """Rows of a stream, or a tick: an event time that a stream has reached without a row."""

    stream: str
    rows: pa.Table | None = None
    tick: int | None = None
    clock: str | None = None
    """The column with the event times, if the reader converted them; else that of the stream."""


class Reader(Protocol):
    """Reads the part of one task of a micro-batch; it is pickled and sent to the workers.

    Invariant: all parts together have each row of the batch once, and a part that is read again has the same rows.
    """

    def read(self, part: int, given: Iterator[pa.RecordBatch]) -> Iterator[Read]:
        """Yields the rows of a part; `given` has the batches that Spark passes to the task."""


@dataclass(frozen=True)
class Arrived:
    """The admitted rows of each relation, the counts of the reader, and the rows for the side output."""

    rows: Mapping[str, RelationBatch] = field(default_factory=dict)
    intake: Intake = NOTHING_READ
    diverted: pa.Table | None = None


@dataclass(frozen=True)
class Ingest:
    """The rules by which the rows of a batch are admitted."""

    task: SlotTask
    diverted: SideOutputLayout | None = None
    """The layout of the side output; None to count diverted rows only."""
    keys: TableKeys = field(default_factory=dict)
    """The keys of tables, by which rows without a match are dropped."""

    def read(self, reader: Reader, part: int, given: Iterator[pa.RecordBatch]) -> Arrived:
        """Reads and admits all rows of a part, stream by stream."""
        several: dict[tuple[str, str | None], list[pa.Table]] = {}
        found = []
        for each in reader.read(part, given):
            if each.rows is not None:
                several.setdefault((each.stream, each.clock), []).append(each.rows)
            if each.tick is not None:
                found.append(self.tick(each.stream, each.tick))
        for (stream, clock), tables in several.items():
            found.append(self.take(stream, pa.concat_tables(tables), clock))
        return merged(found)

    def take(self, stream: str, table: pa.Table, clock: str | None = None) -> Arrived:
        """Admits rows of a stream; `clock` is the column with their event times."""
        refuse_what_arrow_cuts(table)
        task, layout = self.task, wire_layout(self.task.queries, self.task.partitioning)
        with functions_named(task.queries.graph, task.batch):
            relations = relations_of(task.queries, stream)
            found = [self._of_relation(each, layout, table, clock or each.event_time) for each in relations]
        return merged(found)

    def tick(self, stream: str, time: int) -> Arrived:
        """Admits a tick, which advances the clock of a stream, or the floor of a derived stream."""
        found = []
        for relation in relations_of(self.task.queries, stream):
            times = {relation.name: time}
            if relation.is_derived:
                found.append(Arrived(intake=Intake(ticks=times)))
            elif len(self.task.bounds.below(relation.name, np.array([time]))):
                found.append(Arrived(intake=Intake(newest=times)))
        return merged(found)

    def _of_relation(self, relation: Relation, layout: WireLayout, table: pa.Table, clock: str) -> Arrived:
        name, bounds = relation.name, self.task.bounds
        if table.column(clock).null_count:
            dated = table.column(clock).is_valid()
            without = self._undated(relation, table.filter(pa.compute.invert(dated)))
            return merged([without, self._of_relation(relation, layout, table.filter(dated), clock)])
        if not len(table):
            return Arrived()
        values = {column: flat(table.column(column)) for column in table.column_names}
        seen = times(values[clock])
        # Rejected and late rows too: a stream that delivers nothing else is not silent.
        newest = _newest(name, bounds, seen)
        batch = coded(relation, layout, values, seen)
        if relation.is_derived:
            # Its producer may have longer windows than this query.
            batch = _where(batch, batch.times <= deadlines(relation, batch))
        inside = bounds.admitted(name, batch.times)
        outside = batch.times[~inside]
        is_late = outside < self.task.floors[name]
        late, ahead = int(is_late.sum()), int((~is_late).sum())
        diverted = None
        if len(outside) and self.diverted is not None:
            diverted = _diverted(relation, values, seen, self.diverted, bounds)
        batch = _where(batch, inside)
        batch, shed = self._kept(batch)
        for code, known in self.keys.get(name, {}).items():
            batch = _where(batch, np.isin(batch.codes[code], known))
        return Arrived(
            {name: batch},
            Intake(
                {name: len(table)},
                {name: late} if late else {},
                {name: ahead} if ahead else {},
                {} if newest is None else {name: newest},
                shed={name: shed} if shed else {},
            ),
            diverted,
        )

    def _kept(self, batch: RelationBatch) -> tuple[RelationBatch, int]:
        """Returns the rows of keys that are not shed, and the number of shed rows."""
        if self.task.kept >= 1:
            return batch, 0
        kept = _where(batch, kept_rows(batch, shedding_key(self.task.queries), self.task.kept))
        return kept, len(batch) - len(kept)

    def _undated(self, relation: Relation, table: pa.Table) -> Arrived:
        """Counts rows without an event time and diverts them."""
        diverted = None
        if self.diverted is not None:
            schema = self.diverted.streams[relation.stream]
            columns = [flat(table.column(field.name)).cast(field.type) for field in schema]
            whole = pa.StructArray.from_arrays(columns, list(schema.names))
            diverted = self.diverted.undated(relation.stream, relation.name, whole)
        return Arrived(intake=Intake(undated={relation.name: len(table)}), diverted=diverted)


def relations_of(queries: QuerySet, stream: str | None = None) -> list[Relation]:
    """Returns the relations that read a stream, or all relations over streams."""
    return [each for each in queries.graph.streamed if not each.is_result and (stream is None or each.stream == stream)]


def merged(several: Iterable[Arrived]) -> Arrived:
    """Merges rows and counts."""
    found = list(several)
    if len(found) == 1:
        return found[0]
    rows: dict[str, list[RelationBatch]] = {}
    for each in found:
        for name, batch in each.rows.items():
            rows.setdefault(name, []).append(batch)
    diverted = [each.diverted for each in found if each.diverted is not None]
    return Arrived(
        {name: together(batches) for name, batches in rows.items()},
        merged_intakes(each.intake for each in found),
        pa.concat_tables(diverted) if diverted else None,
    )


def cells_of(table: Partitioning, rows: Mapping[str, RelationBatch]) -> dict[str, Int64Array]:
    """Returns the cells of the grid to which the rows of each relation belong; empty if there is one slot."""
    return {} if table.slots == 1 else {name: own_cells(table, name, batch) for name, batch in rows.items()}


def part(
    table: Partitioning, rows: Mapping[str, RelationBatch], cells: Mapping[str, Int64Array], slot: int
) -> dict[str, RelationBatch]:
    """Returns the rows that a slot needs."""
    if not cells:
        return dict(rows)
    return {
        name: _taken(batch, rows_for_slot(table, name, cells[name], slot)) if name in cells else batch
        for name, batch in rows.items()
    }


def together(batches: Sequence[RelationBatch]) -> RelationBatch:
    """Concatenates batches of one relation."""
    some = [batch for batch in batches if len(batch)] or list(batches[:1])
    try:
        return some[0] if len(some) == 1 else joined(some)
    except pa.ArrowInvalid as error:
        raise HostError(
            "one slot has more texts to take at once than fit one array",
            detail=str(error),
            hint="let the sources give fewer rows at a time (maxFilesPerTrigger, …), or use more slots",
        ) from error


def in_order(queries: QuerySet, layout: WireLayout, rows: Mapping[str, RelationBatch]) -> dict[str, RelationBatch]:
    """Returns the rows of every relation in time order, as slots expect them."""
    found = {relation.name: layout.empty(relation.name) for relation in relations_of(queries)}
    for name, batch in rows.items():
        own = batch.times
        is_ordered = bool((own[1:] >= own[:-1]).all())
        found[name] = batch if is_ordered else batch.take(np.argsort(own, kind="stable"))
    return found


def columns_to_read(queries: QuerySet, diverted: SideOutputLayout | None = None) -> dict[str, dict[str, pa.DataType]]:
    """Returns the columns of each stream that the queries and the side output read, by type."""
    found: dict[str, dict[str, pa.DataType]] = {}
    for relation in relations_of(queries):
        expressions = [key.expression(relation.name) for key in queries.graph.keys_of([relation.name])]
        expressions += [] if relation.filter is None else [relation.filter]
        wanted = found.setdefault(relation.stream, {})
        wanted |= {field.name: field.type for field in relation.schema}
        wanted |= {each.name: each.type for expression in expressions for each in columns(expression)}
        wanted |= {each.column: each.type if each.column == each.attribute else TIMESTAMP for each in relation.classes}
        wanted.setdefault(relation.event_time, TIMESTAMP)
        if diverted is not None:
            wanted |= {field.name: field.type for field in diverted.streams[relation.stream]}
    return found


def _newest(relation: str, bounds: Bounds, times: Int64Array) -> int | None:
    moving = bounds.below(relation, times)
    if not len(moving):
        return None
    newest = int(moving.max())
    if newest >= FOREVER:
        raise HostError(
            f"a row of relation '{relation}' has an event time that no window can be added to",
            detail=f"it lies {newest:,} microseconds after 1970, which is beyond the year 148,000",
            hint="keep such rows out of the frame that is registered as the stream",
        )
    return newest


def _diverted(
    relation: Relation, values: Mapping[str, pa.Array], times: Int64Array, layout: SideOutputLayout, bounds: Bounds
) -> pa.Table:
    """Returns the rows of a stream that one of its relations would have, were they not late or ahead."""
    outside = ~bounds.admitted(relation.name, times)
    if relation.filter is not None:
        outside &= evaluate_mask(relation.filter, lambda column: values[column.name], len(times))
    schema, chosen = layout.streams[relation.stream], pa.array(outside)
    columns = [values[field.name].filter(chosen).cast(field.type) for field in schema]
    whole = pa.StructArray.from_arrays(columns, list(schema.names))
    return layout.table(relation.stream, relation.name, times[outside], whole, bounds)


def _where(batch: RelationBatch, passes: np.ndarray) -> RelationBatch:
    return batch if passes.all() else batch.take(np.flatnonzero(passes))


def _taken(batch: RelationBatch, mine: Int64Array) -> RelationBatch:
    return batch if len(mine) == len(batch) else batch.take(mine)
