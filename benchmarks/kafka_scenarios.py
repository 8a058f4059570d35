"""Streams of text rows as topics of Kafka, on librdkafka's mock cluster in a process of its own, against Spark's joins.

Spark's own joins read the same topics through the same source; and, for fairness, the same values from files of text
with `from_json`. Rows are spread over the partitions in turn, so that those of a micro-batch are hardly out of order:
by few rows of each partition, and slow streams have few partitions. Limit: the mock cluster keeps five megabytes of a
partition, so fast streams have many partitions, and values are compressed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from anabranch.lang.ddl import parse_schema
from anabranch.run.kafka.json_values import parse
from anabranch.run.kafka.ranges import KafkaForm, OffsetRange
from benchmarks.against import Scenario
from benchmarks.bench import Bench
from benchmarks.figures import Bound, Figure, ratio
from benchmarks.job import System, WrongAnswer
from benchmarks.kafka_streams import BROKERS, texts_of
from benchmarks.user_workloads import auctions
from benchmarks.workloads import Workload, tables, written
from tests.support.kafka_broker import Cluster, broker

ROWS_OF_PARTITION = 15_000
WARM_UP = 2
OURS: System = "ours-kafka"
RIVALS: tuple[tuple[System, str, float], ...] = (
    ("native-kafka", "Spark's own joins on the same topics", 3.0),
    ("native-json", "Spark's own joins with from_json over files", 2.0),
)


def from_topics(bench: Bench, relations: int) -> list[Figure]:
    workload = auctions(relations, bench.sizes.user_rows, bench.sizes.user_batches)
    found: dict[System, list[float]] = {}
    with fed(workload):
        for number in range(bench.repeats):
            for system in (OURS, *(system for system, _, _ in RIVALS)):
                found.setdefault(system, []).append(bench.spark(system, workload, number).rows_per_second)
    label = f"Kafka, {relations} relations"
    figures = [
        ratio(
            f"{label}: rows/s over {rival}",
            [a / b for a, b in zip(found[OURS], found[system], strict=True)],
            Bound("at least", least),
        )
        for system, rival, least in RIVALS
    ]
    return figures + [Figure(f"{label}: {system}", "rows/s", tuple(rates)) for system, rates in found.items()]


@contextmanager
def fed(workload: Workload) -> Iterator[None]:
    """Writes the rows of a workload into topics and, as the same texts, into files."""
    directory = written(workload)
    counts = {stream.name: partitions(stream.rows) for stream in workload.streams}
    with broker(counts) as cluster:
        whole: dict[str, list[bytes]] = {name: [] for name in counts}
        for number, batch in enumerate(tables(workload)):
            for name, rows in batch.items():
                texts = as_texts(rows)
                whole[name] += texts
                _write(texts_of(directory, name) / f"batch-{number:05}.txt", texts, number)
        for name, texts in whole.items():
            _send(cluster, name, texts, counts[name])
        del whole
        os.environ[BROKERS] = cluster.bootstrap
        try:
            yield
        finally:
            del os.environ[BROKERS]


def partitions(rows: int) -> int:
    return -(-rows // ROWS_OF_PARTITION)


def as_texts(rows: pa.Table) -> list[bytes]:
    """Returns rows as objects of JSON."""
    times = rows.column("ts").cast(pa.timestamp("us")).cast(pa.string()).to_pylist()
    columns = rows.drop_columns(["ts"]).to_pylist()
    return [
        json.dumps({"ts": f"{time.replace(' ', 'T')}Z", **row}).encode()
        for time, row in zip(times, columns, strict=True)
    ]


def _send(cluster: Cluster, topic: str, texts: list[bytes], count: int) -> None:
    for partition in range(count):
        cluster.send(topic, texts[partition::count], partition=partition, compression="zstd")


def _write(path: Path, texts: list[bytes], number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\n".join(texts) + b"\n")
    os.utime(path, (1_767_225_600 + 10 * number,) * 2)


def decoding(bench: Bench) -> list[Figure]:
    """Bids as columns, on one core: by a reader of Kafka, and by `from_json` of Spark over the same texts in memory."""
    workload = auctions(2, bench.sizes.user_rows // 4, 1)
    stream = workload.streams[-1]
    (batch,) = tables(workload)
    texts = as_texts(batch[stream.name])
    columns = parse_schema(stream.spark_schema).to_arrow()
    cores = os.sched_getaffinity(0)
    # Threads and processes that start from now on share one core: those of the client, and the JVM.
    os.sched_setaffinity(0, {min(cores)})
    try:
        theirs, answer = _from_json(stream.spark_schema, texts, bench.repeats)
        ours = _seconds(lambda: parse(texts, columns), bench.repeats)
        if not parse(texts, columns).rows.equals(answer.cast(columns)):
            raise WrongAnswer("the decoded columns are not those of from_json")
        fetched = _from_broker(stream.name, columns, texts, bench.repeats)
    finally:
        os.sched_setaffinity(0, cores)
    rates = {"parse": ours, "from_json": theirs, "fetch and parse": fetched}
    return [
        ratio(
            "decoding on one core: rows/s over from_json",
            [native / mine for mine, native in zip(ours, theirs, strict=True)],
            Bound("at least", 2.0),
        ),
        ratio(
            "decoding on one core, with the records fetched from the broker: rows/s over from_json without",
            [native / mine for mine, native in zip(fetched, theirs, strict=True)],
        ),
        *(
            Figure(f"decoding: {name}", "rows/s", tuple(len(texts) / each for each in seconds))
            for name, seconds in rates.items()
        ),
    ]


def _from_json(schema: str, texts: list[bytes], repeats: int) -> tuple[list[float], pa.Table]:
    spark = SparkSession.builder.master("local[1]").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    try:
        with TemporaryDirectory() as folder:
            parquet.write_table(pa.table({"value": pa.array(texts, pa.binary()).cast(pa.string())}), f"{folder}/texts")
            values = spark.read.parquet(f"{folder}/texts").cache()
            values.count()
            rows = values.select(F.from_json("value", schema).alias("row")).select("row.*")
            written = rows.write.format("noop").mode("overwrite")
            seconds = _seconds(written.save, repeats)
            return seconds, rows.toArrow()
    finally:
        spark.stop()


def _from_broker(topic: str, columns: pa.Schema, texts: list[bytes], repeats: int) -> list[float]:
    count = partitions(len(texts))
    with broker({topic: count}) as cluster:
        _send(cluster, topic, texts, count)
        form = KafkaForm({"bootstrap.servers": cluster.bootstrap}, columns)
        ranges = [(str(OffsetRange(topic, each, 0, len(texts[each::count]))), None) for each in range(count)]
        return _seconds(lambda: list(form.read_several(ranges, form.whole)), repeats)


def _seconds(work: Callable[[], object], repeats: int) -> list[float]:
    """Returns the seconds of each repetition, after two that compile code."""
    spent = []
    for _ in range(WARM_UP + repeats):
        started = perf_counter()
        work()
        spent.append(perf_counter() - started)
    return spent[WARM_UP:]


SCENARIOS = (
    *(
        Scenario(f"kafka-{n}", f"texts from topics of Kafka, {n} relations", partial(from_topics, relations=n))
        for n in (2, 3)
    ),
    Scenario("kafka-decoding", "texts of topics as columns, on one core, against from_json", decoding),
)
