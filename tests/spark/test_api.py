"""The public API on Spark: what a user writes, what comes out, and what wrong input gets."""

from __future__ import annotations

import datetime
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession

import anabranch
from anabranch import errors
from anabranch.api import ContinuousQuery, Session
from anabranch.lang.schema import TIMESTAMP
from anabranch.optimize.proposals import kind
from anabranch.planning.choosing import first_plan, proposal

pytestmark = pytest.mark.spark

JOIN = "SELECT a.p AS p0, b.p AS p1 FROM s0 [RANGE 10 SECONDS] AS a, s1 [RANGE 10 SECONDS] AS b WHERE a.k = b.k"
COLUMNS = "ts timestamp, k bigint, p bigint"
Feed = Callable[[str, list[tuple[int, int, int]]], None]


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    """Adds one file of (second, key, payload) rows to a stream's folder; to be called while no query runs."""

    def add(stream: str, rows: list[tuple[int, int, int]]) -> None:
        folder = tmp_path / stream
        folder.mkdir(exist_ok=True)
        start = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
        times = [start + datetime.timedelta(seconds=second) for second, _, _ in rows]
        table = pa.table(
            {
                "ts": pa.array(times, TIMESTAMP),
                "k": pa.array([key for _, key, _ in rows], pa.int64()),
                "p": pa.array([payload for _, _, payload in rows], pa.int64()),
            }
        )
        number = len(list(folder.iterdir()))
        parquet.write_table(table, folder / f"{number:04d}.parquet")
        # Spark takes files in the order of their times, and those of two files could be the same.
        os.utime(folder / f"{number:04d}.parquet", (start.timestamp() + number,) * 2)

    return add


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    folder.mkdir(exist_ok=True)
    return spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(folder))


@pytest.fixture
def session(spark: SparkSession, tmp_path: Path) -> Session:
    made = anabranch.Session(spark)
    for name in ("s0", "s1"):
        made.register(name, stream(spark, tmp_path / name), event_time="ts")
    return made


@pytest.fixture
def join(session: Session) -> ContinuousQuery:
    return session.sql(JOIN)


# --- compiling: nothing runs ------------------------------------------------------------------------------------------


def test_a_query_is_compiled_when_it_is_submitted(session: Session, join: ContinuousQuery) -> None:
    assert join.text == JOIN
    assert join.schema.simpleString() == "struct<p0:bigint,p1:bigint>"
    assert repr(join) == "ContinuousQuery[p0: bigint, p1: bigint]"
    assert join.picture("(a b)").startswith("<svg")
    with pytest.raises(errors.BindError):
        session.sql("SELECT a.nothing FROM s0 [RANGE 1 SECOND] AS a")
    with pytest.raises(errors.UnboundedJoin):
        session.sql("SELECT a.p FROM s0 [UNBOUNDED] AS a, s1 [UNBOUNDED] AS b WHERE a.k = b.k")


def test_plans_are_chosen_by_word_or_by_text(join: ContinuousQuery) -> None:
    assert str(join.plan()) == "(a b)"
    assert str(join.plan("(b a)")) == "(b a)"
    with pytest.raises(errors.PlanError, match="leaves out 'b'"):
        join.plan("a")


