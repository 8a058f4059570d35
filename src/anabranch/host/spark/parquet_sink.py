"""Parquet files that the workers write themselves, so that results never become rows of the JVM.

A step's results are Arrow in a Python worker. Handing them to Spark's Parquet writer costs more than computing them:
over a third of the executors' time on a three-way join with as many results as rows. So the last function that a
worker runs writes its batches to a file of the staging folder and hands nothing on; the driver publishes the folder
as it does for any other file format (`BatchFolder`), with the same guarantees.

Spark's own writer still serves Parquet with partition columns or with options that only it knows.
"""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import fs, parquet
from pyspark import TaskContext
from pyspark.sql import DataFrame

from anabranch.errors import SinkError
from anabranch.host.spark.arrow_schema import to_spark
from anabranch.host.spark.batch_files import BatchFolder, open_place
from anabranch.host.spark.failure import evaluating, named_failure, query_id
from anabranch.schema import Schema, is_fixed_width

_SPARKS_TYPES = "org.apache.spark.sql.parquet.row.metadata"
_COMPRESSIONS = {name: name for name in ("none", "snappy", "gzip", "zstd", "lz4_raw")} | {"uncompressed": "none"}
"""Arrow's names of the compressions that Spark writes too, by Spark's."""


def understands(options: Mapping[str, str]) -> bool:
    """True of options that workers can heed; Spark's own writer knows more, or says what is wrong with them."""
    return options.keys() <= {"compression"} and options.get("compression", "snappy").lower() in _COMPRESSIONS


@dataclass
class ParquetSink:
    """A folder of Parquet files that reads back as a plain table of the SELECT columns."""

    path: str
    compression: str = "snappy"

    def __post_init__(self) -> None:
        self._folder = BatchFolder(self.path, "parquet", {})

    @property
    def place(self) -> str:
        """The folder that the sink writes to."""
        return self._folder.place

    def in_workers(
        self, frame: DataFrame, batch_id: int
    ) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        """The function that takes a worker's results into a staged file."""
        return write_function(self.staged(frame, batch_id))

    def write(self, frame: DataFrame, batch_id: int) -> None:
        """Runs the step, whose last function is `in_workers`, and publishes what it staged."""
        with named_failure("parquet", self.path, batch_id), evaluating(batch_id):
            frame.collect()
            self.publish(frame, batch_id)

    def staged(self, frame: DataFrame, batch_id: int) -> StagedFile:
        """What a worker writes its results of the batch to."""
        with named_failure("parquet", self.path, batch_id):
            staging = self._folder.stage(batch_id, query_id(frame))
            return StagedFile(staging, _COMPRESSIONS[self.compression.lower()])

    def publish(self, frame: DataFrame, batch_id: int) -> None:
        """What workers staged of the batch is there for everyone."""
        with named_failure("parquet", self.path, batch_id):
            self._folder.publish(batch_id, query_id(frame))


def write_function(file: StagedFile) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with file.open() as results:
            for batch in batches:
                results.write(batch)
        yield from ()

    return write


@dataclass(frozen=True)
class StagedFile:
    """Where a worker puts its results of a batch: one file of the staging folder, there once it is whole."""

    staging: str
    compression: str

    @contextmanager
    def open(self) -> Iterator[OpenFile]:
        context = TaskContext.get()
        assert context is not None
        results = OpenFile(self, context.partitionId())
        try:
            yield results
        except BaseException:
            results.abandon()
            raise
        results.finish()


class OpenFile:
    """A staged file being written; without any batch there is none."""

    def __init__(self, file: StagedFile, partition: int) -> None:
        self._file = file
        self._files, folder, _ = open_place(file.staging)
        self._folder = folder
        self._target = posixpath.join(folder, f"part-{partition:05d}.parquet")
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
            hint="the batch is not committed; mend the sink and start the query again from its checkpoint",
        ) from error


def _writer(files: fs.FileSystem, path: str, schema: pa.Schema, compression: str) -> parquet.ParquetWriter:
    # A dictionary of numbers is built, outgrown and thrown away; of texts it often pays.
    texts = [field.name for field in schema if not is_fixed_width(field.type)]
    # Parquet has no lengths of time, which would come back as numbers; so Spark's own writer leaves its types there.
    schema = schema.with_metadata({_SPARKS_TYPES: to_spark(Schema.from_arrow(schema)).json()})
    return parquet.ParquetWriter(path, schema, filesystem=files, compression=compression, use_dictionary=texts)
