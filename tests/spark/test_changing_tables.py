"""Streams meet a table that a change stream keeps, as of their batch, and the same after a restart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from anabranch.errors import CatalogError, SpecError
from anabranch.spark.change_table import ChangeTable
from anabranch.spec.file import parse
from anabranch.spec.launch import start
from tests.support.kafka_broker import Cluster, broker

pytest.importorskip("confluent_kafka", reason="no client of Kafka: pip install '.[kafka]'")
pytestmark = pytest.mark.spark
SPEC = """
streams:
  orders: {{format: kafka, schema: "ts timestamp, id bigint, k bigint", event_time: ts, watermark: 1 hour,
           options: {{kafka.bootstrap.servers: "{brokers}", subscribe: orders, startingOffsets: earliest}}}}
tables:
  rates: {{format: debezium, schema: "k bigint, rate double",
          options: {{kafka.bootstrap.servers: "{brokers}", subscribe: rates, keyColumns: k}}}}
query: SELECT o.id AS id, r.rate AS rate FROM orders [RANGE 10 MINUTES] AS o, rates AS r WHERE o.k = r.k
sink: {{format: parquet, path: {folder}/out}}
checkpoint: {folder}/checkpoint
trigger: 10 milliseconds
slots: 2
"""
SCHEMA = pa.schema([("k", pa.int64()), ("rate", pa.float64())])
ORDERS = [[(1, 1), (2, 2), (3, 3)], [(4, 1), (5, 2), (6, 3)], [(7, 1), (8, 2), (9, 4)], [(10, 1), (11, 2), (12, 4)]]
"""By run: the identifiers of orders, and their keys."""
CHANGES: list[list[tuple[str, int, float]]] = [
    [("c", 1, 1.0), ("c", 2, 2.0), ("u", 2, 2.5)],
    [("u", 1, 1.5), ("d", 2, 0.0), ("c", 3, 3.0)],
    [("c", 2, 2.75), ("c", 4, 4.0), ("d", 1, 0.0)],
    [("c", 1, 9.0)],
]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with broker({"orders": 1, "rates": 2}) as found:
        yield found


def change(cluster: Cluster, changes: list[tuple[str, int, float]], time: int = 0) -> None:
    """Sends changes; each happens a millisecond after the one before it."""
    for number, (op, key, rate) in enumerate(changes):
        row = {"k": key, "rate": rate}
        before, after = ({"k": key, "rate": None}, None) if op == "d" else (None, row)
        payload = {"op": op, "before": before, "after": after, "ts_ms": time + number}
        value = json.dumps({"payload": payload}).encode()
        # A database's tool writes a delete, and then a record without a value.
        cluster.send("rates", [value, *([None] if op == "d" else [])], partition=key % 2)


def order(cluster: Cluster, rows: list[tuple[int, int]]) -> None:
    cluster.send("orders", [json.dumps({"ts": f"2026-01-01T10:00:{i:02}Z", "id": i, "k": k}).encode() for i, k in rows])


def table_after(changes: list[list[tuple[str, int, float]]]) -> pa.Table:
    rows: dict[int, float] = {}
    for op, key, rate in (each for several in changes for each in several):
        rows.pop(key, None)
        if op != "d":
            rows[key] = rate
    return pa.table({"k": list(rows), "rate": list(rows.values())}, schema=SCHEMA)


def joined(orders: list[tuple[int, int]], rates: pa.Table) -> list[Any]:
    given = pa.table({"id": [i for i, _ in orders], "k": [k for _, k in orders]})
    with duckdb.connect() as database:
        database.register("o", given)
        database.register("r", rates)
        return database.sql("SELECT o.id, r.rate FROM o, r WHERE o.k = r.k").fetchall()


def test_streams_meet_the_table_as_of_their_batch_and_the_same_after_a_restart(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    spec = parse(SPEC.format(brokers=cluster.bootstrap, folder=tmp_path), folder=tmp_path)
    expected: list[Any] = []
    for number, (orders, changes) in enumerate(zip(ORDERS, CHANGES, strict=True)):
        change(cluster, changes)
        handle = start(spec, spark)
        # The first batch after a restart may be a repetition, so it has the version of the batch before.
        for known in (max(1, number), number + 1):
            order(cluster, orders)
            handle.processAllAvailable()
            expected += joined(orders, table_after(CHANGES[:known]))
        handle.stop()
    found = [(row["id"], row["rate"]) for row in spark.read.parquet(f"{tmp_path}/out").collect()]
    assert sorted(found) == sorted(expected)


def test_a_running_query_sees_changes_with_its_next_batch(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    change(cluster, CHANGES[0])
    handle = start(parse(SPEC.format(brokers=cluster.bootstrap, folder=tmp_path), folder=tmp_path), spark)
    expected: list[Any] = []
    for number, orders in enumerate(ORDERS):
        if number:
            change(cluster, CHANGES[number])
        order(cluster, orders)
        handle.processAllAvailable()
        expected += joined(orders, table_after(CHANGES[: number + 1]))
    handle.stop()
    found = [(row["id"], row["rate"]) for row in spark.read.parquet(f"{tmp_path}/out").collect()]
    assert sorted(found) == sorted(expected)


VERSIONS = """
streams:
  orders: {{format: kafka, schema: "ts timestamp, id bigint, k bigint", event_time: ts, watermark: 20 seconds,
           options: {{kafka.bootstrap.servers: "{brokers}", subscribe: orders, startingOffsets: earliest}}}}
  rates:
    format: kafka
    schema: "payload struct<before struct<k bigint, rate double>, after struct<k bigint, rate double>, op string,
             ts_ms bigint>"
    options: {{kafka.bootstrap.servers: "{brokers}", subscribe: rates, startingOffsets: earliest, badRecords: drop}}
    select: {{ts: timestamp_millis(payload.ts_ms), k: "coalesce(payload.after.k, payload.before.k)",
             rate: payload.after.rate, op: payload.op}}
    event_time: ts
    watermark: 20 seconds
