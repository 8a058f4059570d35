"""A link as a folder, on any file system that a checkpoint may be on.

    <link>/parts/<batch>.<attempt>.<number>.…         rows, in Arrow's file format
    <link>/entries/<batch>.json                       one per batch; once renamed into place, the batch is visible
    <link>/acks/<reader>.json                         the last batch that a reader has acknowledged
    <link>/cut.json, <link>/closed.json               see `link`

Limit: rename must be atomic, as for a checkpoint.
"""

from __future__ import annotations

import errno
import json
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from anabranch.errors import LinkError
from anabranch.run.links.link import (
    LIMIT,
    NO_BATCH,
    Entry,
    LinkStatus,
    Part,
    batch_of,
    closed_error,
    following,
    overrun,
    refuse_gap,
)
from anabranch.run.locations import UNKNOWN, locate


class FolderLink:
    """The log of one derived stream in a folder."""

    def __init__(self, location: str, name: str, limit: int = LIMIT) -> None:
        try:
            self._files, root, _ = locate(location)
        except UNKNOWN as error:
            raise LinkError(f"the place '{location}' of links cannot be opened", detail=str(error)) from error
        self.name = name
        self.limit = limit
        self._root = f"{root.rstrip('/')}/{name}"

    def write(self, batch: int, attempt: str, number: int, rows: pa.Table, newest: int | None) -> Part:
        part = Part.named(batch, attempt, number, rows, newest)
        with self._named():
            self._files.create_dir(f"{self._root}/parts", recursive=True)
            path = f"{self._root}/parts/{part.name}"
            with self._files.open_output_stream(path) as stream, pa.ipc.new_file(stream, rows.schema) as writer:
                writer.write_table(rows)
        return part

    def staged(self, batch: int, attempt: str) -> list[Part]:
        prefix = f"{batch:09d}.{attempt}."
        return [Part.parse(name) for name in sorted(self._names("parts")) if name.startswith(prefix)]

    def append(self, batch: int, parts: Sequence[Part], tick: int) -> None:
        if self._json("closed.json") is not None or self.last() >= batch:
            return
        entry = following(self.name, self._entry(self.last()), batch, parts, tick)
        status = self.status()
        if status.retained + entry.bytes > self.limit:
            self._write("closed.json", {"reason": overrun(self.name, status.retained + entry.bytes, self.limit)})
            self._drop_rows()
            return
        self._write(f"entries/{batch:09d}.json", entry.to_json())

    def last(self) -> int:
        names = self._batches()
        return names[-1] if names else NO_BATCH

    def entries(self, after: int, to: int) -> list[Entry]:
        first = self._first()
        refuse_gap(self.name, after, to, first)
        found = [self._entry(batch) for batch in range(after + 1, to + 1) if batch >= first]
        if any(entry is None for entry in found):
            self.refuse_closed()
            raise LinkError(f"link '{self.name}' lacks a batch between {after} and {to}")
        return [entry for entry in found if entry is not None]

    def read(self, entry: Entry) -> list[pa.Table]:
        self.refuse_closed()
        tables = []
        for part in entry.parts:
            with self._named(), self._files.open_input_file(f"{self._root}/parts/{part.name}") as stream:
                tables.append(pa.ipc.open_file(stream).read_all())
        return tables

    def ack(self, reader: str, batch: int) -> None:
        known = self._json(f"acks/{reader}.json")
        if known is None or known["batch"] < batch:
            self._write(f"acks/{reader}.json", {"batch": batch})

    def trim(self) -> None:
        done, last = self._acknowledged(), self.last()
        kept = {
            part.name
            for batch in self._batches()
            if batch > done and (entry := self._entry(batch)) is not None
            for part in entry.parts
        }
        for name in self._names("parts"):
            if name not in kept and batch_of(name) <= last:
                self._delete(f"parts/{name}")
        for batch in self._batches():
            if batch < min(done, last):
                self._delete(f"entries/{batch:09d}.json")

    def cut(self, until: int) -> bool:
        known = self.until()
        if known is not None:
            return known == until
        last = self._entry(self.last())
        if last is not None and last.top is not None and last.top >= until:
            return False
        self._write("cut.json", {"until": until})
        return True

    def until(self) -> int | None:
        found = self._json("cut.json")
        return None if found is None else int(found["until"])

    def status(self) -> LinkStatus:
        batches, done = self._batches(), self._acknowledged()
        last = self._entry(batches[-1]) if batches else None
        read = self._entry(done)
        closed = self._json("closed.json")
        return LinkStatus(
            batches[0] if batches else NO_BATCH,
            batches[-1] if batches else NO_BATCH,
            done,
            last.total_rows if last else 0,
            last.total_bytes if last else 0,
            (last.total_bytes if last else 0) - (read.total_bytes if read else 0),
            last.tick if last else None,
            None if closed is None else closed["reason"],
        )

    def remove(self) -> bool:
        try:
            self._files.delete_dir(self._root)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            return False
        return True

    # --- inside -------------------------------------------------------------------------------------------------------

    def _first(self) -> int:
        batches = self._batches()
        return batches[0] if batches else 0

    def _acknowledged(self) -> int:
        acks = [self._json(f"acks/{name}") for name in self._names("acks") if name.endswith(".json")]
        return min((ack["batch"] for ack in acks if ack is not None), default=NO_BATCH)

    def _batches(self) -> list[int]:
        return sorted(int(name[:9]) for name in self._names("entries") if name.endswith(".json"))

    def _entry(self, batch: int) -> Entry | None:
        value = self._json(f"entries/{batch:09d}.json") if batch >= 0 else None
        return None if value is None else Entry.from_json(value)

    def _drop_rows(self) -> None:
        for name in self._names("parts"):
            self._delete(f"parts/{name}")

    def refuse_closed(self) -> None:
        if (closed := self._json("closed.json")) is not None:
            raise closed_error(self.name, closed["reason"])

    def _names(self, folder: str) -> list[str]:
        selector = pafs.FileSelector(f"{self._root}/{folder}", allow_not_found=True)
        return [info.base_name for info in self._files.get_file_info(selector) if info.is_file]

    def _json(self, path: str) -> dict[str, Any] | None:
        try:
            with self._files.open_input_stream(f"{self._root}/{path}") as stream:
                value: dict[str, Any] = json.loads(stream.read())
        except FileNotFoundError:
            return None
        return value

    def _write(self, path: str, value: Mapping[str, Any]) -> None:
        target = f"{self._root}/{path}"
        partial = f"{target}.{uuid.uuid4().hex}.partial"
        self._files.create_dir(target.rpartition("/")[0], recursive=True)
        with self._named():
            with self._files.open_output_stream(partial) as stream:
                stream.write(json.dumps(value).encode())
            self._files.move(partial, target)

    def _delete(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._files.delete_file(f"{self._root}/{path}")

    def _named(self) -> _Named:
        return _Named(self.name)


class _Named:
    """Converts file system errors to a LinkError that names the link."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise LinkError(
                f"link '{self._name}' cannot be read or written",
                detail=str(error),
                hint="check the folder and its space; the batch is not committed and will be repeated",
            ) from error
