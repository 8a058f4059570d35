"""Files of an object store, or of any file system of Arrow, as pieces: how they are listed and how they are read.

The files of a micro-batch are those that Spark's offsets name (`spark/stored_files`). Invariant: a file is in one
batch, and reading it again gives the same rows, or a named error; Arrow's client repeats requests that the store
refuses, answers late or cuts off, and the length of a file is checked. Limit: files must be complete when they appear,
and must not be written again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import pyarrow as pa
from pyarrow import fs

from anabranch.errors import CatalogError, HostError
from anabranch.run.files.form import Columns, Footer, OneByOne, Unsure
from anabranch.run.files.json import Json
from anabranch.run.files.parquet import Parquet
from anabranch.run.files.text import PACKED, TextForm
from anabranch.run.folder import OBJECT_STORES
from anabranch.run.kafka.json_values import parse
from anabranch.run.locations import UNKNOWN, locate

FAIL, DROP = "fail", "drop"
"""What a bad JSON line does: it ends the query, or it becomes a row without a time, which is not admitted."""
WHOLE = 16 * 2**20
"""A Parquet file of at most as many bytes is read with one request; of a larger one, the columns that are needed."""
DIVIDED = 64 * 2**20
"""The row groups of a larger Parquet file can be read by several tasks."""
_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
"""The compression of files of text, by the end of their names."""
READ, FORGOTTEN = "read", "forgotten"
Offset = dict[str, Any]
"""`read`: time of modification (in nanoseconds) and size of each recently read file, by its name within the folder.
`forgotten`: the number of files that were read and are older."""
START: Offset = {READ: {}, FORGOTTEN: 0}


@dataclass(frozen=True, order=True)
class Found:
    """A file of a folder."""

    at: int
    """The time of modification in nanoseconds."""
    name: str
    """The path within the folder."""
    size: int = field(compare=False)

    @property
    def path(self) -> str:
        """The path of its piece."""
        return f"{self.name}:{self.size}"


@dataclass(frozen=True)
class StoredFiles(OneByOne):
    """How the files below a folder are read; a form of pieces whose paths are `<name>:<size>`."""

    location: str = field(repr=False)
    """The folder as a URI."""
    form: Parquet | TextForm
    columns: pa.Schema
    """All columns of the stream: whether a line is good does not depend on those that are read."""
    bad_records: str = FAIL

    @property
    def whole(self) -> Columns:
        """All columns of the stream."""
        return dict(zip(self.columns.names, self.columns.types, strict=True))

    def between(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[str]:
        """Returns the paths of the files of a batch."""
        return [each.path for each in files_between(start, end)]

    def can_hold(self, kind: pa.DataType) -> bool:
        """Returns whether a column can be read; the source has refused other types."""
        return self.form.can_hold(kind)

    def look_into(self, path: str, wanted: Columns) -> Footer:
        """Returns the parts of a large file; others are not looked into."""
        size = _size(path)
        if size <= DIVIDED or not isinstance(self.form, Parquet):
            return Footer((size,))
        with self._opened(path) as file:
            return Footer(self.form.sizes(file))

    def read(self, path: str, wanted: Columns, parts: Sequence[int] | None = None) -> pa.Table:
        with self._opened(path) as file:
            if isinstance(self.form, Parquet):
                is_small = parts is None and _size(path) <= WHOLE
                return self.form.table(pa.BufferReader(file.read_buffer()) if is_small else file, wanted, parts)
            data = _unpacked(_name(path), file)
            return self._lines(path, data, wanted) if isinstance(self.form, Json) else self._plain(data, wanted)

    def _plain(self, data: bytes, wanted: Columns) -> pa.Table:
        assert isinstance(self.form, TextForm)
        return self.form.rows(data, wanted, use_threads=False)

    def _lines(self, path: str, data: bytes, wanted: Columns) -> pa.Table:
        """Returns lines of JSON; reads lines one by one if they are not all plain objects."""
        assert isinstance(self.form, Json)
        try:
            return self.form.rows(data, self.whole, use_threads=False).select(list(wanted))
        except Unsure:
            lines = [line.rstrip(b"\r") for line in data.split(b"\n")]
        numbers = [number for number, line in enumerate(lines) if line.strip()]
        parsed = parse([lines[number] for number in numbers], self.columns)
        if parsed.bad and self.bad_records == FAIL:
            place = min(parsed.bad)
            raise CatalogError(
                f"line {numbers[place] + 1} of file '{self.shown(path)}' is not one of its stream",
                detail=f"{parsed.bad[place]}; {len(parsed.bad)} of {len(numbers)} lines of the file are bad",
                hint="correct the schema; or count such lines, and write them to the sink for late rows if there is "
                "one, with the option badRecords: drop",
            )
        return parsed.rows.select(list(wanted))

    def shown(self, path: str) -> str:
        """Returns the full path of a file."""
        return f"{file_system(self.location)[1]}/{_name(path)}"

    @contextmanager
    def _opened(self, path: str) -> Iterator[pa.NativeFile]:
        """Opens a file; gives errors of reading it their name."""
        try:
            with file_system(self.location)[0].open_input_file(self.shown(path)) as file:
                if file.size() != _size(path):
                    raise Unsure(f"it had {_size(path)} bytes when it was listed, and has {file.size()}")
                yield file
        except FileNotFoundError as error:
            raise CatalogError(
                f"file '{self.shown(path)}' of a stream is gone",
                detail="it was listed, and removed before its batch was committed",
                hint="put it back; remove files only after their batch",
            ) from error
        except (Unsure, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise CatalogError(
                f"file '{self.shown(path)}' of a stream cannot be read",
                detail=str(error).partition("\n")[0],
                hint="the batch is not committed; correct the schema or the options of the source; write new rows to "
                "new files",
            ) from error
        except OSError as error:
            raise HostError(
                f"file '{self.shown(path)}' cannot be read from its store",
                detail=str(error).partition("\n")[0],
                hint="the batch is not committed; start the query again once the store answers",
            ) from error


def _unpacked(name: str, file: pa.NativeFile) -> bytes:
    """Returns the content of a file of text."""
    if not name.endswith(PACKED):
        content: bytes = file.readall()
        return content
    kind = next((kind for ending, kind in _CODECS.items() if name.endswith(ending)), None)
    if kind is None:
        raise Unsure(f"it is compressed, and only {', '.join(_CODECS)} are known")
    with pa.CompressedInputStream(file, kind) as stream:
        unpacked: bytes = stream.read()
        return unpacked


def _without_secrets(location: str) -> str:
    """Returns a URI without its user and its options."""
    scheme, separator, rest = location.partition("?")[0].partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def _name(path: str) -> str:
    return path.rpartition(":")[0]


def _size(path: str) -> int:
    return int(path.rpartition(":")[2])


@cache
def file_system(location: str) -> tuple[fs.FileSystem, str]:
    """Returns the file system of a folder, opened once in a process, and the path within it."""
    try:
        files, root, _ = locate(location)
    except UNKNOWN as error:
        raise CatalogError(
            f"folder '{_without_secrets(location)}' of a stream cannot be opened",
            detail=str(error).partition("\n")[0].replace(location, _without_secrets(location)),
            hint="give a URI such as s3://bucket/folder, and credentials in the environment of driver and executors",
        ) from error
    return files, root.rstrip("/")


def listed(location: str, pattern: str | None = None) -> list[Found]:
    """Returns the files below a folder, by time of modification and name.

    Hidden files (`.x`, `_x`) and empty ones are left out, as are objects that stand for folders.
    """
    files, root = file_system(location)
    try:
        infos = files.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
        bucket = root.partition("/")[0]
        is_store = files.type_name in OBJECT_STORES
        if not infos and is_store and files.get_file_info(bucket).type == fs.FileType.NotFound:
            raise FileNotFoundError(f"bucket '{bucket}' does not exist")
    except OSError as error:
        raise HostError(
            f"folder '{root}' of a stream cannot be listed",
            detail=str(error).partition("\n")[0],
            hint="check the credentials, and that the store can be reached; then start the query again",
        ) from error
    found = []
    for info in infos:
        name = info.path[len(root) + 1 :]
        *folders, last = name.split("/")
        if not info.is_file or not info.size or any(part.startswith((".", "_")) for part in (*folders, last)):
            continue
        if any("=" in folder for folder in folders):
            raise CatalogError(
                f"folder '{root}' has columns in the names of folders: '{name}'",
                hint="write all columns into the files",
            )
        if pattern is None or fnmatchcase(last, pattern):
            found.append(Found(info.mtime_ns or 0, name, info.size))
    return sorted(found)


def following(start: Offset, found: Sequence[Found], most: int | None, age: int) -> Offset:
    """Returns the offset after the next batch: all new files, or the first ones.

    Names are kept for `age` nanoseconds of the newest file; an older file that is not among them was read before. More
    such files than were read are an error.
    """
    read: dict[str, list[int]] = start[READ]
    horizon = max(at for at, _ in read.values()) - age if read else -1
    kept = {name: each for name, each in read.items() if each[0] > horizon}
    old = [each for each in found if each.at <= horizon and each.name not in read]
    if len(old) > start[FORGOTTEN]:
        raise HostError(
            f"a file appeared late: one of {len(old)} files such as '{old[-1].name}'",
            detail=f"they are older than maxFileAge before the newest file, and {start[FORGOTTEN]} such files were "
            "read, so it is not known which of them is new",
            hint="write its rows to a new file, and remove it; or start with an empty checkpoint and a longer "
            "maxFileAge",
        )
    new = [each for each in found if each.at > horizon and each.name not in read][:most]
    if not new:
        return start
    return {
        READ: {**kept, **{each.name: [each.at, each.size] for each in new}},
        FORGOTTEN: start[FORGOTTEN] + len(read) - len(kept),
    }


def files_between(start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Found]:
    """Returns the files of a batch."""
    before = start.get(READ, {})
    return sorted(Found(at, name, size) for name, (at, size) in end[READ].items() if name not in before)
