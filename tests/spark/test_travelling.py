"""How rows travel from Spark to their readers: columns of every type, and what Spark is told of the way."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import anabranch
from anabranch.spark.runner import BATCH_SETTINGS

pytestmark = pytest.mark.spark

EVERY_TYPE = [
    "true AS flag",
    "1Y AS byte",
    "1.5F AS short_float",
    "1.50BD AS price",
    "X'00ff' AS bytes",
    "DATE'2026-01-31' AS day",
    "TIMESTAMP_NTZ'2026-03-29 02:30:00' AS wall",
    "INTERVAL '1 02:03:04' DAY TO SECOND AS span",
    "array(1, 2) AS list",
    "map('k', array(TIMESTAMP'2026-01-31 12:00:00')) AS map",
    "named_struct('odd `name', 'x', 'parts', array(named_struct('q', 1.5D))) AS struct",
    "NULL AS nothing",
]


def test_spark_is_told_not_to_measure_every_row() -> None:
    """With any other limit than this one it sums up all columns of the batch so far after each row that it adds."""
    assert BATCH_SETTINGS["spark.sql.execution.arrow.maxBytesPerBatch"] == str(2**31 - 1)


def test_columns_of_every_type_travel_beside_a_relation_without_them(spark: SparkSession, tmp_path: Path) -> None:
    """Nulls stand in their places in the rows of the other relation; they must not change the type of the column."""
    spark.sql("SELECT TIMESTAMP'2026-01-01 00:00:00' AS ts, 1L AS k").write.parquet(str(tmp_path / "rows"))
    rows = spark.readStream.schema("ts timestamp, k bigint").parquet(str(tmp_path / "rows"))
    session = anabranch.Session(spark)
    session.register("wide", rows.selectExpr("*", *EVERY_TYPE), event_time="ts")
    session.register("narrow", rows, event_time="ts")
    query = session.sql("SELECT w.* FROM wide [NOW] AS w, narrow [NOW] AS n WHERE w.k = n.k")
    query.writeStream.format("memory").queryName("travelled").trigger(availableNow=True).start().awaitTermination()
    travelled = spark.table("travelled")
    expected = spark.sql(f"SELECT TIMESTAMP'2026-01-01 00:00:00' AS ts, 1L AS k, {', '.join(EVERY_TYPE)}")
    assert travelled.collect() == expected.collect()
    assert travelled.schema.simpleString() == expected.schema.simpleString()
