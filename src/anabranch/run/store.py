"""The durable side of a run: base rows per batch and slot, and one manifest per committed batch.

    <checkpoint>/anabranch/metadata.json            the identity of the queries
    <checkpoint>/anabranch/rows/<batch>-<slot>-<attempt>.arrow  the rows of one batch, or after compaction all live rows
    <checkpoint>/anabranch/late/<batch>-<slot>-<attempt>.arrow  side output of the batch, until its sink has it
    <checkpoint>/anabranch/manifests/<batch>.json   the clocks and row files that are the state after the batch
    <checkpoint>/anabranch/lease.json               the driver that may commit; removed when the query stops
    <checkpoint>/anabranch/letters/<name>.json      change requests to the driver, and its answers
    <checkpoint>/anabranch/tables/<batch>-<table>.arrow   the version of a table that applies from the batch on; also
        <batch>+<base>-<table>.arrow, what it changes in that of an earlier batch
    <checkpoint>/anabranch/read.jsonl               in real-time mode: the files that batches have read
    <checkpoint>/anabranch/history.jsonl            decisions and migrations, one line each; a restart reads statistics

Invariant: a batch is committed when its manifest (`run/manifest`) has its final name, and not before. A reader sees
whole files or none (`run/folder`). Every attempt at a batch has its own file names: a worker that outlives its query
cannot touch the rows of the attempt that replaced it. Files that neither of the last two manifests needs are removed
with every batch, and files that were never renamed at every start.

Limit: rename must be atomic on the file system (true of local disks and HDFS). Object stores have no rename; an object
there is complete or absent. They cannot append either, so the history is kept only on file systems.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.fs as pafs

from anabranch.errors import CheckpointError, CorruptCheckpoint, ForeignCheckpoint, PlanError, StorageFull
from anabranch.plan.execution import DEFAULT_EXECUTION, ExecutionModel, execution_model
from anabranch.plan.query_set import QuerySet
from anabranch.run.folder import Folder
from anabranch.run.identity import what_differs, written
from anabranch.run.manifest import Manifest, manifest_to_json, read_manifest
from anabranch.run.private import make_private
from anabranch.run.table_versions import base_of, table_of
from anabranch.stats.report import SlotReport

FORMAT_VERSION = 3
"""Format 2: the partitionings of a manifest are the tables in the order in which they took effect.

