"""The ports of Spark's examples: frames and text are the same query, and have the answer of Spark's own job."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import anabranch
from anabranch.api import Frame
from anabranch.errors import CatalogError, SpecError
from anabranch.plan.query import render_query
from examples import ports
from tests.support.oracle import describe_difference, rows_as_multiset

pytestmark = pytest.mark.spark

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMAS = {
    "i": "impressionAdId bigint, impressionTime timestamp",
    "c": "clickAdId bigint, clickTime timestamp",
    "w": "word string, timestamp timestamp",
    "s": "id bigint, type string, at timestamp",
    "p": "type string, title string",
}
TIMES = {"i": "impressionTime", "c": "clickTime", "w": "timestamp", "s": "at"}
ROWS: dict[str, list[tuple[Any, ...]]] = {
    "i": [(n % 7, START + timedelta(minutes=11 * n)) for n in range(40)],
    "c": [(n % 5, START + timedelta(minutes=17 * n)) for n in range(26)],
    "w": [("abc"[n % 3], START + timedelta(seconds=97 * n)) for n in range(50)],
    "s": [(n, "xyz"[n % 3], START + timedelta(minutes=n)) for n in range(20)],
    "p": [("x", "one"), ("y", "two"), ("x", "three")],
}
END = START + timedelta(days=30)
LAST = {"i": (None, END), "c": (None, END), "w": ("end", END), "s": (None, None, END)}
"""Rows that let out everything that waits for the watermark."""
PORTS: list[tuple[Callable[..., DataFrame], Callable[..., Frame], str, str]] = [
    (ports.spark_inner, ports.frames_inner, ports.INNER, "ic"),
    (ports.spark_outer, ports.frames_outer, ports.OUTER, "ic"),
    (ports.spark_counts, ports.frames_counts, ports.COUNTS, "ic"),
    (ports.spark_static, ports.frames_static, ports.STATIC, "sp"),
    (ports.spark_words, ports.frames_words, ports.WORDS, "w"),
]


def batch(spark: SparkSession, name: str, *, with_end: bool = False) -> DataFrame:
    last = [LAST[name]] if with_end and name in LAST else []
    return spark.createDataFrame([*ROWS[name], *last], SCHEMAS[name])


def streaming(spark: SparkSession, folder: Path, name: str) -> DataFrame:
    """The frame that a job reads: a stream with a watermark, or a static DataFrame."""
    if name not in TIMES:
        return batch(spark, name)
    batch(spark, name, with_end=True).coalesce(1).write.parquet(str(folder / name))
    frame = spark.readStream.schema(SCHEMAS[name]).parquet(str(folder / name))
    return frame.withWatermark(TIMES[name], "10 seconds")


@pytest.mark.parametrize(("job", "port", "text", "inputs"), PORTS, ids=[port[0].__name__ for port in PORTS])
def test_a_port_is_its_text_and_has_sparks_answer(
    spark: SparkSession,
    tmp_path: Path,
    job: Callable[..., DataFrame],
    port: Callable[..., Frame],
    text: str,
    inputs: str,
) -> None:
    frames: Mapping[str, DataFrame] = {name: streaming(spark, tmp_path, name) for name in inputs}
    session = anabranch.Session(spark)
    built = port(session, *frames.values())
    for name, frame in frames.items():
        if name in TIMES:
            session.register(name, frame, TIMES[name])
        else:
            session.table(name, frame)
    written = session.sql(text)
    assert render_query(built.query.compiled.query) == render_query(written.compiled.query)
    assert built.query.compiled.query.fingerprint == written.compiled.query.fingerprint
    assert built.schema == written.schema
    writer = built.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).slots(2)
    writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()
    expected = job(*(batch(spark, name) for name in inputs))
    found = spark.read.parquet(str(tmp_path / "out")).select(*expected.columns)
    if inputs == "sp":
        found = found.where("id IS NOT NULL")
    assert expected.count()
    assert not describe_difference(rows_as_multiset(expected.toArrow()), rows_as_multiset(found.toArrow()))


def test_a_condition_as_columns_is_that_in_sql(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    session = anabranch.Session(spark)
    frames = {name: spark.readStream.format("rate").load().withWatermark("timestamp", "1 second") for name in "ab"}
    a, b = (session.frame(frame).alias(name) for name, frame in frames.items())
    hour = F.expr("INTERVAL 1 HOUR")
    on = (F.col("a.value") == F.col("b.value")) & F.col("b.timestamp").between(
        F.col("a.timestamp"), F.col("a.timestamp") + hour
    )
    built = (
        a.join(b, on)
        .where(~F.col("a.value").isin(1, 2) | (F.col("b.value") * 2 + 1 > 5))
        .groupBy(F.window("a.timestamp", "1 minute"))
        .agg(F.countDistinct("b.value").alias("n"), F.sum(F.when(F.col("a.value") > 3, 1).otherwise(0)).alias("m"))
    )
    for name, frame in frames.items():
        session.register(name, frame, "timestamp")
    text = """
        SELECT window(a.timestamp, '1 minute'), COUNT(DISTINCT b.value) AS n,
               SUM(CASE WHEN a.value > 3 THEN 1 ELSE 0 END) AS m
        FROM a JOIN b ON a.value = b.value AND b.timestamp BETWEEN a.timestamp AND a.timestamp + INTERVAL 1 HOUR
        WHERE NOT a.value IN (1, 2) OR b.value * 2 + 1 > 5
        GROUP BY window(a.timestamp, '1 minute')
    """
    assert built.query.compiled.query.fingerprint == session.sql(text).compiled.query.fingerprint
    built.printSchema()
    assert " |-- window: struct" in capsys.readouterr().out


@pytest.mark.parametrize(("job", "port"), [each[:2] for each in PORTS], ids=[each[0].__name__ for each in PORTS])
def test_a_port_is_not_longer_than_the_job(job: Callable[..., DataFrame], port: Callable[..., Frame]) -> None:
    assert len(inspect.getsource(port).splitlines()) <= len(inspect.getsource(job).splitlines())


def test_a_join_on_names_of_columns_is_using(spark: SparkSession) -> None:
    session = anabranch.Session(spark)
    rate = spark.readStream.format("rate").load().withWatermark("timestamp", "1 second")
    table = spark.createDataFrame([(1, 2, "x")], "value bigint, other bigint, name string")
    a, t = session.frame(rate).alias("a"), session.frame(table).alias("t")
    assert a.join(t, "value").text == "SELECT * FROM a JOIN t USING (value)"
    assert a.join(t, "value").schema.names == ["value", "timestamp", "other", "name"]
    assert a.join(t, ["value"], "left").schema.names == rate.join(table, ["value"], "left").schema.names
    b = session.frame(rate).alias("b")
    columns = [F.col("a.value") == F.col("b.value"), F.col("a.timestamp") == F.col("b.timestamp")]
    both = a.join(b, columns).query.compiled.query
    assert both.fingerprint == a.join(b, columns[0] & columns[1]).query.compiled.query.fingerprint
    assert a.join(b, ["value", "timestamp"]).schema.names == rate.join(rate, ["value", "timestamp"]).schema.names


def test_completion_shows_what_users_call(spark: SparkSession) -> None:
    session = anabranch.Session(spark)
    rate = spark.readStream.format("rate").load().withWatermark("timestamp", "1 second")
    frame = session.frame(rate).alias("a").select("value")
    assert {name for name in dir(frame) if not name.startswith("_")} == {
        *("agg", "alias", "columns", "count", "explain", "filter", "groupBy", "join", "printSchema", "schema"),
        *("select", "text", "where", "writeStream"),
    }
    assert frame.columns == ["value"]
    assert repr(frame) == "Frame[SELECT value FROM a]"
    shown = {name for name in dir(session) if not name.startswith("_")}
    assert shown == {"console", "frame", "function", "register", "spark", "sql", "streams", "table", "together"}


def test_what_a_frame_cannot_be_is_refused_by_name(spark: SparkSession) -> None:
    session = anabranch.Session(spark)
    rate = spark.readStream.format("rate").load()
    a = session.frame(rate.withWatermark("timestamp", "1 second")).alias("a")
    b = session.frame(rate).alias("b")
    with pytest.raises(SpecError, match="a join on no columns"):
        a.join(b, [])
    with pytest.raises(SpecError, match="a join of kind 'sideways' is not supported"):
        a.join(b, "a.value = b.value", "sideways")
    with pytest.raises(SpecError, match="two inputs have the alias 'a'"):
        a.join(b.alias("a"), "a.value = b.value")
    with pytest.raises(SpecError, match="a join takes an input"):
        a.join(b.where("value > 1"), "a.value = b.value")
    with pytest.raises(SpecError, match="cannot be the alias"):
        a.join(b, "a.value = b.value").alias("c")
    with pytest.raises(SpecError, match="agg needs groups"):
        a.agg(F.count("*"))
    with pytest.raises(SpecError, match="where comes before select"):
        a.select("value").where("value > 1")
    with pytest.raises(SpecError, match="a frame has no alias"):
        _ = session.frame(rate).query
    with pytest.raises(CatalogError, match="frame 'b' has no event time"):
        _ = b.select("value").schema
    with pytest.raises(CatalogError, match=r"frame\(\) needs a DataFrame"):
        session.frame("rate")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="a window that starts at '30 seconds' is not supported"):
        a.groupBy(F.window("timestamp", "1 minute", "1 minute", "30 seconds"))
    with pytest.raises(SpecError, match="a column of kind 'LambdaFunction' cannot be read"):
        a.select(F.transform("value", lambda x: x))
