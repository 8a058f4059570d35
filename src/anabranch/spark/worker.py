"""The functions of Spark's Python workers: readers cut the rows of a batch into packets, slots step.

Invariant: a reader sends its event times to every slot, so that all slots advance the clocks alike; one slot has the
counts. Limit: the rows of a task are in its memory at once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter, thread_time
from typing import TypeAlias

import pyarrow as pa
from pyspark import TaskContext

from anabranch.engine.batch import RelationBatch
from anabranch.run.floors import informed
from anabranch.run.hot import keep_engine, open_engine
from anabranch.run.ingest import Arrived, Ingest, Reader, cells_of, in_order, part, together
from anabranch.run.results import parts_table, results_of
from anabranch.run.slot import Opening, advance
from anabranch.run.store import Store
from anabranch.run.wire import WireLayout, wire_layout
from anabranch.spark.exchange import HEAD, PARTS, ROWS, OpenOutlet, Outlet, head, received, sent
from anabranch.spark.locality import slot_keys
from anabranch.spark.sinks.workers import WorkerWriter
from anabranch.stats.intake import merged_intakes
from anabranch.stats.report import SlotReport

ArrowFunction: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class Reading:
    """The reading of a batch: its rules, and the reader of its rows; it is pickled on its way to the workers."""

    ingest: Ingest
    reader: Reader
    checkpoint: str

    def arrived(self, part: int, batches: Iterator[pa.RecordBatch], *, is_counted: bool = True) -> Arrived:
        """Reads the rows of a part; unless another task counts them, writes those for the side output."""
        found = self.ingest.read(self.reader, part, batches)
        names: tuple[str, ...] = ()
        if is_counted and found.diverted is not None and self.ingest.diverted is not None:
            names = (self.ingest.task.rows_name(part),)
            Store(self.checkpoint).write_diverted(names[0], self.ingest.diverted.together([found.diverted]))
        intake = replace(found.intake, diverted=names) if is_counted else found.intake.times
        return replace(found, intake=intake)


def cut_function(reading: Reading) -> ArrowFunction:
    """The function that `mapInArrow` applies in each reader task: it yields packets for the slots."""
    task = reading.ingest.task

    def cut(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        layout = wire_layout(task.queries, task.partitioning)
        found = reading.arrived(context.partitionId(), batches)
        cells, table = cells_of(task.partitioning, found.rows), task.partitioning
        intake = found.intake
        for slot, key in zip(table.working, slot_keys(len(table.working)), strict=True):
            # One slot has the counts, and every slot the event times.
            yield head(key, intake)
            intake = intake.times
            for name, batch in part(table, found.rows, cells, slot).items():
                if len(batch):
                    yield sent(key, ROWS, name, layout.packed(name, batch))

    return cut


def step_function(outlet: Outlet, identity: str, checkpoint: str, reading: Reading | None = None) -> ArrowFunction:
    """The function that `mapInArrow` applies in each slot: one stage, or all where there is one slot.

    Its input are packets. With a reading, the slot reads all rows of the batch itself, and keeps its own.
    """
    task = outlet.task

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        number = context.partitionId()
        slot = task.partitioning.working[number]
        started, cpu = perf_counter(), thread_time()
        layout = wire_layout(task.queries, task.partitioning)
        with outlet.open() as out:
            if reading is None:
                found = yield from _unpacked(batches, layout, out)
            else:
                found = reading.arrived(number, batches, is_counted=not number)
                own = part(task.partitioning, found.rows, cells_of(task.partitioning, found.rows), slot)
                found = replace(found, rows=own)
            intake = found.intake
            informed_task = informed(task, intake)
            if task.queries.stages > task.stage + 1:
                yield from out.inform(slot_keys(len(task.partitioning.working))[number], intake)
            rows = in_order(task.queries, layout, found.rows)
            seconds = {"transfer": perf_counter() - started}
            started = perf_counter()
            store = Store(checkpoint)
            opened = open_engine(informed_task, slot, identity, store)
            seconds["open"] = perf_counter() - started
            spent = thread_time() - cpu
            opening = Opening(opened.changes, opened.was_hot, intake, seconds, spent, opened.taken)
            stages = range(task.queries.stages) if len(task.partitioning.working) == 1 else [task.stage]
            for stage in stages:
                at = informed_task.at(stage)
                for query, results in advance(opened.engine, at, slot, rows, store, opening, out.results):
                    yield from out.take(query, results)
                rows, opening = out.next_rows(), Opening(was_hot=True)
            keep_engine(opened, informed_task.at(stages[-1]), slot, identity)

    return step


def _unpacked(
    batches: Iterator[pa.RecordBatch], layout: WireLayout, out: OpenOutlet
) -> Generator[pa.RecordBatch, None, Arrived]:
    """Returns the rows and counts in packets; what is for a sink goes on."""
    rows: dict[str, list[RelationBatch]] = {}
    intakes = []
    for packet in received(batches):
        if packet.kind == ROWS:
            table = pa.Table.from_batches(packet.batches)
            rows.setdefault(packet.name, []).append(layout.unpacked(packet.name, table))
        elif packet.kind == HEAD:
            intakes.append(packet.intake)
        else:
            yield from out.pass_on(packet)
    return Arrived({name: together(several) for name, several in rows.items()}, merged_intakes(intakes))


def read_diverted_function(names: Sequence[str], checkpoint: str) -> ArrowFunction:
    """The function that reads the diverted rows of a batch; its input are positions in the list of files."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = Store(checkpoint)
        for batch in batches:
            for position in batch.column(0).to_pylist():
                yield from store.read_diverted(names[position]).to_batches()

    return read


def merge_function(outlet: Outlet, checkpoint: str) -> ArrowFunction:
    """The function that merges the parts of grouped answers; all parts of a group must be in one partition.

    It leaves a report with the number of results, as a step does.
    """
    task = outlet.task
    members = {member.name: member for member in task.queries.members}

    def merge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        slot = task.partitioning.working[context.partitionId()]
        parts: dict[str, list[pa.RecordBatch]] = {}
        with outlet.open() as out:
            for packet in received(batches):
                if packet.kind == PARTS:
                    parts.setdefault(packet.name, []).extend(
                        batch.replace_schema_metadata(None) for batch in packet.batches
                    )
                else:
                    yield from out.pass_on(packet)
            for name, several in parts.items():
                yield from out.finished(name, results_of(members[name], parts_table(members[name], several)))
            Store(checkpoint).write_rows(task.merged_name(slot), pa.table({}), SlotReport(results=dict(out.results)))

    return merge


def written_by(writer: WorkerWriter, first: ArrowFunction) -> ArrowFunction:
    """The function that hands all that another one yields to a writer, and yields nothing."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        with writer.open(f"{context.partitionId():05d}") as results:
            for batch in first(batches):
                results.write(batch)
        yield from ()

    return write


def warm(row: int) -> int:
    """Does nothing, in a worker that has loaded this module and with it the engine's compiled kernels."""
    return row