@pytest.mark.parametrize("stage", ["logical", "rewritten", "graph", "physical", "choice"])
def test_every_stage_is_explained(join: ContinuousQuery, stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    join.explain(stage)
    assert capsys.readouterr().out == join.explanation(stage) + "\n"
    assert "s0" in join.explanation("graph")


def test_the_writer_says_what_is_wished_of_the_plan(spark: SparkSession, session: Session, tmp_path: Path) -> None:
    session.register("s2", stream(spark, tmp_path / "s2"), event_time="ts")
    query = session.sql(JOIN.replace(" WHERE", ", s2 [RANGE 10 SECONDS] AS c WHERE b.p = c.p AND"))
    given = {"rates": {"s0": 100, "s1": 100, "s2": 100}, "selectivities": {"a b": 0.01, "b c": 0.01}}
    writer = query.writeStream.stats(given).slots(2)
    assert str(proposal(writer.hints(keep=["b c"]).choice()).plan) == "(a (b c))"
    assert kind(proposal(writer.hints(forbid=["tree"]).objective("memory").choice()).plan) == "mjoin"
    assert "given" in writer.explanation()
    assert "0.5 cores and 1.0 GB in each of 2 slots" in writer.limits(cpu=0.5, memory="1 GB").explanation()
    own = query.writeStream.stats(given).slots(2).limits(auto=True)
    assert re.search(r"[\d.]+ cores and [\d.]+ [MG]B in each of 2 slots", own.explanation())
    with pytest.raises(errors.NoFeasiblePlan, match=r"'limits\.cpu'"):
        writer.limits(cpu=1e-9).format("noop").start()
    assert not spark.streams.active


def test_a_sample_is_looked_at_when_a_plan_is_chosen(
    spark: SparkSession, session: Session, feed: Feed, tmp_path: Path
) -> None:
    feed("s0", [(second, second % 3, second) for second in range(20)])
    rows = spark.read.schema(COLUMNS).parquet(str(tmp_path / "s0"))
    session.register("s0", stream(spark, tmp_path / "s0"), event_time="ts", sample=rows)
    shown = session.sql(JOIN).writeStream.limits(cpu=1).explanation()
    assert re.search(r"rate of a +1 +sampled", shown)
    assert re.search(r"rate of b +1 +assumed", shown)
    streaming = stream(spark, tmp_path / "s0")
    with pytest.raises(errors.CatalogError, match="sample of stream 's0' is a streaming DataFrame"):
        session.register("s0", streaming, event_time="ts", sample=streaming)


def test_a_stream_registered_anew_leaves_compiled_queries_alone(
    session: Session, join: ContinuousQuery, spark: SparkSession, tmp_path: Path
) -> None:
    session.register("S0", stream(spark, tmp_path / "s0").drop("k"), event_time="TS")
    assert "a.k = b.k" in join.explanation("graph")
    with pytest.raises(errors.BindError):
        session.sql(JOIN)


# --- registering ------------------------------------------------------------------------------------------------------


def test_a_batch_frame_is_refused(session: Session, spark: SparkSession) -> None:
    with pytest.raises(errors.CatalogError, match="'s2' is a batch DataFrame") as caught:
        session.register("s2", spark.createDataFrame([], COLUMNS), event_time="ts")
    assert "readStream" in caught.value.hint


def test_streams_that_spark_cannot_run_are_told_from_a_damaged_checkpoint(session: Session, tmp_path: Path) -> None:
    counted = stream(session.spark, tmp_path / "s2").groupBy("ts", "k").count()
    session.register("s2", counted, event_time="ts")
    query = session.sql("SELECT a.k AS k FROM s2 [RANGE 1 SECOND] AS a")
    with pytest.raises(errors.CatalogError, match="Spark cannot run what the streams of the query compute") as caught:
        query.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).start(str(tmp_path / "out"))
    assert "streaming aggregations without watermark" in caught.value.detail


@pytest.mark.parametrize(
    ("columns", "settings", "message"),
    [
        (COLUMNS, {"event_time": "at"}, "stream 's2' has no column 'at'"),
        (COLUMNS, {"event_time": "k"}, "event time 'k' of stream 's2' is of type bigint"),
        (COLUMNS, {"event_time": "ts", "watermark": "soon"}, "the watermark of stream 's2' is 'soon'"),
        (COLUMNS, {"event_time": "ts", "watermark": "-1 seconds"}, "the watermark of stream 's2' is negative"),
        (COLUMNS, {"event_time": "ts", "watermark": 5}, "the watermark of stream 's2' is 5"),
        (COLUMNS, {"event_time": "ts", "idle_timeout": 60}, "the idle timeout of stream 's2' is 60"),
        (COLUMNS, {"event_time": None}, "the event time of stream 's2' is empty"),
        (COLUMNS, {"event_time": "ts", "sample": [1]}, "the sample of stream 's2' is not a DataFrame"),
        (COLUMNS, {"event_time": "ts", "idle_timeout": "0 seconds"}, "the idle timeout of stream 's2' is '0 seconds'"),
        ("ts timestamp, v variant", {"event_time": "ts"}, "column 'v' of stream 's2' is of type variant"),
    ],
)
def test_what_a_stream_lacks_is_named(
    session: Session, spark: SparkSession, tmp_path: Path, columns: str, settings: dict[str, Any], message: str
) -> None:
    frame = spark.readStream.schema(columns).parquet(str(tmp_path))
    with pytest.raises(errors.CatalogError, match=message):
        session.register("s2", frame, **settings)


