"""Every reader keeps the contract of readers: its parts have each row of a batch once, however they are cut."""

from __future__ import annotations

import atexit
import io
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from anabranch.cql import compile_query
from anabranch.engine.ownership import needed_in
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.expr import Column, Expr
from anabranch.lang.schema import TIMESTAMP, Schema
from anabranch.lang.window import BEFORE_ALL
from anabranch.plan.partitioning import choose_partitioning
from anabranch.plan.query_set import ALONE, alone
from anabranch.plan.slots import SlotPlan
from anabranch.plan.text import parse
from anabranch.run.files.form import Columns, FileForm, Reading
from anabranch.run.files.json import Json
from anabranch.run.files.parquet import Parquet
from anabranch.run.files.stored import START, StoredFiles, following, listed
from anabranch.run.ingest import Ingest, Reader, cells_of, columns_to_read, merged, part
from anabranch.run.kafka.ranges import KafkaForm, OffsetRange
from anabranch.run.pieces import divided, pieces_of, shared
from anabranch.run.rows import relation_batch
from anabranch.run.side_output import UNDATED, SideOutputLayout
from anabranch.run.slot import SlotTask
from anabranch.run.wire import wire_layout
from anabranch.spark.spark_rows import STREAM, ScannedStream, SparkRows
from tests.spark.stories import as_json
from tests.support.kafka_broker import Cluster, broker
from tests.support.s3_server import HALF, Fault, S3Server, s3_server

COLUMNS = pa.schema(
    [("ts", TIMESTAMP), ("x", pa.int64()), ("y", pa.int32()), ("s", pa.string()), ("d", pa.decimal128(9, 2))]
)
FROM = "SELECT a.s AS s, b.d AS d FROM s0 [RANGE 8 SECONDS] AS a, s1 [RANGE 5 SECONDS] AS b WHERE "
ROWS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(0, 50)),
        st.one_of(st.none(), st.integers(-3, 3)),
        st.one_of(st.none(), st.integers(0, 2)),
        st.one_of(st.none(), st.sampled_from(["", "a", "bä", "a long text of more than eight bytes"])),
    ),
    max_size=20,
)


def catalog() -> Catalog:
    found = Catalog()
    for name in ("s0", "s1"):
        found.register(StreamDeclaration(name, Schema.from_arrow(COLUMNS), "ts", 0))
    return found


def table(rows: list[tuple[int | None, int | None, int | None, str | None]]) -> pa.Table:
    ts, x, y, s = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [], [])
    arrays = [pa.array(ts, pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP), pa.array(x, pa.int64())]
    arrays += [pa.array(y, pa.int32()), pa.array(s, pa.string()), pa.nulls(len(rows), pa.decimal128(9, 2))]
    return pa.table(arrays, schema=COLUMNS)


def task_of(condition: str, slots: int, floor: int, ceilings: dict[str, int]) -> SlotTask:
    query = compile_query(FROM + condition, catalog())
    return SlotTask(
        queries=alone(query),
        plans={ALONE: (SlotPlan(parse("(a b)")),) * slots},
        partitioning=choose_partitioning(query.graph, slots),
        batch=0,
        attempt="attempt",
        after=None,
        floors={"a": floor, "b": BEFORE_ALL},
        ceilings=ceilings,
    )


def counted(batch: Any) -> Counter[tuple[Any, ...]]:
    columns = [batch.times.tolist(), *(batch.codes[name].tolist() for name in sorted(batch.codes))]
    return Counter(zip(*columns, *(column.to_pylist() for column in batch.payload), strict=True))


Parts: TypeAlias = list[list[pa.RecordBatch]]
"""The batches that Spark passes to each task."""
Maker: TypeAlias = Callable[[Mapping[str, list[pa.Table]], Mapping[str, Columns], Path], tuple[Reader, Parts]]


def of_files(readers: int, form: FileForm) -> Maker:
    def make(tables: Mapping[str, list[pa.Table]], wanted: Mapping[str, Columns], folder: Path) -> tuple[Reader, Parts]:
        readings = {
            stream: Reading(form, {name: Column("stream", name, kind) for name, kind in columns.items()})
            for stream, columns in wanted.items()
        }
        pieces = []
        for stream, several in tables.items():
            for number, rows in enumerate(several):
                path = folder / f"{stream} {number}"
                if form == Parquet():
                    parquet.write_table(rows, path, row_group_size=4)
                else:
                    path.write_bytes(b"\n".join(as_json(rows)))
                footer = readings[stream].look_into(str(path))
                assert footer.is_readable
                pieces += pieces_of(stream, str(path), footer)
        reader = divided(pieces, readings, readers) if readers else shared(pieces, readings, 1)
        return reader, [[]] * len(reader.shares)

    return make


