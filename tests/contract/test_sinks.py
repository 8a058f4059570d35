"""Every sink keeps the contract of sinks; so does a toy sink that only this module knows.

To hold a new sink to the contract, add a case to `CASES`: how to make the sink and how to read its target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from anabranch.errors import ExpressionError, SinkError
from anabranch.lang.schema import Field, Schema
from anabranch.plan.query_set import ALONE
from anabranch.spark.sinks.delivery import deliver
from anabranch.spark.sinks.files import FileSink
from anabranch.spark.sinks.functions import ForeachBatchSink
from anabranch.spark.sinks.make import MAKERS, SinkRequest, make_sink
from anabranch.spark.sinks.memory import MemorySink
from anabranch.spark.sinks.sink import Batch, Sink
from anabranch.spark.sinks.table import TableSink
from anabranch.spark.sinks.worker_files import ParquetFiles, WorkerFileSink
from tests.spark.delivering import arrow_frame, results

pytestmark = pytest.mark.spark

SCHEMA = Schema((Field("k", pa.int64()), Field("v", pa.string())))
COLUMNS = "k bigint, v string"
EMPTY = pa.table({"k": [], "v": []})
Rows: TypeAlias = list[tuple[int, str]]


@dataclass
class Case:
    """A sink under test: `restart` gives the sink object of a new run over the same target."""

    restart: Callable[[], Sink]
    read: Callable[[], Rows]


@dataclass
class ToySink(Sink):
    """Keeps batches in a dictionary: the least that a sink must do to replace a replayed batch."""

    target: dict[int, Rows]
    written: Rows = field(default_factory=list)

    @property
    def title(self) -> str:
        return "'toy'"

    def write(self, frame: DataFrame, batch: Batch) -> None:
        self.written = [(row["k"], row["v"]) for row in frame.collect()]

    def publish(self, batch: Batch) -> None:
        self.target[batch.number] = self.written


def toy(spark: SparkSession, folder: Path) -> Case:
    target: dict[int, Rows] = {}
    return Case(lambda: ToySink(target), lambda: sorted(row for rows in target.values() for row in rows))


def memory(spark: SparkSession, folder: Path) -> Case:
    """The driver's memory does not outlive the run, so a replay meets the same object."""
    sink = MemorySink("sink_contract", spark, SCHEMA)
    return Case(lambda: sink, lambda: sorted((row["k"], row["v"]) for row in sink.table().to_pylist()))


def parquet(spark: SparkSession, folder: Path) -> Case:
    return Case(
        lambda: WorkerFileSink(str(folder), ParquetFiles("snappy")), lambda: read_files(spark, "parquet", folder)
    )


def files(format: str, **options: str) -> Callable[[SparkSession, Path], Case]:
    def make(spark: SparkSession, folder: Path) -> Case:
        return Case(
            lambda: FileSink(format, str(folder), options), lambda: read_files(spark, format, folder, **options)
        )

    return make


def table(spark: SparkSession, folder: Path) -> Case:
    name = f"contract_{abs(hash(folder))}"
    return Case(
        lambda: TableSink(name, spark, SCHEMA, options={"path": str(folder)}),
        lambda: read_files(spark, "parquet", folder),
    )


def delta(*partition_by: str) -> Callable[[SparkSession, Path], Case]:
    def make(spark: SparkSession, folder: Path) -> Case:
        deltalake = pytest.importorskip("deltalake", reason="the extra 'delta' is not installed")

        def read() -> Rows:
            rows = deltalake.DeltaTable(str(folder)).to_pyarrow_table() if folder.exists() else EMPTY
            return sorted((row["k"], row["v"]) for row in rows.to_pylist())

        options = {"path": str(folder)}
        return Case(
            lambda: make_sink("delta", options, spark=spark, schema=SCHEMA, partition_by=partition_by),
            read,
        )

    return make


def iceberg(*partition_by: str) -> Callable[[SparkSession, Path], Case]:
    def make(spark: SparkSession, folder: Path) -> Case:
        pytest.importorskip("pyiceberg", reason="the extra 'iceberg' is not installed")
        from pyiceberg.catalog import load_catalog

        folder.mkdir()
        catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}

        def read() -> Rows:
            catalogue = load_catalog("default", **catalog)
            if not catalogue.table_exists("db.results"):
                return []
            rows = catalogue.load_table("db.results").scan().to_arrow()
            return sorted((row["k"], row["v"]) for row in rows.to_pylist())

        options = {"table": "db.results", **catalog}
        return Case(
            lambda: make_sink("iceberg", options, spark=spark, schema=SCHEMA, partition_by=partition_by),
            read,
        )

    return make


def read_files(spark: SparkSession, format: str, folder: Path, **options: str) -> Rows:
    if not folder.exists():
        return []
    frame = spark.read.format(format).schema(COLUMNS).options(**options).load(str(folder))
    return sorted((row["k"], row["v"]) for row in frame.collect())


