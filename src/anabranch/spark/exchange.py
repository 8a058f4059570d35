"""The exchange between the stages of a batch, and between the last stage and the sinks, in Spark's Python workers.

A batch is one Spark job. Readers divide rows among slots, and slots run their step. Workers write the results of the
sinks that request it; the frame has all other results. Two operations need another stage after a shuffle: merging parts
of groups that several slots have found, and sending results to the slots whose queries read them. Stages exchange
*packets*: Arrow batches in binary form, each for one partition. A packet is one row for Spark, regardless of the number
and the types of its rows.

Invariant: the content of a packet depends only on the rows of the batch and the state before it, so a stage that Spark
computes again sends the same multiset. Limit: a packet is in memory at once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from anabranch.engine.batch import RelationBatch, joined
from anabranch.engine.ownership import own_cells, rows_for_slot
from anabranch.run.results import ResultLayout, Results, group_codes, merging, results_of
from anabranch.run.rows import result_batch
from anabranch.run.slot import SlotTask
from anabranch.run.wire import wire_layout
from anabranch.spark.locality import SLOT, slot_keys
from anabranch.spark.sinks.workers import ResultWriter, WorkerWriter
from anabranch.stats.intake import Intake

PACKET = "_packet"
PACKETS = StructType([StructField(SLOT, IntegerType(), False), StructField(PACKET, BinaryType(), False)])
"""The columns of a frame of packets: the partition key and the content."""
HEAD, PARTS, ROWS, RESULTS = "head", "parts", "rows", "results"
_ARROW = pa.schema([pa.field(SLOT, pa.int32(), nullable=False), pa.field(PACKET, pa.binary(), nullable=False)])
_KIND, _NAME = b"kind", b"name"
_NOTHING = pa.table({})


@dataclass(frozen=True)
class Packet:
    """The content of one packet: a reader's counts, parts of a query, rows of a relation, or finished results of a
    query.
    """

    key: int
    kind: str
    name: str
    batches: tuple[pa.RecordBatch, ...]

    @property
    def intake(self) -> Intake:
        return Intake.from_json(json.loads(self.name))


def sent(key: int, kind: str, name: str, table: pa.Table) -> pa.RecordBatch:
    """Encodes a packet as a row for Spark."""
    stream = pa.BufferOutputStream()
    schema = table.schema.with_metadata({_KIND: kind.encode(), _NAME: name.encode()})
    with pa.ipc.new_stream(stream, schema) as writer:
        writer.write_table(table.replace_schema_metadata(schema.metadata))
    return pa.record_batch(
        [pa.array([key], pa.int32()), pa.array([stream.getvalue().to_pybytes()], pa.binary())], schema=_ARROW
    )


def head(key: int, intake: Intake) -> pa.RecordBatch:
    """Encodes a packet with the counts of a reader."""
    return sent(key, HEAD, json.dumps(intake.to_json()), _NOTHING)


def received(batches: Iterable[pa.RecordBatch]) -> Iterator[Packet]:
    """Decodes the packets in rows from Spark."""
    for batch in batches:
        keys = batch.column(0).to_pylist()
        for key, content in zip(keys, batch.column(1), strict=True):
            with pa.ipc.open_stream(content.as_buffer()) as reader:
                metadata = reader.schema.metadata
                yield Packet(key, metadata[_KIND].decode(), metadata[_NAME].decode(), tuple(reader))


@dataclass(frozen=True)
class StageSequence:
    """The stages of a batch in the order in which Spark runs them: the number of the step, and whether groups are
    merged.
    """

    work: tuple[tuple[int, bool], ...]

    @classmethod
    def of(cls, task: SlotTask) -> StageSequence:
        """Returns one stage per step, and another one after it where groups are merged; a single slot runs all steps in
        one.
        """
        queries, merged = task.queries, merging(task.queries, task.partitioning)
        if len(task.partitioning.working) == 1:
            return cls(((0, False),))
        work = []
        for stage in range(queries.stages):
            work.append((stage, False))
            if any(queries.levels[name] == stage for name in merged):
                work.append((stage, True))
        return cls(tuple(work))


@dataclass(frozen=True)
class Outlet:
    """The destinations of one stage's output; pickled and sent to the workers."""

    task: SlotTask
    writers: Mapping[str, WorkerWriter]
    """The queries whose results the workers write."""
    number: int
    """The position of the stage in the sequence."""
    is_final: bool
    """True if the frame of the stage has results, and not packets."""

    @contextmanager
    def open(self, part_number: int) -> Iterator[OpenOutlet]:
        """Opens the outlet in one partition of the stage."""
        part = f"{part_number:05d}{f'-{self.number}' if self.number else ''}"
        with ExitStack() as stack:
            opened = {name: stack.enter_context(writer.open(part)) for name, writer in self.writers.items()}
            yield OpenOutlet(self, opened)