Format 3: such a table may be that of a move on parallel tracks.
"""
READABLE = (1, 2, FORMAT_VERSION)
"""A manifest of format 1 has one table, possibly preceded by the one before a restart, and means the same."""
_REPORT = b"anabranch.report"
TABLES = "tables"
"""The folder of the versions of tables."""
_MESSAGES = "letters"
"""The folder of change requests to the driver, and of its answers."""
_LEASE = "lease.json"
_MODE, _REAL_TIME = "mode", "real-time"
_HISTORY = "history.jsonl"
MOST_HISTORY = 32 * 2**20
"""The size in bytes beyond which the older half of the history is removed."""
READ = "read.jsonl"
"""The list of files that earlier batches have read, in real-time mode."""
UNFINISHED = re.compile(r"(metadata\.json|lease\.json|(history|read)\.jsonl|\d{9}\S*)\.[0-9a-f]+\.partial")
"""The suffix of files that were never renamed; no other file in the folder is removed."""


_IDENTITY = re.compile(r"[0-9A-Za-z-]+")


class Writable(Protocol):
    """A value with a JSON form. Workers use the store, so it must not import the packages of such values."""

    def to_json(self) -> dict[str, Any]: ...


class Store(Folder):
    """The durable state of a run."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._queries: QuerySet | None = None
        """The queries that the checkpoint was opened for."""

    # --- identity -----------------------------------------------------------------------------------------------------

    def open(self, queries: QuerySet, execution: ExecutionModel = DEFAULT_EXECUTION) -> str:
        """Claims an empty checkpoint, or verifies that an existing one is of these queries; returns its identity."""
        self._queries = queries
        try:
            return self._claim(queries, execution)
        except OSError as error:
            raise self.storage_error(error, self.root) from error

    def _claim(self, queries: QuerySet, execution: ExecutionModel) -> str:
        path = f"{self.root}/metadata.json"
        found = self.metadata()
        if found is None:
            self._refuse_leftovers()
            identity = uuid.uuid4().hex
            metadata = {
                "version": FORMAT_VERSION,
                "identity": identity,
                "fingerprint": queries.fingerprint,
                **written(queries),
                "execution": str(execution),
                "streams": list(queries.streams),
            }
            make_private(self.location)
            for folder in ("rows", "manifests"):
                self.files.create_dir(f"{self.root}/{folder}", recursive=True)
            self.write_json(path, metadata)
            self._drop_unfinished()
            return identity
        self._refuse_version(found)
        if self.written_by() == queries.fingerprint != found["fingerprint"]:
            # The set changed, and the driver died before it recorded the change here.
            self.belong_to(queries)
            found = self.read_json(path) or found
        self._refuse_foreign(found, queries, execution)
        if found["version"] != FORMAT_VERSION:
            # An older release would interpret tables differently; the new version makes it refuse the checkpoint.
            self.write_json(path, {**found, "version": FORMAT_VERSION})
        self._drop_unfinished()
        return str(found["identity"])

    def check(self, queries: QuerySet, execution: ExecutionModel = DEFAULT_EXECUTION) -> None:
        """Raises an error for a checkpoint that these queries cannot use, as `open` would; changes nothing."""
        found = self.metadata()
        if found is None:
            self._refuse_leftovers()
            return
        self._refuse_version(found)
        others = list(queries.late_filters) != found.get("late_filters", [])
        if others and found["query"] == queries.text:
            # A checkpoint with other late filters can be used (`run.evolving`).
            return
        if self.written_by() != queries.fingerprint:
            self._refuse_foreign(found, queries, execution)

    def _refuse_version(self, found: Mapping[str, Any]) -> None:
        # The identity names a folder of hot state, which is removed when the query ends.
        is_named = _IDENTITY.fullmatch(str(found.get("identity"))) is not None
        if not {"version", "identity", "fingerprint", "query"} <= found.keys() or not is_named:
            raise CorruptCheckpoint(
                f"checkpoint '{self.location}' has a damaged metadata file",
                detail=f"found the entries {', '.join(sorted(found)) or 'none'}",
                hint="restore it from a copy, or start with an empty checkpoint folder",
            )
        if found["version"] not in READABLE:
            raise ForeignCheckpoint(
                f"checkpoint '{self.location}' has format version {found['version']}; this is version {FORMAT_VERSION}",
                hint="run it with the release that wrote it, or start with an empty checkpoint folder",
            )

    def _refuse_foreign(self, found: Mapping[str, Any], queries: QuerySet, execution: ExecutionModel) -> None:
        late, was_late = list(queries.late_filters), found.get("late_filters", [])
        is_another = found["fingerprint"] != queries.fingerprint
        if is_another and found["query"] == queries.text and late != was_late:
            raise ForeignCheckpoint(
                f"checkpoint '{self.location}' was written with {_late_text(was_late)}, not with {_late_text(late)}",
                detail="the checkpoint has rows that a filter rejects only if that filter is deferred",
                hint=f"write late_filters: {was_late}, or start with an empty checkpoint folder",
            )
        if is_another:
            raise ForeignCheckpoint(
                f"checkpoint '{self.location}' belongs to another query",
                detail=what_differs(found, queries),
                hint="use that query, or give this one a checkpoint folder of its own",
            )
        written = execution_model(found.get("execution", "un-synchronised"))
        if written.rows_wait != execution.rows_wait:
            raise ForeignCheckpoint(
                f"checkpoint '{self.location}' was written with execution '{written}', not '{execution}'",
                detail="only one of them buffers rows until the watermark, so results would be repeated or lost",
                hint=f"use '{written}', or start with an empty checkpoint folder",
            )

    @property
    def sparks_name(self) -> str:
        """The folder name of Spark's part of the checkpoint, beside ours; a changed query set has another one."""
        return str((self.metadata() or {}).get("spark", "spark"))

    def note_metadata(self, **entries: object) -> None:
        """Adds or replaces entries of the metadata, in one write."""
        self.write_json(f"{self.root}/metadata.json", {**(self.metadata() or {}), **entries})

    @property
    def is_real_time(self) -> bool:
        """True if a run in real-time mode has used the checkpoint, so that Spark's part of it is out of date."""
        return (self.metadata() or {}).get(_MODE) == _REAL_TIME

    def note_real_time(self) -> None:
        """Records that the checkpoint is now used in real-time mode."""
        self.note_metadata(**{_MODE: _REAL_TIME})

    def belong_to(self, queries: QuerySet) -> None:
        """Assigns the checkpoint to another set of queries; its last manifest is already of that set."""
        self.note_metadata(fingerprint=queries.fingerprint, **written(queries))

    def written_by(self) -> str | None:
        """Returns the fingerprint in the last manifest."""
        batches = self.batches()
        last = self.read_json(f"{self.root}/manifests/{batches[-1]:09d}.json") if batches else None
        return None if last is None else last.get("fingerprint")

    def _refuse_leftovers(self) -> None:
        if self.names("manifests") or self.names("rows"):
            raise CorruptCheckpoint(
                f"checkpoint '{self.location}' has state but no metadata file",
                hint="restore 'anabranch/metadata.json', or start with an empty checkpoint folder",
            )
        if self.files.get_file_info(f"{self.root.removesuffix('/anabranch')}/offsets").type != pafs.FileType.NotFound:
            raise ForeignCheckpoint(
                f"checkpoint '{self.location}' belongs to a query of Spark's own",
                detail="found its 'offsets', and no 'anabranch'",
                hint="give this query a checkpoint folder of its own",
            )

    def _drop_unfinished(self) -> None:
        """Removes the files that a driver or a worker was writing when it died."""
        for folder in ("", "rows", "late", "manifests", TABLES):
            for info in self.files_in(folder):
                if UNFINISHED.fullmatch(info.base_name):
                    # A worker that outlived its driver may finish at this moment.
                    with suppress(FileNotFoundError):
                        self.files.delete_file(info.path)

    def metadata(self) -> dict[str, Any] | None:
        """Returns the metadata of the checkpoint as JSON; None if there is no checkpoint of ours."""
        return self.read_json(f"{self.root}/metadata.json")

    # --- manifests ----------------------------------------------------------------------------------------------------

    def latest(self, *, is_used: bool = True) -> Manifest | None:
        """Returns the manifest of the last committed batch; verifies that all its files can be opened.

        Without `is_used` the files are not checked: the query may be running and remove them meanwhile.
        """
        while True:
            batches = self.batches()
            manifest = self.manifest(batches[-1]) if batches else None
            if manifest is not None or not batches:
                break
        for file in manifest.files if manifest and is_used else ():
            self._open_rows(file.name)
        return manifest

    def batches(self) -> list[int]:
        """Returns the batches that have a manifest, oldest first."""
        names = [name for name in self.names("manifests") if name.endswith(".json")]
        return sorted(int(name.removesuffix(".json")) for name in names)

    def manifest(self, batch: int) -> Manifest | None:
        path = f"{self.root}/manifests/{batch:09d}.json"
        value = self.read_json(path)
        if value is None:
            return None
        try:
            return read_manifest(value, batch, self._queries)
        except (AttributeError, KeyError, TypeError, ValueError, PlanError) as error:
            raise CorruptCheckpoint(
                f"manifest of batch {batch} in checkpoint '{self.location}' cannot be read",
                detail=f"{type(error).__name__}: {error}",
                hint="restore it from a copy, or start with an empty checkpoint folder",
            ) from error

    def commit(self, manifest: Manifest) -> None:
        """Commits a batch; after this it is done, whatever happens next."""
        self.write_json(f"{self.root}/manifests/{manifest.batch:09d}.json", manifest_to_json(manifest))

    def collect(self, keep: tuple[Manifest, ...]) -> None:
        """Removes the rows and manifests that none of the given manifests needs."""
        try:
            self._collect(keep)
        except OSError as error:
            raise self.storage_error(error, self.root) from error

    def _collect(self, keep: tuple[Manifest, ...]) -> None:
        rows = {file.name for manifest in keep for file in manifest.files}
        newest = max(manifest.batch for manifest in keep)
        for name in self.names("rows"):
            if name not in rows and int(name[:9]) <= newest:
                self.files.delete_file(f"{self.root}/rows/{name}")
        # The sink already has the side output of a committed batch.
        for name in self.names("late"):
            if int(name[:9]) <= newest:
                self.files.delete_file(f"{self.root}/late/{name}")
        manifests = {f"{manifest.batch:09d}.json" for manifest in keep}
        for name in self.names("manifests"):
            if name not in manifests and int(name[:9]) <= newest:
                self.files.delete_file(f"{self.root}/manifests/{name}")
        tables = {each for manifest in keep for name in manifest.tables.values() for each in (name, base_of(name))}
        for name in self.names(TABLES) if tables else ():
            if name not in tables and int(name[:9]) <= newest:
                self.files.delete_file(f"{self.root}/{TABLES}/{name}")

    # --- rows ---------------------------------------------------------------------------------------------------------

    def write_rows(self, name: str, table: pa.Table, report: SlotReport) -> None:
        """Writes the rows that a slot received, together with its report to the driver."""
        metadata = {_REPORT: json.dumps(report.to_json()).encode()}
        self._write_table(f"{self.root}/rows/{name}", table.replace_schema_metadata(metadata))

    def write_diverted(self, name: str, table: pa.Table) -> None:
        """Writes the side output of a slot, until its sink has it."""
        try:
            self.files.create_dir(f"{self.root}/late", recursive=True)
        except OSError as error:
            raise self.storage_error(error, f"{self.root}/late") from error
        self._write_table(f"{self.root}/late/{name}", table)

    def read_diverted(self, name: str) -> pa.Table:
        return self._read_rows(name, "late")

    def _write_table(self, path: str, table: pa.Table) -> None:
        with self.whole(path) as stream, pa.ipc.new_file(stream, table.schema) as writer:
            writer.write_table(table)

    def read_rows(self, name: str) -> pa.Table:
        return self._read_rows(name)

    def read_report(self, name: str) -> SlotReport:
        """Reads the report that a slot wrote with its rows."""
        metadata = self._open_rows(name).schema.metadata or {}
        try:
            return SlotReport.from_json(json.loads(metadata[_REPORT]))
        except (AttributeError, KeyError, TypeError, ValueError, PlanError) as error:
            raise self._damaged(name, "rows", error) from error

    def _open_rows(self, name: str, folder: str = "rows") -> pa.ipc.RecordBatchFileReader:
        path = f"{self.root}/{folder}/{name}"
        try:
            if isinstance(self.files, pafs.LocalFileSystem):
                return pa.ipc.open_file(pa.memory_map(path))
            return pa.ipc.open_file(self.files.open_input_file(path))
        except (OSError, pa.ArrowException) as error:
            raise self._damaged(name, folder, error) from error

    def _read_rows(self, name: str, folder: str = "rows") -> pa.Table:
        reader = self._open_rows(name, folder)
        try:
            table = reader.read_all()
            # Values in a damaged file may point beyond it.
            table.validate(full=True)
        except (OSError, pa.ArrowException) as error:
            raise self._damaged(name, folder, error) from error
        return table

    def _damaged(self, name: str, folder: str, error: Exception) -> CorruptCheckpoint:
        return CorruptCheckpoint(
            f"{folder} '{name}' of checkpoint '{self.location}' are missing or damaged",
            detail=str(error).partition("\n")[0],
            hint="restore the file from a copy, or start with an empty checkpoint folder",
        )

    # --- tables -------------------------------------------------------------------------------------------------------

    def table_versions(self) -> list[str]:
        """Returns the names of all versions of tables, oldest first."""
        return sorted(self.names(TABLES))

    def write_table(self, name: str, table: pa.Table) -> None:
        """Writes a version of a table."""
        path = f"{self.root}/{TABLES}/{name}"
        try:
            self.files.create_dir(f"{self.root}/{TABLES}", recursive=True)
        except OSError as error:
            raise self.storage_error(error, path) from error
        self._write_table(path, table)

    def keep_tables(self, tables: Collection[str]) -> None:
        """Removes the versions of all other tables."""
        for name in self.names(TABLES):
            if table_of(name) not in tables:
                self.files.delete_file(f"{self.root}/{TABLES}/{name}")

    def read_table(self, name: str) -> pa.Table:
        """Reads the file of a version of a table."""
        return self._read_rows(name, TABLES)

    # --- files of streams that have been read -------------------------------------------------------------------------

    def note_read(self, batch: int, files: Mapping[str, Collection[str]]) -> None:
        """Appends the files that a batch has read, by stream, to the list of all of them."""
        path = f"{self.root}/{READ}"
        try:
            with self.files.open_append_stream(path) as out:
                out.write(_line_of_files(batch, files))
        except NotImplementedError as error:
            raise CheckpointError(
                f"checkpoint '{self.location}' is on storage that cannot append to files",
                detail="real-time mode keeps the list of the files that it has read there",
                hint="use a local disk or HDFS for the checkpoint, or run in micro-batches",
            ) from error
        except OSError as error:
            raise self.storage_error(error, path) from error

    def read_files(self) -> list[tuple[int, dict[str, list[str]]]]:
        """Returns the list of files that have been read, with the batch of each entry.

        A line truncated by a crash is left out; the manifest of its batch has the same files.
        """
        path = f"{self.root}/{READ}"
        if self.files.get_file_info(path).type != pafs.FileType.File:
            raise CorruptCheckpoint(
                f"checkpoint '{self.location}' has no list of the files that it has read",
                detail=f"'{path}' is missing",
                hint="restore the whole folder from a copy, or start with an empty one",
            )
        with self.files.open_input_stream(path) as stream:
            return [(each["batch"], each["files"]) for each in _objects(stream.read())]

    def keep_read(self, entries: Iterable[tuple[int, Mapping[str, Collection[str]]]]) -> None:
        """Replaces the list of read files by a shorter one."""
        with self.whole(f"{self.root}/{READ}") as out:
            out.write(b"".join(_line_of_files(batch, files) for batch, files in entries))

    # --- history ------------------------------------------------------------------------------------------------------

    def note(self, record: Writable) -> None:
        """Appends a line to the history. Object stores cannot append, so they have no history."""
        path = f"{self.root}/{_HISTORY}"
        # A query does not depend on its history.
        with suppress(NotImplementedError, OSError, CheckpointError, StorageFull):
            with self.files.open_append_stream(path) as out:
                out.write(f"{json.dumps(record.to_json())}\n".encode())
            if self.files.get_file_info(path).size > MOST_HISTORY:
                self._shorten(path)

    def _shorten(self, path: str) -> None:
        """Keeps the newer half of the lines of a file."""
        with self.files.open_input_stream(path) as stream:
            lines = stream.read().splitlines(keepends=True)
        with self.whole(path) as out:
            out.write(b"".join(lines[len(lines) // 2 :]))

    def history(self) -> list[dict[str, Any]]:
        """Reads all records of the checkpoint, as JSON; skips damaged lines."""
        path = f"{self.root}/{_HISTORY}"
        if self.files.get_file_info(path).type != pafs.FileType.File:
            return []
        with self.files.open_input_stream(path) as stream:
            return _objects(stream.read())

    # --- lease --------------------------------------------------------------------------------------------------------

    def lease(self) -> dict[str, Any] | None:
        """Returns the JSON of the lease on the checkpoint; None if there is none."""
        try:
            return self.read_json(f"{self.root}/{_LEASE}")
        except CheckpointError:
            # Truncated by a crash: its writer is gone.
            return None

    def keep_lease(self, value: Mapping[str, Any]) -> None:
        """Writes the lease, replacing the previous one."""
        self.write_json(f"{self.root}/{_LEASE}", value)

    def drop_lease(self) -> None:
        """Removes the lease."""
        self.files.delete_file(f"{self.root}/{_LEASE}")

    # --- control messages ---------------------------------------------------------------------------------------------

    def messages(self) -> list[str]:
        """Returns the names of all control messages, in order."""
        return sorted(info.base_name for info in self.files_in(_MESSAGES) if info.base_name.endswith(".json"))

    def read_message(self, name: str) -> dict[str, Any] | None:
        """Reads the JSON of a control message; None if there is none."""
        return self.read_json(f"{self.root}/{_MESSAGES}/{name}")

    def write_message(self, name: str, value: Mapping[str, Any]) -> None:
        """Writes a control message atomically."""
        self.files.create_dir(f"{self.root}/{_MESSAGES}", recursive=True)
        self.write_json(f"{self.root}/{_MESSAGES}/{name}", value)

    def drop_message(self, name: str) -> None:
        """Removes a control message, if it exists."""
        with suppress(FileNotFoundError):
            self.files.delete_file(f"{self.root}/{_MESSAGES}/{name}")


def rows_name(batch: int, slot: int, attempt: str, stage: int = 0) -> str:
    return f"{batch:09d}-{slot:04d}-{attempt}{f'-{stage}' if stage else ''}.arrow"


def new_attempt() -> str:
    """Returns a name that no other attempt at a batch has."""
    return uuid.uuid4().hex[:12]


def _line_of_files(batch: int, files: Mapping[str, Collection[str]]) -> bytes:
    return f"{json.dumps({'batch': batch, 'files': {name: list(paths) for name, paths in files.items()}})}\n".encode()


def _objects(content: bytes) -> list[dict[str, Any]]:
    """Returns the JSON objects of a file, one in each line; skips damaged lines."""
    found = []
    for line in content.decode(errors="replace").splitlines():
        with suppress(ValueError, RecursionError):
            found.append(json.loads(line))
    return [each for each in found if isinstance(each, dict)]


def _late_text(filters: list[str]) -> str:
    return f"the deferred filters {', '.join(repr(name) for name in filters)}" if filters else "no deferred filters"
