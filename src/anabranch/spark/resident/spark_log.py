"""What Spark's sources have read in micro-batch mode, from Spark's part of a checkpoint.

A file source logs the files of each of its own batches; the offset of a micro-batch is the number of the last of them.
Topics of Kafka have the offsets themselves. A run that continues in real-time mode must not read these rows again.
Invariant: rows of a micro-batch that was not committed are not among them. Limit: the log is Spark's own format,
version 1; another one is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pyarrow.fs as pafs

from anabranch.errors import CorruptCheckpoint
from anabranch.run.store import Store
from anabranch.spark.file_streams import local_name
from anabranch.spark.resident.topics import places


def read_by_spark(store: Store, batch: int) -> dict[str, set[str]]:
    """Returns the files that micro-batches up to this one have read, or where their ranges ended, by stream."""
    root = f"{store.location.rstrip('/')}/{store.sparks_name}"
    found: dict[str, set[str]] = {}
    if store.files.get_file_info(f"{root}/offsets/{batch}").type != pafs.FileType.File:
        raise _unreadable(f"the offsets of batch {batch} are missing")
    scans: Sequence[str] = (store.metadata() or {}).get("scans", ())
    version, _, *offsets = _lines(store, f"{root}/offsets/{batch}")
    if version != "v1" or len(offsets) != len(scans):
        raise _unreadable(f"it has version {version} and {len(offsets)} offsets for {len(scans)} scans")
    for number, (stream, offset) in enumerate(zip(scans, offsets, strict=True)):
        several = found.setdefault(stream, set())
        if offset == "-":
            continue
        end = json.loads(offset)
        if "logOffset" in end:
            several.update(_entries(store, f"{root}/sources/{number}", int(end["logOffset"])))
        else:
            several.update(places(end))
    return found


def spark_identity(store: Store) -> str | None:
    """Returns the identity that Spark gave the query; None where no micro-batch has run."""
    path = f"{store.location.rstrip('/')}/{store.sparks_name}/metadata"
    if store.files.get_file_info(path).type != pafs.FileType.File:
        return None
    return str(json.loads("".join(_lines(store, path)))["id"])


def _entries(store: Store, log: str, last: int) -> Iterator[str]:
    selector = pafs.FileSelector(log, allow_not_found=True)
    for info in store.files.get_file_info(selector):
        if not info.is_file or not info.base_name.removesuffix(".compact").isdigit():
            continue
        version, *entries = _lines(store, info.path)
        if version != "v1":
            raise _unreadable(f"the log of a source has version {version}")
        for entry in map(json.loads, filter(None, entries)):
            if int(entry["batchId"]) <= last:
                yield local_name(entry["path"])


def _lines(store: Store, path: str) -> list[str]:
    with store.files.open_input_stream(path) as stream:
        lines: list[str] = stream.read().decode().split("\n")
    return lines


def _unreadable(detail: str) -> CorruptCheckpoint:
    return CorruptCheckpoint(
        "Spark's log of offsets cannot be read",
        detail=detail,
        hint="go on in micro-batches, or start with an empty checkpoint folder",
    )
