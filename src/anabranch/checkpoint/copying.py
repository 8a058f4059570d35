"""Copies a checkpoint to any file system that Arrow supports.

Invariant: the manifest is copied last, so an interrupted copy has no committed batch and is refused, not misread. Only
files that the last manifest needs are copied, plus all of Spark's part.
"""

from __future__ import annotations

import pyarrow.fs as pafs

from anabranch.checkpoint.examine import opened
from anabranch.errors import CheckpointError, CheckpointInUse
from anabranch.run.lease import Holder
from anabranch.run.private import make_private
from anabranch.run.store import READ, TABLES, Store


def copy(source: str, target: str) -> int:
    """Copies an unused checkpoint into an empty folder; returns the number of files."""
    store, _ = opened(source)
    lease = store.lease()
    holder = None if lease is None else Holder.from_json(lease)
    if holder is not None and holder.is_alive_now():
        raise CheckpointInUse(
            f"checkpoint '{store.location}' is in use",
            detail=f"{holder} runs a query with it",
            hint="stop the query, then copy",
        )
    there = Store(target)
    root, into = store.root.removesuffix("/anabranch"), there.root.removesuffix("/anabranch")
    if there.files.get_file_info(pafs.FileSelector(into, allow_not_found=True)):
        raise CheckpointError(f"'{target}' is not empty", hint="name a new folder for the copy")
    make_private(target)
    manifest = store.latest(is_used=False)
    names = [f"anabranch/rows/{file.name}" for file in manifest.files] if manifest else []
    names += [f"anabranch/{TABLES}/{name}" for name in store.table_versions()]
    names += [f"anabranch/{name}" for name in ("metadata.json", "history.jsonl", READ)]
    selector = pafs.FileSelector(f"{root}/{store.sparks_name}", recursive=True, allow_not_found=True)
    names += [info.path.removeprefix(f"{root}/") for info in store.files.get_file_info(selector) if info.is_file]
    names += [f"anabranch/manifests/{manifest.batch:09d}.json"] if manifest else []
    copied = 0
    for name in names:
        if store.files.get_file_info(f"{root}/{name}").type != pafs.FileType.File:
            continue
        there.files.create_dir(f"{into}/{name}".rpartition("/")[0], recursive=True)
        old, new = store.files.open_input_stream(f"{root}/{name}"), there.files.open_output_stream(f"{into}/{name}")
        with old, new:
            while piece := old.read(1 << 22):
                new.write(piece)
        copied += 1
    return copied
