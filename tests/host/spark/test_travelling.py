"""How rows travel to their slots: what Spark is told of the way, and how often it copies a row."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from anabranch.catalog import Catalog, StreamDeclaration
from anabranch.cql import compile_query
from anabranch.host.spark.arrow_schema import from_spark
from anabranch.host.spark.runner import batch_settings
from anabranch.host.spark.source import tagged_union
from anabranch.host.wire import wire_layout
from anabranch.plan.bundle import partitioning_of

pytestmark = pytest.mark.spark

CHAIN = (
    "SELECT a.p AS p0, c.p AS p2 FROM s0 [RANGE 10 SECONDS] AS a, s1 [RANGE 10 SECONDS] AS b, "
    "s2 [RANGE 10 SECONDS] AS c WHERE a.x = b.x AND b.y = c.y"
)
RECORDS, BYTES = (f"spark.sql.execution.arrow.max{of}PerBatch" for of in ("Records", "Bytes"))


def test_rows_of_unknown_width_travel_in_small_batches() -> None:
    narrow = pa.schema([pa.field("_time", pa.int64()), pa.field("_value0", pa.decimal128(9, 2))])
    wide = narrow.append(pa.field("_value1", pa.string()))
    assert int(batch_settings(wide)[RECORDS]) * 100 < int(batch_settings(narrow)[RECORDS])


def test_spark_is_told_not_to_measure_every_row() -> None:
    """With any other limit than this one it sums up all columns of the batch so far after each row that it adds."""
    assert batch_settings(pa.schema([]))[BYTES] == str(2**31 - 1)


def test_only_rows_that_several_slots_need_are_copied(spark: SparkSession) -> None:
    """In a chain on two slots the middle relation decides the slot, and so does one of its neighbours."""
    frames = {f"s{i}": spark.createDataFrame([], "ts timestamp, x bigint, y bigint, p bigint") for i in range(3)}
    catalog = Catalog()
    for name, frame in frames.items():
        catalog.register(StreamDeclaration(name, from_spark(frame.schema, name), "ts"))
    query = compile_query(CHAIN, catalog)
    partitioning = partitioning_of(query, 2)
    union = tagged_union(wire_layout(query, partitioning), partitioning, frames)
    assert union._jdf.queryExecution().analyzed().toString().count("Generate explode") == 1
