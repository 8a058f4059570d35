"""Rewrites Spark's part of a checkpoint when the queries of a run change.

Spark logs one offset for each scan of a source, in the order of the scans in its plan, and refuses a checkpoint with
another number of scans. Each relation is a scan of its stream, so a changed set of queries has other scans. All scans
of a stream have the same offsets, so the log can be rewritten for the new scans. Spark's folder is copied with the new
log, and one write of our metadata switches to the copy.

Invariant: before that write Spark continues with the old folder, after it with the new one. Streams keep the order of
the first start, because Spark numbers the state of a source by it. A stream that no query reads any more is still
scanned.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow.fs as pafs

from anabranch.errors import CorruptCheckpoint
from anabranch.plan.join_graph import Relation
from anabranch.plan.query_set import QuerySet
from anabranch.run.store import Store

_KEPT = 3
"""Spark reads the last two batches of its logs."""


def in_scan_order(queries: QuerySet, streams: Sequence[str] | None) -> list[tuple[int, Relation] | str]:
    """Returns the scanned relations with their positions, in the order of the scans.

    `streams` has the order of the first start; it is None in checkpoints of earlier releases, whose scans are in the
    order of their relations. A stream that no query reads is represented by its name.
    """
    relations = enumerate(queries.graph.relations)
    scans = [(place, each) for place, each in relations if not each.is_result and not each.is_table]
    if streams is None:
        return list(scans)
    ordered: list[tuple[int, Relation] | str] = []
    for stream in streams:
        ordered += [scan for scan in scans if scan[1].stream == stream] or [stream]
    return ordered


def sparks_folder(store: Store, scans: Sequence[str]) -> str:
    """Returns the folder of Spark's part of the checkpoint, rewritten for these scans if needed.

    `scans` has the stream of each scan; the offset log has one offset for each.
    """
    metadata = store.metadata() or {}
    folder, before = store.sparks_name, metadata.get("scans")
    if before is None:
        if metadata.get("streams") is not None:
            store.note_metadata(scans=list(scans), spark=folder)
    elif before != list(scans):
        folder = _copied(store, folder, before, scans)
    return f"{store.location.rstrip('/')}/{folder}"


def _copied(store: Store, folder: str, before: Sequence[str], scans: Sequence[str]) -> str:
    root = store.root.removesuffix("/anabranch")
    number = int(folder.removeprefix("spark").lstrip("-") or 1) + 1
    fresh = f"spark-{number}"
    files = store.files
    if files.get_file_info(f"{root}/{fresh}").type != pafs.FileType.NotFound:
        files.delete_dir(f"{root}/{fresh}")
    files.create_dir(f"{root}/{fresh}", recursive=True)
    selector = pafs.FileSelector(f"{root}/{folder}", recursive=True, allow_not_found=True)
    listed = files.get_file_info(selector)
    last = {log: sorted(_numbers(listed, f"{root}/{folder}/{log}"))[-_KEPT:] for log in ("offsets", "commits")}
    for info in listed:
        inside = info.path.removeprefix(f"{root}/{folder}/")
        log, _, name = inside.partition("/")
        if not info.is_file or name.startswith(".") or info.base_name.startswith("."):
            continue
        if log in last and (not name.isdigit() or int(name) not in last[log]):
            continue
        files.create_dir(f"{root}/{fresh}/{inside}".rpartition("/")[0], recursive=True)
        if log == "offsets":
            with files.open_input_stream(info.path) as stream:
                content = stream.read().decode()
            with files.open_output_stream(f"{root}/{fresh}/{inside}") as out:
                out.write(rewritten(content, before, scans).encode())
        else:
            files.copy_file(info.path, f"{root}/{fresh}/{inside}")
    store.note_metadata(spark=fresh, scans=list(scans))
    files.delete_dir(f"{root}/{folder}")
    return fresh


def _numbers(listed: Sequence[pafs.FileInfo], folder: str) -> list[int]:
    return [
        int(info.base_name) for info in listed if info.path.rpartition("/")[0] == folder and info.base_name.isdigit()
    ]


def rewritten(content: str, before: Sequence[str], scans: Sequence[str]) -> str:
    """Rewrites an entry of Spark's offset log for other scans of the same streams.

    >>> rewritten("v1\\n{}\\n4\\n7", ["a", "b"], ["a", "a", "b"]).split("\\n")
    ['v1', '{}', '4', '4', '7']
    """
    version, metadata, *offsets = content.split("\n")
    if version != "v1" or len(offsets) != len(before) or not set(scans) <= set(before):
        raise CorruptCheckpoint(
            "Spark's log of offsets cannot be read",
            detail=f"it has version {version} and {len(offsets)} offsets for {len(before)} scans",
            hint="restore the folder from a copy, or start with an empty one",
        )
    known = dict(zip(before, offsets, strict=True))
    return "\n".join([version, metadata, *(known[stream] for stream in scans)])
