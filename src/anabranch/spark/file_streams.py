"""Streams of files and of Kafka whose rows never pass through the JVM: Spark finds them, reader tasks read them.

Spark keeps the offsets and decides which files, or offsets, a micro-batch has; it lists local folders, and sources of
ours list topics (`kafka_source`) and stores (`stored_files`). The streaming plan is a scan of each stream that is not
run; only its files are taken, by private calls (`internals.queries`), and read as pieces (`run/pieces`). Without these
calls, Spark reads.

Invariant: a batch has the rows that Spark would read. Spark reads streams that are not such scans, or that compute
what the engine does not understand (`scans`), from the start. If readers cannot read a file of a batch, Spark reads all
files of the batch.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from anabranch.lang.schema import Schema
from anabranch.plan.query_set import QuerySet
from anabranch.run.files.csv import Csv
from anabranch.run.files.form import Columns, FileForm, Footer, Reading
from anabranch.run.files.json import Json
from anabranch.run.files.parquet import Parquet
from anabranch.run.files.stored import StoredFiles
from anabranch.run.kafka.ranges import KafkaForm
from anabranch.run.pieces import Piece, pieces_of
from anabranch.spark import delta_source, kafka_source, stored_files
from anabranch.spark.arrow_schema import to_spark
from anabranch.spark.delta_source import DeltaOptions
from anabranch.spark.expressions import to_column
from anabranch.spark.failure import query_id
from anabranch.spark.internals.queries import (
    OffsetsRead,
    current_batch,
    frame_of_files,
    is_partitioned,
    paths_of,
    require_batch_plans,
    row_counters,
    scanned,
)
from anabranch.spark.kafka_source import KafkaOptions
from anabranch.spark.scans import Scan, made_column, scan_of, source_of
from anabranch.spark.spark_rows import SparkRows, spark_rows
from anabranch.spark.stored_files import OFF, SEPARATORS, FolderOptions

MOST_FILES = 256
"""Of more files in a batch, Spark reads all, with tasks for them."""
MOST_LISTED = 10_000
"""Files whose sizes are added up."""
_LISTING = frozenset(
    (
        *("path", "basepath", "pathglobfilter", "recursivefilelookup", "__globpaths__", "filenameonly"),
        *("maxfilespertrigger", "maxbytespertrigger", "maxcachedfiles", "maxfileage", "latestfirst"),
        *("modifiedbefore", "modifiedafter", "cleansource", "sourcearchivedir"),
    )
)
"""Options that concern which files there are, and not how they are read."""
_NEEDED = {
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
}
"""Settings under which files are what they are."""
_NEEDED_FOR_PARQUET = {
    "spark.sql.parquet.datetimeRebaseModeInRead": "corrected",
    "spark.sql.parquet.int96RebaseModeInRead": "corrected",
    "spark.sql.parquet.int96TimestampConversion": "false",
    "spark.sql.parquet.fieldId.read.enabled": "false",
}
"""Settings under which Spark reads Parquet as Arrow does."""
_NEEDED_FOR_CSV = {"spark.sql.legacy.timeParserPolicy": "corrected"}
_NEEDED_FOR_JSON = {**_NEEDED_FOR_CSV, "spark.sql.json.enablePartialResults": "true"}
"""A value that cannot be read makes its column NULL, and no other."""
_OF_CSV = frozenset(("header", "sep", "delimiter", "inferschema"))
_OF_JSON = {"mode": "permissive", "multiline": "false"}
"""The options of JSON files that readers know, with their only values."""
_CORRUPT = "spark.sql.columnNameOfCorruptRecord"
_ZONE, _UTC = "spark.sql.session.timeZone", frozenset(("utc", "etc/utc", "gmt", "z", "+00:00"))
_WATERMARK = "spark.watermarkDelayMs"
_OURS = frozenset((kafka_source.FORMAT, stored_files.FORMAT, delta_source.FORMAT))


@dataclass(frozen=True)
class BatchFiles:
    """The pieces of a micro-batch or, if one of its files is for Spark alone, its rows as Spark reads them."""

    execution: Any
    """Spark's plan."""
    relations: Sequence[Any | None]
    """What its scans read."""
    scans: Sequence[str]
    pieces: Sequence[Piece] = ()
    by_spark: tuple[DataFrame, SparkRows] | None = None

    def count(self, rows_in: Mapping[str, int]) -> None:
        """Lets Spark's own listeners and pages show the rows of each stream, which Spark itself does not read."""
        rows = dict(rows_in)
        # Of several scans of a stream the first counts; the optimizer removes those that find no files.
        by_scan = [rows.pop(name, 0) for name in self.scans]
        found = [count for count, relation in zip(by_scan, self.relations, strict=True) if relation is not None]
        counters = row_counters(self.execution)
        counts = by_scan if len(counters) == len(by_scan) else found
        if len(counters) == len(counts):
            for counter, count in zip(counters, counts, strict=True):
                if count and counter is not None:
                    counter.add(count)


