"""Where results go, one micro-batch at a time.

Law: writing a batch again replaces what an earlier attempt left of it, so a batch replayed after a crash leaves the
same rows as one that went well. Files and the memory table keep it by themselves, tables of a file format through their
files, Delta through its transaction identifiers; any other Spark writer appends, and is then at-least-once for the one
batch that a crash interrupts. A sink evaluates its frame exactly once, because evaluating runs the engine's step.

Limit: a reader that looks while a batch moves into place may see part of that batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Protocol

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.readwriter import DataFrameWriter

from anabranch.errors import SinkError, SpecError
from anabranch.host.spark.arrow_schema import to_spark
from anabranch.host.spark.batch_files import BatchFolder
from anabranch.host.spark.failure import evaluating, named_failure, query_id
from anabranch.host.spark.parquet_sink import ParquetSink, understands
from anabranch.host.spark.session import first_cause
from anabranch.schema import Schema

FILE_FORMATS = frozenset({"parquet", "csv", "json", "orc", "text", "avro"})
TYPED_FORMATS = frozenset({"parquet", "orc", "avro"})
"""Those whose files say of what types their columns are."""


class Sink(Protocol):
    """Takes each batch of results; the same batch may come again and then replaces the first."""

    def write(self, frame: DataFrame, batch_id: int) -> None: ...


def make_sink(
    format: str,
    options: Mapping[str, str],
    *,
    spark: SparkSession,
    schema: Schema,
    name: str | None = None,
    path: str | None = None,
    partition_by: tuple[str, ...] = (),
) -> Sink:
    """The sink of a format name; a SpecError says which setting it lacks, or that Spark has no such format."""
    require_columns(partition_by, schema)
    rest = {key: value for key, value in options.items() if key.lower() != "path"}
    target = path or next((value for key, value in options.items() if key.lower() == "path"), None)
    match format.lower():
        case "memory":
            if name is None:
                raise SpecError("a memory sink has no name", hint="set queryName(): it names the table to read from")
            return MemorySink(name, spark, schema)
        case "console":
            return ConsoleSink(int(rest.get("numRows", 20)), rest.get("truncate", "true").lower() == "true")
        case file_format if file_format in FILE_FORMATS:
            if target is None:
                raise SpecError(f"the '{format}' sink has no path", hint="give start(path) or option('path', …)")
            if file_format == "parquet" and not partition_by and understands(rest):
                return ParquetSink(target, **rest)
            _require_format(file_format, spark)
            return FileSink(file_format, target, rest, partition_by)
        case _:
            _require_format(format, spark)
            return WriterSink(format, rest if target is None else {**rest, "path": target}, partition_by)


def _require_format(format: str, spark: SparkSession) -> None:
    """Refuses, before anything is read, a format that Spark would look for in vain at the first batch."""
    jvm, session = spark._jvm, spark._jsparkSession
    assert jvm is not None
    try:
        jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource(
            format, session.sessionState().conf()
        )
    except (PySparkException, Py4JError) as error:
        raise SpecError(
            f"Spark has no sink format '{format}'",
            detail=first_cause(error),
            hint="check the name; a format from a package needs that package: spark.jars.packages",
        ) from error


def require_columns(partition_by: tuple[str, ...], schema: Schema) -> None:
    """Refuses to partition by what the query does not select."""
    for column in partition_by:
        if schema.find(column) is None:
            raise SpecError(
                f"partition column '{column}' is not in the SELECT list",
                detail=f"the query selects {', '.join(schema.names)}",
                hint="select it, or partition by another",
            )
    if partition_by and len(partition_by) == len(schema):
        raise SpecError("every selected column is a partition column", hint="leave one to be written into the files")


@dataclass
class FileSink:
    """A folder of files that reads back as a plain table of the SELECT columns.

    Spark writes a batch into a hidden folder; the files then move into place under names that carry the batch and the
    query, so that a replay finds and replaces its own files and no other query's.
    """

    format: str
    path: str
    options: Mapping[str, str] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._folder = BatchFolder(self.path, self.format, self.options)

    @property
    def place(self) -> str:
        """The folder that the sink writes to."""
        return self._folder.place

    def write(self, frame: DataFrame, batch_id: int) -> None:
        with named_failure(self.format, self.path, batch_id), evaluating(batch_id):
            staging = self._folder.stage(batch_id, query_id(frame))
            writer = frame.write.format(self.format).mode("overwrite").options(**_COMMIT_ONCE).options(**self.options)
            _partitioned(writer, self.partition_by).save(staging)
            self._folder.publish(batch_id, query_id(frame))


# The folder is invisible until the job is done, so tasks may commit straight into it, and nobody waits for a marker.
_COMMIT_ONCE = {
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


@dataclass(frozen=True)
class WriterSink:
    """Any other Spark batch writer, in append mode.

    Delta drops a replayed batch by its transaction identifier. With another format the batch that a crash interrupts
    may be there twice, unless the format itself replaces rows by a key. The frame is kept for the writer, which may
    look at it twice, or have several of its partitions computed by one task, as JDBC does by `numPartitions`: a slot is
    known by its task.
    """

    format: str
    options: Mapping[str, str] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ()

    def write(self, frame: DataFrame, batch_id: int) -> None:
        path = self.options.get("path")
        with evaluated(frame, self.format, batch_id), named_failure(self.format, path, batch_id):
            writer = _appending(frame, self.format, batch_id).options(**self.options)
            _partitioned(writer, self.partition_by).save()


class TableSink:
    """A table of Spark's catalog, made at the first batch if it is not there.

    The files of a table in a file format are replaced by batch like those of a FileSink; into any other table rows are
    appended like by a WriterSink. An existing table keeps its own partitioning.
    """

    def __init__(
        self,
        name: str,
        spark: SparkSession,
        format: str | None = None,
        options: Mapping[str, str] | None = None,
        partition_by: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self._spark = spark
        self._format = format
        self._options = dict(options or {})
        self._partition_by = partition_by
        self._columns: tuple[str, ...] = ()
        self._files: FileSink | None = None

    def write(self, frame: DataFrame, batch_id: int) -> None:
        with named_failure("table", self.name, batch_id), evaluating(batch_id):
            if not self._columns:
                self._open(frame)
            ordered = frame.select(*(f"`{column}`" for column in self._columns))
            if self._files is None:
                with evaluated(ordered, "table", batch_id):
                    writer = _appending(ordered, self._format or "", batch_id).options(**self._options)
                    _partitioned(writer, self._partition_by).saveAsTable(self.name)
                return
            self._files.write(ordered, batch_id)
            if self._partition_by:
                self._spark.catalog.recoverPartitions(self.name)
            self._spark.catalog.refreshTable(self.name)

    def _open(self, frame: DataFrame) -> None:
        """Makes the table if need be, and learns what it is made of."""
        catalog = self._spark.catalog
        if not catalog.tableExists(self.name):
            writer = self._spark.createDataFrame([], frame.schema).write.options(**self._options)
            writer = writer if self._format is None else writer.format(self._format)
            _partitioned(writer, self._partition_by).saveAsTable(self.name)
        columns = catalog.listColumns(self.name)
        found, selected = (
            sorted(name.lower() for name in names) for names in ([c.name for c in columns], frame.columns)
        )
        if found != selected:
            raise SinkError(
                f"table '{self.name}' has other columns than the query",
                detail=f"the table has {', '.join(found)}; the query selects {', '.join(selected)}",
                hint="name another table, or give the selected columns the table's names",
            )
        described = self._spark.sql(f"DESCRIBE TABLE EXTENDED {self.name}").collect()
        facts = {row["col_name"]: row["data_type"] for row in described}
        self._columns = tuple(column.name for column in columns)
        self._partition_by = tuple(column.name for column in columns if column.isPartition)
        self._format = str(facts.get("Provider", "")).lower() or None
        if self._format in FILE_FORMATS and "Location" in facts:
            self._require_types(frame)
            options = {key: value for key, value in self._file_options().items() if key.lower() != "path"}
            self._files = FileSink(self._format, facts["Location"], options, self._partition_by)

    def _require_types(self, frame: DataFrame) -> None:
        """Refuses, where files know their types, files that the table could not read."""
        wanted = {field.name.lower(): field.dataType.simpleString() for field in self._spark.table(self.name).schema}
        for column in frame.schema if self._format in TYPED_FORMATS else ():
            selected, expected = column.dataType.simpleString(), wanted[column.name.lower()]
            if selected != expected:
                raise SinkError(
                    f"column '{column.name}' of table '{self.name}' is of another type than in the query",
                    detail=f"it is {expected} in the table and {selected} in the query",
                    hint=f"select CAST(… AS {expected.upper()}) AS {column.name}, or name another table",
                )

    def _file_options(self) -> dict[str, str]:
        """How the table's files are written, such as their header; what the user says of it wins."""
        described = self._spark.sql(f"DESCRIBE TABLE EXTENDED {self.name} AS JSON").collect()[0][0]
        stored: dict[str, str] = json.loads(described).get("storage_properties", {})
        said = {key.lower() for key in self._options}
        return {key: value for key, value in stored.items() if key.lower() not in said} | self._options


