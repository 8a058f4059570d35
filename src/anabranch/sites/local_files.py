"""Files that operators read and write in the process of their site: Parquet and JSON in, Parquet out.

`why_spark` says why an operator needs Spark instead. The list of the files that a gate has found is durable, and an
offset is a position in it, so a replay reads the same files. A delivery writes one file for each batch, and a repeated
batch replaces it.

Limit: files are read strictly. A file with a value of another type is an error of the gate, where Spark reads NULL.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from anabranch.errors import CatalogError, SpecError
from anabranch.lang.schema import Schema
from anabranch.run.files.form import FileForm
from anabranch.run.files.json import Json
from anabranch.run.files.parquet import Parquet
from anabranch.run.folder import Folder
from anabranch.run.sink_settings import compression
from anabranch.sites.local import LinkSource
from anabranch.sites.operators import DELIVERY, GATE, OperatorSpec
from anabranch.sites.root import Orders
from anabranch.spark.sinks.folder import BatchFolder, open_place
from anabranch.spec.model import SinkSpec, StreamSpec

MOST_FILES = 64
"""The files of a batch, unless the source sets `maxFilesPerTrigger`."""
_FORMS: Mapping[str, FileForm] = {"parquet": Parquet(), "json": Json()}
_KEPT = 100
"""The chunks of the list of files that are merged into one."""
_STRICT = "fix the file, or let Spark read the stream: 'runner: spark' for its site in the network file"


def why_spark(spec: OperatorSpec, orders: Orders) -> str | None:
    """Returns the reason why an operator needs Spark; None if it can run without Spark."""
    if spec.kind == GATE:
        return _why_not_read(orders.sources[spec.serves], f"stream '{spec.serves}'")
    reasons = [_why_not_read(orders.sources[name.lower()], f"table '{name}'") for name in spec.query.whole.tables]
    if spec.kind == DELIVERY:
        reasons.append(_why_not_written(orders.sinks[spec.serves], spec.query.schema))
    return next((reason for reason in reasons if reason is not None), None)


def _why_not_read(stream: StreamSpec, title: str) -> str | None:
    path, schema = stream.path or "", stream.schema
    form = _FORMS.get(stream.format or "")
    if form is None:
        return f"{title} has the format '{stream.format}'"
    if "://" in path or any(mark in path for mark in "*?[{"):
        return f"{title} is not in a local folder"
    if others := [key for key, _ in stream.options if key.lower() != "maxfilespertrigger"]:
        return f"the source of {title} has the option '{others[0]}'"
    kinds = [] if schema is None else [field.type for field in schema]
    if not all(map(form.can_hold, kinds)):
        return f"{title} has a column of a type that only Spark reads from {stream.format}"
    return None


def _why_not_written(sink: SinkSpec, schema: Schema) -> str | None:
    if sink.format != "parquet" or sink.partition_by:
        return f"the sink is '{sink.format}'" + (" with partitions" if sink.partition_by else "")
    if others := [key for key, _ in sink.options if key.lower() != "compression"]:
        return f"the sink has the option '{others[0]}'"
    try:
        compression(dict(sink.options))
    except SpecError as error:
        return str(error)
    if any(pa.types.is_duration(field.type) for field in schema):
        return "the results have an interval, which Spark marks in its files"
    return None


def read_table(table: StreamSpec) -> pa.Table:
    """Returns the rows of a table: a file, or the files of a folder."""
    assert table.schema is not None
    assert table.path is not None
    folder = Path(table.path)
    if not folder.exists():
        raise CatalogError(f"table '{table.name}' cannot be read: '{folder}' does not exist at this site")
    files = sorted(folder.iterdir()) if folder.is_dir() else [folder]
    types = {field.name: field.type for field in table.schema}
    found = [_read(_FORMS[table.format or ""], str(path), types) for path in files if path.name[0] not in "._"]
    return pa.concat_tables([table.schema.to_arrow().empty_table(), *found])


def _read(form: FileForm, path: str, types: Mapping[str, pa.DataType]) -> pa.Table:
    why_not = form.look_into(path, types).why_not
    if why_not is not None:
        raise CatalogError(
            f"file '{path}' does not plainly have the columns of its stream or table", detail=why_not, hint=_STRICT
        )
    return form.read(path, types)


class FileSource:
    """The files of a folder in the order in which they were found, and the ticks of the controller.

    The list of files is durable, in chunks named by the number of their first file; an offset is a position in it. A
    file is in the list before any offset covers it, so a replay reads the same files.
    """

    def __init__(self, stream: StreamSpec, name: str, checkpoint: str, control: LinkSource) -> None:
        assert stream.schema is not None
        assert stream.path is not None
        self._name, self._control = name, control
        self._form, self._folder = _FORMS[stream.format or ""], stream.path
        self._types = {field.name: field.type for field in stream.schema}
        asked = {key.lower(): value for key, value in stream.options}
        self._most = int(asked.get("maxfilespertrigger", MOST_FILES))
        self._store = Folder(checkpoint)
        self._store.files.create_dir(f"{self._store.root}/files", recursive=True)
        self._chunks = sorted(self._store.names("files"))
        self._files: list[str] = []
        for chunk in self._chunks:
            if int(chunk[:9]) == len(self._files):
                self._files += (self._store.read_json(f"{self._store.root}/files/{chunk}") or {"files": []})["files"]
        self._known = set(self._files)

    @property
    def nothing(self) -> Any:
        return {"files": 0, "ticks": self._control.nothing}

    def latest(self, start: Any, most: int) -> Any:
        before = start or self.nothing
        taken = before["files"]
        if len(self._files) == taken:
            self._find()
        ticks = self._control.latest(before["ticks"], most)
        return {"files": min(len(self._files), taken + self._most), "ticks": ticks}

    def batch(self, start: Any, end: Any) -> tuple[Mapping[str, pa.Table], Mapping[str, int]]:
        before = start or self.nothing
        tables = [self._read(name) for name in self._files[before["files"] : end["files"]]]
        _, ticks = self._control.batch(before["ticks"], end["ticks"])
        return ({self._name: pa.concat_tables(tables)} if tables else {}), ticks

    def commit(self, end: Any) -> None:
        self._control.commit(end["ticks"])

    def _find(self) -> None:
        """Adds the new files of the folder to the list, in order of their modification times."""
        try:
            with os.scandir(self._folder) as entries:
                found = [
                    (entry.stat().st_mtime_ns, entry.name)
                    for entry in entries
                    if entry.name not in self._known and entry.name[0] not in "._" and entry.is_file()
                ]
        except FileNotFoundError:
            return
        if found:
            self._append([name for _, name in sorted(found)])

    def _append(self, names: list[str]) -> None:
        root = f"{self._store.root}/files"
        merged = len(self._chunks) >= _KEPT
        chunk = f"{0 if merged else len(self._files):09d}.json"
        self._store.write_json(f"{root}/{chunk}", {"files": [*self._files, *names] if merged else names})
        for old in self._chunks if merged else ():
            if old != chunk:
                self._store.files.delete_file(f"{root}/{old}")
        self._chunks = [chunk] if merged else [*self._chunks, chunk]
        self._files += names
        self._known.update(names)

    def _read(self, name: str) -> pa.Table:
        return _read(self._form, f"{self._folder}/{name}", self._types)


class ParquetResults:
    """A folder of result files, one for each batch with rows; a repeated batch replaces its file."""

    def __init__(self, path: str, options: Mapping[str, str], owner: str) -> None:
        self._folder = BatchFolder(path, "parquet")
        self._folder.refuse_logs()
        self._compression, self._owner = compression(options), owner

    def __call__(self, batch: int, answer: pa.Table) -> None:
        files, staging, _ = open_place(self._folder.stage(batch, self._owner))
        if answer.num_rows:
            files.create_dir(staging, recursive=True)
            parquet.write_table(
                answer, f"{staging}/part-00000.parquet", filesystem=files, compression=self._compression
            )
        self._folder.publish(batch, self._owner)
