"""Seeded streams and queries for the end-to-end tests, and functions that feed and check them.

Streams have ties, NULLs in every key column, skew, odd floats, and arrive out of order within their allowed disorder.

Invariant: one feed is one micro-batch, whether the query runs meanwhile or not. A feed is one Parquet file with the
rows of all streams, renamed into a folder that the query reads as a single source, one file per micro-batch. With a
folder for each stream Spark could list one folder before the feed and another one after it, and make two micro-batches
of a feed.

Limit: all streams have the same columns, and a query has one source. Queries over several sources are tested where
nothing is fed while they run (test_api.py, test_launch.py).
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, parquet
from pyspark.sql import DataFrame, SparkSession

import anabranch
from anabranch.adapt.course import MoveStrategy
from anabranch.api import ContinuousQuery, Session
from anabranch.cql import compile_query
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.schema import TIMESTAMP, Schema
from anabranch.spark.kafka_source import FORMAT as KAFKA
from anabranch.spark.kafka_source import KafkaTopics
from anabranch.spark.stored_files import FORMAT as STORED
from anabranch.spark.stored_files import FilesOfFolder
from tests.support.duckdb_sql import duckdb_answer
from tests.support.kafka_broker import Cluster
from tests.support.oracle import Answer, batch_answer, rows_as_multiset
from tests.support.s3_server import S3Server

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
COLUMNS = pa.schema(
    [
        ("ts", TIMESTAMP),
        ("x", pa.int64()),
        ("y", pa.int32()),
        ("s", pa.string()),
        ("f", pa.float64()),
        ("d", pa.decimal128(9, 2)),
        ("p", pa.int64()),
    ]
)
FEEDS = "feeds"
STREAM = "stream"
RECORDS = 24
"""Those of a topic in a micro-batch, half of each partition."""
SPARK_COLUMNS = "ts timestamp, x bigint, y int, s string, f double, d decimal(9,2), p bigint"


@dataclass(frozen=True)
class Story:
    """A query, how it is run, and the disorder (in seconds) of the streams that have some.

    `switches` are changes of plan on the way: batch, plan, strategy. `moves` are moves of groups of slot 0: batch,
    slot that takes them, how many, strategy.
    """

    cql: str
    slots: int = 2
    plan: str = "auto"
    disorder: Mapping[str, int] = field(default_factory=dict)
    rows: int = 60
    seed: int = 1
    switches: Sequence[tuple[int, str, str]] = ()
    moves: Sequence[tuple[int, int, int, MoveStrategy]] = ()
    is_apart: bool = False
    """Whether each stream is a folder of its own, whose files the slots read; for stories that are fed beforehand."""
    form: str = "parquet"
    """The form of such files: parquet or json."""
    sink: str = "parquet"
    brokers: str = ""
    """Where each stream is a topic of two partitions, if it is one; for stories that are fed beforehand."""
    store: str = ""
    """The endpoint of an S3 server where each stream is a folder of a bucket; for stories that are fed beforehand."""

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple(name for name in ("s0", "s1", "s2", "s3") if f"{name} [" in self.cql)

    def tables(self) -> dict[str, pa.Table]:
        """The rows of each stream in order of arrival."""
        return {
            name: arrivals(np.random.default_rng([self.seed, number]), number, self.rows, self.disorder.get(name, 0))
            for number, name in enumerate(self.streams)
        }

    def catalog(self) -> Catalog:
        catalog = Catalog()
        for name in self.streams:
            disorder = self.disorder.get(name, 0) * SECOND
            catalog.register(StreamDeclaration(name, Schema.from_arrow(COLUMNS), "ts", disorder))
        return catalog

    def expected(self, tables: Mapping[str, pa.Table]) -> Answer:
        """The batch answer: DuckDB's for an inner join, the naive evaluator's for any other query."""
        query = compile_query(self.cql, self.catalog())
        if query.grouping is None and not query.sides:
            return rows_as_multiset(duckdb_answer(query, tables))
        return batch_answer(query, tables)


def arrivals(rng: np.random.Generator, number: int, rows: int, disorder: int) -> pa.Table:
    """One stream over a minute; a row arrives at its time plus a delay of at most the allowed disorder."""
    times = rng.integers(0, 120, rows) * (SECOND // 2)
    order = np.argsort(times + rng.integers(0, disorder * SECOND + 1, rows), kind="stable")
    keys = [0, 0, 0, 1, 1, 2, 3, 4, None]
    values: dict[str, Sequence[object]] = {
        "x": [keys[i] for i in rng.integers(0, len(keys), rows)],
        "y": [keys[i] for i in rng.integers(0, len(keys), rows)],
        "s": [["a", "ab", "b", "bä", "", None][i] for i in rng.integers(0, 6, rows)],
        "f": [[0.0, -0.0, 0.5, 1.0, float("nan"), None][i] for i in rng.integers(0, 6, rows)],
        "d": [[Decimal("1.50"), Decimal("2.25"), Decimal("-7.00"), None][i] for i in rng.integers(0, 4, rows)],
        "p": [1000 * number + i for i in range(rows)],
    }
    arrays = [pa.array(START + times[order], pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP)]
    arrays += [pa.array(values[column.name], column.type) for column in list(COLUMNS)[1:]]
    return pa.table(arrays, schema=COLUMNS)


def table(rows: Sequence[tuple[float, int | None, int]]) -> pa.Table:
    """Rows of (second, x, p); the other columns are NULL."""
    times = [START + round(second * SECOND) for second, _, _ in rows]
    columns: dict[str, Sequence[object]] = {"x": [x for _, x, _ in rows], "p": [p for _, _, p in rows]}
    arrays = [pa.array(times, pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP)]
    arrays += [pa.array(columns.get(column.name, [None] * len(rows)), column.type) for column in list(COLUMNS)[1:]]
    return pa.table(arrays, schema=COLUMNS)


def over_restarts(spark: SparkSession, story: Story, tables: Mapping[str, pa.Table], folder: Path) -> int:
    """Runs a story in four batches, each by a new run with other slots; returns the watermark."""
    query = register(spark, story, folder).sql(story.cql)
    legs = [("auto", 3), ("mjoin", 1), ("auto", 2), ("mjoin", 3)]
    for batch, (plan, slots) in zip(cut(tables, len(legs)), legs, strict=True):
        feed(folder, batch)
        handle = run(query, folder, plan, slots)
        assert handle.report()["late_rows"] == 0
    progress = handle.lastProgress
    assert progress is not None
    return int(progress["adaptive"]["watermark"])


def before(tables: Mapping[str, pa.Table], watermark: int) -> dict[str, pa.Table]:
    """Returns the rows that are older than a watermark."""
    times = {name: rows["ts"].cast(pa.timestamp("us")).cast(pa.int64()) for name, rows in tables.items()}
    return {name: rows.filter(pc.less(times[name], watermark)) for name, rows in tables.items()}


def cut(tables: Mapping[str, pa.Table], batches: int) -> Iterator[dict[str, pa.Table]]:
    """The rows in `batches` micro-batches of about equal size."""
    for number in range(batches):
        yield {
            name: table.slice(
                number * table.num_rows // batches,
                (number + 1) * table.num_rows // batches - number * table.num_rows // batches,
            )
            for name, table in tables.items()
        }


def feed(folder: Path, batch: Mapping[str, pa.Table]) -> None:
    """Adds the rows of all streams as one micro-batch, which becomes visible at once."""
    feeds = folder / FEEDS
    feeds.mkdir(parents=True, exist_ok=True)
    number = sum(path.suffix == ".parquet" for path in feeds.iterdir())
    rows = [each.append_column(STREAM, pa.repeat(pa.scalar(name), each.num_rows)) for name, each in batch.items()]
    hidden = feeds / f".{number:04d}.parquet.hidden"
    parquet.write_table(pa.concat_tables(rows), hidden)
    # Spark takes files in the order of their times of modification.
    os.utime(hidden, (START // SECOND + number, START // SECOND + number))
    hidden.rename(feeds / f"{number:04d}.parquet")


def feed_apart(folder: Path, batch: Mapping[str, pa.Table], form: str = "parquet") -> None:
    """Adds the rows of each stream as a file of its own; fed before anybody reads, a batch is a micro-batch."""
    for name, rows in batch.items():
        number = len(list((folder / name).glob(f"*.{form}")))
        write_apart(folder, name, number, rows, form)


def write_apart(folder: Path, name: str, number: int, rows: pa.Table, form: str = "parquet", **options: object) -> None:
    """Writes one file of a stream, which becomes visible at once."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    hidden = folder / name / f".part {number:04d}.hidden"
    if form == "json":
        hidden.write_bytes(b"".join(line + b"\n" for line in as_json(rows)))
    else:
        parquet.write_table(rows, hidden, **options)
    os.utime(hidden, (START // SECOND + number, START // SECOND + number))
    hidden.rename(folder / name / f"part {number:04d}.{form}")


def without_nan(tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """Returns the tables with NULL in place of NaN, which JSON does not have."""
    found = {}
    for name, rows in tables.items():
        floats = rows["f"]
        kept = pc.if_else(pc.fill_null(pc.is_nan(floats), False), None, floats)
        found[name] = rows.set_column(rows.column_names.index("f"), rows.schema.field("f"), kept)
    return found


def send(cluster: Cluster, tables: Mapping[str, pa.Table]) -> None:
    """Writes the rows of each stream into its topic, in turn to its two partitions."""
    for name, rows in tables.items():
        for partition in range(2):
            cluster.send(name, as_json(rows.take(list(range(partition, len(rows), 2)))), partition=partition)


def put(store: S3Server, folder: Path, tables: Mapping[str, pa.Table], form: str = "parquet") -> None:
    """Adds the rows of each stream as an object of its own below the name of the folder."""
    for name, rows in tables.items():
        number = len(store.keys(f"{folder.name}/{name}/"))
        data = io.BytesIO()
        if form == "json":
            data.write(b"".join(line + b"\n" for line in as_json(rows)))
        elif form == "csv":
            csv.write_csv(rows, data, csv.WriteOptions(include_header=False, quoting_style="none"))
        else:
            parquet.write_table(rows, data)
        store.put(f"bucket/{folder.name}/{name}/part {number:04d}.{form}", data.getvalue())


def as_json(rows: pa.Table) -> list[bytes]:
    """Returns rows as objects of JSON; timestamps as texts in UTC, and decimals as numbers."""
    texts = []
    for row in rows.to_pylist():
        given = {name: value.isoformat() if isinstance(value, datetime) else value for name, value in row.items()}
        texts.append(json.dumps(given, default=float).encode())
    return texts


def frames(spark: SparkSession, story: Story, folder: Path) -> dict[str, DataFrame]:
    """The story's streams by name, all of one source or each of its own."""
    if story.brokers:
        spark.dataSource.register(KafkaTopics)
        options = {
            "kafka.bootstrap.servers": story.brokers,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(RECORDS),
        }
        topics = spark.readStream.format(KAFKA).schema(SPARK_COLUMNS).options(**options)
        return {name: topics.option("subscribe", name).load() for name in story.streams}
    if story.store:
        spark.dataSource.register(FilesOfFolder)
        reader = spark.readStream.format(STORED).schema(SPARK_COLUMNS).option("maxFilesPerTrigger", 1)
        reader = reader.option("fileFormat", story.form)
        place = f"bucket/{folder.name}"
        return {name: reader.load(S3Server(story.store).uri(f"{place}/{name}")) for name in story.streams}
    if story.is_apart:
        for name in story.streams:
            (folder / name).mkdir(parents=True, exist_ok=True)
        files = spark.readStream.schema(SPARK_COLUMNS).option("maxFilesPerTrigger", 1)
        return {name: files.format(story.form).load(str(folder / name)) for name in story.streams}
    (folder / FEEDS).mkdir(parents=True, exist_ok=True)
    reader = spark.readStream.schema(f"{SPARK_COLUMNS}, {STREAM} string").option("maxFilesPerTrigger", 1)
    # Slots do not know the option, so that Spark reads.
    source = reader.option("mergeSchema", "false").parquet(str(folder / FEEDS))
    return {name: source.where(source[STREAM] == name).drop(STREAM) for name in story.streams}


def register(spark: SparkSession, story: Story, folder: Path, **idle_timeouts: str) -> Session:
    """A session with the story's streams; each feed is one micro-batch of them."""
    session = anabranch.Session(spark)
    for name, frame in frames(spark, story, folder).items():
        disorder = f"{story.disorder.get(name, 0)} seconds"
        session.register(name, frame, "ts", watermark=disorder, idle_timeout=idle_timeouts.get(name))
    return session


def run(
    query: ContinuousQuery, folder: Path, plan: str = "auto", slots: int = 2, sink: str = "parquet"
) -> anabranch.QueryHandle:
    """Runs the query over all feeds so far; results and checkpoint are in folders below `folder`."""
    writer = query.writeStream.format(sink).option("checkpointLocation", str(folder / "checkpoint"))
    writer = writer.options(**sink_options(sink, folder)).trigger(availableNow=True)
    handle = writer.plan(plan).slots(slots).start()
    handle.awaitTermination()
    return handle


def sink_options(sink: str, folder: Path) -> dict[str, str]:
    """The options of a sink whose results are below `folder`."""
    if sink != "iceberg":
        return {"path": str(folder / "out")}
    (folder / "out").mkdir(exist_ok=True)
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/out/catalog.db", "warehouse": f"file://{folder}/out"}
    return {"table": "db.results", **catalog}


def written(folder: Path, sink: str = "parquet") -> Answer:
    """The rows in the sink, read by a library that is not ours."""
    if sink == "delta":
        from deltalake import DeltaTable

        return rows_as_multiset(DeltaTable(str(folder / "out")).to_pyarrow_table())
    if sink == "iceberg":
        from pyiceberg.catalog import load_catalog

        options = sink_options(sink, folder)
        rows = load_catalog("default", **options).load_table(options["table"]).scan().to_arrow()
        return rows_as_multiset(rows)
    files = sorted((folder / "out").glob("part-*.parquet"))
    return rows_as_multiset(pa.concat_tables([parquet.read_table(file) for file in files])) if files else Answer()


def fails_once(seen: dict[int, Answer], at: int = 2) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch` that keeps the answer of each batch, and fails at the first attempt at one.

    By then the files of other queries of the batch may be there.
    """
    failed: list[int] = []

    def keep(frame: DataFrame, batch: int) -> None:
        if batch == at and not failed:
            failed.append(batch)
            raise RuntimeError("no place left")
        seen[batch] = rows_as_multiset(frame.toArrow())

    return keep