CASES: dict[str, Callable[[SparkSession, Path], Case]] = {
    "toy": toy,
    "memory": memory,
    "parquet": parquet,
    "csv": files("csv", header="true"),
    "xml": files("xml", rowTag="ROW"),
    "table": table,
    "delta": delta(),
    "partitioned delta": delta("v"),
    "iceberg": iceberg(),
    "partitioned iceberg": iceberg("v"),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Case:
    return CASES[request.param](spark, tmp_path / "out")


def frame_of(spark: SparkSession, rows: Rows) -> DataFrame:
    return arrow_frame(spark, rows).repartition(2, "k")


def write(sink: Sink, frame: DataFrame, batch: int) -> None:
    deliver(
        {ALONE: sink},
        Batch(batch, "0badcafe"),
        results(frame),
    )


def explode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise ExpressionError("integer overflow in 'a.k + 1'")


def refuse(frame: DataFrame, batch: int) -> None:
    raise RuntimeError("no room")


def test_batches_add_up_and_an_empty_one_adds_nothing(case: Case, spark: SparkSession) -> None:
    sink = case.restart()
    sink.begin()
    for batch, rows in enumerate([[(1, "a"), (2, "b")], [], [(3, "c")]]):
        write(sink, frame_of(spark, rows), batch)
    assert case.read() == [(1, "a"), (2, "b"), (3, "c")]


def test_a_replayed_batch_replaces_the_first_attempt(case: Case, spark: SparkSession) -> None:
    write(case.restart(), frame_of(spark, [(1, "a")]), 0)
    write(case.restart(), frame_of(spark, [(2, "half"), (3, "half")]), 1)
    write(case.restart(), frame_of(spark, [(2, "b")]), 1)
    assert case.read() == [(1, "a"), (2, "b")]
    write(case.restart(), frame_of(spark, []), 1)
    assert case.read() == [(1, "a")]


def test_a_step_that_fails_leaves_nothing_and_the_replay_all(case: Case, spark: SparkSession) -> None:
    write(case.restart(), frame_of(spark, [(1, "a")]), 0)
    frame = frame_of(spark, [(2, "b"), (3, "c")])
    with pytest.raises(ExpressionError):
        write(case.restart(), frame.mapInArrow(explode, COLUMNS), 1)
    assert case.read() == [(1, "a")]
    write(case.restart(), frame, 1)
    assert case.read() == [(1, "a"), (2, "b"), (3, "c")]


def test_another_sink_of_the_run_that_fails_leaves_nothing_published(case: Case, spark: SparkSession) -> None:
    frame = together(spark, {"first": [(1, "a")], "other": [(9, "z")]})

    def run(other: Sink) -> None:
        deliver(
            {"first": case.restart(), "other": other},
            Batch(0, "0badcafe"),
            results(frame),
        )

    with pytest.raises(SinkError, match="'foreachBatch' failed on batch 0"):
        run(ForeachBatchSink(refuse))
    assert case.read() == []
    taken: dict[int, Rows] = {}
    run(ToySink(taken))
    assert case.read() == [(1, "a")]
    assert taken == {0: [(9, "z")]}


def test_a_query_that_runs_by_name_may_be_the_only_one(case: Case, spark: SparkSession) -> None:
    frame = together(spark, {"only": [(1, "a"), (2, "b")]})
    deliver(
        {"only": case.restart()},
        Batch(0, "0badcafe"),
        results(frame),
    )
    assert case.read() == [(1, "a"), (2, "b")]


def test_the_step_runs_once_for_each_partition(case: Case, spark: SparkSession) -> None:
    counter = spark.sparkContext.accumulator(0)

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counter.add(1)
        yield from batches

    frame = spark.range(10, numPartitions=2).selectExpr("id AS k", "string(id) AS v").mapInArrow(count, COLUMNS)
    write(case.restart(), frame, 0)
    assert counter.value == 2
    assert len(case.read()) == 10


def together(spark: SparkSession, results: dict[str, Rows]) -> DataFrame:
    """Results of several queries as they travel: a struct column for each, Arrow batches of one query each."""
    frames = [
        frame_of(spark, rows).select(
            *(
                f.struct("k", "v").alias(name) if name == own else f.lit(None).cast(_STRUCT).alias(name)
                for name in results
            )
        )
        for own, rows in results.items()
    ]
    united = frames[0]
    for each in frames[1:]:
        united = united.unionAll(each)
    return united


_STRUCT = "struct<k: bigint, v: string>"


def test_a_format_of_ones_own_is_one_entry(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(request: SinkRequest) -> Sink:
        return ToySink({}, [(len(request.schema), request.sink.options["colour"])])

    monkeypatch.setitem(MAKERS, "toy", make)
    assert make_sink("Toy", {"colour": "red"}, spark=spark, schema=SCHEMA) == ToySink({}, [(2, "red")])
