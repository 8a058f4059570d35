"""Files written by the workers themselves, so that results never become JVM rows.

A step's results are Arrow data in a Python worker. Passing them to Spark's writers costs more than computing them: over
a third of the executors' time on a three-way join with as many results as rows. So the last function that a worker runs
writes its batches to a file of the staging folder and returns no rows. The driver publishes the folder as for any other
file format (`BatchFolder`), with the same guarantees.

Limit: Spark (`FileSink`) writes files with partition columns or with options that only Spark supports. For CSV, workers
write only integers and booleans, because Spark defines the text format of strings, times and fractions.
"""

from __future__ import annotations

import posixpath
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from pyarrow import csv, fs, parquet

from anabranch.errors import SinkError
from anabranch.lang.schema import Schema, is_fixed_width, is_integer
from anabranch.spark.arrow_schema import to_spark
from anabranch.spark.sinks.folder import BatchFolder, open_place
from anabranch.spark.sinks.sink import Batch, Sink

_PLAIN_NAME = re.compile(r"\w+", re.ASCII)
_SEPARATORS = (",", ";", "|")
_SPARKS_TYPES = "org.apache.spark.sql.parquet.row.metadata"
_COMPRESSIONS = {name: name for name in ("none", "snappy", "gzip", "zstd", "lz4_raw")} | {"uncompressed": "none"}
"""Arrow's compression names, by Spark's name, for those that both support."""


class FileWriter(Protocol):
    """A file being written."""

    def write_batch(self, batch: pa.RecordBatch) -> None: ...

    def close(self) -> None: ...


class WrittenForm(Protocol):
    """A file format that workers write; it is pickled and sent to them."""

    @property
    def name(self) -> str:
        """The name of the format, which is also the file extension."""
        ...

    def open(self, files: fs.FileSystem, path: str, schema: pa.Schema) -> FileWriter: ...


def written_form(format: str, options: Mapping[str, str], schema: Schema) -> WrittenForm | None:
    """Returns the format in which workers write; None if Spark's writers must write, which also reject bad options."""
    asked = {name.lower(): value for name, value in options.items()}
    match format:
        case "parquet" if asked.keys() <= {"compression"}:
            compression = _COMPRESSIONS.get(asked.get("compression", "snappy").lower())
            return None if compression is None else ParquetFiles(compression)
        case "csv" if asked.keys() <= {"header", "sep"} and len(schema) > 1:
            header, separator = asked.get("header", "false").lower(), asked.get("sep", ",")
            is_plain = all(is_integer(field.type) or pa.types.is_boolean(field.type) for field in schema)
            is_named = all(_PLAIN_NAME.fullmatch(name) for name in schema.names)
            if is_plain and is_named and header in ("true", "false") and separator in _SEPARATORS:
                return CsvFiles(separator, header == "true")
    return None


@dataclass(frozen=True)
class ParquetFiles:
    """Parquet, with a compression by its Arrow name."""

    compression: str
    name: str = "parquet"

    def open(self, files: fs.FileSystem, path: str, schema: pa.Schema) -> FileWriter:
        # A dictionary of numbers usually overflows and is discarded; a dictionary of strings often pays.
        texts = [field.name for field in schema if not is_fixed_width(field.type)]
        # Parquet has no interval type, and intervals would be read back as numbers; Spark's writer also stores its
        # types here.
        schema = schema.with_metadata({_SPARKS_TYPES: to_spark(Schema.from_arrow(schema)).json()})
        writer: FileWriter = parquet.ParquetWriter(
            path, schema, filesystem=files, compression=self.compression, use_dictionary=texts
        )
        return writer


@dataclass(frozen=True)
class CsvFiles:
    """CSV, with or without a header row."""

    separator: str
    has_header: bool
    name: str = "csv"

    def open(self, files: fs.FileSystem, path: str, schema: pa.Schema) -> FileWriter:
        return _CsvWriter(self, files.open_output_stream(path), schema)


class _CsvWriter:
    """Closes the file together with the writer, which Arrow's writer does not do."""

    def __init__(self, form: CsvFiles, file: pa.NativeFile, schema: pa.Schema) -> None:
        self._file = file
        if form.has_header:
            file.write((form.separator.join(schema.names) + "\n").encode())
        self._writer = csv.CSVWriter(
            file, schema, write_options=csv.WriteOptions(include_header=False, delimiter=form.separator)
        )

    def write_batch(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()
        self._file.close()


@dataclass
class WorkerFileSink(Sink):
    """A folder of files that reads back as a plain table of the SELECT columns."""

    path: str
    form: WrittenForm

    def __post_init__(self) -> None:
        self.folder = BatchFolder(self.path, self.form.name, {})

    @property
    def title(self) -> str:
        return f"'{self.form.name}' at '{self.path}'"

    @property
    def place(self) -> str:
        return self.folder.place

    def stage(self, batch: Batch) -> StagedFile:
        return StagedFile(self.folder.stage(batch.number, batch.query_id), self.form)

    def publish(self, batch: Batch) -> None:
        self.folder.publish(batch.number, batch.query_id)


@dataclass(frozen=True)
class StagedFile:
    """One file of the staging folder, written by one worker; it becomes visible when complete."""

    staging: str
    form: WrittenForm

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
    """A staged file being written; the file is created with the first batch."""

    def __init__(self, file: StagedFile, part: str) -> None:
        self._file = file
        self._files, folder, _ = open_place(file.staging)
        self._folder = folder
        self._target = posixpath.join(folder, f"part-{part}.{file.form.name}")
        self._partial = posixpath.join(folder, f".part-{uuid.uuid4().hex}")
        self._writer: FileWriter | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        with _sink_errors(self._file.staging):
            if self._writer is None:
                self._files.create_dir(self._folder, recursive=True)
                self._writer = self._file.form.open(self._files, self._partial, batch.schema)
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
