"""The contract of every sink: a batch written again replaces what its first attempt left."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark import AccumulatorParam, TaskContext
from pyspark.sql import DataFrame, SparkSession

from anabranch import errors
from anabranch.lang.schema import TIMESTAMP, Field, Schema
from anabranch.plan.query_set import ALONE
from anabranch.spark.arrow_schema import from_spark
from anabranch.spark.failure import for_spark, query_id
from anabranch.spark.sinks.delivery import deliver
from anabranch.spark.sinks.files import FileSink
from anabranch.spark.sinks.functions import ConsoleSink, ForeachBatchSink
from anabranch.spark.sinks.make import make_sink
from anabranch.spark.sinks.memory import MemorySink
from anabranch.spark.sinks.sink import Batch, Sink
from anabranch.spark.sinks.spark_writer import WriterSink
from anabranch.spark.sinks.table import TableSink
from anabranch.spark.sinks.worker_files import WorkerFileSink
from tests.spark.delivering import arrow_frame, results

pytestmark = pytest.mark.spark

SCHEMA = Schema((Field("k", pa.int64()), Field("v", pa.string())))
COLUMNS = "k bigint, v string"


def write(sink: Sink, frame: DataFrame, batch: int) -> None:
    """Delivers a frame as the results of a query that runs alone."""
    deliver(
        {ALONE: sink},
        Batch(batch, query_id(frame)),
        results(frame),
    )


def rows(spark: SparkSession, *pairs: tuple[int, str]) -> DataFrame:
    return arrow_frame(spark, pairs).coalesce(1)


def content(spark: SparkSession, path: Path, format: str = "parquet", **options: str) -> list[tuple[object, ...]]:
    frame = spark.read.format(format).schema(COLUMNS).options(**options).load(str(path))
    return sorted((row["k"], row["v"]) for row in frame.collect())


def visible(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


@pytest.mark.parametrize(
    ("format", "options"), [("parquet", {}), ("orc", {}), ("json", {}), ("csv", {}), ("csv", {"header": "true"})]
)
def test_files_read_back_as_a_plain_table(
    spark: SparkSession, tmp_path: Path, format: str, options: dict[str, str]
) -> None:
    sink = FileSink(format, str(tmp_path / "out"), options)
    write(sink, rows(spark, (1, "a"), (2, "b")), 0)
    write(sink, rows(spark), 1)
    write(sink, rows(spark, (3, "c")), 2)
    assert content(spark, tmp_path / "out", format, **options) == [(1, "a"), (2, "b"), (3, "c")]
    assert [name[:15] for name in visible(tmp_path / "out")] == ["part-000000000-", "part-000000002-"]


@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("csv", {"header": "true", "lineSep": "|"}),
        ("csv", {"header": "true", "compression": "deflate"}),
        ("csv", {"header": "true", "compression": "gzip"}),
        ("csv", {"Header": "true", "compression": "lz4"}),
        ("json", {"lineSep": "|", "compression": "snappy"}),
    ],
)
def test_no_row_is_taken_for_an_empty_file(
    spark: SparkSession, tmp_path: Path, format: str, options: dict[str, str]
) -> None:
    """Lines that end otherwise, or a compression that Arrow does not read, once looked like a header without rows."""
    sink = FileSink(format, str(tmp_path / "out"), options)
    for batch, found in enumerate([[(1, "a"), (2, "b")], [], [(3, "c")]]):
        write(sink, rows(spark, *found), batch)
    assert content(spark, tmp_path / "out", format, **options) == [(1, "a"), (2, "b"), (3, "c")]


def test_a_folder_of_files_has_exactly_the_selected_columns(spark: SparkSession, tmp_path: Path) -> None:
    write(FileSink("parquet", str(tmp_path)), rows(spark, (1, "a")), 0)
    assert spark.read.parquet(str(tmp_path)).columns == ["k", "v"]


def test_text_files_hold_lines(spark: SparkSession, tmp_path: Path) -> None:
    write(FileSink("text", str(tmp_path)), spark.createDataFrame([("x",), ("y",)], "line string"), 0)
    assert sorted(row[0] for row in spark.read.text(str(tmp_path)).collect()) == ["x", "y"]


def test_one_sink_may_replay_a_batch_too(spark: SparkSession, tmp_path: Path) -> None:
    sink = FileSink("parquet", str(tmp_path))
    for value in ("first", "second"):
        write(sink, rows(spark, (1, value)), 4)
    assert content(spark, tmp_path) == [(1, "second")]


def test_an_empty_replay_removes_what_the_first_attempt_left(spark: SparkSession, tmp_path: Path) -> None:
    write(FileSink("parquet", str(tmp_path)), rows(spark, (1, "a")), 7)
    write(FileSink("parquet", str(tmp_path)), rows(spark), 7)
    assert visible(tmp_path) == []


def test_partition_folders_carry_the_batch_as_well(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "with space"
    write(FileSink("parquet", str(out), partition_by=("v",)), rows(spark, (1, "a/b"), (2, "c")), 3)
    write(FileSink("parquet", str(out), partition_by=("v",)), rows(spark, (5, "c"), (6, "d")), 3)
    assert {Path(name).parts[0] for name in visible(out)} == {"v=c", "v=d"}
    assert all(Path(name).name.startswith("part-000000003-") for name in visible(out))
    assert content(spark, out) == [(5, "c"), (6, "d")]


def test_leftover_staging_is_cleaned_at_start(spark: SparkSession, tmp_path: Path) -> None:
    stale = tmp_path / ".staging-000000001-00000000-0badc0de"
    stale.mkdir()
    (stale / "part-00000-x.parquet").write_bytes(b"half a file")
    write(FileSink("parquet", f"file:{tmp_path}"), rows(spark, (1, "a")), 2)
    assert not stale.exists()
    assert content(spark, tmp_path) == [(1, "a")]


def test_another_querys_files_of_the_same_batch_stay(spark: SparkSession, tmp_path: Path) -> None:
    write(FileSink("parquet", str(tmp_path)), rows(spark, (1, "a")), 0)
    with streaming_query(spark, "11111111-2222"):
        write(FileSink("parquet", str(tmp_path)), rows(spark, (2, "b")), 0)
    assert content(spark, tmp_path) == [(1, "a"), (2, "b")]


def test_a_failing_writer_names_format_path_and_batch(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(errors.SinkError, match=r"sink 'parquet' at '.*file/out' failed on batch 5") as caught:
        write(FileSink("parquet", str(tmp_path / "file" / "out")), rows(spark, (1, "a")), 5)
    assert caught.value.__cause__ is not None


def test_an_error_of_the_step_is_not_blamed_on_the_sink(spark: SparkSession, tmp_path: Path) -> None:
    def explode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        raise errors.ExpressionError("integer overflow in 'a.k + 1'", detail="row 3", hint="cast to decimal")

    frame = rows(spark, (1, "a")).mapInArrow(explode, COLUMNS)
    with pytest.raises(errors.ExpressionError) as caught:
        write(FileSink("parquet", str(tmp_path / "out")), frame, 0)
    assert (caught.value.message, caught.value.detail, caught.value.hint) == (
        "integer overflow in 'a.k + 1'",
        "row 3",
        "cast to decimal",
    )
    assert visible(tmp_path / "out") == []


class WithItsStack(Py4JJavaError):
    """Stands for an error that came through Java, with the stack that py4j makes part of its text."""

    def __init__(self) -> None:
        Exception.__init__(self)

    def __str__(self) -> str:
        frames = "\tat org.apache.spark.Somewhere.run(Somewhere.scala:1)\n" * 1000
        return (
            f"An error occurred while calling o1.save.\n: org.X: no\n{frames}Caused by: java.lang.InterruptedException"
        )


def test_spark_is_told_of_an_interrupt_in_few_words() -> None:
    """Its pattern for interrupts overflows the stack on what py4j tells; a stopped query would end with that."""
    told = for_spark(_chained(errors.SinkError("sink 'parquet' failed"), WithItsStack()))
    text = str(told)
    assert re.search(r"py4j\.protocol\.Py4JJavaError: An error occurred while calling(.|\n)*InterruptedException", text)
    assert len(text) < 1200
    plain = errors.SinkError("sink 'parquet' failed")
    assert for_spark(plain) is plain


def _chained(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def test_any_other_failure_of_a_worker_is_the_hosts(spark: SparkSession) -> None:
    def explode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        raise ValueError("two\nlines")

    frame = rows(spark, (1, "a")).mapInArrow(explode, COLUMNS)
    with pytest.raises(errors.HostError, match="a Python worker failed on batch 2") as caught:
        write(ForeachBatchSink(lambda frame, batch: None), frame, 2)
    assert caught.value.detail == "ValueError: two\nlines"


def test_memory_keeps_batches_as_arrow_and_as_a_view(spark: SparkSession) -> None:
    sink = MemorySink("kept", spark, SCHEMA)
    sink.begin()
    assert spark.table("kept").count() == 0
    for batch in range(6):
        write(sink, rows(spark, *((batch, str(i)) for i in range(batch))), batch)
    expected = [(batch, str(i)) for batch in range(6) for i in range(batch)]
    assert sorted(zip(*sink.table().to_pydict().values(), strict=True)) == expected
    assert sorted((row.k, row.v) for row in spark.sql("SELECT * FROM kept").collect()) == expected


def test_memory_replaces_a_replayed_batch(spark: SparkSession) -> None:
    sink = MemorySink("again", spark, SCHEMA)
    write(sink, rows(spark, (1, "a")), 0)
    write(sink, rows(spark, (2, "half")), 1)
    write(sink, rows(spark, (2, "b")), 1)
    assert sink.table().to_pydict() == {"k": [1, 2], "v": ["a", "b"]}
    assert spark.table("again").count() == 2


def test_memory_has_the_types_of_the_query(spark: SparkSession) -> None:
    schema = Schema((Field("at", TIMESTAMP, nullable=False), Field("d", pa.decimal128(10, 2))))
    sink = MemorySink("typed", spark, schema)
    noon = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)
    write(sink, spark.createDataFrame([(noon, None)], "at timestamp, d decimal(10,2)"), 0)
    assert sink.table().schema == schema.to_arrow()
    assert sink.table()["at"].to_pylist() == [noon]


@pytest.mark.parametrize("kind", ["console", "noop", "foreach", "idle foreach"])
def test_every_sink_evaluates_each_partition_once(spark: SparkSession, kind: str) -> None:
    def several(frame: DataFrame, batch: int) -> None:
        assert (frame.count(), frame.limit(3).count(), batch) == (10, 3, 0)

    sinks: dict[str, Sink] = {
        "console": ConsoleSink(spark),
        "noop": WriterSink("noop"),
        "foreach": ForeachBatchSink(several),
        "idle foreach": ForeachBatchSink(lambda frame, batch: None),
    }
    counter = spark.sparkContext.accumulator(0)

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counter.add(1)
        yield from batches

    frame = spark.range(10, numPartitions=2).selectExpr("id AS k", "string(id) AS v").mapInArrow(count, COLUMNS)
    write(sinks[kind], frame, 0)
    assert counter.value == 2


def test_foreach_batch_names_the_failing_batch(spark: SparkSession) -> None:
    def refuse(frame: DataFrame, batch: int) -> None:
        raise RuntimeError("no room")

    with pytest.raises(errors.SinkError, match="'foreachBatch' failed on batch 9") as caught:
        write(ForeachBatchSink(refuse), rows(spark, (1, "a")), 9)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_console_prints_the_batch(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    write(ConsoleSink(spark), rows(spark, (41, "shown")), 3)
    printed = capsys.readouterr().out
    assert "batch 3" in printed
    assert "shown" in printed


@pytest.mark.parametrize("partition_by", [(), ("k",)])
def test_a_table_replaces_a_replayed_batch(spark: SparkSession, partition_by: tuple[str, ...]) -> None:
    name = f"results_{len(partition_by)}"
    write(TableSink(name, spark, SCHEMA, partition_by=partition_by), rows(spark, (1, "a")), 0)
    write(TableSink(name, spark, SCHEMA, partition_by=partition_by), rows(spark, (2, "half")), 1)
    write(TableSink(name, spark, SCHEMA), rows(spark, (2, "b"), (3, "c")), 1)
    assert sorted((row.k, row.v) for row in spark.table(name).collect()) == [(1, "a"), (2, "b"), (3, "c")]


def test_a_table_of_other_columns_is_refused(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE others (x bigint) USING parquet")
    with pytest.raises(errors.SinkError, match="table 'others' has other columns than the query"):
        write(TableSink("others", spark, SCHEMA), rows(spark, (1, "a")), 0)


def test_a_table_of_other_types_is_refused(spark: SparkSession) -> None:
    """Its files could be written and never be read."""
    spark.sql("CREATE TABLE narrow (k int, v string) USING parquet")
    with pytest.raises(errors.SinkError, match="column 'k' of table 'narrow' has another type") as caught:
        write(TableSink("narrow", spark, SCHEMA), rows(spark, (1, "a")), 0)
    assert "int in the table and bigint in the query" in caught.value.detail
    assert spark.table("narrow").count() == 0


def test_the_files_of_a_table_are_written_as_it_reads_them(spark: SparkSession, tmp_path: Path) -> None:
    """The table takes the first line of each file for a header, so there must be one."""
    settings = {"header": "true", "sep": ", ", "path": str(tmp_path / "a table")}
    spark.sql(f"CREATE TABLE headed ({COLUMNS}) USING csv OPTIONS (header 'true', sep ', ')")
    write(TableSink("headed", spark, SCHEMA), rows(spark, (1, "a"), (2, "b")), 0)
    write(TableSink("elsewhere", spark, SCHEMA, format="csv", options=settings), rows(spark, (1, "a")), 0)
    write(TableSink("elsewhere", spark, SCHEMA), rows(spark, (2, "b")), 1)
    for name in ("headed", "elsewhere"):
        assert sorted((row.k, row.v) for row in spark.table(name).collect()) == [(1, "a"), (2, "b")]
    assert len(list((tmp_path / "a table").glob("part-00000000?-*"))) == 2


def test_missing_settings_are_named(spark: SparkSession) -> None:
    with pytest.raises(errors.SpecError, match="the 'parquet' sink has no path"):
        make_sink("parquet", {}, spark=spark, schema=SCHEMA)
    with pytest.raises(errors.SpecError, match="the memory sink has no name"):
        make_sink("memory", {}, spark=spark, schema=SCHEMA)
    with pytest.raises(errors.SpecError, match="partition column 'z' is not in the SELECT list"):
        make_sink("parquet", {"path": "out"}, spark=spark, schema=SCHEMA, partition_by=("z",))


def test_a_path_that_no_file_system_knows_is_refused(spark: SparkSession) -> None:
    with pytest.raises(errors.SinkError, match="sink path 'gopher://x/y' cannot be opened"):
        make_sink("parquet", {"path": "gopher://x/y"}, spark=spark, schema=SCHEMA)


@pytest.mark.parametrize("compression", ["uncompressed", "None", "GZIP", "lz4"])
def test_parquet_takes_the_compressions_that_spark_names(spark: SparkSession, tmp_path: Path, compression: str) -> None:
    sink = make_sink("parquet", {"path": str(tmp_path), "compression": compression}, spark=spark, schema=SCHEMA)
    write(sink, rows(spark, (1, "a"), (2, "b")), 0)
    assert content(spark, tmp_path) == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("options", [{}, {"header": "true"}, {"sep": ";", "header": "TRUE"}])
def test_numbers_in_csv_are_written_by_workers_as_by_spark(
    spark: SparkSession, tmp_path: Path, options: dict[str, str]
) -> None:
    frame = spark.sql(
        "SELECT * FROM VALUES (1L, 2Y, TRUE), (-9223372036854775807L, NULL, FALSE), (NULL, NULL, NULL), "
        "(0L, -1Y, NULL) AS t(k, n, is_so)"
    ).coalesce(1)
    schema = from_spark(frame.schema, "results")
    lines = {}
    for name in ("workers", "spark"):
        folder = tmp_path / name
        sink = make_sink("csv", {"path": str(folder), **options}, spark=spark, schema=schema)
        assert isinstance(sink, WorkerFileSink)
        write(sink if name == "workers" else FileSink("csv", str(folder), options), frame, 0)
        (file,) = folder.glob("part-*.csv")
        lines[name] = file.read_text()
    assert lines["workers"] == lines["spark"]


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        ("k bigint, v string", {}),
        ("k bigint, v double", {}),
        ("k bigint, v date", {}),
        ("k bigint, v bigint", {"nullValue": "-"}),
        ("k bigint, v bigint", {"sep": "\t"}),
        ("k bigint", {}),
        ("k bigint, `a, b` bigint", {"header": "true"}),
    ],
)
def test_other_csv_is_for_sparks_writer(
    spark: SparkSession, tmp_path: Path, columns: str, options: dict[str, str]
) -> None:
    schema = from_spark(spark.createDataFrame([], columns).schema, "results")
    sink = make_sink("csv", {"path": str(tmp_path), **options}, spark=spark, schema=schema)
    assert isinstance(sink, FileSink)


def test_a_length_of_time_comes_back_as_one(spark: SparkSession, tmp_path: Path) -> None:
    """Parquet knows none: without Spark's own note of the types it was a number of microseconds."""
    sink = make_sink("parquet", {"path": str(tmp_path)}, spark=spark, schema=SCHEMA)
    assert isinstance(sink, WorkerFileSink)
    frame = spark.sql("SELECT 1L AS k, INTERVAL '1 02:03:04.000005' DAY TO SECOND AS v, array(struct(1 AS n)) AS s")
    write(sink, frame, 0)
    back = spark.read.parquet(str(tmp_path))
    assert back.collect() == frame.collect()
    assert [field.dataType.simpleString() for field in back.schema] == [
        field.dataType.simpleString() for field in frame.schema
    ]


