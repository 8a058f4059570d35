"""Ranges of offsets are read once and in order, or end in an error that names them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from anabranch.errors import CatalogError, HostError
from anabranch.lang.schema import TIMESTAMP
from anabranch.run.kafka.ranges import CORRUPT, DROP, RAW, KafkaForm, OffsetRange
from tests.support.kafka_broker import Cluster, broker

pytest.importorskip("confluent_kafka", reason="no client of Kafka: pip install '.[kafka]'")
COLUMNS = pa.schema([("k", pa.int64()), ("_offset", pa.int64()), ("_timestamp", TIMESTAMP), ("_key", pa.string())])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with broker({"orders": 3, "short": 1, "mixed": 1}) as found:
        for partition in range(3):
            numbers = range(100 * partition, 100 * partition + 100)
            texts = [json.dumps({"k": number, "other": "x"}).encode() for number in numbers]
            found.send("orders", texts, partition=partition, keys=[b"key"] * 100, times=range(1, 101))
        found.send("short", [b'{"k": 1}'] * 10)
        found.send("mixed", [b'{"k": 1}', b'{"k": "one"}', None, b'{"k": 2}'], times=[1, 2, 3, 4])
        yield found


def form(cluster: Cluster, columns: pa.Schema = COLUMNS, **other: Any) -> KafkaForm:
    return KafkaForm({"bootstrap.servers": cluster.bootstrap}, columns, timeout=1.0, **other)


def read(of: KafkaForm, *ranges: str) -> pa.Table:
    return pa.concat_tables(of.read_several([(each, None) for each in ranges], of.whole))


def test_several_ranges_are_fetched_together_and_can_be_read_again(cluster: Cluster) -> None:
    ranges = ["orders/0/0-60", "orders/1/40-40", "orders/2/99-100", "orders/1/5-7", "orders/1/50-51"]
    found = read(form(cluster), *ranges)
    assert found["k"].to_pylist() == [*range(60), 299, 105, 106, 150]
    assert found["_offset"].to_pylist() == [*range(60), 99, 5, 6, 50]
    assert found["_key"].to_pylist() == ["key"] * 64
    assert found["_timestamp"].cast(pa.int64()).to_pylist()[:2] == [1000, 2000]
    assert read(form(cluster), *ranges) == found


def test_a_range_is_written_as_its_partition_and_offsets() -> None:
    whole = OffsetRange("a.b_c-d", 12, 0, 2**40)
    assert OffsetRange.of(str(whole)) == whole


def test_without_columns_the_records_are_those_of_sparks_connector(cluster: Cluster) -> None:
    (row,) = read(form(cluster, RAW), "orders/1/3-4").to_pylist()
    assert (row["key"], json.loads(row["value"])["k"], row["topic"]) == (b"key", 103, "orders")
    assert (row["partition"], row["offset"], row["timestampType"]) == (1, 3, 0)


def test_records_that_retention_has_removed_are_not_skipped(cluster: Cluster) -> None:
    cluster.ask("forget", "short", 0, 5)
    assert len(read(form(cluster), "short/0/5-10")) == 5
    with pytest.raises(HostError, match="no longer has the records 'short/0/4-10'"):
        read(form(cluster), "short/0/4-10")


def test_records_that_do_not_come_are_waited_for_and_then_named(cluster: Cluster) -> None:
    with pytest.raises(HostError, match="did not deliver the records 'orders/0/98-101' within 1 seconds") as error:
        read(form(cluster), "orders/0/98-101")
    assert "stopped at offset 100" in error.value.detail


def test_a_broker_that_is_away_for_a_while_is_waited_for() -> None:
    with broker({"orders": 1}) as found:
        found.send("orders", [b'{"k": 1}'] * 3)
        settings = {
            "bootstrap.servers": found.bootstrap,
            "reconnect.backoff.ms": "20",
            "reconnect.backoff.max.ms": "50",
        }
        of = KafkaForm(settings, COLUMNS, timeout=30.0)
        assert len(read(of, "orders/0/0-1")) == 1
        found.ask("down", 1)
        with pytest.raises(HostError, match="did not deliver"):
            read(KafkaForm(of.settings, COLUMNS, timeout=0.2), "orders/0/1-3")
        found.ask("up", 1)
        assert len(read(of, "orders/0/1-3")) == 2


def test_a_bad_record_ends_the_query_with_its_offset(cluster: Cluster) -> None:
    with pytest.raises(CatalogError, match="record 1 of partition 0 of topic 'mixed'") as error:
        read(form(cluster), "mixed/0/0-4")
    assert "field 'k' is \"one\", not a int64; 2 of 4 records of the batch are bad" in error.value.detail


def test_a_bad_record_may_be_a_row_without_a_time(cluster: Cluster) -> None:
    columns = pa.schema([*COLUMNS, (CORRUPT, pa.string())])
    rows = read(form(cluster, columns, bad_records=DROP), "mixed/0/0-4").to_pylist()
    assert [row["k"] for row in rows] == [1, None, None, 2]
    assert [row["_timestamp"] is None for row in rows] == [False, True, True, False]
    assert [row["_offset"] for row in rows] == [0, 1, 2, 3]
    assert [row[CORRUPT] for row in rows] == [None, '{"k": "one"}', "", None]


def test_whether_a_record_is_bad_does_not_depend_on_the_columns_that_are_read(cluster: Cluster) -> None:
    with pytest.raises(CatalogError, match="record 1 of partition 0"):
        list(form(cluster).read_several([("mixed/0/0-4", None)], {"_offset": pa.int64()}))


def test_settings_that_librdkafka_does_not_know_are_refused() -> None:
    with pytest.raises(CatalogError, match="refused by librdkafka"):
        read(KafkaForm({"bootstrap.servers": "127.0.0.1:1", "sasl.jaas.config": "x"}, COLUMNS), "orders/0/0-1")
