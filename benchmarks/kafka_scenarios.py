"""Streams of text rows as topics of Kafka, on librdkafka's mock cluster in a process of its own, against Spark's joins.

Spark's own joins read the same topics through the same source; and, for fairness, the same values from files of text
with `from_json`. Rows are spread over the partitions in turn, so that those of a micro-batch are hardly out of order.
Limit: the mock cluster keeps five megabytes of a partition, so there are many partitions, and values are compressed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa

from anabranch.testing.kafka_broker import Cluster, broker
from benchmarks.against import Scenario
from benchmarks.bench import Bench
from benchmarks.figures import Bound, Figure, ratio
from benchmarks.job import System
from benchmarks.kafka_streams import BROKERS, texts_of
from benchmarks.user_workloads import auctions
from benchmarks.workloads import Workload, tables, written

PARTITIONS = 64
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
    with broker({stream.name: PARTITIONS for stream in workload.streams}) as cluster:
        for number, batch in enumerate(tables(workload)):
            for name, rows in batch.items():
                texts = as_texts(rows)
                _send(cluster, name, texts)
                _write(texts_of(directory, name) / f"batch-{number:05}.txt", texts, number)
        os.environ[BROKERS] = cluster.bootstrap
        try:
            yield
        finally:
            del os.environ[BROKERS]


def as_texts(rows: pa.Table) -> list[bytes]:
    """Returns rows as objects of JSON."""
    times = rows.column("ts").cast(pa.timestamp("us")).cast(pa.string()).to_pylist()
    columns = rows.drop_columns(["ts"]).to_pylist()
    return [
        json.dumps({"ts": f"{time.replace(' ', 'T')}Z", **row}).encode()
        for time, row in zip(times, columns, strict=True)
    ]


def _send(cluster: Cluster, topic: str, texts: list[bytes]) -> None:
    for partition in range(PARTITIONS):
        cluster.send(topic, texts[partition::PARTITIONS], partition=partition, compression="zstd")


def _write(path: Path, texts: list[bytes], number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\n".join(texts) + b"\n")
    os.utime(path, (1_767_225_600 + 10 * number,) * 2)


SCENARIOS = tuple(
    Scenario(f"kafka-{n}", f"texts from topics of Kafka, {n} relations", partial(from_topics, relations=n))
    for n in (2, 3)
)
