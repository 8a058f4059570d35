"""Queries over topics of Kafka, on librdkafka's mock cluster in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.datasource import ReadMaxRows

import anabranch
from anabranch.errors import AnabranchError, CatalogError, HostError, SinkError, SpecError
from anabranch.lang.ddl import parse_schema
from anabranch.lang.schema import Field, Schema
from anabranch.run.kafka.json_values import parse as parse_values
from anabranch.run.sink_settings import KafkaTarget, SinkSettings, check_sink
from anabranch.spark.arrow_schema import to_spark
from anabranch.spark.kafka_source import FORMAT, KafkaOptions, KafkaStream, KafkaTopics
from anabranch.spark.sinks.kafka import KafkaWriter
from anabranch.spark.sinks.sink import Batch
from anabranch.spark.stored_files import OFF
from anabranch.spec.file import parse
from anabranch.spec.launch import start
from anabranch.stats.backlog import backlog
from tests.spark.stories import Story, register, run, send, written
from tests.spark.test_crash import ALL, JOIN, crash, own_driver
from tests.support.kafka_broker import Cluster, broker
from tests.support.oracle import describe_difference

pytest.importorskip("confluent_kafka", reason="no client of Kafka: pip install '.[kafka]'")
pytestmark = pytest.mark.spark
SPEC = """
streams:
  orders: {{format: kafka, schema: "ts timestamp, k bigint, v string", event_time: ts, watermark: 1 hour,
           options: {{kafka.bootstrap.servers: "{brokers}", subscribe: {prefix}orders, startingOffsets: earliest,
                     maxOffsetsPerTrigger: 8, badRecords: {bad}}}}}
  payments: {{format: kafka, schema: "k bigint, v string, _timestamp timestamp", event_time: _timestamp,
             watermark: 1 hour, options: {{kafka.bootstrap.servers: "{brokers}", subscribe: {prefix}payments,
                     startingOffsets: earliest, maxOffsetsPerTrigger: 8}}}}
query: SELECT o.v AS a, p.v AS b FROM orders [RANGE 10 MINUTES] AS o, payments [RANGE 10 MINUTES] AS p WHERE o.k = p.k
sink: {{format: parquet, path: {folder}/out}}
late: {{format: parquet, path: {folder}/late}}
checkpoint: {folder}/checkpoint
trigger: 10 milliseconds
slots: {slots}
"""
DAY = 1_767_261_600_000
"""2026-01-01T10:00:00Z in milliseconds."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with broker({}) as found:
        yield found


def add(cluster: Cluster, topic: str, numbers: range) -> None:
    texts = [
        json.dumps(
            {"ts": f"2026-01-01T10:{each % 60:02d}:00Z", "k": each % 3, "v": f"{topic.rpartition('-')[2][0]}{each}"}
        ).encode()
        for each in numbers
    ]
    times = [DAY + 60_000 * each for each in numbers]
    for partition in range(2):
        cluster.send(topic, texts[partition::2], partition=partition, times=times[partition::2])


def pairs(numbers: range) -> list[tuple[str, str]]:
    """Rows of both streams with one key, at most ten minutes apart."""
    return sorted((f"o{i}", f"p{j}") for i in numbers for j in numbers if i % 3 == j % 3 and abs(i - j) <= 10)