def of_spark(tables: Mapping[str, list[pa.Table]], wanted: Mapping[str, Columns], folder: Path) -> tuple[Reader, Parts]:
    """Two tasks of a union whose columns are shared by type, in a session whose zone is not UTC."""
    zone = pa.timestamp("us", "Europe/Berlin")
    kinds = {"_0": zone, "_1": pa.int64(), "_2": pa.int32(), "_3": pa.string(), "_4": pa.decimal128(9, 2)}
    place = dict(zip(COLUMNS.names, kinds, strict=True))
    streams = tuple(
        ScannedStream(stream, {name: (place[name], kind) for name, kind in columns.items()})
        for stream, columns in wanted.items()
    )
    schema = pa.schema([(STREAM, pa.int8()), *kinds.items()])
    parts: Parts = [[], []]
    for number, stream in enumerate(wanted):
        for turn, rows in enumerate(tables[stream]):
            tags = pa.array([number] * len(rows), pa.int8())
            whole = pa.table([tags, *(rows.column(n).cast(kinds[place[n]]) for n in COLUMNS.names)], schema=schema)
            parts[turn % 2] += whole.combine_chunks().to_batches(max_chunksize=3)
    return SparkRows(streams), parts


@cache
def cluster() -> Cluster:
    """A Kafka broker for this module; it ends with this process."""
    several = ExitStack()
    atexit.register(several.close)
    return several.enter_context(broker({}))


def of_kafka(tables: Mapping[str, list[pa.Table]], wanted: Mapping[str, Columns], folder: Path) -> tuple[Reader, Parts]:
    """Two tasks that read offsets of topics, with a partition for each table."""
    readings, pieces = {}, []
    for stream, several in tables.items():
        topic = f"{folder.name}-{stream}"
        cluster().ask("create", topic, len(several), 1)
        form = KafkaForm({"bootstrap.servers": cluster().bootstrap}, COLUMNS)
        made: dict[str, Expr] = {name: Column("stream", name, kind) for name, kind in wanted[stream].items()}
        readings[stream] = Reading(form, made)
        for partition, rows in enumerate(several):
            cluster().send(topic, as_json(rows), partition=partition)
            middle = len(rows) // 2
            for start, stop in ((0, middle), (middle, len(rows))):
                place = str(OffsetRange(topic, partition, start, stop))
                pieces += pieces_of(stream, place, form.look_into(place, wanted[stream]))
    return (reader := divided(pieces, readings, 2)), [[]] * len(reader.shares)


@cache
def store() -> S3Server:
    """An S3 server for this module; it ends with this process."""
    several = ExitStack()
    atexit.register(several.close)
    return several.enter_context(s3_server())


def of_store(form: Parquet | Json) -> Maker:
    """Two tasks of files in a bucket; some of their requests are refused, and some answers cut off."""

    def make(tables: Mapping[str, list[pa.Table]], wanted: Mapping[str, Columns], folder: Path) -> tuple[Reader, Parts]:
        readings, pieces = {}, []
        for stream, several in tables.items():
            for number, rows in enumerate(several):
                data = io.BytesIO(b"\n".join(as_json(rows)))
                if form == Parquet():
                    parquet.write_table(rows, data := io.BytesIO(), row_group_size=4)
                store().put(f"bucket/{folder.name}/{stream}/{number}", data.getvalue())
            files = StoredFiles(store().uri(f"bucket/{folder.name}/{stream}"), form, COLUMNS)
            made: dict[str, Expr] = {name: Column("stream", name, kind) for name, kind in wanted[stream].items()}
            readings[stream] = Reading(files, made)
            for path in files.between(START, following(START, listed(files.location), None, 10**15)):
                pieces += pieces_of(stream, path, files.look_into(path, wanted[stream]))
        store().answer_badly(Fault("503", 1, path="s0"), Fault(HALF, 1, path="s1"))
        return (reader := divided(pieces, readings, 2)), [[]] * len(reader.shares)

    return make


