"""Parquet files that the workers write themselves, so that results never become rows of the JVM.

A step's results are Arrow in a Python worker. Handing them to Spark's Parquet writer costs more than computing them:
over a third of the executors' time on a three-way join with as many results as rows. So the last function that a
worker runs writes its batches to a file of the staging folder and hands nothing on; the driver publishes the folder
as it does for any other file format (`BatchFolder`), with the same guarantees.

Spark's own writer still serves Parquet with partition columns or with options that only it knows.
"""

from __future__ import annotations

import itertools
import posixpath
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import fs, parquet
from pyspark import TaskContext
from pyspark.sql import DataFrame

from anabranch.errors import SinkError
from anabranch.host.spark.batch_files import BatchFolder, locate
from anabranch.host.spark.failure import evaluating, named_failure, query_id
from anabranch.schema import is_fixed_width

KNOWN_OPTIONS = frozenset({"compression"})


@dataclass
class ParquetSink:
    """A folder of Parquet files that reads back as a plain table of the SELECT columns."""

    path: str
    compression: str = "snappy"

    def __post_init__(self) -> None:
        self._folder = BatchFolder(self.path, "parquet", {})

    def in_workers(
        self, frame: DataFrame, batch_id: int
    ) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        """The function that takes a worker's results into a staged file."""
        with named_failure("parquet", self.path, batch_id):
            return write_function(self._folder.stage(batch_id, query_id(frame)), self.compression)

    def write(self, frame: DataFrame, batch_id: int) -> None:
        """Runs the step, whose last function is `in_workers`, and publishes what it staged."""
        with named_failure("parquet", self.path, batch_id), evaluating(batch_id):
            frame.collect()
            self._folder.publish(batch_id, query_id(frame))


def write_function(staging: str, compression: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        files, folder, _ = locate(staging)
        target = posixpath.join(folder, f"part-{context.partitionId():05d}.parquet")
        partial = posixpath.join(folder, f".part-{uuid.uuid4().hex}")
        first = next(batches, None)
        if first is None:
            return
        with _sink_errors(staging):
            files.create_dir(folder, recursive=True)
            writer = _writer(files, partial, first.schema, compression)
        with writer:
            for batch in itertools.chain([first], batches):
                with _sink_errors(staging):
                    writer.write_batch(batch)
        with _sink_errors(staging):
            files.move(partial, target)
        yield from ()

    return write


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
    return parquet.ParquetWriter(path, schema, filesystem=files, compression=compression, use_dictionary=texts)
