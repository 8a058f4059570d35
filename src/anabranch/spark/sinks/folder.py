"""A folder of result files; each file belongs to one batch of one query.

A batch is staged in a hidden folder inside the target, then published: files of an earlier attempt at this batch and
query are removed, and the staged files are moved to `part-<batch>-<query>-<attempt>-…` inside the same partition
folders. Only a batch interrupted by a crash can have leftovers, so the folder is listed once per start. A sink with a
transaction log of its own (`lake`) moves the files and removes leftovers itself.

Limit: a path without a scheme is a local path of driver and executors; other locations need a URI that Arrow supports
(`hdfs:`, `s3:`, `s3a:`, `gs:`, `abfs:`, `abfss:`).
"""

from __future__ import annotations

import os
import posixpath
import re
import uuid
from collections.abc import Mapping

from pyarrow import fs, orc, parquet

from anabranch.errors import SinkError
from anabranch.run.locations import UNKNOWN, locate

_STAGING = ".staging-"
_LOGS = {"_spark_metadata": "the sink of a Spark streaming query", "_delta_log": "a Delta table"}
"""Logs that list the files of a folder, and what a folder with such a log is."""


class BatchFolder:
    """The files of one folder; `stage` and `publish` alternate for each batch."""

    def __init__(self, path: str, format: str, options: Mapping[str, str] | None = None) -> None:
        self._files, self._root, self._spark_root = open_place(path)
        self._format = format
        self._options = {key.lower(): value for key, value in (options or {}).items()}
        self._newest: int | None = None
        self._staged = ""

    @property
    def place(self) -> str:
        """A unique name of the folder, independent of the spelling of its path."""
        is_local = isinstance(self._files, fs.LocalFileSystem)
        return f"file://{os.path.realpath(self._root)}" if is_local else self._spark_root.rstrip("/")

    def stage(self, batch_id: int, query_id: str) -> str:
        """Returns a path for this attempt at the batch that no other attempt writes to.

        A worker that survived a killed driver may still be writing to the folder of an earlier attempt.
        """
        if self._newest is None:
            self._drop_staging(_owner(query_id))
        self._staged = f"{_STAGING}{batch_id:09d}-{_owner(query_id)}-{uuid.uuid4().hex[:8]}"
        return self.staging

    @property
    def staging(self) -> str:
        """The path of the last staged attempt, in the form that Spark writes to."""
        return posixpath.join(self._spark_root, self._staged)

    def publish(self, batch_id: int, query_id: str) -> None:
        """Replaces the files of this batch with the staged files that have rows."""
        if self._newest is None or batch_id <= self._newest:
            self.drop_leftovers(batch_id, query_id)
        self.move(batch_id, query_id)
        self._newest = batch_id if self._newest is None else max(batch_id, self._newest)

    def move(self, batch_id: int, query_id: str) -> list[str]:
        """Moves the staged files that have rows into place; returns their paths inside the folder."""
        prefix = f"{batch_prefix(batch_id, query_id)}{self._staged.rpartition('-')[2]}-"
        staging = posixpath.join(self._root, self._staged)
        made: set[str] = set()
        moved = []
        for file in self._data_files(staging):
            # Spark's first task creates a file even without rows.
            if file.base_name.startswith("part-00000-") and not self._has_rows(file):
                continue
            inside = posixpath.relpath(posixpath.dirname(file.path), staging)
            folder = posixpath.normpath(posixpath.join(self._root, inside))
            if folder not in made:
                self._files.create_dir(folder, recursive=True)
                made.add(folder)
            target = posixpath.join(folder, prefix + file.base_name.removeprefix("part-"))
            self._files.move(file.path, target)
            moved.append(posixpath.relpath(target, self._root))
        if self._files.get_file_info(staging).type == fs.FileType.Directory:
            self._files.delete_dir(staging)
        return moved

    def drop_leftovers(self, batch_id: int, query_id: str) -> None:
        """Removes the files of earlier attempts at a batch."""
        prefix = batch_prefix(batch_id, query_id)
        for file in self._data_files(self._root):
            if file.base_name.startswith(prefix):
                self._files.delete_file(file.path)

    @property
    def files(self) -> fs.FileSystem:
        return self._files

    def path(self, name: str) -> str:
        """Returns the path of a file of the folder, in its file system."""
        return posixpath.join(self._root, name)

    def uri(self, name: str) -> str:
        """Returns the path of a file of the folder with its scheme."""
        return posixpath.join(self._spark_root, name)

    def has_files(self) -> bool:
        """Returns True when the folder has data files, of any query."""
        return bool(self._data_files(self._root))

    def refuse_logs(self) -> None:
        """Refuses a folder whose readers would not see files without an entry in its log."""
        for log, owner in _LOGS.items():
            if self._files.get_file_info(posixpath.join(self._root, log)).type == fs.FileType.Directory:
                raise SinkError(
                    f"folder '{self._root}' is {owner}",
                    detail=f"found '{log}'; readers see only the files that it lists, not these results",
                    hint=f"write to another folder, or remove '{log}' if it is no longer used",
                )

    def _drop_staging(self, owner: str) -> None:
        for entry in self._list(self._root, recursive=False):
            if entry.base_name.startswith(_STAGING) and f"-{owner}-" in entry.base_name:
                self._files.delete_dir(entry.path)

    def _data_files(self, folder: str) -> list[fs.FileInfo]:
        listed = self._list(folder, recursive=True)
        return [info for info in listed if info.type == fs.FileType.File and info.base_name.startswith("part-")]

    def _list(self, folder: str, *, recursive: bool) -> list[fs.FileInfo]:
        return list(self._files.get_file_info(fs.FileSelector(folder, allow_not_found=True, recursive=recursive)))

    def _has_rows(self, file: fs.FileInfo) -> bool:
        """Returns False for a file known to be empty; files that Arrow cannot read, such as Avro, are kept."""
        match self._format:
            case "parquet":
                return bool(parquet.read_metadata(file.path, filesystem=self._files).num_rows)
            case "orc":
                with self._files.open_input_file(file.path) as source:
                    return bool(orc.ORCFile(source).nrows)
            case "csv" | "json" | "text" if self._has_plain_lines(file):
                with self._files.open_input_stream(file.path) as stream:
                    start: bytes = stream.read(1 << 16)
                lines = start.count(b"\n") + (not start.endswith(b"\n") and len(start) > 0)
                return lines > int(self._format == "csv" and self._options.get("header", "false").lower() == "true")
            case "xml" if file.extension == "xml":
                row = rf"<{re.escape(self._options.get('rowtag', 'ROW'))}[\s/>]"
                with self._files.open_input_stream(file.path) as stream:
                    return re.search(row, stream.read(1 << 16).decode(errors="replace")) is not None
            case _:
                return True

    def _has_plain_lines(self, file: fs.FileInfo) -> bool:
        """Returns True when the lines of the file can be counted: default line ends, a compression that Arrow reads."""
        return "linesep" not in self._options and file.extension in (self._format, "txt", "gz", "bz2")


def batch_prefix(batch_id: int, query_id: str) -> str:
    """Returns the beginning of the names of all files of a batch."""
    return f"part-{batch_id:09d}-{_owner(query_id)}-"


def _owner(query_id: str) -> str:
    return query_id[:8] or "0" * 8


def open_place(path: str) -> tuple[fs.FileSystem, str, str]:
    """Returns the file system and paths of a sink; see `locate`."""
    try:
        return locate(path)
    except UNKNOWN as error:
        raise SinkError(
            f"sink path '{path}' cannot be opened",
            detail=str(error),
            hint="write a local path, or a URI that Arrow can open",
        ) from error