def test_a_stream_needs_a_name_that_queries_can_write(session: Session, spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(errors.CatalogError, match="'no-name' is not a valid stream name"):
        session.register("no-name", stream(spark, tmp_path / "x"), event_time="ts")
    with pytest.raises(errors.CatalogError, match="stream 's2' is not a DataFrame"):
        session.register("s2", "data/s2", event_time="ts")  # type: ignore[arg-type]


# --- settings of a start ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (lambda writer: writer.outputMode("update"), "output mode 'update' is not supported"),
        (lambda writer: writer.trigger(), "exactly one of processingTime, availableNow and realTime"),
        (lambda writer: writer.trigger("1 second"), "takes its arguments by name, found '1 second'"),
        (lambda writer: writer.trigger(processingTime="1 second", availableNow=True), "exactly one of"),
        (lambda writer: writer.trigger(once=True), "trigger 'once' is not supported"),
        (lambda writer: writer.trigger(continuous="1 second"), "trigger 'continuous' is not supported"),
        (lambda writer: writer.trigger(realTime="1 second"), "trigger 'realTime' takes True, found '1 second'"),
        (lambda writer: writer.trigger(realTime=True, availableNow=True), "exactly one of"),
        (lambda writer: writer.trigger(processingTime="often"), "processing time is 'often'"),
        (lambda writer: writer.trigger(processingTime=2), "processing time is 2"),
        (lambda writer: writer.trigger(processingTime="-2 seconds"), "processing time is negative"),
        (lambda writer: writer.slots(0), "the number of slots is 0"),
        (lambda writer: writer.slots("2"), "the number of slots is '2'"),
        (lambda writer: writer.queryName(" "), "the name of a query is empty"),
        (lambda writer: writer.queryName(5), "the name of a query is 5"),
        (lambda writer: writer.foreachBatch(5), "foreachBatch is 5, not a function"),
        (lambda writer: writer.idleTimeout("0 seconds"), "the idle timeout of the query is '0 seconds'"),
        (lambda writer: writer.option("checkpointLocaton", "c"), "unknown option 'checkpointLocaton'"),
        (lambda writer: writer.start("out"), "the query into 'parquet' at 'out' has no checkpoint"),
        (lambda writer: writer.format("memory").start(), "the memory sink has no name"),
        (lambda writer: writer.option("checkpointLocation", "c").start(), "the 'parquet' sink has no path"),
        (lambda writer: writer.format("csv").foreachBatch(print).start(), "both a format and a foreachBatch function"),
        (lambda writer: writer.option("checkpointLocation", "c").partitionBy("z").toTable("t"), "column 'z' is not in"),
    ],
)
def test_wrong_settings_are_named(join: ContinuousQuery, settings: Callable[..., object], message: str) -> None:
    with pytest.raises(errors.SpecError, match=message):
        settings(join.writeStream)


def test_plans_columns_and_paths_are_taken_as_what_they_are(join: ContinuousQuery, tmp_path: Path) -> None:
    writer = join.writeStream.plan(join.plan("(b a)"))
    assert str(first_plan(writer.choice())) == "(b a)"
    assert (
        writer.partitionBy(["p0", "p1"]).query_settings.partition_by
        == writer.partitionBy("p0", "p1").query_settings.partition_by
    )
    with pytest.raises(errors.SpecError, match="has no checkpoint"):
        join.writeStream.start(tmp_path / "out")


# --- running ----------------------------------------------------------------------------------------------------------


def test_a_query_that_is_refused_takes_no_results_from_the_one_before(
    join: ContinuousQuery, session: Session, spark: SparkSession, feed: Feed
) -> None:
    feed("s0", [(1, 7, 10)])
    feed("s1", [(3, 7, 20)])
    handle = join.writeStream.format("memory").queryName("taken").slots(1).start()
    handle.processAllAvailable()
    again = join.writeStream.format("memory").queryName("taken").slots(1)
    with pytest.raises(errors.SpecError, match="a query named 'taken' is running already"):
        again.start()
    assert spark.table("taken").count() == 1
    handle.stop()
    with pytest.raises(errors.NoFeasiblePlan):
        again.limits(memory="1 B").start()
    assert spark.table("taken").count() == 1


