"""Slots read the files of their streams themselves, and the answer is that of Spark reading them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import anabranch
from anabranch.spark.runner import SparkRunner
from tests.spark.stories import (
    FEEDS,
    SPARK_COLUMNS,
    STREAM,
    Story,
    cut,
    feed,
    feed_apart,
    register,
    run,
    write_apart,
    written,
)
from tests.support.oracle import describe_difference

pytestmark = pytest.mark.spark

THREE = (
    "SELECT a.p AS p0, b.p AS p1, c.p AS p2, a.s AS s, c.f AS f, b.ts AS ts, c.d AS d "
    "FROM s0 [RANGE 10 SECONDS] AS a, s1 [RANGE 6 SECONDS] AS b, s2 [RANGE 10 SECONDS] AS c WHERE "
)
PAIR = "SELECT a.p AS p0, b.p AS p1 FROM s0 [RANGE 8 SECONDS] AS a, s1 [RANGE 5 SECONDS] AS b WHERE "
GROUPS = (
    "SELECT WINDOW_END() AS at, a.s AS s, COUNT(*) AS n, SUM(b.x) AS x, MIN(b.s) AS low, AVG(a.p) AS mean, "
    "SUM(a.d) AS d FROM s0 [RANGE 9 SECONDS SLIDE 3 SECONDS] AS a, s1 [RANGE 6 SECONDS SLIDE 3 SECONDS] AS b WHERE "
)
READ_BY_SLOTS = {
    "chain, three slots": Story(THREE + "a.x = b.x AND b.y = c.y", slots=3, disorder={"s1": 3}),
    "text": Story(PAIR + "a.s = b.s", slots=1),
    "nine slots": Story(PAIR + "a.x = b.x", slots=9),
    "odd floats and decimals": Story(THREE + "a.d = b.d AND b.f = c.f", rows=40),
    "filters": Story(THREE + "a.x = b.x AND b.x = c.x AND a.p % 3 <> 0 AND b.s LIKE 'a%' AND c.y IS NOT NULL"),
    "computed keys of two types": Story(PAIR + "a.x + 1 = b.y AND a.s = b.s"),
    "no key": Story(PAIR + "a.x < b.x AND a.y < b.y", slots=4),
    "self-join": Story(
        "SELECT a.p AS p0, b.p AS p1 FROM s0 [RANGE 8 SECONDS] AS a, s0 [RANGE 8 SECONDS] AS b "
        "WHERE a.x = b.x AND a.p < b.p",
        disorder={"s0": 3},
    ),
    "groups": Story(GROUPS + "a.x = b.x GROUP BY a.s HAVING COUNT(*) > 1", slots=3, disorder={"s1": 3}),
    "groups, merged first": Story(GROUPS + "a.x = b.x GROUP BY a.s", plan="([a] [b])", slots=1, disorder={"s1": 3}),
    "outer joins": Story(
        "SELECT a.p AS p0, b.p AS p1, c.p AS p2, c.s AS s FROM s0 [RANGE 6 SECONDS] AS a "
        "JOIN s1 [RANGE 6 SECONDS] AS b ON a.x = b.x "
        "LEFT JOIN s2 [RANGE 3 SECONDS] AS c ON b.y = c.y AND c.s LIKE 'a%' "
        "WHERE NOT EXISTS (SELECT 1 FROM s2 [RANGE 1 SECOND] AS d WHERE d.x = a.x AND d.p % 2 = 0)",
        slots=3,
        disorder={"s1": 3},
    ),
}


def query_of(spark: SparkSession, story: Story, folder: Path) -> anabranch.ContinuousQuery:
    return register(spark, replace(story, is_apart=True), folder).sql(story.cql)


def is_read_by_slots(handle: anabranch.QueryHandle) -> bool:
    runner = handle._runner
    assert isinstance(runner, SparkRunner)
    return runner.reads_files


def rows_in(tables: Mapping[str, pa.Table]) -> int:
    return sum(table.num_rows for table in tables.values())


@pytest.mark.parametrize("name", READ_BY_SLOTS)
def test_the_answer_is_the_batch_answer(name: str, spark: SparkSession, tmp_path: Path) -> None:
    story = READ_BY_SLOTS[name]
    tables = story.tables()
    for batch in cut(tables, 3):
        feed_apart(tmp_path, batch)
    handle = run(query_of(spark, story, tmp_path), tmp_path, story.plan, story.slots)
    assert is_read_by_slots(handle)
    expected = story.expected(tables)
    assert len(expected) > 10
    assert not describe_difference(expected, written(tmp_path))
    report = handle.report()
    assert (report["rows_in"], report["late_rows"]) == (rows_in(tables), 0)


def test_files_that_only_spark_reads_are_read_by_spark_batch_by_batch(spark: SparkSession, tmp_path: Path) -> None:
    """Restarts on the way; files with narrower numbers, times of another kind, and columns that are not there."""
    story = Story(THREE + "a.x = b.x AND b.x = c.x", slots=2)
    tables = story.tables()
    expected = story.expected(tables)
    query = query_of(spark, story, tmp_path)
    for number, batch in enumerate(cut(tables, 6)):
        for stream, rows in batch.items():
            if number == 1 and stream == "s0":
                rows = rows.set_column(1, "x", rows["x"].cast(pa.int32()))  # Spark widens it
            if number == 2:
                rows = rows.drop_columns(["y"])  # which no query reads
            if number == 3 and stream == "s1":
                rows = rows.set_column(3, "s", rows["s"].dictionary_encode())
            write_apart(tmp_path, stream, number, rows, use_deprecated_int96_timestamps=number == 4)
        if number % 2:
            handle = run(query, tmp_path, story.plan, story.slots)
            assert is_read_by_slots(handle)
            assert handle.report()["rows_in"] == sum(
                rows_in(part) for part in list(cut(tables, 6))[number - 1 : number + 1]
            )
    assert len(expected) > 10
    assert not describe_difference(expected, written(tmp_path))


def test_groups_move_keys_are_split_and_plans_change_while_slots_read(spark: SparkSession, tmp_path: Path) -> None:
    """Through a restart, too; how Spark cuts the files into micro-batches is left to it."""
    story = Story(THREE + "a.x = b.x AND b.x = c.x", slots=3, disorder={"s1": 2}, rows=90)
    tables = story.tables()
    query = query_of(spark, story, tmp_path)

    def start() -> anabranch.QueryHandle:
        writer = query.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.plan("mjoin").slots(story.slots).start(str(tmp_path / "out"))

    handle = start()
    try:
        for number, batch in enumerate(cut(tables, 7)):
            feed_apart(tmp_path, batch)
            handle.processAllAvailable()
            assert is_read_by_slots(handle)
            match number:
                case 0:
                    progress = handle.lastProgress
                    assert progress is not None
                    first = progress["adaptive"]["table"]
                    handle.move([group for group, slot in enumerate(first) if slot == 0], to=1)
                case 1:
                    handle.migrate("((a b) c)", strategy="parallel-track")
                case 2:
                    handle.split(0, over=3)
                case 3:
                    handle.stop()
                    handle = start()
                case 4:
                    handle.unite(0)
        history = handle.history
        assert handle.report()["late_rows"] == 0
    finally:
        handle.stop()
    seen = {word for record in history for word in (record["kind"], *record)}
    assert {"move", "split", "united", "migration"} <= seen
    expected = story.expected(tables)
    assert len(expected) > 10
    assert not describe_difference(expected, written(tmp_path))


def test_a_stream_may_be_without_files_and_rows_without_times(spark: SparkSession, tmp_path: Path) -> None:
    story = Story(PAIR + "a.x = b.x", slots=2)
    tables = story.tables()
    query = query_of(spark, story, tmp_path)
    untimed = pa.table(
        [pa.nulls(5, pa.timestamp("us", "UTC")), *tables["s0"].slice(0, 5).columns[1:]], schema=tables["s0"].schema
    )
    write_apart(tmp_path, "s0", 0, pa.concat_tables([untimed, tables["s0"]]))
    run(query, tmp_path)
    write_apart(tmp_path, "s1", 0, tables["s1"])
    handle = run(query, tmp_path)
    assert is_read_by_slots(handle)
    # With s0 at its end, only rows of s1 that are not late can meet; a stream that says nothing holds no other back.
    assert handle.report()["late_rows"] == 0
    assert not describe_difference(story.expected(tables), written(tmp_path))


def test_a_folder_of_partitions_is_read_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    story = Story(PAIR + "a.x = b.x", slots=2)
    tables = story.tables()
    for name, rows in tables.items():
        for place, x in enumerate((0, 1, 2, 3, 4)):
            chosen = rows.filter(pa.compute.equal(rows["x"], x)).drop_columns(["x"])
            (tmp_path / name / f"x={x}").mkdir(parents=True)
            parquet.write_table(chosen, tmp_path / name / f"x={x}" / f"{place}.parquet")
    session = anabranch.Session(spark)
    for name in story.streams:
        frame = spark.readStream.schema(SPARK_COLUMNS).parquet(str(tmp_path / name))
        session.register(name, frame, "ts", watermark="0 seconds")
    run(session.sql(story.cql), tmp_path)
    with_keys = {name: rows.filter(pa.compute.is_valid(rows["x"])) for name, rows in tables.items()}
    expected = replace(story).expected(with_keys)
    assert len(expected) > 10
    assert not describe_difference(expected, written(tmp_path))


def test_the_stream_whose_files_are_largest_is_not_copied(spark: SparkSession, tmp_path: Path) -> None:
    """Of a chain, one end has to be sent to several slots; without a sample the files tell which."""
    story = Story(THREE + "a.x = b.x AND b.y = c.y", slots=2)
    for large in ("s0", "s2"):
        folder = tmp_path / large
        for name, rows in story.tables().items():
            write_apart(folder, name, 0, pa.concat_tables([rows] * 50) if name == large else rows)
        handle = run(query_of(spark, story, folder), folder, story.plan, story.slots)
        progress = handle.lastProgress
        assert progress is not None
        sent = progress["adaptive"]["sent"]
        assert (sent["a"], sent["c"]) == ((1.0, 2.0) if large == "s0" else (2.0, 1.0))


def as_csv(rows: pa.Table, *, is_quoted: bool) -> str:
    """Rows as CSV with a first row of names; times in milliseconds, and texts in quotes where that is asked for."""
    lines = ["p,ms,s,y,x"]
    for row in rows.to_pylist():
        text = f'"{row["s"]}"' if is_quoted and row["s"] else row["s"]
        values = [row["p"], round(row["ts"].timestamp() * 1000), text, row["y"], row["x"]]
        lines.append(",".join("" if value is None else str(value) for value in values))
    return "\n".join(lines) + "\n"


def of_stream(tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    return {
        name: rows.filter(pa.compute.fill_null(pa.compute.not_equal(rows["x"], 3), True))
        for name, rows in tables.items()
    }


@pytest.mark.parametrize("is_grouped", [False, True])
def test_streams_of_csv_that_compute_their_times(is_grouped: bool, spark: SparkSession, tmp_path: Path) -> None:
    """A batch with quotes on the way is read by Spark, through the same expressions; so is each after a restart."""
    groups = (
        "SELECT WINDOW_END() AS at, a.s AS s, COUNT(*) AS n, SUM(b.x) AS x "
        "FROM s0 [RANGE 9 SECONDS SLIDE 3 SECONDS] AS a, s1 [RANGE 6 SECONDS SLIDE 3 SECONDS] AS b "
        "WHERE a.x = b.x AND b.y > 0 GROUP BY a.s"
    )
    story = Story(
        groups if is_grouped else PAIR + "a.s = b.s AND a.x + 1 = b.x",
        slots=3,
        disorder={"s1": 3},
        rows=90,
    )
    tables = {name: without_empty_texts(rows) for name, rows in story.tables().items()}
    session = anabranch.Session(spark)
    for name in story.streams:
        (tmp_path / name).mkdir()
        reader = spark.readStream.schema("p bigint, ms bigint, s string, y int, x bigint").option("header", "true")
        frame = reader.option("maxFilesPerTrigger", 1).csv(str(tmp_path / name))
        frame = frame.where("x IS NULL OR x <> 3").withColumn("ts", f.timestamp_millis("ms")).drop("ms")
        session.register(name, frame, "ts", watermark=f"{story.disorder.get(name, 0)} seconds")
    for number, batch in enumerate(cut(tables, 6)):
        for name, rows in batch.items():
            path = tmp_path / name / f"part {number}.csv"
            path.write_text(as_csv(rows, is_quoted=number in (2, 5)))
            os.utime(path, (1_700_000_000 + number,) * 2)
        if number % 2:
            handle = run(session.sql(story.cql), tmp_path, story.plan, story.slots)
            assert is_read_by_slots(handle)
            two = list(cut(tables, 6))[number - 1 : number + 1]
            # What the frame itself leaves out is not of the stream.
            assert handle.report()["rows_in"] == sum(rows_in(of_stream(batch)) for batch in two)
    kept = of_stream(tables)
    expected = story.expected(kept)
    assert len(expected) > 10
    assert not describe_difference(expected, written(tmp_path))


def without_empty_texts(rows: pa.Table) -> pa.Table:
    """What CSV makes of texts without letters."""
    texts = rows["s"]
    return rows.set_column(3, "s", pa.compute.if_else(pa.compute.equal(texts, ""), None, texts))


def test_several_streams_of_one_folder_are_told_apart_by_slots(spark: SparkSession, tmp_path: Path) -> None:
    """Each stream is a part of the same files; each is a scan of its own, and a plan changes on the way."""
    story = Story(THREE + "a.x = b.x AND b.y = c.y", slots=2, disorder={"s2": 2}, rows=90)
    tables = story.tables()
    folder = tmp_path / FEEDS
    folder.mkdir()
    session = anabranch.Session(spark)
    source = spark.readStream.schema(f"{SPARK_COLUMNS}, {STREAM} string").option("maxFilesPerTrigger", 1)
    for name in story.streams:
        frame = source.parquet(str(folder)).where(f.col(STREAM) == name).drop(STREAM)
        session.register(name, frame, "ts", watermark=f"{story.disorder.get(name, 0)} seconds")
    for number, batch in enumerate(cut(tables, 4)):
        feed(tmp_path, batch)
        handle = run(session.sql(story.cql), tmp_path, "mjoin" if number % 2 else "((a b) c)", story.slots)
        assert is_read_by_slots(handle)
    expected = story.expected(tables)
    assert len(expected) > 10
    assert not describe_difference(expected, written(tmp_path))