@dataclass(frozen=True)
class FileStreams:
    """The streams of a run, all of which are files that readers read; `scans` are those of Spark's plan, in order."""

    spark: SparkSession
    """The session that runs the query."""
    scans: Sequence[str]
    """By their streams."""
    whole: Mapping[str, Reading]
    """How all columns of each stream are made from its files."""
    readings: Mapping[str, Reading]
    """How those are made that are read."""
    wanted: Mapping[str, Columns]

    def frame(self, frames: Mapping[str, DataFrame]) -> DataFrame:
        """A streaming frame that finds the files of each micro-batch, and reads nothing of them."""
        return reduce(DataFrame.unionAll, (frames[name].select(f.lit(0)) for name in self.scans))

    def of_batch(self, frame: DataFrame) -> BatchFiles:
        """What a micro-batch reads."""
        execution, relations, of_stream = self._found(frame)
        files = {stream: _names(self.whole[stream].form, found) for stream, found in of_stream.items()}
        footers = self._footers(files)
        if not all(map(_is_plain, of_stream.values())) or not _can_read(footers):
            by_spark = self._read_by_spark(frame.sparkSession, of_stream)
            return BatchFiles(execution, relations, self.scans, by_spark=by_spark)
        pieces = [
            piece
            for stream, paths in files.items()
            for path, footer in zip(paths, footers[stream], strict=True)
            for piece in pieces_of(stream, path, footer)
        ]
        return BatchFiles(execution, relations, self.scans, pieces)

    def _footers(self, files: Mapping[str, Sequence[str]]) -> dict[str, list[Footer]]:
        """Looks into the files of a batch, several at a time: those of text are parsed, outside of Python's lock."""
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            found = {stream: threads.map(self.readings[stream].look_into, paths) for stream, paths in files.items()}
            return {stream: list(several) for stream, several in found.items()}

    def _found(self, frame: DataFrame) -> tuple[Any, list[Any | None], dict[str, Any | None]]:
        """Spark's plan of a micro-batch, and what its scans read, by place and by stream."""
        execution = current_batch(self.spark, query_id(frame))
        relations = scanned(execution)
        assert len(relations) == len(self.scans), "Spark's plan of the batch has other scans"
        # The first scan of a stream counts, as where Spark reads.
        of_stream = dict(zip(reversed(self.scans), reversed(relations), strict=True))
        return execution, relations, of_stream

    def _read_by_spark(self, session: SparkSession, relations: Mapping[str, Any]) -> tuple[DataFrame, SparkRows]:
        frames = {
            stream: _made(self.whole[stream], _frame(session, self.whole[stream].form, found))
            for stream, found in relations.items()
            if found is not None
        }
        # Readers read no event times without a zone, so there are none to convert.
        return spark_rows([name for name in dict.fromkeys(self.scans) if name in frames], frames, self.wanted, {})


