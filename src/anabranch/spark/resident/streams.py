"""The streams of a real-time run: folders and topics that the driver watches, and the readers of their rows.

Invariant: slots read the rows that Spark would read (`spark/file_streams`). If that is not certain for a stream, the
query is refused at its start, and the error names the stream. Limit: folders of local Parquet, CSV or JSON lines files;
topics of Kafka.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from anabranch.errors import HostError, SpecError
from anabranch.run.files.form import Columns, Reading
from anabranch.run.ingest import Reader
from anabranch.run.new_files import WatchedFolder
from anabranch.run.pieces import MOST_READERS, Piece, divided, files_of, pieces_of, shared
from anabranch.spark.file_streams import folder_of, has_plain_settings, reading_of, whole_reading
from anabranch.spark.internals.plans import Source
from anabranch.spark.kafka_source import FORMAT as KAFKA
from anabranch.spark.resident.topics import WatchedTopics
from anabranch.spark.scans import scan_of, source_of

_FORMATS = ("parquet", "csv", "json")
_PLACES = frozenset(("path", "pathglobfilter", "maxfilespertrigger", "latestfirst", "header", "sep"))
"""Options of a source that a watched folder supports."""
_OF_FORM = frozenset(("header", "sep", "delimiter", "inferschema", "mode", "multiline"))
_IN_MICRO_BATCHES = "remove trigger(realTime=True): in micro-batches, Spark reads any source"


class Watched(Protocol):
    """Where the rows of one stream come from; names are those of files or of ranges of offsets."""

    def poll(self, *, is_thorough: bool = False) -> list[str]:
        """Returns the names of what has come and was not taken, in reading order."""

    def took(self, names: Iterable[str]) -> None:
        """Records what has been read."""

    @property
    def read(self) -> Collection[str]:
        """What has been read, as far as a restart must know it."""

    @property
    def shown(self) -> Mapping[str, Any]:
        """What progress says of it."""


@dataclass(frozen=True)
class PiecesPart:
    """The files and ranges of one batch."""

    pieces: tuple[Piece, ...]
    readings: Mapping[str, Reading]

    @property
    def offsets(self) -> Mapping[str, tuple[str, ...]]:
        return files_of(self.pieces)

    def reader(self, slots: int) -> tuple[Reader, bool]:
        is_direct = slots <= MOST_READERS
        make = shared if is_direct else divided
        return make(self.pieces, self.readings, slots), is_direct


@dataclass(frozen=True)
class Streams:
    """The streams of a run, and the readers of their pieces."""

    watched: Mapping[str, Watched]
    readings: Mapping[str, Reading]

    def poll(self, *, is_thorough: bool = False) -> Mapping[str, Collection[str]]:
        found = {name: each.poll(is_thorough=is_thorough) for name, each in self.watched.items()}
        return {name: names for name, names in found.items() if names}

    def part(self, offsets: Mapping[str, Collection[str]]) -> PiecesPart:
        """Returns the pieces of new files; refuses a file that only Spark can read."""
        found: list[Piece] = []
        for stream, paths in offsets.items():
            for path in paths:
                footer = self.readings[stream].look_into(path)
                if footer.why_not is not None:
                    raise HostError(
                        f"file '{path}' of stream '{stream}' cannot be read in real-time mode",
                        detail=footer.why_not,
                        hint="the batch is not committed; write the file again with the columns of the stream, or use "
                        "micro-batches, where Spark reads such files",
                    )
                found += pieces_of(stream, path, footer)
        return PiecesPart(tuple(found), self.readings)

    def took(self, offsets: Mapping[str, Collection[str]]) -> None:
        for name, names in offsets.items():
            if name in self.watched:
                self.watched[name].took(names)

    @property
    def read(self) -> Mapping[str, Collection[str]]:
        return {name: each.read for name, each in self.watched.items()}

    @property
    def shown(self) -> Mapping[str, Mapping[str, Any]]:
        return {name: each.shown for name, each in self.watched.items()}


def watched_streams(frames: Mapping[str, DataFrame], wanted: Mapping[str, Columns]) -> Streams:
    """Returns the streams of a run; refuses a stream that is neither a folder of local files nor topics."""
    watched, readings = {}, {}
    for stream, columns in wanted.items():
        frame = frames[stream]
        with suppress(Py4JError, TypeError, AttributeError):
            watched[stream] = _watched(stream, frame)
            whole = whole_reading(frame) if has_plain_settings(frame.sparkSession) else None
            reading = None if whole is None else reading_of(whole, columns)
            if reading is None:
                raise _refused(stream, "only Spark can read it with these columns, options or session settings")
            readings[stream] = reading
            continue
        raise _refused(stream, "this release of Spark does not say what the frame reads")
    return Streams(watched, readings)


def _watched(stream: str, frame: DataFrame) -> Watched:
    source = source_of(frame)
    if source is None:
        raise _refused(stream, "its frame is not a scan of files or topics whose rows are selected and filtered")
    if source.format != KAFKA:
        return _folder(stream, source, folder_of(frame))
    scan = scan_of(frame)
    if scan is None:
        raise _refused(stream, "its frame has expressions that only Spark can compute")
    return WatchedTopics(source.options, scan.schema)


def _folder(stream: str, source: Source, path: str | None) -> WatchedFolder:
    if source.format not in _FORMATS:
        raise _refused(
            stream,
            f"it is read from '{source.format}'; real-time mode reads Parquet, CSV and JSON files, and topics of Kafka",
        )
    if path is None:
        raise _refused(stream, "it is not a folder of local files")
    options = {name.lower(): value for name, value in source.options.items()}
    if others := sorted(options.keys() - _PLACES - _OF_FORM):
        raise _refused(stream, f"its source has the option '{others[0]}'")
    pattern = options.get("pathglobfilter")
    if pattern is not None and set(pattern) & set("{}[]\\"):
        raise _refused(stream, f"its pattern '{pattern}' has more wildcards than * and ?")
    most = options.get("maxfilespertrigger")
    is_latest_first = options.get("latestfirst", "false").lower() == "true"
    return WatchedFolder(os.path.abspath(path), pattern, None if most is None else int(most), is_latest_first)


def _refused(stream: str, why: str) -> SpecError:
    return SpecError(f"stream '{stream}' cannot be read in real-time mode", detail=why, hint=_IN_MICRO_BATCHES)