READERS: dict[str, Maker] = {
    "all files": of_files(0, Parquet()),
    "one task of files": of_files(1, Parquet()),
    "tasks of files": of_files(3, Parquet()),
    "JSON lines": of_files(2, Json()),
    "Spark": of_spark,
    "Kafka": of_kafka,
    "files of a store": of_store(Parquet()),
    "JSON lines of a store": of_store(Json()),
}


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=25, deadline=None)
@given(
    several=st.lists(ROWS, min_size=1, max_size=3),
    other=ROWS,
    slots=st.integers(1, 4),
    condition=st.sampled_from(["a.x = b.x", "a.s = b.s AND a.y = b.y", "a.x < b.x", "a.y = b.x AND a.y > 0"]),
    floor=st.sampled_from([BEFORE_ALL, 10]),
)
def test_each_row_is_read_once_and_is_in_the_slots_that_need_it(
    name: str,
    several: list[Any],
    other: Any,
    slots: int,
    condition: str,
    floor: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    tables = {"s0": [table(rows) for rows in several], "s1": [table(other)]}
    task = task_of(condition, slots, floor, {"a": 40})
    layout = wire_layout(task.queries, task.partitioning)
    late = SideOutputLayout({stream: Schema.from_arrow(COLUMNS) for stream in tables})
    reader, parts = READERS[name](tables, columns_to_read(task.queries, late), tmp_path_factory.mktemp("files"))
    ingest = Ingest(task, late)
    found = merged([ingest.read(reader, number, iter(given)) for number, given in enumerate(parts)])
    again = merged([ingest.read(reader, number, iter(given)) for number, given in enumerate(parts)])
    assert again.intake == found.intake
    intake, diverted = found.intake, late.together([] if found.diverted is None else [found.diverted])
    cells = cells_of(task.partitioning, found.rows)
    for relation in task.queries.graph.relations:
        arrived = pa.concat_tables(tables[relation.stream])
        passing = relation_batch(relation, layout, arrived)
        inside = task.bounds.admitted(relation.name, passing.times)
        whole = passing.take(np.flatnonzero(inside))
        times = [time.value for time in arrived["ts"] if time.is_valid]
        assert intake.delivered.get(relation.name, 0) == len(times)
        assert intake.newest.get(relation.name) == max(
            (time for time in times if time <= task.ceilings.get(relation.name, time)), default=None
        )
        lost = intake.late.get(relation.name, 0), intake.ahead.get(relation.name, 0)
        outside = passing.times[~inside]
        assert lost == (int((outside < floor).sum()), int((outside >= floor).sum()))
        assert intake.undated.get(relation.name, 0) == len(arrived) - len(times)
        rows = diverted.filter(pa.compute.equal(diverted["relation"], relation.name))
        undated = rows.filter(pa.compute.equal(rows["reason"], UNDATED))
        assert (len(undated), undated["event_time"].null_count) == (len(arrived) - len(times),) * 2
        rows = rows.filter(pa.compute.not_equal(rows["reason"], UNDATED))
        assert sorted(rows["event_time"].cast(pa.int64()).to_pylist()) == sorted(outside.tolist())
        needed = needed_in(task.partitioning, relation.name, whole)
        for slot in range(slots):
            mine = part(task.partitioning, found.rows, cells, slot).get(relation.name, layout.empty(relation.name))
            assert counted(mine) == counted(whole.take(np.flatnonzero(needed[:, slot])))


def test_the_event_times_of_ticks_advance_a_stream_up_to_its_ceiling() -> None:
    ingest = Ingest(task_of("a.x = b.x", 1, BEFORE_ALL, {"a": 40}))
    assert ingest.tick("s0", 30).intake.newest == {"a": 30}
    assert ingest.tick("s0", 41).intake.newest == {}


def test_event_times_may_be_in_another_column_than_that_of_the_stream() -> None:
    """A reader converts wall clocks to instants; the column of the stream keeps its values."""
    rows = table([(7, 1, 2, "a"), (9, 1, 2, "b")])
    later = pa.array([70, None], pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP)
    found = Ingest(task_of("a.x = b.x", 1, BEFORE_ALL, {})).take("s0", rows.append_column("later", later), "later")
    assert found.rows["a"].times.tolist() == [70]
    assert (found.intake.delivered, found.intake.newest) == ({"a": 1}, {"a": 70})