@dataclass
class OpenOutlet:
    """An open outlet in a worker."""

    outlet: Outlet
    writers: Mapping[str, ResultWriter]
    derived: dict[str, list[RelationBatch]] = field(default_factory=dict)
    """The rows of the next stage, if one slot runs all stages."""
    results: Counter[str] = field(default_factory=Counter)
    """The finished results of the stage, by query."""

    def __post_init__(self) -> None:
        task = self.outlet.task
        self._queries, self._table = task.queries, task.partitioning
        self._members = {member.name: member for member in task.queries.members}
        self._merging = merging(task.queries, task.partitioning)
        self._layout = wire_layout(task.queries, task.partitioning)
        self._results = ResultLayout(task.queries)
        self._keys = slot_keys(len(self._table.working))

    def take(self, query: str, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Forwards results that the step of a slot has found."""
        if query in self._merging:
            yield from self._parts(query, batch)
        else:
            yield from self.finished(query, results_of(self._members[query], batch, is_merged=True))

    def finished(self, query: str, results: Results) -> Iterator[pa.RecordBatch]:
        """Forwards finished results to the queries that read them, and to their sink."""
        member = self._members[query]
        if not results.rows.num_rows:
            return
        self.results[query] += results.rows.num_rows
        if member.feeds and results.times is not None:
            for relation in self._queries.readers(query):
                yield from self._rows(relation.name, result_batch(relation, self._layout, results.rows, results.times))
        if member.is_silent:
            return
        if query in self.writers:
            self.writers[query].write(results.rows)
        elif self.outlet.is_final:
            yield self._results.wrap(query, results.rows)
        else:
            yield sent(self._keys[0], RESULTS, query, pa.Table.from_batches([results.rows]))

    def pass_on(self, packet: Packet) -> Iterator[pa.RecordBatch]:
        """Forwards a packet for a later stage or a sink."""
        if packet.kind == RESULTS and self.outlet.is_final:
            yield from (self._results.wrap(packet.name, batch) for batch in packet.batches)
        elif packet.kind == HEAD:
            yield from self.inform(packet.key, packet.intake)
        else:
            yield sent(packet.key, packet.kind, packet.name, pa.Table.from_batches(packet.batches))

    def inform(self, key: int, intake: Intake) -> Iterator[pa.RecordBatch]:
        """Sends the event times of the batch to a slot of the next stage, if there is one."""
        if not self.outlet.is_final:
            yield head(key, intake.times)

    def next_rows(self) -> dict[str, RelationBatch]:
        """Returns the rows of the next stage, if one slot runs all stages."""
        derived, self.derived, self.results = self.derived, {}, Counter()
        return {name: joined(several) for name, several in derived.items()}

    def _parts(self, query: str, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        grouping = self._members[query].query.grouping
        assert grouping is not None
        targets = np.mod(group_codes(grouping, batch), len(self._keys))
        table = pa.Table.from_batches([batch])
        for target, key in enumerate(self._keys):
            mine = np.flatnonzero(targets == target)
            if len(mine):
                yield sent(key, PARTS, query, table.take(pa.array(mine)))

    def _rows(self, relation: str, batch: RelationBatch) -> Iterator[pa.RecordBatch]:
        if len(self._keys) == 1:
            self.derived.setdefault(relation, []).append(batch)
            return
        cells = own_cells(self._table, relation, batch)
        for slot, key in zip(self._table.working, self._keys, strict=True):
            mine = rows_for_slot(self._table, relation, cells, slot)
            if len(mine):
                yield sent(key, ROWS, relation, self._layout.packed(relation, batch.take(mine)))
