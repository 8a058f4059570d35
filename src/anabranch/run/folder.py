"""A folder on any file system that Arrow supports: files are written atomically, errors have a name.

Invariant: a file exists completely or not at all. It is written under another name and renamed; without rename, an
object is complete or absent.
"""

from __future__ import annotations

import errno
import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from anabranch.errors import CheckpointError, CorruptCheckpoint, StorageFull
from anabranch.run.locations import UNKNOWN, locate

OBJECT_STORES = ("s3", "gcs", "abfs")
"""Arrow's names of file systems without rename, where an object is visible only when it is complete."""


class Folder:
    """The folder `anabranch` of a checkpoint."""

    def __init__(self, location: str) -> None:
        self.files, root = _file_system(location)
        self.location = root if isinstance(self.files, pafs.LocalFileSystem) else location
        self.root = f"{root.rstrip('/')}/anabranch"
        self._has_objects = self.files.type_name in OBJECT_STORES

    def names(self, folder: str) -> list[str]:
        """Returns the names of our files in a folder: those that begin with a batch number."""
        return [info.base_name for info in self.files_in(folder) if info.base_name[:9].isdigit()]

    def files_in(self, folder: str) -> list[pafs.FileInfo]:
        selector = pafs.FileSelector(f"{self.root}/{folder}", allow_not_found=True)
        with self.reading(selector.base_dir):
            return [info for info in self.files.get_file_info(selector) if info.is_file]

    def read_json(self, path: str) -> dict[str, Any] | None:
        with self.reading(path):
            if self.files.get_file_info(path).type == pafs.FileType.NotFound:
                return None
            with self.files.open_input_stream(path) as stream:
                content = stream.read()
        try:
            value = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise CorruptCheckpoint(
                f"'{path}' is not valid JSON",
                detail=str(error),
                hint="restore it from a copy, or start with an empty checkpoint folder",
            ) from error
        if not isinstance(value, dict):
            raise CorruptCheckpoint(f"'{path}' does not hold an object", hint="restore it from a copy")
        return value

    @contextmanager
    def reading(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointError(
                f"cannot read '{path}'",
                detail=str(error),
                hint="check that the storage can be reached, and the permissions",
            ) from error

    def write_json(self, path: str, value: Mapping[str, Any]) -> None:
        with self.whole(path) as stream:
            stream.write(json.dumps(value).encode())

    @contextmanager
    def whole(self, path: str) -> Iterator[Any]:
        """Opens a file for writing that becomes visible completely when it is closed, or not at all.

        The file is written under another name and renamed. An object store has no rename, and an object becomes visible
        when it is closed, even after a failure; so the content is buffered there and written at once.
        """
        try:
            if self._has_objects:
                buffer = pa.BufferOutputStream()
                yield buffer
                with self.files.open_output_stream(path) as stream:
                    stream.write(buffer.getvalue())
                return
            partial = f"{path}.{uuid.uuid4().hex}.partial"
            with self.files.open_output_stream(partial) as stream:
                yield stream
            self.files.move(partial, path)
        except OSError as error:
            raise self.storage_error(error, path) from error

    def storage_error(self, error: OSError, path: str) -> Exception:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return StorageFull(
                f"no space left to write '{path}'",
                detail="the batch was not committed; it will be replayed",
                hint="free space on that file system and start the query again",
            )
        return CheckpointError(
            f"cannot write '{path}'", detail=str(error), hint="check that it is a folder, and its permissions"
        )


def _file_system(location: str) -> tuple[pafs.FileSystem, str]:
    try:
        files, path, _ = locate(location)
    except UNKNOWN as error:
        raise CheckpointError(
            f"checkpoint location '{location}' cannot be used",
            detail=str(error),
            hint="give an absolute path or a URI such as file:///… or hdfs://…",
        ) from error
    return files, path
