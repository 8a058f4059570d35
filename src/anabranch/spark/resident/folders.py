"""The streams of a real-time run: folders that the driver watches, and the readers of their files.

Invariant: slots read the rows that Spark would read (`spark/file_streams`). If that is not certain for a stream, the
query is refused at its start, and the error names the stream. Limit: folders of local Parquet, CSV or JSON lines files.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from anabranch.errors import HostError, SpecError
from anabranch.run.files.form import Columns, Reading
from anabranch.run.ingest import Reader
from anabranch.run.new_files import WatchedFolder, WatchedFolders
from anabranch.run.pieces import MOST_READERS, Piece, divided, files_of, pieces_of, shared
from anabranch.spark.file_streams import folder_of, has_plain_settings, reading_of, whole_reading
from anabranch.spark.internals.plans import Source
from anabranch.spark.scans import source_of

_FORMATS = ("parquet", "csv", "json")
_PLACES = frozenset(("path", "pathglobfilter", "maxfilespertrigger", "latestfirst", "header", "sep"))
"""Options of a source that a watched folder supports."""
_OF_FORM = frozenset(("header", "sep", "delimiter", "inferschema", "mode", "multiline"))
_IN_MICRO_BATCHES = "remove trigger(realTime=True): in micro-batches, Spark reads any source"


@dataclass(frozen=True)
class FilePart:
    """The files of one batch."""

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
class Folders:
    """The folders of the streams, and the readers of their files."""

    watched: WatchedFolders
    readings: Mapping[str, Reading]

    def poll(self, *, is_thorough: bool = False) -> Mapping[str, Collection[str]]:
        return self.watched.poll(is_thorough=is_thorough)

    def part(self, offsets: Mapping[str, Collection[str]]) -> FilePart:
        """Returns the pieces of new files; refuses a file that only Spark can read."""
        found: list[Piece] = []
        for stream, paths in offsets.items():
            for path in paths:
                footer = self.readings[stream].look_into(path)
                if not footer.is_readable:
                    raise HostError(
                        f"file '{path}' of stream '{stream}' cannot be read in real-time mode",
                        detail="its columns are not those of the stream, or only Spark can interpret its values",
                        hint="the batch is not committed; write the file again with the columns of the stream",
                    )
                found += pieces_of(stream, path, footer)
        return FilePart(tuple(found), self.readings)

    def took(self, offsets: Mapping[str, Collection[str]]) -> None:
        self.watched.took(offsets)

    @property
    def read(self) -> Mapping[str, Collection[str]]:
        return self.watched.read


def folders(frames: Mapping[str, DataFrame], wanted: Mapping[str, Columns]) -> Folders:
    """Returns the folders of streams; refuses any other kind of stream."""
    watched, readings = {}, {}
    for stream, columns in wanted.items():
        frame = frames[stream]
        with suppress(Py4JError, TypeError, AttributeError):
            source = source_of(frame)
            if source is None:
                raise _refused(stream, "its frame is not a scan of files whose rows are selected and filtered")
            watched[stream] = _folder(stream, source, folder_of(frame))
            whole = whole_reading(frame) if has_plain_settings(frame.sparkSession) else None
            reading = None if whole is None else reading_of(whole, columns)
            if reading is None:
                raise _refused(stream, "only Spark can read it with these columns, options or session settings")
            readings[stream] = reading
            continue
        raise _refused(stream, "this release of Spark does not show what the frame reads")
    return Folders(WatchedFolders(watched), readings)


def _folder(stream: str, source: Source, path: str | None) -> WatchedFolder:
    if source.format not in _FORMATS:
        raise _refused(
            stream, f"it is read from '{source.format}', and real-time mode reads Parquet, CSV and JSON files"
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