@pytest.mark.parametrize(("slots", "reads"), [(2, "readers"), (3, "readers"), (2, "spark")])
def test_topics_are_read_exactly_once_and_their_backlog_is_shown(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, slots: int, reads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reads == "spark":
        monkeypatch.setenv(OFF, "1")
    prefix = f"{reads}{slots}-"
    text = SPEC.format(brokers=cluster.bootstrap, prefix=prefix, folder=tmp_path, slots=slots, bad="drop")
    for topic in ("orders", "payments"):
        cluster.ask("create", prefix + topic, 2, 1)
        add(cluster, prefix + topic, range(10))
    cluster.send(prefix + "orders", [b"nonsense"], partition=1)
    handle = start(parse(text, folder=tmp_path), spark)
    handle.processAllAvailable()
    first = next(each for each in handle.recentProgress if each["adaptive"])
    assert (first["numInputRows"], first["adaptive"]["rowsIn"]) == (16, {"orders": 8, "payments": 8})
    assert backlog(first["sources"]) == 5, first["sources"]
    last = [each for each in handle.recentProgress if each["adaptive"]][-1]
    assert backlog(last["sources"]) == 0
    assert sum(each["adaptive"]["undatedRows"]["orders"] for each in handle.recentProgress if each["adaptive"]) == 1
    handle.stop()
    for topic in ("orders", "payments"):
        add(cluster, prefix + topic, range(10, 15))
    again = start(parse(text, folder=tmp_path), spark)
    again.processAllAvailable()
    again.stop()
    found = sorted((row["a"], row["b"]) for row in spark.read.parquet(f"{tmp_path}/out").collect())
    assert found == pairs(range(15))
    (lost,) = spark.read.parquet(f"{tmp_path}/late").collect()
    assert (lost["stream"], lost["reason"], lost["event_time"]) == ("orders", "undated", None)
    manifest = sorted((tmp_path / "checkpoint" / "anabranch" / "manifests").glob("*.json"))[-1]
    pieces = json.loads(manifest.read_text()).get("pieces", {})
    assert (pieces == {}) == (reads == "spark")
    if pieces:
        assert f"{prefix}payments/0/5-8" in pieces["payments"] or f"{prefix}payments/1/5-7" in pieces["payments"]


def test_a_bad_record_ends_the_query_and_is_named(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    for topic in ("bad-orders", "bad-payments"):
        cluster.ask("create", topic, 2, 1)
    cluster.send("bad-orders", [b'{"k": 1.5}'], partition=1)
    text = SPEC.format(brokers=cluster.bootstrap, prefix="bad-", folder=tmp_path, slots=1, bad="fail")
    handle = start(parse(text, folder=tmp_path), spark)
    with pytest.raises(AnabranchError, match="record 0 of partition 1 of topic 'bad-orders' is not one of its stream"):
        handle.processAllAvailable()
    handle.stop()


def test_records_lost_while_the_query_stood_still_end_it(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    for topic in ("gone-orders", "gone-payments"):
        cluster.ask("create", topic, 2, 1)
        add(cluster, topic, range(10))
    text = SPEC.format(brokers=cluster.bootstrap, prefix="gone-", folder=tmp_path, slots=1, bad="fail")
    handle = start(parse(text, folder=tmp_path), spark)
    handle.processAllAvailable()
    handle.stop()
    add(cluster, "gone-orders", range(10, 20))
    cluster.ask("forget", "gone-orders", 1, 8)
    again = start(parse(text, folder=tmp_path), spark)
    with pytest.raises(AnabranchError, match="no longer has the records 'gone-orders/1/5-9'"):
        again.processAllAvailable()
    again.stop()


def test_spark_reads_the_ranges_of_a_batch_if_another_stream_is_for_spark_alone(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """The quotes in a file of CSV are for Spark; the topic of the same batch goes with it."""
    cluster.ask("create", "mixed", 2, 1)
    add(cluster, "mixed", range(10))
    spark.dataSource.register(KafkaTopics)
    topics = spark.readStream.format(FORMAT).schema("ts timestamp, k bigint, v string")
    options = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": "mixed", "startingOffsets": "earliest"}
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "a.csv").write_text(f'"{DAY + 300_000}",1\n')
    session = anabranch.Session(spark)
    rows = topics.options(**options).load().where("k > 0")
    session.register("a", rows, "ts", watermark="1 hour")
    files = spark.readStream.schema("t bigint, k bigint").csv(str(tmp_path / "csv"))
    session.register("b", files.select(f.timestamp_millis("t").alias("ts"), "k"), "ts")
    query = session.sql("SELECT a.v AS v FROM a [RANGE 1 HOUR], b [RANGE 1 HOUR] WHERE a.k = b.k")
    handle = run(query, tmp_path)
    # Six records pass the filter of the frame, whoever reads them.
    assert handle.recentProgress[0]["numInputRows"] == 7
    assert handle.recentProgress[0]["adaptive"]["rowsOut"] == 3
    assert sorted(row["v"] for row in spark.read.parquet(f"{tmp_path}/out").collect()) == ["m1", "m4", "m7"]


def test_without_a_schema_there_are_the_columns_of_sparks_connector(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.ask("create", "raw", 1, 1)
    cluster.send("raw", [b'{"k": 4}', b"4"], keys=[b"x", None])
    spark.dataSource.register(KafkaTopics)
    options = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribePattern": "ra.", "startingOffsets": "earliest"}
    rows = spark.readStream.format(FORMAT).options(**options).load()
    rows = rows.select("timestamp", "offset", f.from_json(f.col("value").cast("string"), "k bigint")["k"].alias("k"))
    session = anabranch.Session(spark)
    session.register("raw", rows, "timestamp")
    run(session.sql("SELECT r.k AS k, r.offset AS o FROM raw [RANGE 1 HOUR] AS r"), tmp_path)
    assert sorted(row["o"] for row in spark.read.parquet(f"{tmp_path}/out").collect()) == [0, 1]


def test_results_become_records_with_the_batch_in_their_headers(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    from confluent_kafka import Consumer, TopicPartition

    cluster.ask("create", "in-source", 2, 1)
    cluster.ask("create", "out", 1, 1)
    add(cluster, "in-source", range(10))
    options = {"kafka.bootstrap.servers": cluster.bootstrap}
    read = {**options, "subscribe": "in-source", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "6"}
    spark.dataSource.register(KafkaTopics)
    rows = spark.readStream.format(FORMAT).schema("ts timestamp, k bigint, v string").options(**read).load()
    session = anabranch.Session(spark)
    session.register("a", rows, "ts", watermark="1 hour")
    writer = session.sql("SELECT a.ts AS ts, a.v AS v FROM a [RANGE 1 HOUR]").writeStream.format("kafka")
    writer = writer.options(topic="out", keyColumns="V", **options).trigger(availableNow=True).slots(2)
    handle = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    handle.awaitTermination()
    reader = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "test"})
    reader.assign([TopicPartition("out", 0, 0)])
    found = reader.consume(10, 30)
    reader.close()
    values = sorted((json.loads(each.value() or b"") for each in found), key=lambda each: str(each["v"]))
    assert values == [{"ts": f"2026-01-01T10:0{n}:00+00:00", "v": f"s{n}"} for n in range(10)]
    assert all(json.loads(each.key() or b"") == {"v": json.loads(each.value() or b"")["v"]} for each in found)
    headers = [dict(each.headers() or []) for each in found]
    assert {each["anabranch.batch"] for each in headers} == {b"0", b"1"}
    assert {each["anabranch.query"] for each in headers} == {str(handle.id).encode()}
    assert len({each["anabranch.attempt"] for each in headers}) == 2


def test_a_topic_that_takes_no_records_ends_the_batch(cluster: Cluster) -> None:
    target = KafkaTarget("out", (), {"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": "100"})
    with (
        pytest.raises(SinkError, match="Kafka refused 1 records for topic 'out'"),
        KafkaWriter(target, Batch(0)).open("part") as records,
    ):
        records.write(pa.record_batch({"v": [1]}))


def test_records_of_a_batch_that_failed_do_not_go_out_with_the_next_one(cluster: Cluster) -> None:
    from confluent_kafka import Consumer, TopicPartition

    cluster.ask("create", "few", 1, 1)
    # Nothing is sent before a batch is flushed.
    target = KafkaTarget("few", (), {"bootstrap.servers": cluster.bootstrap, "linger.ms": "60000"})
    with pytest.raises(SinkError, match="refused"), KafkaWriter(target, Batch(0)).open("part") as records:
        records.write(pa.record_batch({"v": ["a", "x" * 2_000_000]}))
    for number in (1, 2):
        with KafkaWriter(target, Batch(number)).open("part") as records:
            records.write(pa.record_batch({"v": [number]}))
    reader = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "test"})
    reader.assign([TopicPartition("few", 0, 0)])
    found = [json.loads(each.value() or b"")["v"] for each in reader.consume(3, 5)]
    reader.close()
    assert found == [1, 2]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topic": "t"}, "no kafka.bootstrap.servers"),
        ({"kafka.bootstrap.servers": "b:1"}, "no topic"),
        ({"kafka.bootstrap.servers": "b:1", "topic": "t", "keyColumns": "other"}, "'other' is not in the SELECT list"),
        ({"kafka.bootstrap.servers": "b:1", "topic": "t", "transactional": "yes"}, "no option 'transactional'"),
    ],
)
def test_options_of_the_sink_are_checked(options: dict[str, str], words: str) -> None:
    schema = Schema((Field("v", pa.int64()),))
    with pytest.raises(SpecError, match=words):
        check_sink(SinkSettings.of("kafka", options), schema)


