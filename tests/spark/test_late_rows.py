"""Rows that no query takes on Spark: their sink, the watermark of a frame, and the warning about rows lost unasked."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

import anabranch
from anabranch.api import ContinuousQuery, QueryHandle
from anabranch.errors import CatalogError, LateRowsDropped, SpecError
from anabranch.run.store import Store
from anabranch.spark import running
from tests.spark.stories import SECOND, START, Story, feed, frames, register, table, written

pytestmark = pytest.mark.spark

PAIR = "SELECT a.p AS p0, b.p AS p1 FROM s0 [RANGE 20 SECONDS] AS a, s1 [RANGE 20 SECONDS] AS b WHERE a.x = b.x"
COUNT = (
    "SELECT WINDOW_END() AS at, COUNT(*) AS n FROM s0 [RANGE 10 SECONDS SLIDE 10 SECONDS] AS a, "
    "s1 [RANGE 10 SECONDS SLIDE 10 SECONDS] AS b WHERE a.x = b.x AND a.p > 0 GROUP BY a.x"
)


@pytest.fixture
def at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of day is the start of the streams."""
    monkeypatch.setattr(running, "_now", lambda: START)


def run(query: ContinuousQuery, folder: Path, **late: Any) -> QueryHandle:
    writer = query.writeStream.option("checkpointLocation", str(folder / "checkpoint")).slots(2)
    writer = writer.trigger(availableNow=True).late(str(folder / "late"), **late)
    handle = writer.start(str(folder / "out"))
    handle.awaitTermination()
    return handle


def lost(folder: Path) -> Counter[tuple[Any, ...]]:
    """Relation, reason, seconds beyond the cutoff and `p` of each diverted row."""
    rows: Counter[tuple[Any, ...]] = Counter()
    for file in sorted((folder / "late").glob("part-*.parquet")):
        for row in parquet.read_table(file).to_pylist():
            whole = row[row["stream"]]
            assert whole["ts"] == row["event_time"]
            assert set(whole) == {"ts", "x", "y", "s", "f", "d", "p"}
            rows[row["relation"], row["reason"], row["seconds"], whole["p"]] += 1
    return rows


@pytest.mark.usefixtures("at_the_start")
@pytest.mark.parametrize("cql", [PAIR, COUNT], ids=["join", "groups"])
def test_late_rows_and_rows_from_the_future_go_to_a_sink_of_their_own(
    cql: str, spark: SparkSession, tmp_path: Path
) -> None:
    #   s0, disorder 2, at most 60 s ahead:  10 20 | 17 late, 25, 90 ahead, 30 rejected by the groups' filter | 28
    session = register(spark, Story(cql, disorder={"s0": 2}), tmp_path)
    session.register("s0", frames(spark, Story(cql), tmp_path)["s0"], "ts", "2 seconds", max_ahead="1 minute")
    feed(tmp_path, {"s0": table([(10, 1, 1), (20, 1, 2)]), "s1": table([(15, 1, 100)])})
    feed(tmp_path, {"s0": table([(17, 1, 3), (25, 1, 5), (90, 1, 6)]), "s1": table([(14, None, 101)])})
    feed(tmp_path, {"s0": table([(28, 1, 7), (95, None, 8), (1, 1, -1)]), "s1": table([(40, 1, 102)])})
    handle = run(session.sql(cql), tmp_path)
    expected = Counter([("a", "late", 1.0, 3), ("a", "ahead", 30.0, 6)])
    if cql == PAIR:
        expected[("a", "late", 22.0, -1)] += 1
        assert written(tmp_path) == Counter([(1, 100), (2, 100), (5, 100), (7, 100), (2, 102), (5, 102), (7, 102)])
    assert lost(tmp_path) == expected
    report = handle.report()
    assert (report["late_rows"], report["ahead_rows"]) == (expected.total() - 1, 1)
    assert not list((tmp_path / "checkpoint" / "anabranch" / "late").iterdir())


