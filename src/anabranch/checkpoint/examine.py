"""Reads the contents of a checkpoint and verifies its files.

Invariant: examining is read-only. Every file that the last manifest lists is read to its end, so that truncated or
altered files are found before a restart needs them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from anabranch.errors import AnabranchError, CheckpointError
from anabranch.lang.window import instant_text
from anabranch.run.lease import Holder
from anabranch.run.manifest import Manifest
from anabranch.run.store import READABLE, Store
from anabranch.run.table_versions import base_of


@dataclass(frozen=True)
class Contents:
    """The contents of a checkpoint, for display."""

    location: str
    version: int
    identity: str
    query: str
    batch: int | None
    """The last committed batch."""
    plans: dict[str, str]
    slots: dict[int, int]
    """Partition groups by slot."""
    rows: int
    files: int
    bytes: int
    """The size of the row files that the last manifest lists."""
    clocks: dict[str, dict[str, int | None]]
    """The newest event time and the late-row cutoff of each stream, in microseconds."""
    records: int
    """Lines of the history."""
    spark_batch: int | None
    """The last batch committed in Spark's part; None if unknown."""
    holder: str | None
    """The driver that holds the lease."""

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "slots": {str(slot): groups for slot, groups in self.slots.items()}}


@dataclass(frozen=True)
class Fault:
    """A fault of a checkpoint and its remedy."""

    what: str
    remedy: str


def opened(location: str) -> tuple[Store, dict[str, Any]]:
    """Returns the store of a checkpoint and its metadata; raises an error if there is none."""
    store = Store(location)
    metadata = store.metadata()
    if metadata is None:
        raise CheckpointError(
            f"'{location}' is not a checkpoint of Anabranch",
            detail="it has no 'anabranch/metadata.json'",
            hint="name the folder that 'checkpoint:' or checkpointLocation names",
        )
    return store, metadata


def contents(location: str) -> Contents:
    """Reads the contents of a checkpoint."""
    store, metadata = opened(location)
    manifest = store.latest(is_used=False)
    table = manifest.partitionings[-1] if manifest else None
    lease = store.lease()
    holder = None if lease is None else Holder.from_json(lease)
    return Contents(
        location=store.location,
        version=int(metadata.get("version", 0)),
        identity=str(metadata.get("identity", "")),
        query=str(metadata.get("query", "")),
        batch=None if manifest is None else manifest.batch,
        plans=dict(manifest.plans) if manifest else {},
        slots={slot: table.table.count(slot) for slot in range(table.slots)} if table else {},
        rows=sum(file.rows for file in manifest.files) if manifest else 0,
        files=len(manifest.files) if manifest else 0,
        bytes=sum(_size(store, file.name) or 0 for file in manifest.files) if manifest else 0,
        clocks={
            name: {"newest": clock.newest, "cutoff": clock.floor if clock.newest is not None else None}
            for name, clock in (manifest.clocks.streams.items() if manifest else ())
        },
        records=len(store.history()),
        spark_batch=_spark_batch(store),
        holder=None if holder is None or not holder.is_alive_now() else str(holder),
    )


def faults(location: str) -> Iterator[Fault]:
    """Yields every fault that would affect a restart, in the order in which a restart would find them."""
    store, metadata = opened(location)
    if lacking := {"version", "identity", "fingerprint", "query"} - metadata.keys():
        yield Fault(f"metadata.json lacks {', '.join(sorted(lacking))}", "restore metadata.json from a copy")
    if metadata.get("version") not in READABLE:
        yield Fault(
            f"the format version is {metadata.get('version')}; this release reads {', '.join(map(str, READABLE))}",
            "use the release that wrote the checkpoint",
        )
        return
    try:
        manifest = store.latest(is_used=False)
    except AnabranchError as error:
        yield Fault(error.message, "remove the damaged manifest if the one before it is there, or restore a copy")
        return
    if manifest is None:
        return
    yield from _faults_of_rows(store, manifest)
    spark = _spark_batch(store)
    if spark is not None and spark > manifest.batch:
        yield Fault(
            f"Spark's part has committed batch {spark}, ours batch {manifest.batch}",
            "the parts are of different copies: restore the folder as a whole",
        )


def damaged_files(store: Store, manifest: Manifest) -> list[Fault]:
    """Returns the missing or damaged files of a committed batch."""
    return list(_faults_of_rows(store, manifest))


def _faults_of_rows(store: Store, manifest: Manifest) -> Iterator[Fault]:
    for file in manifest.files:
        try:
            found = store.read_rows(file.name).num_rows
        except (AnabranchError, pa.ArrowException, OSError) as error:
            yield Fault(f"rows/{file.name} cannot be read: {error}".partition("\n")[0], "restore the file from a copy")
            continue
        if found != file.rows:
            yield Fault(f"rows/{file.name} has {found} rows instead of {file.rows}", "restore the file from a copy")
    for name in dict.fromkeys(each for version in manifest.tables.values() for each in (base_of(version), version)):
        try:
            store.read_table(name)
        except (AnabranchError, pa.ArrowException, OSError) as error:
            yield Fault(f"tables/{name} cannot be read: {error}".partition("\n")[0], "restore the file from a copy")


def _spark_batch(store: Store) -> int | None:
    return max(spark_batches(store), default=None)


def spark_batches(store: Store) -> list[int]:
    """Returns the batches that Spark's part has committed."""
    folder = f"{store.root.removesuffix('/anabranch')}/{store.sparks_name}/commits"
    selector = pafs.FileSelector(folder, allow_not_found=True)
    return sorted(int(info.base_name) for info in store.files.get_file_info(selector) if info.base_name.isdigit())


def _size(store: Store, name: str) -> int | None:
    size: int | None = store.files.get_file_info(f"{store.root}/rows/{name}").size
    return size


def as_text(found: Contents) -> str:
    """Returns the contents as lines for a terminal."""
    plans = json.dumps(found.plans) if "" not in found.plans else found.plans[""]
    lines = [
        ("checkpoint", found.location),
        ("query", " ".join(found.query.split())),
        ("format", f"{found.version}, identity {found.identity}"),
        ("in use by", found.holder or "nobody"),
        (
            "last batch",
            "none was committed" if found.batch is None else f"{found.batch}; Spark's part {found.spark_batch}",
        ),
        ("plan", plans or "-"),
        ("slots", ", ".join(f"{slot}: {groups} groups" for slot, groups in found.slots.items()) or "-"),
        ("rows", f"{found.rows:,} in {found.files} files, {found.bytes:,} bytes"),
        ("history", "1 record" if found.records == 1 else f"{found.records:,} records"),
    ]
    for name, clock in found.clocks.items():
        newest, cutoff = ("-" if each is None else instant_text(each) for each in (clock["newest"], clock["cutoff"]))
        lines.append((f"stream {name}", f"newest {newest}, late below {cutoff}"))
    return "\n".join(f"{title:12} {words}" for title, words in lines)