@pytest.mark.parametrize("format", ["parquet", "csv"])
@pytest.mark.parametrize(
    ("log", "what"), [("_spark_metadata", "the sink of a Spark streaming query"), ("_delta_log", "a Delta table")]
)
def test_a_folder_of_sparks_own_sink_is_refused(
    spark: SparkSession, tmp_path: Path, format: str, log: str, what: str
) -> None:
    """What is not in its log nobody would see who reads the folder."""
    (tmp_path / "out" / log).mkdir(parents=True)
    with pytest.raises(errors.SinkError, match=f"is {what}"):
        make_sink(format, {"path": str(tmp_path / "out")}, spark=spark, schema=SCHEMA)


def test_any_other_format_goes_to_sparks_writer(spark: SparkSession) -> None:
    sink = make_sink("jdbc", {"url": "jdbc:none:", "dbtable": "t"}, spark=spark, schema=SCHEMA)
    assert sink == WriterSink("jdbc", {"url": "jdbc:none:", "dbtable": "t"})
    with pytest.raises(errors.SinkError, match="sink 'jdbc' failed on batch 0") as caught:
        write(sink, rows(spark, (1, "a")), 0)
    assert "No suitable driver" in caught.value.detail


def test_a_writer_that_computes_several_partitions_in_one_task_gets_each_by_itself(
    spark: SparkSession, tmp_path: Path
) -> None:
    """JDBC does so to keep to `numPartitions`; a step that ran below that took two slots for one."""
    seen = spark.sparkContext.accumulator(set(), _Union())

    def note(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        seen.add({context.partitionId()})
        yield from batches

    settings = {"url": f"jdbc:derby:{tmp_path}/database;create=true", "dbtable": "results", "numPartitions": "1"}
    settings["driver"] = "org.apache.derby.iapi.jdbc.AutoloadedDriver"
    frame = spark.range(9, numPartitions=3).selectExpr("id AS k", "string(id) AS v").mapInArrow(note, COLUMNS)
    write(WriterSink("jdbc", settings), frame, 0)
    assert seen.value == {0, 1, 2}
    assert spark.read.format("jdbc").options(**settings).load().count() == 9


class _Union(AccumulatorParam[set[int]]):
    def zero(self, value: set[int]) -> set[int]:
        return set()

    def addInPlace(self, value1: set[int], value2: set[int]) -> set[int]:
        return value1 | value2


@pytest.mark.parametrize("format", ["no.such.format", "avro"])
def test_a_format_that_spark_does_not_have_is_refused_at_once(spark: SparkSession, format: str) -> None:
    with pytest.raises(errors.SpecError, match=f"Spark has no sink format '{format}'") as caught:
        make_sink(format, {"path": "p"}, spark=spark, schema=SCHEMA)
    assert "find" in caught.value.detail
    assert "spark.jars.packages" in caught.value.hint


@contextmanager
def streaming_query(spark: SparkSession, identity: str) -> Iterator[None]:
    """Stands for the thread of a streaming query, which Spark marks with the query's identity."""
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", identity)
    try:
        yield
    finally:
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)  # type: ignore[arg-type]
