"""Folders of object stores as a Spark source that needs no Hadoop client, with the options of Spark's file source.

    spark.dataSource.register(FilesOfFolder)                      # a spec with `path: s3://…` does so by itself
    spark.readStream.format("anabranch-files").option("fileFormat", "parquet").schema("ts timestamp, k bigint")…

Spark keeps the offsets; the source lists the folder through Arrow, and tasks read the files (`run/files/stored`),
without the JVM where they can (`spark/file_streams`). Invariant: a batch that is read again has the same files. Limit:
Parquet, JSON lines and CSV; the whole folder is listed for each trigger. Needs Spark 4.2 or newer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from anabranch.errors import CatalogError
from anabranch.lang.ddl import parse_schema
from anabranch.lang.window import parse_duration
from anabranch.run.files.csv import Csv
from anabranch.run.files.json import Json
from anabranch.run.files.parquet import Parquet
from anabranch.run.files.stored import DROP, FAIL, READ, START, Found, Offset, StoredFiles, following, listed
from anabranch.run.kafka.json_values import require_types
from anabranch.run.stream_sample import first_files
from anabranch.settings.entries import SCHEME
from anabranch.spark.arrow_schema import from_spark, to_spark
from anabranch.spark.sample import FrameSample
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

FORMAT = "anabranch-files"
OFF = "ANABRANCH_SPARK_READS"
"""An environment variable that, set to anything, lets Spark read all streams."""
STORES = frozenset(("s3", "s3a", "gs", "gcs", "abfs", "abfss"))
"""The schemes of object stores that Arrow opens."""
FORMATS = ("parquet", "json", "csv")
SEPARATORS = frozenset(",;|")
_MOST = "maxFilesPerTrigger"
_KNOWN = {
    name.lower(): name
    for name in ("path", "fileFormat", _MOST, "pathGlobFilter", "maxFileAge", "header", "sep", "badRecords")
}
_OF = {"header": "csv", "sep": "csv", "badrecords": "json"}
"""Options of one format."""


@dataclass(frozen=True)
class FolderOptions:
    """The validated options of a source."""

    path: str = field(repr=False)
    format: str
    most: int | None = None
    """The maximum number of files in a batch."""
    pattern: str | None = None
    age: int = 3600 * 10**9
    """In nanoseconds; see `run/files/stored.following`."""
    has_header: bool = False
    separator: str = ","
    bad_records: str = FAIL

    @classmethod
    def of(cls, given: Mapping[str, str]) -> FolderOptions:
        options = {name.lower(): value for name, value in given.items()}
        kind = one_of("fileFormat", options.get("fileformat", ""), FORMATS)
        for name in options:
            if name not in _KNOWN or _OF.get(name, kind) != kind:
                known = ", ".join(each for low, each in _KNOWN.items() if _OF.get(low, kind) == kind)
                raise CatalogError(
                    f"a source of {kind} files in a store has no option '{name}'",
                    hint=f"it has {known}; with {OFF}=1 Spark reads, if it has a file system for the store",
                )
        if "path" not in options:
            raise CatalogError("a source of files has no path", hint="give a URI such as s3://bucket/folder")
        pattern = options.get("pathglobfilter")
        if pattern is not None and set(pattern) & set("{}[]\\"):
            raise CatalogError(f"option 'pathGlobFilter' is '{pattern}'", hint="use * and ? only")
        return cls(
            options["path"],
            kind,
            None if _MOST.lower() not in options else count_of(_MOST, options[_MOST.lower()]),
            pattern,
            _age(options.get("maxfileage", "1 hour")),
            one_of("header", options.get("header", "false").lower(), ("true", "false")) == "true",
            one_of("sep", options.get("sep", ","), sorted(SEPARATORS)),
            one_of("badRecords", options.get("badrecords", FAIL), (FAIL, DROP)),
        )


class FilesOfFolder(DataSource):
    """The data source registered with Spark."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        raise CatalogError("a source of files has no schema", hint='give one: .schema("ts timestamp, k bigint")')

    def streamReader(self, schema: StructType) -> FolderStream:
        require_limits("the source of stored files", "Spark's own file source")
        return FolderStream(FolderOptions.of(dict(self.options)), schema)


