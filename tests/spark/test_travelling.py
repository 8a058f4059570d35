"""How rows travel to their slots: what Spark is told of the way, and how often it copies a row."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import numpy as np
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import anabranch
from anabranch.cql import compile_query
from anabranch.engine.ownership import needed_in
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.query_set import alone, partitioning_of
from anabranch.run.wire import wire_layout
from anabranch.spark.arrow_schema import from_spark
from anabranch.spark.runner import BATCH_SETTINGS
from anabranch.spark.source import Cells, routing, tagged_union

pytestmark = pytest.mark.spark

CHAIN = (
    "SELECT a.p AS p0, c.p AS p2 FROM s0 [RANGE 10 SECONDS] AS a, s1 [RANGE 10 SECONDS] AS b, "
    "s2 [RANGE 10 SECONDS] AS c WHERE a.x = b.x AND b.y = c.y"
)
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


def test_only_rows_that_several_slots_need_are_copied(spark: SparkSession) -> None:
    """In a chain on two slots the middle relation decides the slot, and so does one of its neighbours."""
    frames = {f"s{i}": spark.createDataFrame([], "ts timestamp, x bigint, y bigint, p bigint") for i in range(3)}
    catalog = Catalog()
    for name, frame in frames.items():
        catalog.register(StreamDeclaration(name, from_spark(frame.schema, name), "ts"))
    query = compile_query(CHAIN, catalog)
    partitioning = partitioning_of(alone(query), 2)
    cells = Cells(wire_layout(alone(query), partitioning), partitioning)
    union = tagged_union(cells, frames)
    assert union._jdf.queryExecution().analyzed().toString().count("Generate explode") == 1
    sent = routing(cells, partitioning).send(union)
    assert sent._jdf.queryExecution().analyzed().toString().count("Generate explode") == 1


@pytest.mark.parametrize("start", range(4))
@pytest.mark.parametrize("moves", ["some", "all", "grid", "heavy"])
def test_rows_go_to_the_slots_that_need_them_by_any_table(spark: SparkSession, start: int, moves: str) -> None:
    """Cells and copies are those of the table at the start; the table of a batch may be another one."""
    rows = [(datetime(2026, 1, 1, tzinfo=UTC), x, 7 * x + 1, x) for x in range(40)]
    frames = {f"s{i}": spark.createDataFrame(rows, "ts timestamp, x bigint, y bigint, p bigint") for i in range(3)}
    catalog = Catalog()
    for name, frame in frames.items():
        catalog.register(StreamDeclaration(name, from_spark(frame.schema, name), "ts"))
    queries = alone(compile_query(CHAIN, catalog))
    random = Random(start)
    first = partitioning_of(queries, 4 if start % 2 else 2)
    if start > 1:
        first = first.with_table(random.randrange(first.slots) for _ in range(first.groups))
    table = first
    match moves:
        case "some":
            table = first.moved(random.sample(range(first.groups), 3), 1)
        case "grid":
            shares = tuple(replace(dimension, share=3) for dimension in first.dimensions)
            table = Partitioning(shares, first.slots, (0,) * 3 ** len(shares))
        case "heavy":
            slots = list(range(first.slots))
            for code, value in (("k0", 3), ("k1", 15), ("k0", 5)):
                table = table.split(code, value, slots[: random.randint(2, first.slots)])
    if moves != "some":
        table = table.with_table(random.randrange(table.slots) for _ in range(table.groups))
    layout = wire_layout(queries, first)
    cells = Cells(layout, first)
    sent = routing(cells, table).send(tagged_union(cells, frames))
    found = sent.withColumn("partition", f.spark_partition_id()).toArrow()
    for position, name in enumerate(queries.graph.names):
        whole = layout.split(found.filter(pc.equal(found["_relation"], position)).select(layout.schema.names))[name]
        assert len(whole)
        for number, slot in enumerate(table.working):
            here = pc.and_(pc.equal(found["_relation"], position), pc.equal(found["partition"], number))
            mine = layout.split(found.filter(here).select(layout.schema.names))[name]
            assert needed_in(table, name, mine)[:, slot].all()
            expected = needed_in(table, name, whole)[:, slot]
            distinct = {tuple(codes[i] for codes in whole.codes.values()) for i in np.flatnonzero(expected)}
            assert sorted(distinct) == sorted(
                tuple(codes[i] for codes in mine.codes.values()) for i in range(len(mine))
            )


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


def test_spark_and_the_engine_cut_the_rows_of_a_heavy_key_alike(spark: SparkSession) -> None:
    """Rows that differ in time, or in any number, NULLs included, have the part that the engine computes for them."""
    began = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [
        (began + timedelta(seconds=n // 2), 7, None if n % 3 else n, n / 7 if n % 5 else float("nan"), n % 2 == 0, "t")
        for n in range(120)
    ]
    columns = "ts timestamp, k bigint, n int, d double, f boolean, s string"
    frames = {name: spark.createDataFrame(rows, columns) for name in ("s0", "s1")}
    catalog = Catalog()
    for name, frame in frames.items():
        catalog.register(StreamDeclaration(name, from_spark(frame.schema, name), "ts"))
    text = (
        "SELECT a.n AS n, a.d AS d, a.f AS f, a.s AS s, b.n AS m, b.d AS e FROM s0 [RANGE 9 SECONDS] AS a, "
        "s1 [RANGE 9 SECONDS] AS b WHERE a.k = b.k"
    )
    queries = alone(compile_query(text, catalog))
    first = partitioning_of(queries, 4)
    table = first.split("k0", 7, [0, 1, 2, 3])
    layout = wire_layout(queries, first)
    cells = Cells(layout, first)
    found = routing(cells, table).send(tagged_union(cells, frames)).withColumn("at", f.spark_partition_id()).toArrow()
    for position, name in enumerate(queries.graph.names):
        for number, slot in enumerate(table.working):
            here = pc.and_(pc.equal(found["_relation"], position), pc.equal(found["at"], number))
            mine = layout.split(found.filter(here).select(layout.schema.names))[name]
            assert 20 < len(mine) < 100
            assert needed_in(table, name, mine)[:, slot].all()