def test_a_repeated_batch_diverts_its_rows_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch fails after its late rows were published, and before it commits."""
    query = register(spark, Story(PAIR), tmp_path).sql(PAIR)
    feed(tmp_path, {"s0": table([(50, 1, 1)]), "s1": table([(50, 2, 100)])})
    feed(tmp_path, {"s0": table([(40, 1, 2), (51, 1, 3)]), "s1": table([(51, 1, 101)])})
    commit = Store.commit

    def failing(store: Store, manifest: Any) -> None:
        if manifest.batch == 1:
            raise OSError("no commit")
        commit(store, manifest)

    monkeypatch.setattr(Store, "commit", failing)
    with pytest.raises(Exception, match="no commit"):
        run(query, tmp_path)
    assert lost(tmp_path) == Counter([("a", "late", 10.0, 2)])
    monkeypatch.undo()
    run(query, tmp_path)
    assert lost(tmp_path) == Counter([("a", "late", 10.0, 2)])
    assert written(tmp_path) == Counter([(1, 101), (3, 101)])


def test_the_watermark_of_a_frame_is_inherited(spark: SparkSession, tmp_path: Path) -> None:
    """A job that was ported as it was lost its rows out of order without a word."""
    given = frames(spark, Story(PAIR), tmp_path)
    session = anabranch.Session(spark)
    session.register("s0", given["s0"].withWatermark("ts", "5 seconds"), "ts")
    session.register("s1", given["s1"].withWatermark("ts", "5 seconds"), "ts", watermark="5 seconds")
    feed(tmp_path, {"s0": table([(10, 1, 1)]), "s1": table([(10, 1, 100)])})
    feed(tmp_path, {"s0": table([(6, 1, 2)]), "s1": table([(5, 1, 101)])})
    with warnings.catch_warnings():
        warnings.simplefilter("error", LateRowsDropped)
        handle = run(session.sql(PAIR), tmp_path)
    assert handle.report()["late_rows"] == 0
    assert written(tmp_path).total() == 4
    with pytest.raises(CatalogError, match="a watermark of 1 second, and its frame has one of 5 SECONDS"):
        session.register("s0", given["s0"].withWatermark("ts", "5 seconds"), "ts", watermark="1 second")
    timed = given["s0"].selectExpr("*", "ts AS other").withWatermark("other", "5 seconds")
    with pytest.raises(CatalogError, match="a watermark on column 'other', and its event time is 'ts'"):
        session.register("s0", timed, "ts")
    with pytest.raises(CatalogError, match="'max_ahead' of stream 's0' is 'soon'"):
        session.register("s0", given["s0"], "ts", max_ahead="soon")


def test_rows_that_are_lost_unasked_raise_a_warning_once(spark: SparkSession, tmp_path: Path) -> None:
    given = frames(spark, Story(PAIR), tmp_path)
    session = anabranch.Session(spark)
    session.register("s0", given["s0"], "ts")
    session.register("s1", given["s1"], "ts", watermark="0 seconds")
    query = session.sql(PAIR)
    feed(tmp_path, {"s0": table([(50, 1, 1)]), "s1": table([(50, 1, 100)])})
    for _ in range(2):
        feed(tmp_path, {"s0": table([(40, 1, 2)]), "s1": table([(40, 1, 101)])})
    heard: list[str] = []
    shown = warnings.showwarning

    def hear(message: Warning | str, category: type[Warning], *rest: Any) -> None:
        if issubclass(category, LateRowsDropped):
            heard.append(str(message))

    warnings.showwarning = hear  # type: ignore[assignment]
    try:
        writer = query.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()
    finally:
        warnings.showwarning = shown
    assert len(heard) == 1
    assert heard[0].startswith("stream 's0' has late rows, which are dropped")


def test_what_late_rows_cannot_be_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    query = register(spark, Story(PAIR), tmp_path).sql(PAIR)
    writer = query.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(SpecError, match="late rows and results write to the same folder"):
        writer.late(str(tmp_path / "out")).start(str(tmp_path / "out"))
    with pytest.raises(SpecError, match="the 'parquet' sink has no path"):
        writer.late().start(str(tmp_path / "out"))
    session = anabranch.Session(spark)
    session.register("reason", frames(spark, Story(PAIR), tmp_path)["s0"], "ts")
    named = session.sql("SELECT p FROM reason").writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(SpecError, match="cannot read a stream named 'reason'"):
        named.late(str(tmp_path / "late")).start(str(tmp_path / "out"))
    assert not (tmp_path / "checkpoint").exists()


def test_every_column_comes_with_a_late_row(spark: SparkSession, tmp_path: Path) -> None:
    """Also columns that the query does not read, and those that only one stream has."""
    session = register(spark, Story(PAIR), tmp_path)
    lists = frames(spark, Story(PAIR), tmp_path)["s1"].selectExpr("*", "array(x, p) AS both", "struct(s, d) AS pair")
    session.register("s1", lists, "ts", "0 seconds")
    feed(tmp_path, {"s0": table([(50, 1, 1)]), "s1": table([(50, 1, 100)])})
    feed(tmp_path, {"s1": table([(49.5, 3, 101)])})
    run(session.sql(PAIR), tmp_path)
    (row,) = pa.concat_tables([parquet.read_table(f) for f in (tmp_path / "late").glob("part-*")]).to_pylist()
    assert (row["stream"], row["seconds"], row["s0"]) == ("s1", 0.5, None)
    assert row["s1"]["both"] == [3, 101]
    assert row["s1"]["pair"] == {"s": None, "d": None}
    assert row["s1"]["ts"].timestamp() == (START + 49.5 * SECOND) / SECOND


@pytest.mark.usefixtures("at_the_start")
def test_late_rows_of_a_query_with_a_table_go_to_their_sink(spark: SparkSession, tmp_path: Path) -> None:
    """A row is late or not whether or not the table has a match for it; rows of the table are never late."""
    cql = "SELECT a.p AS p, t.name AS name FROM s0 [NOW] AS a LEFT JOIN names AS t ON a.x = t.x"
    session = register(spark, Story(cql), tmp_path)
    session.table("names", spark.createDataFrame([(1, "one")], "x bigint, name string"))
    feed(tmp_path, {"s0": table([(10, 1, 1), (20, 2, 2)])})
    feed(tmp_path, {"s0": table([(17, 1, 3), (18, 7, 4), (25, 1, 5)])})
    handle = run(session.sql(cql), tmp_path)
    assert lost(tmp_path) == Counter([("a", "late", 3.0, 3), ("a", "late", 2.0, 4)])
    assert written(tmp_path) == Counter([(1, "one"), (2, None), (5, "one")])
    assert handle.report()["late_rows"] == 2
