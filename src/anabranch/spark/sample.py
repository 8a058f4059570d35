"""Samples of streams that Spark reads: a batch DataFrame, or the first files of a folder.

Spark reads each sample in one job. Arrow reads samples of the file formats that it supports without Spark
(`run/stream_sample`). Limit: at most `MOST_READ` rows of a DataFrame are read.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import TimestampType

from anabranch.lang.schema import Field
from anabranch.run.stream_sample import SampledRows, first_files, newest_time
from anabranch.spark.arrow_schema import data_type
from anabranch.spark.expressions import quote

MOST_READ = 1_000_000
"""The maximum number of rows of a DataFrame that are read."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FrameSample:
    """Rows of a stream as a batch DataFrame, and the fraction of the stream that they are."""

    frame: DataFrame
    share: float = 1.0
    latest: DataFrame | None = None
    """The newest rows, if the frame is only a part of the stream."""

    def has(self, column: Field) -> bool:
        if column.name not in self.frame.columns:
            return False
        return bool(self.frame.schema[column.name].dataType == data_type(column.type, column.name))

    def read(self, wanted: Mapping[str, pa.DataType], event_time: str) -> SampledRows:
        columns = [_timed(name) if name == event_time else f.col(quote(name)) for name in wanted]
        table = self.frame.select(*columns).limit(MOST_READ).toArrow()
        rows = pa.table({name: table.column(name).cast(kind) for name, kind in wanted.items()})
        share, latest = self.share, self.latest
        if len(rows) == MOST_READ:
            share, latest = share * MOST_READ / self.frame.count(), latest or self.frame
        if latest is None:
            return SampledRows(rows, share)
        newest = latest.agg(f.max(_timed(event_time)).alias(event_time)).toArrow().column(0)
        return SampledRows(rows, share, newest_time(newest))


def _timed(name: str) -> Column:
    return f.col(quote(name)).cast(TimestampType()).alias(name)


def sample_of_files(reader: DataFrameReader, format: str, path: str, spark: SparkSession) -> FrameSample | None:
    """Returns the first files of a folder that is read as a stream; None when it is empty or missing."""
    listing = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    try:
        files = listing.load(path).select("path", "modificationTime", "length").collect()
    except PySparkException as error:
        _log.info("no sample of '%s': %s", path, error)
        return None
    files = sorted(
        (file for file in files if file["length"]), key=lambda file: (file["modificationTime"], file["path"])
    )
    if not files:
        return None
    sizes = [file["length"] for file in files]
    first = first_files(sizes)
    reader = reader.format(format)
    latest = reader.load(files[-1]["path"]) if first < len(files) else None
    return FrameSample(reader.load([file["path"] for file in files[:first]]), sum(sizes[:first]) / sum(sizes), latest)
