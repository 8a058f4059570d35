"""Rows in and rows out: every place that shows them shows what the sources delivered and what the sinks received."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyarrow import orc, parquet
from pyspark.sql import SparkSession

import anabranch
from anabranch.console.live import View, advance
from anabranch.console.metrics import metrics_text
from anabranch.console.runs import LiveRun
from anabranch.console.watching import WatchedRun
from anabranch.spark.runner import SparkRunner
from anabranch.telemetry.logs import LOG, fields_of

pytestmark = pytest.mark.spark

SCHEMA = "ts timestamp, x bigint, y bigint, p bigint"
Row = tuple[int, int | None, int | None, int]
FEEDS: Mapping[str, Sequence[Sequence[Row]]] = {
    # (second, x, y, p) by micro-batch. The row of second 1 in batch 2 is late, NULL keys are rejected by joins, and
    # batches 3 and 4 have rows of s0 alone.
    "s0": [
        [(second, second % 3, second % 2, second) for second in range(10)],
        [(10, 1, 0, 10), (11, None, 1, 11), (12, 2, 1, 12), (13, 0, 0, 13)],
        [(14, 1, 1, 14), (1, 1, 1, 16), (15, None, 0, 15)],
        [(40, 2, 0, 17), (41, 0, 1, 18)],
        [(90, 1, 1, 19)],
    ],
    "s1": [
        [(second, second % 2, second % 4, 100 + second) for second in range(0, 10, 2)],
        [(10, 1, 1, 110), (12, None, None, 111), (13, 2, 0, 112)],
        [(14, 1, 0, 113), (15, 0, 1, 114)],
    ],
    "s2": [
        [(second, 5, second % 3, 200 + second) for second in range(0, 10, 3)],
        [(11, 5, None, 210), (12, 5, 1, 211)],
        [(15, 5, 1, 212)],
    ],
}
QUERIES = {
    "a join": "SELECT a.p AS p, b.p AS q FROM s0 [RANGE 5 SECONDS] AS a, s1 [RANGE 5 SECONDS] AS b WHERE a.x = b.x",
    "one stream under two aliases": (
        "SELECT a.p AS p, b.p AS q FROM s0 [RANGE 5 SECONDS] AS a, s0 [RANGE 3 SECONDS] AS b "
        "WHERE a.x = b.y AND a.p <> b.p"
    ),
    "a filter": (
        "SELECT a.p AS p, b.p AS q FROM s0 [RANGE 5 SECONDS] AS a, s1 [RANGE 5 SECONDS] AS b "
        "WHERE a.x = b.x AND a.p % 2 = 0 AND b.p < 113"
    ),
    "groups and HAVING": (
        "SELECT a.y AS y, COUNT(*) AS n FROM s0 [RANGE 6 SECONDS SLIDE 3 SECONDS] AS a, "
        "s1 [RANGE 6 SECONDS SLIDE 3 SECONDS] AS b WHERE a.x = b.x AND a.p % 5 > 0 GROUP BY a.y HAVING COUNT(*) > 2"
    ),
    "an outer join": (
        "SELECT a.p AS p, b.p AS q FROM s0 [RANGE 4 SECONDS] AS a LEFT JOIN s1 [RANGE 4 SECONDS] AS b "
        "ON a.x = b.x AND b.p < 113"
    ),
    "rows that several slots need": (
        "SELECT a.p AS p, c.p AS q FROM s0 [RANGE 5 SECONDS] AS a, s1 [RANGE 5 SECONDS] AS b, "
        "s2 [RANGE 5 SECONDS] AS c WHERE a.x = b.x AND b.y = c.y"
    ),
}


def write(folder: Path, kind: str) -> None:
    """A file for each stream and micro-batch; all are there before anybody reads."""
    for stream, batches in FEEDS.items():
        (folder / stream).mkdir()
        for number, rows in enumerate(batches):
            columns = list(zip(*rows, strict=True))
            times = pa.array([1_700_000_000 + second for second in columns[0]], pa.timestamp("s", "UTC"))
            values = [pa.array(column, pa.int64()) for column in columns[1:]]
            table = pa.table([times.cast(pa.timestamp("us", "UTC")), *values], names=["ts", "x", "y", "p"])
            path = folder / stream / f"{number}.{kind}"
            if kind == "parquet":
                parquet.write_table(table, path)
            else:
                orc.write_table(table, path)
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def session(spark: SparkSession, folder: Path, kind: str) -> anabranch.Session:
    write(folder, kind)
    found = anabranch.Session(spark)
    for stream in FEEDS:
        reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).format(kind)
        found.register(stream, reader.load(str(folder / stream)), "ts", watermark="3 seconds")
    return found


def delivered(streams: Sequence[str], batch: int) -> dict[str, int]:
    return {name: len(FEEDS[name][batch]) if batch < len(FEEDS[name]) else 0 for name in streams}


def in_folder(folder: Path) -> int:
    return sum(parquet.read_metadata(path).num_rows for path in folder.glob("part-*.parquet"))


def is_read_by_slots(handle: anabranch.QueryHandle) -> bool:
    runner = handle._runner
    assert isinstance(runner, SparkRunner)
    return runner.reads_files


class Events(logging.Handler):
    """The events of batches."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[SimpleNamespace] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() == "batch":
            self.found.append(SimpleNamespace(**fields_of(record)))


