"""The functions of Spark's Python workers: one engine step of the slot whose partition a worker gets."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from time import perf_counter, thread_time
from typing import TypeAlias

import pyarrow as pa
from pyspark import TaskContext

from anabranch.run.file_rows import SlotFiles
from anabranch.run.hot import keep_engine, open_engine
from anabranch.run.results import parts_table, results_of
from anabranch.run.side_output import SideOutputLayout
from anabranch.run.slot import Opening, SlotTask, advance, first_copies
from anabranch.run.store import Store
from anabranch.run.wire import TIME, WHOLE, WireLayout, wire_layout
from anabranch.spark.exchange import PARTS, ROWS, OpenOutlet, Outlet, received
from anabranch.spark.sinks.workers import WorkerWriter
from anabranch.stats.report import SlotReport

ArrowFunction: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def step_function(
    outlet: Outlet,
    identity: str,
    checkpoint: str,
    diverted: SideOutputLayout | None = None,
    files: SlotFiles | None = None,
) -> ArrowFunction:
    """The function that `mapInArrow` applies to the rows of each slot: one stage, or all where there is one slot.

    With a layout of diverted rows it keeps those. With files, slots read their rows from these.
    """
    task = outlet.task

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        slot = task.partitioning.working[context.partitionId()]
        started, cpu = perf_counter(), thread_time()
        layout = wire_layout(task.queries, task.partitioning)
        with outlet.open() as out:
            if files is not None and not task.stage:
                list(batches)
                rows, rejected, rejected_rows = files.rows(task, slot)
            else:
                if task.stage:
                    table = yield from _packed_rows(batches, layout, out)
                else:
                    arrived = list(batches)
                    table = pa.Table.from_batches(arrived) if arrived else layout.sent.empty_table()
                passed, rejected, rejected_rows = layout.without_rejected(table, task.bounds)
                rows = layout.split(passed)
            transfer = perf_counter() - started
            started = perf_counter()
            store = Store(checkpoint)
            if diverted is not None and not task.stage:
                _keep_diverted(passed, diverted, layout, task, slot, store)
            opened = open_engine(task, slot, identity, store)
            seconds = {"transfer": transfer, "open": perf_counter() - started}
            spent = thread_time() - cpu
            opening = Opening(opened.changes, opened.was_hot, rejected, rejected_rows, seconds, spent, opened.taken)
            stages = range(task.queries.stages) if len(task.partitioning.working) == 1 else [task.stage]
            for stage in stages:
                for query, found in advance(opened.engine, task.at(stage), slot, rows, store, opening, out.results):
                    yield from out.take(query, found)
                rows, opening = out.next_rows(), Opening(was_hot=True)
            keep_engine(opened, task.at(stages[-1]), slot, identity)

    return step


def _keep_diverted(
    table: pa.Table, diverted: SideOutputLayout, layout: WireLayout, task: SlotTask, slot: int, store: Store
) -> None:
    """Writes the diverted rows of which this slot has the first copy, if there are any."""
    tables = []
    for name, rows in layout.outside(table, task.bounds).items():
        chosen = table.take(pa.array(rows)).combine_chunks()
        if not len(rows):
            continue
        (whole,) = chosen.to_batches()
        mine = pa.array(first_copies(task.partitioning, slot, name, layout.of_relation(name, whole)))
        chosen = chosen.filter(mine)
        stream = task.queries.graph.relation(name).stream
        whole = chosen.column(f"{WHOLE}{list(diverted.streams).index(stream)}")
        tables.append(diverted.table(stream, name, chosen.column(TIME).to_numpy(), whole, task.bounds))
    together = diverted.together(tables)
    if together.num_rows:
        store.write_diverted(task.rows_name(slot), together)


def read_diverted_function(names: Sequence[str], checkpoint: str) -> ArrowFunction:
    """The function that reads the diverted rows of a batch; its input are positions in the list of files."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = Store(checkpoint)
        for batch in batches:
            for position in batch.column(0).to_pylist():
                yield from store.read_diverted(names[position]).to_batches()

    return read


def _packed_rows(
    batches: Iterator[pa.RecordBatch], layout: WireLayout, out: OpenOutlet
) -> Generator[pa.RecordBatch, None, pa.Table]:
    """The rows in packets as one table; what is for a sink goes on."""
    rows = [layout.schema.empty_table()]
    for packet in received(batches):
        if packet.kind == ROWS:
            rows.append(pa.Table.from_batches(packet.batches).replace_schema_metadata(None))
        else:
            yield from out.pass_on(packet)
    return pa.concat_tables(rows)


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
