"""The versions of a Delta table as a stream of files: which files a batch has, and how they are read.

The stream begins with the files of one version, or with none, and goes on with the files that later versions add.
Invariant: equal offsets give equal files; a version that removes or changes rows is a named error, unless such versions
are skipped. Limit: tables without deletion vectors and column mapping; the log of a version must be there until its
files have been read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
from pyarrow import fs

from anabranch.errors import CatalogError, HostError, SpecError, installation
from anabranch.lang.schema import TIMESTAMP
from anabranch.run.files.form import Columns, Footer
from anabranch.run.files.stored import StoredFiles, file_system
from anabranch.run.locations import locate

try:
    import deltalake

    IS_INSTALLED = True
except ImportError:
    IS_INSTALLED = False

VERSION, TAKEN, BEGAN, HAS_ROWS = "version", "taken", "began", "hasRows"
Offset = dict[str, Any]
"""`version`: the latest version that was read; `taken`: the number of its files that were, or null for all.
`began`: the version with which the stream began; `hasRows`: whether the files of that version belong to the stream."""
_FEATURES = ("delta.columnMapping.mode", "delta.enableDeletionVectors")
_OFF = ("", "none", "false")


def delta_uri(location: str) -> str:
    """Returns a location as the library opens it."""
    _, root, uri = locate(location)
    if uri.startswith("file:"):
        return root
    return "s3" + uri[3:] if uri.startswith("s3a:") else uri


def open_table(location: str, version: int | None = None) -> Any:
    """Opens a version of a Delta table, or the latest; a named error if there is none."""
    if not IS_INSTALLED:
        raise SpecError("format 'delta' needs the package 'deltalake'", hint=installation("delta"))
    try:
        table = deltalake.DeltaTable(delta_uri(location), version=version)
        settings = table.metadata().configuration
    except Exception as error:
        what = "the Delta table" if version is None else f"version {version} of the Delta table"
        raise CatalogError(
            f"{what} at '{location}' cannot be opened",
            detail=str(error).partition("\n")[0],
            hint="check its path and the credentials in the environment; a version is gone when its log is cleaned up",
        ) from error
    for name in _FEATURES:
        if settings.get(name, "").lower() not in _OFF:
            raise CatalogError(
                f"the Delta table at '{location}' has '{name}', which streams do not read",
                hint="read it with Spark's connector: set ANABRANCH_SPARK_READS=1",
            )
    return table


@dataclass(frozen=True)
class Added:
    """A file that a version of the table has added."""

    name: str
    size: int
    values: Mapping[str, str | None] = field(default_factory=dict)
    """The values of the partition columns, as texts."""

    @property
    def path(self) -> str:
        """The path of its piece."""
        return f"{quote(json.dumps(self.values))}|{self.name}:{self.size}"


@dataclass(frozen=True)
class DeltaFiles(StoredFiles):
    """How the files of a Delta table are read; a form of pieces whose paths are `<partition values>|<name>:<size>`."""

    partitioned: Columns = field(default_factory=dict)
    """The partition columns, which are not in the files."""
    skips_changes: bool = False

    def between(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[str]:
        return [each.path for each in files_between(self.location, start, end, skips_changes=self.skips_changes)]

    def look_into(self, path: str, wanted: Columns) -> Footer:
        return super().look_into(path.partition("|")[2], self._of_files(wanted))

    def read(self, path: str, wanted: Columns, parts: Sequence[int] | None = None) -> pa.Table:
        values, _, stored = path.partition("|")
        # A file has its number of rows even where only partition columns are wanted.
        found = super().read(stored, self._of_files(wanted) or self._of_files(self.whole), parts)
        texts = json.loads(unquote(values))
        columns = {
            name: _constant(texts.get(name), kind, len(found)) if name in self.partitioned else found[name]
            for name, kind in wanted.items()
        }
        return pa.table(columns)

    def shown(self, path: str) -> str:
        return super().shown(path.rpartition("|")[2])

    def _of_files(self, wanted: Columns) -> Columns:
        return {name: kind for name, kind in wanted.items() if name not in self.partitioned}


def first_offset(location: str, starting: str | None) -> Offset:
    """Returns the offset before the first batch: nothing of the latest version is read, or nothing before a version."""
    if starting in (None, "latest"):
        latest = int(open_table(location).version())
        return {VERSION: latest, TAKEN: 0, BEGAN: latest, HAS_ROWS: starting is None}
    before = int(str(starting)) - 1
    return {VERSION: before, TAKEN: 0, BEGAN: before, HAS_ROWS: False}


def following(
    location: str, start: Offset, most: int | None, *, until: int | None = None, skips_changes: bool = False
) -> Offset:
    """Returns the offset after the next batch: the files of all versions up to `until`, or at most so many."""
    version, taken, left = start[VERSION], start[TAKEN], most
    while True:
        if taken is not None:
            count = len(_files_of(location, start, version, skips_changes=skips_changes)) - taken
            if left is not None and count > left:
                return {**start, VERSION: version, TAKEN: taken + left}
            left = None if left is None else left - count
        is_last = left == 0 or (until is not None and version >= until)
        if is_last or not _has_version(location, version + 1):
            return {**start, VERSION: version, TAKEN: None}
        version, taken = version + 1, 0


def files_between(
    location: str, start: Mapping[str, Any], end: Mapping[str, Any], *, skips_changes: bool = False
) -> list[Added]:
    """Returns the files of a batch."""
    first, taken = start.get(VERSION, end[BEGAN]), start.get(TAKEN, 0)
    found: list[Added] = []
    for version in range(first + (taken is None), end[VERSION] + 1):
        files = _files_of(location, end, version, skips_changes=skips_changes)
        found += files[taken if version == first else 0 : end[TAKEN] if version == end[VERSION] else None]
    return found


def require_log(location: str, offset: Offset) -> None:
    """Raises an error if the log of versions that were not read is gone."""
    after = offset[VERSION] + 1
    if not _has_version(location, after) and int(open_table(location).version()) >= after:
        raise HostError(
            f"version {after} of the Delta table at '{location}' is gone before it was read",
            detail="its log was cleaned up while the query was stopped",
            hint="start with an empty checkpoint, which reads the latest version as a whole",
        )


def _files_of(location: str, offset: Mapping[str, Any], version: int, *, skips_changes: bool) -> list[Added]:
    """Returns the files that a version brings to the stream, in the order in which they are read."""
    if version > offset[BEGAN]:
        return _added(location, version, skips_changes=skips_changes)
    if not offset[HAS_ROWS]:
        return []
    actions = pa.table(open_table(location, version).get_add_actions()).to_pylist()
    found = [Added(unquote(each["path"]), each["size_bytes"], _texts(each.get("partition") or {})) for each in actions]
    return sorted(found, key=lambda each: each.name)


def _added(location: str, version: int, *, skips_changes: bool) -> list[Added]:
    found = []
    for action in _log(location, version):
        if "remove" in action and action["remove"].get("dataChange", True):
            if skips_changes:
                return []
            raise CatalogError(
                f"version {version} of the Delta table at '{location}' removes or changes rows",
                detail="a stream has rows that are added, and results are never taken back",
                hint="set the option skipChangeCommits: true to leave such versions out",
            )
        added = action.get("add")
        if added is None or not added.get("dataChange", True):
            continue
        if added.get("deletionVector"):
            raise CatalogError(f"version {version} of the Delta table at '{location}' has deletion vectors")
        found.append(Added(unquote(added["path"]), added["size"], added.get("partitionValues") or {}))
    return found


def _log(location: str, version: int) -> Iterator[dict[str, Any]]:
    files, root = file_system(location)
    try:
        with files.open_input_stream(_log_name(root, version)) as log:
            lines = log.read().splitlines()
    except OSError as error:
        raise HostError(
            f"the log of version {version} of the Delta table at '{location}' cannot be read",
            detail=str(error).partition("\n")[0],
            hint="the batch is not committed; start the query again once the store answers",
        ) from error
    return (json.loads(line) for line in lines if line.strip())


def _has_version(location: str, version: int) -> bool:
    files, root = file_system(location)
    return bool(files.get_file_info(_log_name(root, version)).type == fs.FileType.File)


def _log_name(root: str, version: int) -> str:
    return f"{root}/_delta_log/{version:020}.json"


def _texts(values: Mapping[str, Any]) -> dict[str, str | None]:
    return {
        name: None if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
    }


def _constant(text: str | None, kind: pa.DataType, length: int) -> pa.Array:
    """Returns a partition column of a file; Delta writes NULL as an empty text, too."""
    value = pa.scalar(None if text in (None, "") else text, pa.string()).cast(kind)
    return pa.repeat(value, length)


def require_partition_type(name: str, kind: pa.DataType) -> None:
    """Refuses a partition column whose texts depend on a time zone."""
    if kind == TIMESTAMP or pa.types.is_binary(kind):
        raise CatalogError(
            f"partition column '{name}' of type {kind} of a Delta table cannot be read",
            hint="leave it out of the schema",
        )
