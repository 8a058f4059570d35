"""The functions of Spark's Python workers: readers divide the rows of a batch into packets, slots step.

A function gets the number of its partition and an iterator of Arrow batches. `in_task` adapts it to `mapInArrow`, where
a Spark task is a partition; resident slots call it directly (`spark/resident`).

Invariant: a reader sends its event times to every slot, so that all slots advance the clocks alike; one slot gets the
counts. Limit: the rows of a partition are in memory at once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter, thread_time
from typing import Protocol, TypeAlias

import pyarrow as pa
from pyspark import TaskContext

from anabranch.engine.batch import RelationBatch
from anabranch.run.floors import informed
from anabranch.run.hot import OpenEngine
from anabranch.run.ingest import Arrived, Ingest, Reader, cells_of, in_order, part, together
from anabranch.run.results import parts_table, results_of
from anabranch.run.slot import Opening, SlotTask, advance
from anabranch.run.store import Store
from anabranch.run.wire import WireLayout, wire_layout
from anabranch.spark.exchange import HEAD, PARTS, ROWS, OpenOutlet, Outlet, head, received, sent
from anabranch.spark.locality import slot_keys
from anabranch.spark.sinks.workers import WorkerWriter
from anabranch.stats.intake import merged_intakes
from anabranch.stats.report import SlotReport

ArrowFunction: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A function for `mapInArrow`."""
_Taken: TypeAlias = Generator[pa.RecordBatch, None, SlotReport]
Step: TypeAlias = Generator[pa.RecordBatch, None, list[SlotReport]]
"""Yields the output of a partition, and returns its reports."""
PartFunction: TypeAlias = Callable[[int, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""The work of a partition."""


class Engines(Protocol):
    """Keeps the engine of a slot between two steps; pickled and sent to Spark's workers."""

    def open(self, task: SlotTask, slot: int, store: Store) -> OpenEngine:
        """Returns the engine in the state before the task; if the step fails, the engine is not used again."""

    def keep(self, opened: OpenEngine, task: SlotTask, slot: int) -> None:
        """Keeps the engine after the task."""


def in_task(function: PartFunction) -> ArrowFunction:
    """Returns the function that a Spark task applies to its partition."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        yield from function(context.partitionId(), batches)

    return run


@dataclass(frozen=True)
class Reading:
    """The reading of a batch: its rules, and the reader of its rows; pickled and sent to the workers."""

    ingest: Ingest
    reader: Reader
    checkpoint: str

    def arrived(self, part: int, batches: Iterator[pa.RecordBatch], *, is_counted: bool = True) -> Arrived:
        """Reads the rows of a partition; with `is_counted`, also writes those for the side output."""
        found = self.ingest.read(self.reader, part, batches)
        names: tuple[str, ...] = ()
        if is_counted and found.diverted is not None and self.ingest.diverted is not None:
            names = (self.ingest.task.rows_name(part),)
            Store(self.checkpoint).write_diverted(names[0], self.ingest.diverted.together([found.diverted]))
        intake = replace(found.intake, diverted=names) if is_counted else found.intake.times
        return replace(found, intake=intake)


def cut_function(reading: Reading) -> PartFunction:
    """Returns the function of each reader, which yields packets for the slots."""
    task = reading.ingest.task

    def cut(number: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        layout = wire_layout(task.queries, task.partitioning)
        found = reading.arrived(number, batches)
        cells, table = cells_of(task.partitioning, found.rows), task.partitioning
        intake = found.intake
        for slot, key in zip(table.working, slot_keys(len(table.working)), strict=True):
            # One slot gets the counts, and every slot the event times.
            yield head(key, intake)
            intake = intake.times
            for name, batch in part(table, found.rows, cells, slot).items():
                if len(batch):
                    yield sent(key, ROWS, name, layout.packed(name, batch))

    return cut


def step_function(
    outlet: Outlet, engines: Engines, checkpoint: str, reading: Reading | None = None
) -> Callable[[int, Iterator[pa.RecordBatch]], Step]:
    """Returns the function of each slot, which runs one stage, or all stages if there is one slot.

    Its input are packets. With a reading, the slot reads all rows of the batch itself and keeps its own.
    """
    task = outlet.task

    def step(number: int, batches: Iterator[pa.RecordBatch]) -> Step:
        slot = task.partitioning.working[number]
        started, cpu = perf_counter(), thread_time()
        layout = wire_layout(task.queries, task.partitioning)
        reports = []
        with outlet.open(number) as out:
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
            opened = engines.open(informed_task, slot, store)
            seconds["open"] = perf_counter() - started
            spent = thread_time() - cpu
            opening = Opening(opened.changes, opened.was_hot, intake, seconds, spent, opened.taken)
            stages = range(task.queries.stages) if len(task.partitioning.working) == 1 else [task.stage]
            for stage in stages:
                at = informed_task.at(stage)
                found_results = advance(opened.engine, at, slot, rows, store, opening, out.results)
                reports.append((yield from _taken(found_results, out)))
                rows, opening = out.next_rows(), Opening(was_hot=True)
            engines.keep(opened, informed_task.at(stages[-1]), slot)
        return reports

    return step


def _taken(found: Generator[tuple[str, pa.RecordBatch], None, SlotReport], out: OpenOutlet) -> _Taken:
    """Forwards the output of a step; returns its report."""
    while True:
        try:
            query, results = next(found)
        except StopIteration as end:
            report: SlotReport = end.value
            return report
        yield from out.take(query, results)


def _unpacked(
    batches: Iterator[pa.RecordBatch], layout: WireLayout, out: OpenOutlet
) -> Generator[pa.RecordBatch, None, Arrived]:
    """Returns the rows and counts in packets; forwards packets for a sink."""
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
    """Returns the function that reads the diverted rows of a batch; its input are positions in the list of files."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = Store(checkpoint)
        for batch in batches:
            for position in batch.column(0).to_pylist():
                yield from store.read_diverted(names[position]).to_batches()

    return read


def merge_function(outlet: Outlet, checkpoint: str) -> Callable[[int, Iterator[pa.RecordBatch]], Step]:
    """Returns the function that merges the parts of grouped answers; all parts of a group must be in one partition.

    It writes a report with the number of results, as a step does.
    """
    task = outlet.task
    members = {member.name: member for member in task.queries.members}

    def merge(number: int, batches: Iterator[pa.RecordBatch]) -> Step:
        slot = task.partitioning.working[number]
        parts: dict[str, list[pa.RecordBatch]] = {}
        with outlet.open(number) as out:
            for packet in received(batches):
                if packet.kind == PARTS:
                    parts.setdefault(packet.name, []).extend(
                        batch.replace_schema_metadata(None) for batch in packet.batches
                    )
                else:
                    yield from out.pass_on(packet)
            for name, several in parts.items():
                yield from out.finished(name, results_of(members[name], parts_table(members[name], several)))
            report = SlotReport(results=dict(out.results))
            Store(checkpoint).write_rows(task.merged_name(slot), pa.table({}), report)
        return [report]

    return merge


def written_by(writer: WorkerWriter, first: ArrowFunction) -> ArrowFunction:
    """Returns the function that writes the output of another function, and yields nothing."""

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
