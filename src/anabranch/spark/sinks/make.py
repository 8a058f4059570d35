"""Creates a sink from a format name and its options.

`MAKERS` lists the formats with their own sink. Any other name is a format of Spark's batch writer. To add a sink, write
its class in a module of this folder and register a function for its format here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from anabranch.errors import SpecError
from anabranch.lang.schema import Schema
from anabranch.run.formats import FILE_FORMATS
from anabranch.run.sink_settings import (
    SinkSettings,
    check_sink,
    compression,
    console_rows,
    iceberg_target,
    jdbc_table,
    kafka_target,
)
from anabranch.spark.internals.writers import require_format
from anabranch.spark.session import first_cause
from anabranch.spark.sinks.delta import DeltaLakeTable
from anabranch.spark.sinks.files import FileSink
from anabranch.spark.sinks.functions import ConsoleSink
from anabranch.spark.sinks.jdbc import JdbcSink
from anabranch.spark.sinks.kafka import KafkaSink
from anabranch.spark.sinks.lake import LakeSink
from anabranch.spark.sinks.memory import MemorySink
from anabranch.spark.sinks.sink import Sink
from anabranch.spark.sinks.spark_writer import WriterSink
from anabranch.spark.sinks.worker_files import ParquetFiles, WorkerFileSink, written_form


@dataclass(frozen=True)
class SinkRequest:
    """Validated settings, the columns of the results, and the session."""

    sink: SinkSettings
    spark: SparkSession
    schema: Schema


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
    """Returns the sink of a format; raises a SpecError for a missing setting or a format that Spark does not have."""
    sink = SinkSettings.of(format, options, path, partition_by, name)
    check_sink(sink, schema)
    return MAKERS.get(format.lower(), _spark_writer)(SinkRequest(sink, spark, schema))


def _memory(request: SinkRequest) -> Sink:
    assert request.sink.name is not None
    return MemorySink(request.sink.name, request.spark, request.schema)


def _console(request: SinkRequest) -> Sink:
    options = request.sink.options
    return ConsoleSink(request.spark, console_rows(options), options.get("truncate", "true").lower() == "true")


def _files(request: SinkRequest) -> Sink:
    sink = request.sink
    assert sink.path is not None
    format = sink.format.lower()
    form = None if sink.partition_by else written_form(format, sink.options, request.schema)
    if form is not None:
        return WorkerFileSink(sink.path, form)
    _require_format(format, request.spark)
    return FileSink(format, sink.path, sink.options, sink.partition_by)


def _spark_writer(request: SinkRequest) -> Sink:
    sink = request.sink
    _require_format(sink.format, request.spark)
    options = sink.options if sink.path is None else {**sink.options, "path": sink.path}
    return WriterSink(sink.format, options, sink.partition_by)


def _jdbc(request: SinkRequest) -> Sink:
    table = jdbc_table(request.sink, request.schema)
    return _spark_writer(request) if table is None else JdbcSink(request.spark, table)


def _kafka(request: SinkRequest) -> Sink:
    return KafkaSink(kafka_target(request.sink, request.schema))


def _delta(request: SinkRequest) -> Sink:
    sink = request.sink
    assert sink.path is not None
    table = DeltaLakeTable(sink.path, request.schema, sink.partition_by)
    return LakeSink(table, ParquetFiles(compression(sink.options)))


def _iceberg(request: SinkRequest) -> Sink:
    sink = request.sink
    # The library takes half a second to import.
    from anabranch.spark.sinks.iceberg import IcebergLakeTable

    table = IcebergLakeTable(iceberg_target(sink), request.schema, sink.partition_by)
    return LakeSink(table, ParquetFiles(compression(sink.options)))


MAKERS: dict[str, Maker] = {
    "memory": _memory,
    "console": _console,
    "jdbc": _jdbc,
    "kafka": _kafka,
    "delta": _delta,
    "iceberg": _iceberg,
    **dict.fromkeys(sorted(FILE_FORMATS), _files),
}


def _require_format(format: str, spark: SparkSession) -> None:
    """Refuses a format that Spark does not have; Spark itself would fail only at the first batch."""
    try:
        require_format(spark, format)
    except (PySparkException, Py4JError) as error:
        raise SpecError(
            f"Spark has no sink format '{format}'",
            detail=first_cause(error),
            hint="check the name; a format from a package needs that package: spark.jars.packages",
        ) from error