def _names(form: FileForm, found: Any | None) -> tuple[str, ...]:
    """The names of the pieces that a scan found: files of this machine, or those of a source of ours."""
    if isinstance(found, OffsetsRead):
        assert isinstance(form, KafkaForm | StoredFiles)
        return tuple(form.between(found.start, found.end))
    return () if found is None else tuple(map(local_name, paths_of(found)))


def _is_plain(found: Any | None) -> bool:
    """Whether rows are wholly in files of this machine, or in a source of ours."""
    if found is None or isinstance(found, OffsetsRead):
        return True
    paths = paths_of(found)
    return len(paths) <= MOST_FILES and all(_scheme(path) == "file" for path in paths) and not is_partitioned(found)


def _can_read(footers: Mapping[str, Sequence[Footer]]) -> bool:
    return all(footer.is_readable for several in footers.values() for footer in several)


def _frame(session: SparkSession, form: FileForm, found: Any) -> DataFrame:
    """The rows that a scan found, read by Spark's tasks."""
    if not isinstance(found, OffsetsRead):
        return frame_of_files(session, found)
    assert isinstance(form, KafkaForm | StoredFiles)
    names = _names(form, found)
    return session.range(0, len(names), 1, max(1, len(names))).mapInArrow(
        partial(_pieces_read, form, names), to_spark(Schema.from_arrow(form.columns))
    )


