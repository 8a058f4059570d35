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
from anabranch.run.sink_settings import COMPRESSIONS
from anabranch.spark.arrow_schema import to_spark
from anabranch.spark.sinks.folder import BatchFolder, open_place
from anabranch.spark.sinks.partitions import UNPARTITIONED, Partitions
from anabranch.spark.sinks.sink import Batch, Sink

_PLAIN_NAME = re.compile(r"\w+", re.ASCII)
_SEPARATORS = (",", ";", "|")
_SPARKS_TYPES = "org.apache.spark.sql.parquet.row.metadata"


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
            compression = COMPRESSIONS.get(asked.get("compression", "snappy").lower())
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
        spark_types = to_spark(Schema.from_arrow(schema)).json()
        schema = schema.with_metadata({**(schema.metadata or {}), _SPARKS_TYPES: spark_types})
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
        self.folder = BatchFolder(self.path, self.form.name)
        self.folder.refuse_logs()

    @property
    def title(self) -> str:
        return f"'{self.form.name}' at '{self.path}'"

    @property
    def place(self) -> str:
        return self.folder.place

    @property
    def workers_write(self) -> bool:
        return True

    def stage(self, batch: Batch) -> StagedFile:
        return StagedFile(self.folder.stage(batch.number, batch.query_id), self.form)

    def publish(self, batch: Batch) -> None:
        self.folder.publish(batch.number, batch.query_id)


@dataclass(frozen=True)
class StagedFile:
    """The staged output of one worker: one file, or one for each partition. A file becomes visible when complete."""

    staging: str
    form: WrittenForm
    partitions: Partitions = UNPARTITIONED

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
    """A staged output being written; a file is created with its first rows."""

    def __init__(self, file: StagedFile, part: str) -> None:
        self._file = file
        self._files, self._folder, _ = open_place(file.staging)
        self._part = part
        self._unique = uuid.uuid4().hex
        self._writers: dict[str, FileWriter] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        with _sink_errors(self._file.staging):
            for name, rows in self._file.partitions.split(batch):
                if name not in self._writers:
                    self._files.create_dir(self._folder, recursive=True)
                    self._writers[name] = self._file.form.open(self._files, self._partial(name), rows.schema)
                self._writers[name].write_batch(rows)

    def finish(self) -> None:
        with _sink_errors(self._file.staging):
            for name, writer in self._writers.items():
                writer.close()
                target = f"part-{self._part}{name}.{self._file.form.name}"
                self._files.move(self._partial(name), posixpath.join(self._folder, target))

    def abandon(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def _partial(self, name: str) -> str:
        return posixpath.join(self._folder, f".part-{self._unique}{name}")


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