class MemorySink:
    """All results on the driver, as Arrow and as a temporary view of the user's session; for notebooks and tests.

    The view is a union of parts whose sizes at least halve from one to the next, so a batch is sent to Spark a
    logarithmic number of times. A restart begins empty: the driver's memory is not durable. Until `begin` or the first
    results, the view is whatever it was: a query that is refused takes nothing from the one before it.
    """

    def __init__(self, name: str, spark: SparkSession, schema: Schema) -> None:
        self.name = name
        self._spark = spark
        self._schema = schema.to_arrow()
        self._spark_schema = to_spark(schema)
        self._batches: dict[int, pa.Table] = {}
        self._parts: list[tuple[pa.Table, DataFrame]] = []
        self._showing = Lock()

    def begin(self) -> None:
        """Afterwards the view is there, and empty unless a batch was quicker."""
        with self._showing:
            if not self._parts:
                self._spark.createDataFrame([], self._spark_schema).createOrReplaceTempView(self.name)

    def write(self, frame: DataFrame, batch_id: int) -> None:
        with named_failure("memory", self.name, batch_id), evaluating(batch_id):
            rows = frame.toArrow().cast(self._schema)
            replay = batch_id in self._batches
            self._batches[batch_id] = rows
            if replay:
                self._parts = []
                self._append(self.table())
            elif rows.num_rows:
                self._append(rows)

    def table(self) -> pa.Table:
        """All rows so far, in batch order."""
        batches = dict(self._batches)
        return pa.concat_tables([self._schema.empty_table(), *(batches[key] for key in sorted(batches))])

    def _append(self, rows: pa.Table) -> None:
        while self._parts and self._parts[-1][0].num_rows <= 2 * rows.num_rows:
            rows = pa.concat_tables([self._parts.pop()[0], rows])
        with self._showing:
            self._parts.append((rows, self._spark.createDataFrame(rows, schema=self._spark_schema)))
            union = self._parts[0][1]
            for _, part in self._parts[1:]:
                union = union.unionAll(part)
            union.createOrReplaceTempView(self.name)