# --- killed drivers ---------------------------------------------------------------------------------------------------


def check_recovery(spark: SparkSession, folder: Path, story: Story, moment: str, slots: int) -> None:
    tables = story.tables()
    with broker(dict.fromkeys(story.streams, 2)) as own:
        send(own, tables)
        there = replace(story, brokers=own.bootstrap)
        crash(folder, there, moment, 2, "mjoin", 2)
        assert describe_difference(story.expected(tables), written(folder))
        handle = run(register(spark, there, folder).sql(story.cql), folder, "((a b) c)", slots)
    assert handle.report()["late_rows"] == 0
    assert not describe_difference(story.expected(tables), written(folder))


@own_driver
def test_a_killed_driver_loses_and_repeats_nothing(spark: SparkSession, tmp_path: Path) -> None:
    check_recovery(spark, tmp_path, JOIN, "in the middle of a step", 3)


@own_driver
@pytest.mark.slow
@pytest.mark.parametrize("moment", ALL)
def test_a_driver_may_be_killed_at_any_moment(moment: str, spark: SparkSession, tmp_path: Path) -> None:
    check_recovery(spark, tmp_path, JOIN, moment, 3)


# --- values, as Spark reads them --------------------------------------------------------------------------------------

VALUES = [
    *('{"i": 1}', "{}", '{"i": null}', '{"i": 1.0}', '{"i": "1"}', '{"i": 1e2}', '{"i": -0}', '{"i": true}'),
    *('{"f": 1}', '{"f": 1e400}', '{"f": "NaN"}', '{"f": NaN}', '{"f": 0.1}', '{"f": 123456789012345678}'),
    *('{"s": 5}', '{"s": "a"}', '{"s": true}', '{"s": "\\u00e4\\u0000"}', '{"n": 1.255}', '{"n": "1.25"}'),
    *('{"n": 1234.5}', '{"n": 1e1}', '{"b": true}', '{"b": "true"}', '{"d": "2024-02-29"}', '{"d": "2024-02-30"}'),
    *('{"t": "2024-01-02T03:04:05Z"}', '{"t": "2024-01-02 03:04:05.123456"}', '{"t": "2024-01-02"}'),
    *('{"t": "2024-01-02T03:04:05.123456789Z"}', '{"t": "2024-01-02T03:04:05+02:00"}', '{"t": "2024-01-02T03:04"}'),
    *('{"t": "2024-01-02T03"}', '{"t": "x"}', '{"i": 1, "i": 2}', '{"I": 1}', "[1]", "null", "5", '{"i": 1,}', "{"),
    *('{"t": "2024-01-02T25:00:00Z"}', '{"t": "2024-1-2"}', '{"d": "2024-1-2"}'),
]
DDL = "i bigint, f double, s string, n decimal(5,2), b boolean, d date, t timestamp"