@pytest.fixture
def events() -> Iterator[Events]:
    handler = Events()
    LOG.addHandler(handler)
    level = LOG.level
    LOG.setLevel(logging.INFO)
    yield handler
    LOG.setLevel(level)
    LOG.removeHandler(handler)


def check(handle: anabranch.QueryHandle, streams: Sequence[str], results: Mapping[str, int], events: Events) -> None:
    """Compares every account of a run with the true counts; `results` are by query."""
    batches = max(len(FEEDS[name]) for name in streams)
    rows = [delivered(streams, batch) for batch in range(batches)]
    total, out = sum(sum(each.values()) for each in rows), sum(results.values())
    ran = [progress for progress in handle.recentProgress if progress["adaptive"] is not None]
    assert [progress["adaptive"]["rowsIn"] for progress in ran] == rows
    assert [progress["numInputRows"] for progress in ran] == [sum(each.values()) for each in rows]
    assert [[source["numInputRows"] for source in progress["sources"]] for progress in ran] == [
        list(each.values()) for each in rows
    ]
    if is_read_by_slots(handle):
        # Spark's own pages and listeners have them too.
        assert [each.numInputRows for each in handle._query.recentProgress if each.numInputRows] == [
            sum(each.values()) for each in rows
        ]
    assert sum(progress["adaptive"]["rowsOut"] for progress in ran) == out
    report = handle.report()
    assert [batch["rows_in"] for batch in report["batches"]] == [sum(each.values()) for each in rows]
    assert (report["rows_in"], report["rows_out"]) == (total, out)
    assert sum(batch["rows_out"] for batch in report["batches"]) == out
    view = advance(View(), handle.recentProgress)
    assert (view.rows_in, view.rows_out) == (total, out)
    seen = WatchedRun(LiveRun(handle))
    by_stream = {name: sum(each[name] for each in rows) for name in streams}
    seconds = [sample.second for sample in seen.curve.samples if sample.second is not None]
    assert {name: sum(each.rows_in[name] for each in seconds) for name in streams} == by_stream
    assert sum(sum(each.rows_out.values()) for each in seconds) == out
    assert seen.totals.rows_in == by_stream
    named = results if len(results) > 1 else {seen.run.title: out}
    assert +seen.totals.rows_out == +Counter(named)
    metrics = {
        (sample.name, sample.labels.get("stream") or sample.labels.get("query")): sample.value
        for family in text_string_to_metric_families(metrics_text([seen]).decode())
        for sample in family.samples
    }
    assert {name: metrics["anabranch_rows_in_total", name] for name in streams} == by_stream
    assert {name: metrics["anabranch_rows_out_total", name] for name in named} == named
    assert [event.rowsIn for event in events.found] == rows
    assert sum(event.rowsOut for event in events.found) == out
    if len(results) > 1:
        assert report["queries"] == results
        by_query = [
            {name: each["rowsOut"] for name, each in progress["adaptive"]["queries"].items()} for progress in ran
        ]
        assert {name: sum(each[name] for each in by_query) for name in results} == results


