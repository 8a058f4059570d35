"""The functions of Spark's Python workers: one engine step of the slot whose partition a worker gets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter, thread_time

import pyarrow as pa
from pyspark import TaskContext

from anabranch.engine.operators.group_by import finish, parts_schema
from anabranch.host.diverted import DivertedLayout
from anabranch.host.hot import keep_engine, open_engine
from anabranch.host.slot import Opening, SlotTask, advance, first_copies
from anabranch.host.spark.sinks.workers import ArrowFunction
from anabranch.host.store import Store
from anabranch.host.wire import TIME, WHOLE, WireLayout, wire_layout
from anabranch.plan.query import Query


def step_function(
    task: SlotTask, identity: str, checkpoint: str, diverted: DivertedLayout | None = None
) -> ArrowFunction:
    """The function that `mapInArrow` applies to the rows of each slot; with a layout it keeps diverted rows."""

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        slot = task.partitioning.working[context.partitionId()]
        started, cpu = perf_counter(), thread_time()
        received = list(batches)
        layout = wire_layout(task.queries, task.partitioning)
        table = pa.Table.from_batches(received) if received else layout.schema.empty_table()
        passed, rejected = layout.without_rejected(table, task.bounds)
        rows = layout.split(passed)
        transfer = perf_counter() - started
        started = perf_counter()
        store = Store(checkpoint)
        if diverted is not None:
            _keep_diverted(passed, diverted, layout, task, slot, store)
        opened = open_engine(task, slot, identity, store)
        seconds = {"transfer": transfer, "open": perf_counter() - started}
        opening = Opening(opened.changes, opened.was_hot, rejected, seconds, thread_time() - cpu, opened.taken)
        yield from advance(opened.engine, task, slot, rows, store, opening)
        keep_engine(opened, task, slot, identity)

    return step


def _keep_diverted(
    table: pa.Table, diverted: DivertedLayout, layout: WireLayout, task: SlotTask, slot: int, store: Store
) -> None:
    """Writes the diverted rows of which this slot has the first copy, if there are any."""
    tables = []
    for name, rows in layout.outside(table, task.bounds).items():
        chosen = table.take(pa.array(rows)).combine_chunks()
        columns = zip(layout.code_columns, layout.codes[name], strict=False)
        codes = {code: chosen.column(wire).to_numpy() for wire, code in columns}
        mine = pa.array(first_copies(task.partitioning, slot, name, codes, len(rows)))
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


def warm(row: int) -> int:
    """Does nothing, in a worker that has loaded this module and with it the engine's compiled kernels."""
    return row


def then(first: ArrowFunction, second: ArrowFunction | None) -> ArrowFunction:
    """One function after the other in the same worker."""
    if second is None:
        return first
    last = second
    return lambda batches: last(first(batches))


def finish_function(query: Query) -> ArrowFunction:
    """The function that merges the parts of a grouped answer; all parts of a group must be in one partition."""

    assert query.grouping is not None
    names = parts_schema(query.grouping).names

    def merge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts = list(batches)
        if parts:
            yield from finish(query, pa.Table.from_batches(parts).rename_columns(names)).combine_chunks().to_batches()

    return merge
