"""From a format name and its options to a sink.

`MAKERS` lists the formats that have a sink of their own. Any other name is a format of Spark's batch writer. To add a
sink, write its class in a module of this folder and register a function for its format here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from anabranch.errors import SpecError
from anabranch.host.formats import FILE_FORMATS
from anabranch.host.spark.session import first_cause
from anabranch.host.spark.sinks.files import FileSink
from anabranch.host.spark.sinks.functions import ConsoleSink
from anabranch.host.spark.sinks.jdbc import make_jdbc
from anabranch.host.spark.sinks.memory import MemorySink
from anabranch.host.spark.sinks.parquet import ParquetSink, can_write
from anabranch.host.spark.sinks.sink import Sink
from anabranch.host.spark.sinks.spark_writer import WriterSink
from anabranch.schema import Schema


@dataclass(frozen=True)
class SinkRequest:
    """What a user asks for: a format, where it writes, and its options; `name` is that of the query."""

    format: str
    spark: SparkSession
    schema: Schema
    path: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    """Without `path`."""
    partition_by: tuple[str, ...] = ()
    name: str | None = None


Maker: TypeAlias = Callable[[SinkRequest], Sink]


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
    """Returns the sink of a format; a SpecError names the setting that is missing, or says that Spark has no format."""
    require_columns(partition_by, schema)
    rest = {key: value for key, value in options.items() if key.lower() != "path"}
    target = path or next((value for key, value in options.items() if key.lower() == "path"), None)
    maker = MAKERS.get(format.lower(), _spark_writer)
    return maker(SinkRequest(format, spark, schema, target, rest, partition_by, name))


def _memory(request: SinkRequest) -> Sink:
    if request.name is None:
        raise SpecError("the memory sink has no name", hint="set queryName(): it names the table to read from")
    return MemorySink(request.name, request.spark, request.schema)


def _console(request: SinkRequest) -> Sink:
    options = request.options
    return ConsoleSink(int(options.get("numRows", 20)), options.get("truncate", "true").lower() == "true")


def _files(request: SinkRequest) -> Sink:
    if request.path is None:
        raise SpecError(f"the '{request.format}' sink has no path", hint="give start(path) or option('path', …)")
    format = request.format.lower()
    if format == "parquet" and not request.partition_by and can_write(request.options):
        return ParquetSink(request.path, **request.options)
    _require_format(format, request.spark)
    return FileSink(format, request.path, request.options, request.partition_by)


def _spark_writer(request: SinkRequest) -> Sink:
    _require_format(request.format, request.spark)
    options = request.options if request.path is None else {**request.options, "path": request.path}
    return WriterSink(request.format, options, request.partition_by)


def _jdbc(request: SinkRequest) -> Sink:
    exactly_once = make_jdbc(request.spark, request.schema, request.options, request.path)
    return exactly_once or _spark_writer(request)


MAKERS: dict[str, Maker] = {
    "memory": _memory,
    "console": _console,
    "jdbc": _jdbc,
    **dict.fromkeys(sorted(FILE_FORMATS), _files),
}


def _require_format(format: str, spark: SparkSession) -> None:
    """Refuses a format that Spark does not have; Spark itself would notice at the first batch."""
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
    """Refuses partition columns that the query does not select."""
    for column in partition_by:
        if schema.find(column) is None:
            raise SpecError(
                f"partition column '{column}' is not in the SELECT list",
                detail=f"the query selects {', '.join(schema.names)}",
                hint="select it, or partition by another column",
            )
    if partition_by and len(partition_by) == len(schema):
        raise SpecError("every selected column is a partition column", hint="leave one to be written into the files")