def test_a_good_value_is_what_sparks_from_json_reads(spark: SparkSession) -> None:
    columns = parse_schema(DDL)
    found = parse_values([each.encode() for each in VALUES], columns.to_arrow())
    rows = spark.createDataFrame(list(enumerate(VALUES)), "place int, v string")
    read = f.from_json("v", f"{DDL}, _corrupt_record string", {"columnNameOfCorruptRecord": "_corrupt_record"})
    known = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        theirs = rows.select("place", read.alias("r")).select("place", "r.*").toArrow().sort_by("place")
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(known))
    ours = found.rows.to_pylist()
    wrong = []
    for place, row in enumerate(theirs.drop_columns(["place"]).to_pylist()):
        is_corrupt = row.pop("_corrupt_record") is not None
        if place not in found.bad and (is_corrupt or str(ours[place]) != str(row)):
            wrong.append((VALUES[place], ours[place], row))
    assert not wrong
    assert len(found.bad) < 22


# --- planning, without a query ----------------------------------------------------------------------------------------


def source(cluster: Cluster, **options: str) -> KafkaStream:
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "startingOffsets": "earliest", **options}
    return KafkaStream(KafkaOptions.of(given), to_spark(parse_schema("k bigint")))


def test_a_new_partition_is_read_from_its_beginning_and_a_lost_one_ends_the_query(cluster: Cluster) -> None:
    cluster.ask("create", "plan", 2, 1)
    cluster.send("plan", [b"{}"] * 30)
    cluster.send("plan", [b"{}"] * 10, partition=1)
    of = source(cluster, subscribe="plan", maxOffsetsPerTrigger="20")
    assert of.initialOffset() == {"plan": {"0": 0, "1": 0}}
    assert of.latestOffset({"plan": {"0": 0}}, of.getDefaultReadLimit()) == {"plan": {"0": 15, "1": 5}}
    assert of.latestOffset({"plan": {"0": 29, "1": 10}}, ReadMaxRows(20)) == {"plan": {"0": 30, "1": 10}}
    assert of.reportLatestOffset() == {"plan": {"0": 30, "1": 10}}
    with pytest.raises(HostError, match="partition 1 of topic 'plan' ends before the last batch did"):
        of.latestOffset({"plan": {"0": 0, "1": 11}}, ReadMaxRows(20))