@dataclass(frozen=True)
class ForeachBatchSink:
    """The user's own function of each batch; the frame is kept during the call, so several actions read it once."""

    function: Callable[[DataFrame, int], None]

    def write(self, frame: DataFrame, batch_id: int) -> None:
        with evaluated(frame, "foreachBatch", batch_id), named_failure("foreachBatch", None, batch_id):
            self.function(frame, batch_id)


@dataclass(frozen=True)
class ConsoleSink:
    """The first rows of each batch on standard output."""

    rows: int = 20
    truncate: bool = True

    def write(self, frame: DataFrame, batch_id: int) -> None:
        with evaluated(frame, "console", batch_id), named_failure("console", None, batch_id):
            print(f"-------- batch {batch_id} --------")  # noqa: T201
            frame.show(self.rows, self.truncate)


@contextmanager
def evaluated(frame: DataFrame, format: str, batch_id: int) -> Iterator[None]:
    """The frame computed once and kept: what follows may read all, part or nothing of it, and the step still runs."""
    frame.persist()
    try:
        with named_failure(format, None, batch_id), evaluating(batch_id):
            frame.count()
        yield
    finally:
        frame.unpersist()


def _appending(frame: DataFrame, format: str, batch_id: int) -> DataFrameWriter:
    writer = frame.write.mode("append")
    if format:
        writer = writer.format(format)
    if format == "delta":
        writer = writer.option("txnAppId", query_id(frame) or "anabranch").option("txnVersion", str(batch_id))
    return writer


def _partitioned(writer: DataFrameWriter, columns: tuple[str, ...]) -> DataFrameWriter:
    return writer.partitionBy(*columns) if columns else writer
