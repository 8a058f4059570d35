"""Files that the workers write themselves, so that results never become rows of the JVM.

A step's results are Arrow in a Python worker. Handing them to Spark's writers costs more than computing them:
over a third of the executors' time on a three-way join with as many results as rows. So the last function that a
worker runs writes its batches to a file of the staging folder and passes nothing on. The driver publishes the folder
as it does for any other file format (`BatchFolder`), with the same guarantees.

Limit: files with partition columns, or with options that only Spark knows, are written by Spark (`FileSink`). Of CSV,
only results of whole numbers and booleans: how a text, a time or a fraction is written is for Spark to say.
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
"""Arrow's names of the compressions that Spark also writes, by Spark's names."""


class FileWriter(Protocol):
    """A file that is being written."""

    def write_batch(self, batch: pa.RecordBatch) -> None: ...

    def close(self) -> None: ...


class WrittenForm(Protocol):
    """A form of files that workers write; is pickled on its way there."""

    @property
    def name(self) -> str:
        """The name of the format, which files end with."""
        ...

    def open(self, files: fs.FileSystem, path: str, schema: pa.Schema) -> FileWriter: ...


def written_form(format: str, options: Mapping[str, str], schema: Schema) -> WrittenForm | None:
    """The form in which workers write; None of formats and options that are for Spark's writers, which also report
    wrong ones."""
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
    """Parquet, by Arrow's name of a compression."""

    compression: str
    name: str = "parquet"

    def open(self, files: fs.FileSystem, path: str, schema: pa.Schema) -> FileWriter:
        # A dictionary of numbers is built, outgrown and thrown away; a dictionary of strings often pays.
        texts = [field.name for field in schema if not is_fixed_width(field.type)]
        # Parquet has no intervals, which would come back as numbers; Spark's own writer stores its types here too.
        schema = schema.with_metadata({_SPARKS_TYPES: to_spark(Schema.from_arrow(schema)).json()})
        writer: FileWriter = parquet.ParquetWriter(
            path, schema, filesystem=files, compression=self.compression, use_dictionary=texts
        )
        return writer


@dataclass(frozen=True)
class CsvFiles:
    """CSV, with names in the first row or without."""

    separator: str
    has_header: bool
    name: str = "csv"

    def open(self, files: fs.FileSystem, path: str, schema: pa.Schema) -> FileWriter:
        return _CsvWriter(self, files.open_output_stream(path), schema)


class _CsvWriter:
    """Closes the file with the writer, which Arrow's does not."""

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
    """One file of the staging folder, written by one worker; it appears when it is complete."""

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
    """A staged file being written; no file is made until there is a batch."""

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