def test_a_start_may_be_named_by_partition(cluster: Cluster) -> None:
    cluster.ask("create", "begin", 2, 1)
    cluster.send("begin", [b"{}"] * 3)
    named = source(cluster, subscribe="begin", startingOffsets='{"begin": {"0": -1, "1": -2}}')
    assert named.initialOffset() == {"begin": {"0": 3, "1": 0}}
    with pytest.raises(CatalogError, match="do not name each partition"):
        source(cluster, subscribe="begin", startingOffsets='{"begin": {"0": 1}}').initialOffset()


def test_a_topic_that_is_missing_is_named(cluster: Cluster) -> None:
    with pytest.raises(CatalogError, match="topic 'nowhere' does not exist"):
        source(cluster, subscribe="nowhere").initialOffset()


class _Answered:
    """A broker's answer; the mock cluster has none."""

    def __init__(self, policy: str) -> None:
        self._policy = policy

    def done(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def result(self) -> Any:
        return {"cleanup.policy": type("Entry", (), {"value": self._policy})}


def test_a_compacted_topic_is_refused(cluster: Cluster) -> None:
    cluster.ask("create", "compacted", 1, 1)
    of = source(cluster, subscribe="compacted")
    of._policies = {"compacted": _Answered("delete")}
    assert of.latestOffset({"compacted": {"0": 0}}, of.getDefaultReadLimit()) == {"compacted": {"0": 0}}
    of._policies = {"compacted": _Answered("compact,delete")}
    with pytest.raises(CatalogError, match="topic 'compacted' is compacted"):
        of.latestOffset({"compacted": {"0": 0}}, of.getDefaultReadLimit())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "a"}, "has no brokers"),
        ({"kafka.bootstrap.servers": "b:1"}, "either 'subscribe' or 'subscribePattern'"),
        ({"kafka.bootstrap.servers": "b:1", "subscribe": "a", "subscribePattern": "b"}, "either"),
        ({"kafka.bootstrap.servers": "b:1", "subscribe": "a", "failOnDataLoss": "false"}, "no option 'failOnDataLoss'"),
        ({"kafka.bootstrap.servers": "b:1", "subscribe": "a", "offsets": "x"}, "no option 'offsets'"),
        ({"kafka.bootstrap.servers": "b:1", "subscribe": "a", "maxOffsetsPerTrigger": "0"}, "is '0'"),
        ({"kafka.bootstrap.servers": "b:1", "subscribe": "a", "badRecords": "skip"}, "is 'skip'"),
    ],
)
def test_options_are_checked(options: dict[str, str], words: str) -> None:
    with pytest.raises(CatalogError, match=words):
        KafkaOptions.of(options)


@pytest.mark.parametrize(
    ("schema", "words"),
    [("_timestamp string", "'_timestamp' of a Kafka record has type"), ("_corrupt_record int", "make it a string")],
)
def test_columns_of_a_record_have_their_types(cluster: Cluster, schema: str, words: str) -> None:
    options = KafkaOptions.of({"kafka.bootstrap.servers": "b:1", "subscribe": "a"})
    with pytest.raises(CatalogError, match=words):
        KafkaStream(options, to_spark(parse_schema(schema)))