def is_stored(format: str, path: str | None) -> bool:
    """Returns whether this source reads files; otherwise Spark's own file source does."""
    scheme = SCHEME.match(path or "")
    is_store = scheme is not None and scheme.group(1).lower() in STORES
    return is_store and format in FORMATS and OFF not in os.environ and HAS_LIMITS


def open_stored(spark: SparkSession, format: str, path: str, columns: str, options: Mapping[str, str]) -> DataFrame:
    """Opens the files of a folder as a stream."""
    given = {**options, "fileFormat": format}
    FolderOptions.of({**given, "path": path})
    spark.dataSource.register(FilesOfFolder)
    return spark.readStream.format(FORMAT).options(**given).schema(columns).load(path)


def sample_of_store(
    spark: SparkSession, format: str, path: str, columns: str, options: Mapping[str, str]
) -> FrameSample | None:
    """Returns the first files of a folder; None if it is empty."""
    chosen = FolderOptions.of({**options, "fileFormat": format, "path": path})
    form = form_of(chosen, to_spark(parse_schema(columns)))
    files = listed(path, chosen.pattern)
    if not files:
        return None
    sizes = [each.size for each in files]
    first = first_files(sizes)

    def frame(several: Sequence[Found]) -> DataFrame:
        return spark.createDataFrame(pa.concat_tables(form.read(each.path, form.whole) for each in several))

    latest = frame(files[-1:]) if first < len(files) else None
    return FrameSample(frame(files[:first]), sum(sizes[:first]) / sum(sizes), latest)


def form_of(options: FolderOptions, schema: StructType) -> StoredFiles:
    """Returns how the files of a source are read. Times without a zone are in UTC."""
    columns = from_spark(schema, "files").to_arrow()
    form: Parquet | Json | Csv
    match options.format:
        case "parquet":
            form = Parquet()
        case "json":
            form = Json()
            require_types(columns)
        case _:
            form = Csv(tuple(columns.names), options.separator, options.has_header)
    for each in columns:
        if not form.can_hold(each.type):
            raise CatalogError(
                f"column '{each.name}' of type {each.type} cannot be read from {options.format} files in a store",
                hint="leave it out of the schema",
            )
    return StoredFiles(options.path, form, columns, options.bad_records)


class OneFile(InputPartition):
    """A file that one task reads."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class FolderStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lists the folder in Spark's process for the source, and reads files in a worker."""

    def __init__(self, options: FolderOptions, schema: StructType) -> None:
        self._options, self._form = options, form_of(options, schema)
        self._all: list[Found] | None = None
        """The files of a run that reads all that are there."""

    def initialOffset(self) -> Offset:
        return START

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Returns the end of the batch: all new files, or at most as many as the option allows."""
        if READ not in start:
            raise CatalogError(
                "the checkpoint has offsets of Spark's file source",
                hint=f"go on with {OFF}=1, which lets Spark read, or start with an empty checkpoint folder",
            )
        found = self._listed() if self._all is None else self._all
        most = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        return following(start, found, most, self._options.age)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._options.most is None else ReadMaxFiles(self._options.most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._all = self._listed()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return [OneFile(path) for path in self._form.between(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, OneFile)
        yield from self._form.read(partition.path, self._form.whole).to_batches()

    def _listed(self) -> list[Found]:
        return listed(self._options.path, self._options.pattern)


def _age(text: str) -> int:
    try:
        return parse_duration(text) * 1000
    except ValueError as error:
        raise CatalogError(f"option 'maxFileAge' is '{text}'", detail=str(error), hint="write 1 hour") from error