def _pieces_read(
    form: KafkaForm | StoredFiles, names: Sequence[str], numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from form.read(names[number], form.whole).to_batches()


def slots_frame(session: SparkSession, slots: int, anchor: DataFrame | None) -> DataFrame:
    """A frame with a part for each slot, in which there is nothing to read."""
    return session.range(0, slots, 1, slots) if anchor is None else anchor


def _made(reading: Reading, frame: DataFrame) -> DataFrame:
    """The rows of a stream over those of its files, computed by Spark."""
    for condition in reading.conditions:
        frame = frame.where(to_column(condition))
    return frame.select(*(made_column(each, name) for name, each in reading.made.items()))


def file_streams(
    frames: Mapping[str, DataFrame], scans: Sequence[str], wanted: Mapping[str, Columns]
) -> FileStreams | None:
    """The streams of a run if readers can read all their files; None if Spark has to."""
    if OFF in os.environ or not set(scans) <= wanted.keys() or not set(scans) <= frames.keys():
        return None
    session = frames[scans[0]].sparkSession
    with suppress(Py4JError, TypeError, AttributeError):
        if has_plain_settings(session) and all(_is_found(frames[stream]) for stream in scans):
            whole = {stream: reading for stream in wanted if (reading := whole_reading(frames[stream])) is not None}
            found = {stream: reading_of(reading, wanted[stream]) for stream, reading in whole.items()}
            readings = {stream: reading for stream, reading in found.items() if reading is not None}
            if readings.keys() == wanted.keys():
                require_batch_plans(session)
                return FileStreams(session, scans, whole, readings, wanted)
    return None


def has_plain_settings(session: SparkSession) -> bool:
    """Whether files are what they are: Spark leaves none of them out."""
    return _has(session, _NEEDED)


def _has(session: SparkSession, settings: Mapping[str, str]) -> bool:
    return all(str(session.conf.get(name)).lower() == value for name, value in settings.items())


def bytes_of_files(queries: QuerySet, frames: Mapping[str, DataFrame]) -> dict[str, float]:
    """The bytes that stand in the folder of each relation's stream; nothing where one is no folder of this machine.

    With nothing else known of the streams, these tell which of them brings the most rows.
    """
    relations = [each for each in queries.graph.streamed if not each.is_result]
    folders = {stream: folder_of(frames[stream]) for stream in {each.stream for each in relations}}
    sizes = {stream: 0.0 if folder is None else _bytes_in(folder) for stream, folder in folders.items()}
    return {each.name: sizes[each.stream] for each in relations} if all(sizes.values()) else {}


def _is_found(frame: DataFrame) -> bool:
    """Whether readers of ours find the rows of a stream: in a folder of this machine, or in a source of ours."""
    source = source_of(frame)
    return folder_of(frame) is not None or (source is not None and source.format in _OURS)


def folder_of(frame: DataFrame) -> str | None:
    """Returns the folder of this machine that a stream reads; None where it reads anything else."""
    with suppress(Py4JError, TypeError, AttributeError):
        source = source_of(frame)
        path = None if source is None else source.options.get("path")
        if path is not None:
            local = path.removeprefix("file://")
            return local if os.path.isdir(local) else None
    return None


def _bytes_in(folder: str) -> float:
    with suppress(OSError), os.scandir(folder) as entries:
        return float(sum(entry.stat().st_size for entry in itertools.islice(entries, MOST_LISTED) if entry.is_file()))
    return 0.0


def whole_reading(frame: DataFrame) -> Reading | None:
    """How all columns of a stream are made from its files; None where the frame, or the files, are for Spark alone."""
    scan = scan_of(frame)
    form = None if scan is None else _form(frame.sparkSession, scan)
    return None if scan is None or form is None else Reading(form, scan.made, scan.conditions)


def reading_of(whole: Reading, wanted: Columns) -> Reading | None:
    """How readers make the columns that are wanted of a stream; None where they cannot."""
    if not _has_columns(whole, wanted):
        return None
    found = whole.only(wanted)
    return found if found.columns and all(map(found.form.can_hold, found.columns.values())) else None


def _has_columns(reading: Reading, wanted: Columns) -> bool:
    return all(name in reading.made and reading.made[name].type == kind for name, kind in wanted.items())


def _form(session: SparkSession, scan: Scan) -> FileForm | None:
    """The form of the files of a scan, if slots read it with these options."""
    if any(field.metadata.keys() - {_WATERMARK} for field in scan.schema):
        return None
    options = {name.lower(): value for name, value in scan.source.options.items()}
    others = options.keys() - _LISTING
    match scan.source.format:
        case "parquet" if not others and _has(session, _NEEDED_FOR_PARQUET):
            return Parquet()
        case "csv" if others <= _OF_CSV and _has(session, _NEEDED_FOR_CSV):
            return _csv(session, scan.schema.names, options)
        case "json" if others <= _OF_JSON.keys() and _has(session, _NEEDED_FOR_JSON):
            return _json(session, scan.schema.names, {name: options[name] for name in others})
        case kafka_source.FORMAT:
            return kafka_source.form_of(KafkaOptions.of(options), scan.schema)
        case stored_files.FORMAT:
            return stored_files.form_of(FolderOptions.of(options), scan.schema)
        case delta_source.FORMAT:
            return delta_source.form_of(DeltaOptions.of(options), scan.schema)
    return None


def _csv(session: SparkSession, names: Sequence[str], options: Mapping[str, str]) -> Csv | None:
    separator, header = options.get("sep", options.get("delimiter", ",")), options.get("header", "false").lower()
    if separator not in SEPARATORS or {"sep", "delimiter"} <= options.keys() or header not in ("true", "false"):
        return None
    if session.conf.get(_CORRUPT) in names:
        return None  # the schema asks for the text of rows that cannot be read
    return Csv(tuple(names), separator, header == "true", _is_utc(session))


def _json(session: SparkSession, names: Sequence[str], options: Mapping[str, str]) -> Json | None:
    if session.conf.get(_CORRUPT) in names or any(_OF_JSON[name] != options[name].lower() for name in options):
        return None
    return Json(_is_utc(session))


def _is_utc(session: SparkSession) -> bool:
    return str(session.conf.get(_ZONE)).lower() in _UTC


def _scheme(path: str) -> str:
    return urlsplit(path).scheme


def local_name(path: str) -> str:
    """Returns the path of a file that Spark names by a URI."""
    return unquote(urlsplit(path).path)
