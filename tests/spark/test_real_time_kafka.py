"""Topics of Kafka in real-time mode: every result once, whatever starts, stops, is added or dies."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import anabranch
from anabranch.api import ContinuousQuery, QueryHandle
from anabranch.cql import compile_query
from anabranch.errors import AnabranchError, SpecError
from anabranch.lang.ddl import parse_schema
from anabranch.run.kafka.ranges import KafkaForm
from anabranch.run.round import PHASES
from anabranch.spark.arrow_schema import to_spark
from anabranch.spark.kafka_source import FORMAT, KafkaOptions, listing
from anabranch.spark.resident.topics import WatchedTopics
from tests.spark.stories import Story, cut, frames, register, run, send, without_nan, write_apart, written
from tests.spark.test_real_time import GROUPS, JOIN, deaths_change_nothing, own_driver
from tests.support.kafka_broker import Cluster, broker
from tests.support.oracle import describe_difference, rows_as_multiset

pytest.importorskip("confluent_kafka", reason="no client of Kafka: pip install '.[kafka]'")
pytestmark = pytest.mark.spark


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with broker(dict.fromkeys(("s0", "s1", "s2"), 2)) as found:
        yield found


def of(story: Story, cluster: Cluster) -> Story:
    """A story without late rows: a batch has as many rows of both partitions, if they are there before the query is."""
    return replace(story, brokers=cluster.bootstrap, is_apart=False, rows=96)


def start(query: ContinuousQuery, folder: Path) -> QueryHandle:
    writer = query.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    return writer.trigger(realTime=True).slots(1).start(str(folder / "out"))


def backlog(handle: QueryHandle) -> int:
    """Returns the records that waited after the last batch, by the progress."""
    progress = handle.lastProgress
    assert progress is not None
    ends = [(each["endOffset"], each["latestOffset"]) for each in progress["sources"]]
    return sum(
        latest - end[topic][partition]
        for end, known in ends
        for topic, several in known.items()
        for partition, latest in several.items()
    )


def test_topics_are_read_once_over_restarts_and_after_micro_batches(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    story = of(JOIN, cluster)
    tables = story.tables()
    query = register(spark, story, tmp_path).sql(story.cql)
    first, *rest = cut(tables, 4)
    send(cluster, first)
    run(query, tmp_path, slots=1)
    for batch in rest:
        send(cluster, batch)
        handle = start(query, tmp_path)
        handle.processAllAvailable()
        assert backlog(handle) == 0
        assert handle.report()["late_rows"] == 0
        handle.stop()
    assert not describe_difference(story.expected(tables), written(tmp_path))
    manifest = max((tmp_path / "checkpoint" / "anabranch" / "manifests").glob("*.json"))
    pieces = json.loads(manifest.read_text())["pieces"]
    assert {each.split("/")[0] for several in pieces.values() for each in several} <= {"s0", "s1", "s2"}


def test_records_that_come_while_a_query_stands_still_are_read_although_it_began_at_the_latest(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """The offsets of the start are in a manifest before there is a record of the stream."""
    story = of(JOIN, cluster)
    tables = story.tables()
    send(cluster, {"s2": tables["s2"]})
    topics = frames(spark, story, tmp_path)
    options = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": "s2", "startingOffsets": "latest"}
    topics["s2"] = spark.readStream.format(FORMAT).schema(topics["s2"].schema).options(**options).load()
    session = anabranch.Session(spark)
    for name, frame in topics.items():
        session.register(name, frame, "ts", watermark=f"{story.disorder.get(name, 0)} seconds")
    query = session.sql(story.cql)
    halves = list(cut(tables, 2))
    send(cluster, {name: halves[0][name] for name in ("s0", "s1")})
    handle = start(query, tmp_path)
    handle.processAllAvailable()
    handle.stop()
    send(cluster, {**halves[1], "s2": tables["s2"]})
    handle = start(query, tmp_path)
    handle.processAllAvailable()
    handle.stop()
    assert not describe_difference(story.expected(tables), written(tmp_path))


def test_a_topic_and_a_folder_in_one_query(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    story = replace(JOIN, rows=96)
    tables = without_nan(story.tables())
    both = frames(spark, story, tmp_path) | {"s0": frames(spark, of(story, cluster), tmp_path)["s0"]}
    session = anabranch.Session(spark)
    for name, frame in both.items():
        session.register(name, frame, "ts", watermark=f"{story.disorder.get(name, 0)} seconds")
    send(cluster, {"s0": tables["s0"]})
    for number, batch in enumerate(cut(tables, 3)):
        for name in ("s1", "s2"):
            write_apart(tmp_path, name, number, batch[name])
    handle = start(session.sql(story.cql), tmp_path)
    handle.processAllAvailable()
    handle.stop()
    assert not describe_difference(story.expected(tables), written(tmp_path))


def test_results_become_records(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    cluster.ask("create", "out", 1, 1)
    story, brokers = of(JOIN, cluster), {"kafka.bootstrap.servers": cluster.bootstrap}
    tables = story.tables()
    query = register(spark, story, tmp_path).sql(story.cql)
    writer = query.writeStream.format("kafka").options(topic="out", **brokers)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(realTime=True).slots(1)
    send(cluster, tables)
    handle = writer.start()
    handle.processAllAvailable()
    handle.stop()
    end = listing(KafkaOptions.of({**brokers, "subscribe": "out"})).offsets(latest=True)["out"]["0"]
    columns = compile_query(story.cql, story.catalog()).schema.to_arrow()
    form = KafkaForm({"bootstrap.servers": cluster.bootstrap}, columns)
    found = rows_as_multiset(form.read(f"out/0/0-{end}", form.whole))
    assert not describe_difference(story.expected(tables), found)


def test_a_bad_record_or_lost_records_end_the_query_by_name(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    query = register(spark, of(JOIN, cluster), tmp_path).sql(JOIN.cql)
    cluster.send("s0", [b'{"x": "no number"}'])
    handle = start(query, tmp_path / "bad")
    with pytest.raises(AnabranchError, match="record 0 of partition 0 of topic 's0' is not one of its stream"):
        handle.processAllAvailable()
    cluster.ask("forget", "s0", 0, 1)
    handle = start(query, tmp_path / "lost")
    handle.processAllAvailable()
    handle.stop()
    cluster.send("s0", [b"{}"] * 3)
    cluster.ask("forget", "s0", 0, 3)
    handle = start(query, tmp_path / "lost")
    with pytest.raises(AnabranchError, match="no longer has the records 's0/0/1-4'"):
        handle.processAllAvailable()


def test_a_frame_that_only_spark_can_compute_is_refused(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    frame = frames(spark, of(JOIN, cluster), tmp_path)["s0"]
    session = anabranch.Session(spark)
    session.register("s0", frame.withColumn("x", f.rand()), "ts")
    with pytest.raises(SpecError, match="stream 's0' cannot be read in real-time mode") as caught:
        start(session.sql("SELECT a.x AS x FROM s0 [NOW] AS a"), tmp_path)
    assert "only Spark can compute" in str(caught.value)


# --- what the driver polls, without a query ------------------------------------------------------------------------


def watched(cluster: Cluster, **options: str) -> WatchedTopics:
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": "s0", **options}
    return WatchedTopics(given, to_spark(parse_schema("x bigint")))


def test_ranges_are_offered_until_they_are_taken(cluster: Cluster) -> None:
    cluster.send("s0", [b"{}"] * 5)
    topics = watched(cluster, startingOffsets="earliest", maxOffsetsPerTrigger="3")
    assert topics.poll() == ["s0/0/0-0", "s0/1/0-0"]
    topics.took(["s0/0/0-0", "s0/1/0-0"])
    assert topics.poll() == topics.poll() == ["s0/0/0-3"]
    topics.took(["s0/0/0-3"])
    assert topics.poll() == ["s0/0/3-5"]
    topics.took(["s0/0/3-5"])
    assert topics.poll(is_thorough=True) == []
    again = watched(cluster)
    again.took(topics.read)
    again.took(["s0/0/0-3"])  # an earlier batch, whose manifest is still there
    cluster.send("s0", [b"{}"], partition=1)
    assert again.poll(is_thorough=True) == ["s0/1/0-1"]
    assert again.shown == {
        "endOffset": {"s0": {"0": 5, "1": 0}},
        "latestOffset": {"s0": {"0": 5, "1": 1}},
    }


# --- deaths -----------------------------------------------------------------------------------------------------------


def die_and_go_on(folder: Path, story: Story, deaths: list[tuple[str, str, int]], master: str = "local[3]") -> None:
    tables: Mapping[str, pa.Table] = story.tables()
    with broker(dict.fromkeys(story.streams, 2)) as own:
        send(own, tables)
        deaths_change_nothing(folder, replace(story, brokers=own.bootstrap, is_apart=False), tables, deaths, master)


@own_driver
@pytest.mark.parametrize("who", ["driver", "slot"])
def test_a_death_changes_no_answer(who: str, tmp_path: Path) -> None:
    die_and_go_on(tmp_path, JOIN, [(who, "written", 2)])


@own_driver
@pytest.mark.slow
@pytest.mark.parametrize("who", ["driver", "slot"])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("story", [JOIN, GROUPS], ids=["join", "groups"])
def test_a_death_at_any_crash_point_changes_no_answer(story: Story, phase: str, who: str, tmp_path: Path) -> None:
    die_and_go_on(tmp_path, story, [(who, phase, 2)])


@own_driver
@pytest.mark.slow
def test_deaths_one_after_another_change_no_answer(tmp_path: Path) -> None:
    die_and_go_on(tmp_path, JOIN, [("driver", "begin", 0), ("driver", "written", 0), ("driver", "committed", 1)])


@own_driver
@pytest.mark.slow
def test_a_killed_slot_is_started_again_on_two_executors(tmp_path: Path) -> None:
    die_and_go_on(tmp_path, GROUPS, [("slot", "begin", 2)], "local-cluster[2,2,1024]")
