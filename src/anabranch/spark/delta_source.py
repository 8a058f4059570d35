"""Delta tables as a Spark source that needs no connector, with the options of Delta's own.

    spark.dataSource.register(DeltaVersions)                      # a spec with `format: delta` does so by itself
    spark.readStream.format("anabranch-delta").load("lake/orders")

Spark keeps the offsets; the source reads the log of the table (`run/files/delta`), and readers of ours read the files
without the JVM where they can (`spark/file_streams`). Invariant: a batch that is read again has the same files. Limit:
as of `run/files/delta`; needs Spark 4.2 or newer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from anabranch.errors import CatalogError
from anabranch.lang.schema import Schema
from anabranch.run.files import delta
from anabranch.run.files.delta import DeltaFiles, Offset
from anabranch.run.files.parquet import Parquet
from anabranch.spark.arrow_schema import from_spark, to_spark
from anabranch.spark.source_options import (
    HAS_LIMITS,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
    count_of,
    one_of,
    require_limits,
)
from anabranch.spark.stored_files import OFF, OneFile

FORMAT = "anabranch-delta"
"""Spark keeps the name `delta` for Delta's connector, even where that is missing."""
_MOST, _START, _SKIP = "maxFilesPerTrigger", "startingVersion", "skipChangeCommits"
_KNOWN = {name.lower(): name for name in ("path", _MOST, _START, _SKIP)}


@dataclass(frozen=True)
class DeltaOptions:
    """The validated options of a source."""

    path: str = field(repr=False)
    most: int | None = None
    """The maximum number of files in a batch."""
    starting: str | None = None
    """The first version whose new rows are read, or `latest`; None to begin with all rows of the latest version."""
    skips_changes: bool = False

    @classmethod
    def of(cls, given: Mapping[str, str]) -> DeltaOptions:
        options = {name.lower(): value for name, value in given.items()}
        for name in options.keys() - _KNOWN.keys():
            raise CatalogError(
                f"a source of a Delta table has no option '{name}'",
                hint=f"it has {', '.join(_KNOWN.values())}; with {OFF}=1 Spark's connector reads, where there is one",
            )
        if "path" not in options:
            raise CatalogError("a source of a Delta table has no path", hint='give one: .load("lake/orders")')
        starting = options.get(_START.lower())
        if starting is not None and starting != "latest" and not starting.isdecimal():
            raise CatalogError(f"option '{_START}' is '{starting}'", hint="give the number of a version, or latest")
        return cls(
            options["path"],
            None if _MOST.lower() not in options else count_of(_MOST, options[_MOST.lower()]),
            starting,
            one_of(_SKIP, options.get(_SKIP.lower(), "false").lower(), ("true", "false")) == "true",
        )


class DeltaVersions(DataSource):
    """The data source registered with Spark."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return to_spark(Schema.from_arrow(_columns_of(delta.open_table(DeltaOptions.of(dict(self.options)).path))))

    def streamReader(self, schema: StructType) -> DeltaStream:
        require_limits("the source of Delta tables", "Delta's connector")
        return DeltaStream(DeltaOptions.of(dict(self.options)), schema)


def is_read(format: str | None, path: str | None) -> bool:
    """Returns whether this source reads a stream; otherwise Spark's connector does."""
    is_delta = (format or "").lower() == "delta" and path is not None
    return is_delta and OFF not in os.environ and delta.IS_INSTALLED and HAS_LIMITS


def open_versions(spark: SparkSession, path: str, columns: str | None, options: Mapping[str, str]) -> DataFrame:
    """Opens a Delta table as a stream, with some of its columns or all."""
    DeltaOptions.of({**options, "path": path})
    spark.dataSource.register(DeltaVersions)
    reader = spark.readStream.format(FORMAT).options(**options)
    return (reader if columns is None else reader.schema(columns)).load(path)


def form_of(options: DeltaOptions, schema: StructType) -> DeltaFiles:
    """Returns how the files of a table are read."""
    table = delta.open_table(options.path)
    columns, there = from_spark(schema, "files").to_arrow(), _columns_of(table)
    outside = [name for name in table.metadata().partition_columns if name in columns.names]
    partitioned = {name: columns.field(name).type for name in outside}
    for each in columns:
        if each.name not in there.names or there.field(each.name).type != each.type:
            found = f"type {there.field(each.name).type}" if each.name in there.names else "no such column"
            raise CatalogError(
                f"column '{each.name}' has type {each.type} in the schema of a stream, and {found} in the Delta table",
                hint="leave the schema out, or correct it",
            )
        if not Parquet().can_hold(each.type):
            raise CatalogError(
                f"column '{each.name}' of type {each.type} of a Delta table cannot be read",
                hint="leave it out: give a schema with the other columns",
            )
    for name, kind in partitioned.items():
        delta.require_partition_type(name, kind)
    return DeltaFiles(options.path, Parquet(), columns, partitioned=partitioned, skips_changes=options.skips_changes)


class DeltaStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the log in Spark's process for the source, and reads files in a worker."""

    def __init__(self, options: DeltaOptions, schema: StructType) -> None:
        self._options, self._form = options, form_of(options, schema)
        self._until: int | None = None
        """The last version of a run that reads all that is there."""
        self._is_checked = False

    def initialOffset(self) -> Offset:
        return delta.first_offset(self._options.path, self._options.starting)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Returns the end of the batch: the files of all new versions, or at most as many as the option allows."""
        if delta.BEGAN not in start:
            raise CatalogError(
                "the checkpoint has offsets of another source of Delta tables",
                hint=f"go on with {OFF}=1, which lets Spark's connector read, or start with an empty checkpoint folder",
            )
        if not self._is_checked:
            delta.require_log(self._options.path, start)
            self._is_checked = True
        most = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        skips = self._options.skips_changes
        return delta.following(self._options.path, start, most, until=self._until, skips_changes=skips)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._options.most is None else ReadMaxFiles(self._options.most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = int(delta.open_table(self._options.path).version())

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return [OneFile(path) for path in self._form.between(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, OneFile)
        yield from self._form.read(partition.path, self._form.whole).to_batches()


def _columns_of(table: Any) -> pa.Schema:
    """Returns the columns of a table in the types of streams."""
    return pa.schema(pa.schema(table.schema().to_arrow()))
