"""Parquet files that the workers write themselves, so that results never become rows of the JVM.

A step's results are Arrow in a Python worker. Handing them to Spark's Parquet writer costs more than computing them:
over a third of the executors' time on a three-way join with as many results as rows. So the last function that a
worker runs writes its batches to a file of the staging folder and passes nothing on. The driver publishes the folder
as it does for any other file format (`BatchFolder`), with the same guarantees.

Limit: Parquet with partition columns, or with options that only Spark knows, is written by Spark (`FileSink`).
"""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import fs, parquet

from anabranch.errors import SinkError
from anabranch.host.spark.arrow_schema import to_spark
from anabranch.host.spark.sinks.folder import BatchFolder, open_place
from anabranch.host.spark.sinks.sink import Batch, Sink
from anabranch.schema import Schema, is_fixed_width

_SPARKS_TYPES = "org.apache.spark.sql.parquet.row.metadata"
_COMPRESSIONS = {name: name for name in ("none", "snappy", "gzip", "zstd", "lz4_raw")} | {"uncompressed": "none"}
"""Arrow's names of the compressions that Spark also writes, by Spark's names."""


def can_write(options: Mapping[str, str]) -> bool:
    """True for options that workers can obey; all others are for Spark's writer, which also reports wrong ones."""
    return options.keys() <= {"compression"} and options.get("compression", "snappy").lower() in _COMPRESSIONS


@dataclass
class ParquetSink(Sink):
    """A folder of Parquet files that reads back as a plain table of the SELECT columns."""

    path: str
    compression: str = "snappy"

    def __post_init__(self) -> None:
        self.folder = BatchFolder(self.path, "parquet", {})

    @property
    def title(self) -> str:
        return f"'parquet' at '{self.path}'"

    @property
    def place(self) -> str:
        return self.folder.place

    def stage(self, batch: Batch) -> StagedFile:
        staging = self.folder.stage(batch.number, batch.query_id)
        return StagedFile(staging, _COMPRESSIONS[self.compression.lower()])

    def publish(self, batch: Batch) -> None:
        self.folder.publish(batch.number, batch.query_id)


@dataclass(frozen=True)
class StagedFile:
    """One file of the staging folder, written by one worker; it appears when it is complete."""

    staging: str
    compression: str

    @contextmanager
    def open(self, part: str) -> Iterator[OpenFile]:
        results = OpenFile(self, part)
        try:
            yield results
        except BaseException:
            results.abandon()
            raise
        results.finish()


class OpenFile:
    """A staged file being written; no file is made until there is a batch."""

    def __init__(self, file: StagedFile, part: str) -> None:
        self._file = file
        self._files, folder, _ = open_place(file.staging)
        self._folder = folder
        self._target = posixpath.join(folder, f"part-{part}.parquet")
        self._partial = posixpath.join(folder, f".part-{uuid.uuid4().hex}")
        self._writer: parquet.ParquetWriter | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        with _sink_errors(self._file.staging):
            if self._writer is None:
                self._files.create_dir(self._folder, recursive=True)
                self._writer = _writer(self._files, self._partial, batch.schema, self._file.compression)
            self._writer.write_batch(batch)

    def finish(self) -> None:
        if self._writer is not None:
            with _sink_errors(self._file.staging):
                self._writer.close()
                self._files.move(self._partial, self._target)

    def abandon(self) -> None:
        if self._writer is not None:
            self._writer.close()


@contextmanager
def _sink_errors(staging: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SinkError(
            f"a worker cannot write results to '{posixpath.dirname(staging)}'",
            detail=str(error),
            hint="the batch is not committed; fix the cause, then restart the query from its checkpoint",
        ) from error


def _writer(files: fs.FileSystem, path: str, schema: pa.Schema, compression: str) -> parquet.ParquetWriter:
    # A dictionary of numbers is built, outgrown and thrown away; a dictionary of strings often pays.
    texts = [field.name for field in schema if not is_fixed_width(field.type)]
    # Parquet has no intervals, which would come back as numbers; Spark's own writer stores its types here too.
    schema = schema.with_metadata({_SPARKS_TYPES: to_spark(Schema.from_arrow(schema)).json()})
    return parquet.ParquetWriter(path, schema, filesystem=files, compression=compression, use_dictionary=texts)