def test_a_join_runs_into_files_and_again_from_its_checkpoint(
    join: ContinuousQuery, spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    feed("s0", [(1, 7, 10), (2, 8, 11)])
    feed("s1", [(3, 7, 20)])

    def run(plan: str, slots: int) -> anabranch.QueryHandle:
        writer = join.writeStream.trigger(availableNow=True).plan(plan).slots(slots)
        handle = writer.start(str(out), "parquet", "append", checkpointLocation=tmp_path / "checkpoint")
        handle.awaitTermination()
        return handle

    first = run("mjoin", 2)
    report = first.report()
    assert (report["plan"], report["rows_in"], report["rows_out"], report["late_rows"]) == ("(a b)", 3, 1, 0)
    assert all(batch["own_ms"] + batch["spark_ms"] >= 0 for batch in report["batches"])
    feed("s1", [(4, 8, 21), (40, 7, 22)])
    second = run("(b a)", 1)
    assert second.id == first.id
    assert sorted(map(tuple, spark.read.parquet(str(out)).collect())) == [(10, 20), (11, 21)]
    assert join.measured(second) == {}
    for start in (50, 60):
        for name in ("s0", "s1"):
            feed(name, [(start + second, second % 2, 0) for second in range(10)])
    third = run("mjoin", 1)
    # Files that Spark takes in another order would make rows late.
    assert third.report()["late_rows"] == 0
    seen = join.measured(third)
    assert seen["rates"] == {"a": pytest.approx(1.0), "b": pytest.approx(1.0)}
    assert seen["selectivities"]["a b"] == pytest.approx(0.5, abs=0.2)


def test_a_live_query_is_watched_and_stopped(
    session: Session, join: ContinuousQuery, feed: Feed, spark: SparkSession
) -> None:
    feed("s0", [(1, 7, 10)])
    feed("s1", [(3, 7, 20)])
    handle = join.writeStream.format("memory").queryName("watched").slots(1).start()
    try:
        handle.processAllAvailable()
        assert [tuple(row) for row in spark.table("watched").collect()] == [(10, 20)]
        assert session.streams.get(handle.id) is handle
        assert session.streams.active == [handle]
        last = handle.lastProgress
        assert last is not None
        assert last["name"] == "watched"
        assert any(p["adaptive"] and p["adaptive"]["rowsOut"] == 1 for p in handle.recentProgress)
    finally:
        handle.stop()
    assert not handle.isActive
    assert session.streams.active == []
    assert handle.exception() is None


def test_a_failing_function_ends_the_query_with_a_sink_error(
    session: Session, join: ContinuousQuery, feed: Feed
) -> None:
    def refuse(frame: DataFrame, batch: int) -> None:
        raise RuntimeError("no room")

    feed("s0", [(1, 7, 10)])
    handle = join.writeStream.foreachBatch(refuse).slots(1).start()
    with pytest.raises(errors.SinkError, match="'foreachBatch' failed on batch 0"):
        handle.awaitTermination(300)
    assert isinstance(handle.exception(), errors.SinkError)
    with pytest.raises(errors.SinkError):
        session.streams.awaitAnyTermination(300)
    session.streams.resetTerminated()
    assert "failed on batch 0" in handle.report()["error"]


# --- the package ------------------------------------------------------------------------------------------------------


def test_importing_the_package_loads_neither_spark_nor_arrow() -> None:
    code = (
        "import sys, anabranch; assert anabranch.__version__; "
        "anabranch.errors.AnabranchError; print({'pyspark', 'pyarrow', 'numba'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_package_shows_its_public_names() -> None:
    assert dir(anabranch) == ["ContinuousQuery", "QueryHandle", "Session", "__version__", "errors", "local_session"]
    with pytest.raises(AttributeError, match="no attribute 'Sessions'"):
        _ = anabranch.Sessions