@pytest.mark.parametrize("kind", ["parquet", "orc"])
@pytest.mark.parametrize("name", QUERIES)
def test_one_query_in_several_slots(name: str, kind: str, spark: SparkSession, tmp_path: Path, events: Events) -> None:
    """Slots read Parquet, and Spark reads ORC."""
    check_alone(name, kind, 4 if "several" in name else 2, spark, tmp_path, events)


@pytest.mark.parametrize(("name", "kind"), [("groups and HAVING", "parquet"), ("a join", "orc")])
def test_one_query_in_one_slot(name: str, kind: str, spark: SparkSession, tmp_path: Path, events: Events) -> None:
    check_alone(name, kind, 1, spark, tmp_path, events)


def check_alone(name: str, kind: str, slots: int, spark: SparkSession, tmp_path: Path, events: Events) -> None:
    query = session(spark, tmp_path, kind).sql(QUERIES[name])
    writer = query.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    handle = writer.trigger(availableNow=True).slots(slots).plan("tree").start(str(tmp_path / "out"))
    handle.awaitTermination()
    assert is_read_by_slots(handle) == (kind == "parquet")
    results = in_folder(tmp_path / "out")
    assert results
    streams = [name for name in FEEDS if f"{name} [" in query.text]
    check(handle, streams, {"": results}, events)
    assert handle.report()["late_rows"] == 1


@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_two_queries_and_one_that_reads_another(kind: str, spark: SparkSession, tmp_path: Path, events: Events) -> None:
    """The third has rows that the first finds, in a stage of their own."""
    found = session(spark, tmp_path, kind)
    first = found.sql(QUERIES["a join"].replace("a.p AS p,", "a.p AS p, a.x AS x,"))
    found.register("pairs", first)
    third = "SELECT j.p AS p, c.p AS q FROM pairs [RANGE 4 SECONDS] AS j, s1 [RANGE 4 SECONDS] AS c WHERE j.x = c.x"
    queries = {"pairs": first, "groups": found.sql(QUERIES["groups and HAVING"]), "over": found.sql(third)}
    writers = {
        name: query.writeStream.format("parquet").option("path", str(tmp_path / f"out-{name}"))
        for name, query in queries.items()
    }
    run = found.together(**writers).option("checkpointLocation", str(tmp_path / "checkpoint"))
    handle = run.trigger(availableNow=True).slots(2).start()
    handle.awaitTermination()
    assert is_read_by_slots(handle) == (kind == "parquet")
    results = {name: in_folder(tmp_path / f"out-{name}") for name in queries}
    assert all(results.values())
    check(handle, ["s0", "s1"], results, events)


def test_rows_that_spark_sends_to_several_slots_by_a_table_that_changed(spark: SparkSession, tmp_path: Path) -> None:
    """Rows that a filter rejects go to one slot, whatever the table."""
    query = session(spark, tmp_path, "orc").sql(QUERIES["rows that several slots need"])
    writer = query.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    hidden = [path.rename(path.with_name(f".{path.name}")) for path in tmp_path.glob("s?/*") if path.stem != "0"]
    handle = writer.slots(4).plan("tree").start(str(tmp_path / "out"))
    handle.processAllAvailable()
    table = next(each["adaptive"]["table"] for each in handle.recentProgress if each["adaptive"])
    handle.move([table.index(1)], to=0)
    for path in hidden:
        path.rename(path.with_name(path.name.removeprefix(".")))
    handle.processAllAvailable()
    handle.stop()
    assert any(record["kind"] == "move" for record in handle.history)
    # How Spark cuts the rest into micro-batches is left to it.
    found = Counter[str]()
    for progress in handle.recentProgress:
        found.update(progress["adaptive"]["rowsIn"] if progress["adaptive"] else {})
    assert found == {stream: sum(map(len, batches)) for stream, batches in FEEDS.items()}