query: |
  SELECT o.id AS id, r.rate AS rate FROM orders AS o
  JOIN rates FOR SYSTEM_TIME AS OF o.ts AS r ON r.k = o.k WHERE r.op <> 'd'
sink: {{format: parquet, path: {folder}/out}}
checkpoint: {folder}/checkpoint
trigger: available_now
"""
AT_TEN = 1767261600000
"""2026-01-01 10:00 in milliseconds."""


def test_streams_meet_the_version_of_their_event_time(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    """Orders of seconds 1 to 12 meet the changes of 0, 4, 7 and 10 seconds, which arrive in another order."""
    spec = parse(VERSIONS.format(brokers=cluster.bootstrap, folder=tmp_path), folder=tmp_path)
    for number in (1, 0, 3, 2):
        change(cluster, CHANGES[number], AT_TEN + (0, 3500, 6500, 9500)[number])
        order(cluster, ORDERS[number])
        start(spec, spark).awaitTermination()
    change(cluster, [("c", 5, 0.0)], AT_TEN + 60_000)
    cluster.send("orders", [b'{"ts": "2026-01-01T10:01:00Z", "id": 0, "k": 0}'])
    start(spec, spark).awaitTermination()
    expected = [row for number in range(4) for row in joined(ORDERS[number], table_after(CHANGES[: number + 1]))]
    found = [(row["id"], row["rate"]) for row in spark.read.parquet(f"{tmp_path}/out").collect()]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize(
    ("columns", "options", "form", "words"),
    [
        ("k bigint", {}, "debezium", "has no key"),
        ("k bigint", {"keyColumns": "x"}, "debezium", "key column 'x' is not in table 'rates'"),
        ("k bigint", {"keyColumns": "k"}, "maxwell", "'maxwell' is not a form of changes"),
        ("k binary", {"keyColumns": "k"}, "upsert", "cannot be read from JSON"),
    ],
)
def test_tables_that_cannot_change_are_refused(columns: str, options: dict[str, str], form: str, words: str) -> None:
    with pytest.raises(CatalogError, match=words):
        ChangeTable("rates", columns, options, form)


@pytest.mark.parametrize(
    ("more", "words"), [("", "schema"), ('schema: "k bigint", refresh: 1 minute', "has 'refresh'")]
)
def test_a_spec_without_columns_or_with_a_refresh_is_refused(tmp_path: Path, more: str, words: str) -> None:
    text = SPEC.format(brokers="b:1", folder=tmp_path).replace('schema: "k bigint, rate double"', more or "path: x")
    with pytest.raises(SpecError, match=words):
        parse(text, folder=tmp_path)
