"""Copies a checkpoint to any file system that Arrow supports, also while its query runs.

Invariant: the copy has the state after one committed batch, and of Spark's logs what belongs to it. The manifest is
copied last, so an interrupted copy has no committed batch and is refused, not misread. If the running query removes a
file of that batch meanwhile, the copy begins again with a newer batch.
"""

from __future__ import annotations

import pyarrow.fs as pafs

from anabranch.checkpoint.examine import opened
from anabranch.errors import CheckpointError
from anabranch.run.manifest import Manifest
from anabranch.run.private import make_private
from anabranch.run.store import READ, TABLES, Store
from anabranch.run.table_versions import base_of

_ATTEMPTS = 20
"""The number of batches committed during a copy at which the copy is given up."""


def copy(source: str, target: str) -> int:
    """Copies a checkpoint into an empty folder; returns the number of files."""
    store, _ = opened(source)
    there = Store(target)
    into = there.root.removesuffix("/anabranch")
    if there.files.get_file_info(pafs.FileSelector(into, allow_not_found=True)):
        raise CheckpointError(f"'{target}' is not empty", hint="name a new folder for the copy")
    make_private(target)
    for _ in range(_ATTEMPTS):
        for folder in ("rows", "manifests"):
            there.files.create_dir(f"{there.root}/{folder}", recursive=True)
        manifest = store.latest(is_used=False)
        try:
            return sum(_copied(store, there, name, is_needed) for name, is_needed in _names(store, manifest))
        except FileNotFoundError:
            there.files.delete_dir_contents(into)
    raise CheckpointError(
        f"checkpoint '{store.location}' cannot be copied while its query runs",
        detail="the query removes rows of a batch before they are copied",
        hint="stop the query, then copy",
    )


def _names(store: Store, manifest: Manifest | None) -> list[tuple[str, bool]]:
    """The files of a copy, in the order in which they are copied, and which of them the manifest lists."""
    ours = [f"anabranch/rows/{file.name}" for file in manifest.files] if manifest else []
    tables = manifest.tables.values() if manifest else ()
    ours += [f"anabranch/{TABLES}/{name}" for version in tables for name in dict.fromkeys((base_of(version), version))]
    others = [f"anabranch/{TABLES}/{name}" for name in store.table_versions()]
    others += [f"anabranch/{name}" for name in ("metadata.json", "history.jsonl", READ)]
    names = [(name, True) for name in ours] + [(name, False) for name in others if name not in ours]
    names += [(name, False) for name in _sparks(store, manifest)]
    return [*names, *([(f"anabranch/manifests/{manifest.batch:09d}.json", True)] if manifest else [])]


def _sparks(store: Store, manifest: Manifest | None) -> list[str]:
    """Spark's files, without the entries of its logs for batches that the copy does not have."""
    root, last = store.root.removesuffix("/anabranch"), -1 if manifest is None else manifest.batch
    selector = pafs.FileSelector(f"{root}/{store.sparks_name}", recursive=True, allow_not_found=True)
    found = []
    for info in store.files.get_file_info(selector):
        log, number = info.path.rpartition("/")[0].rpartition("/")[2], info.base_name
        # Spark plans a batch before it runs; the copy repeats that batch with the same rows.
        most = {"offsets": last + 1, "commits": last}.get(log)
        if info.is_file and not (most is not None and number.isdigit() and int(number) > most):
            found.append(info.path.removeprefix(f"{root}/"))
    return found


def _copied(store: Store, there: Store, name: str, is_needed: bool) -> int:
    root, into = store.root.removesuffix("/anabranch"), there.root.removesuffix("/anabranch")
    if not is_needed and store.files.get_file_info(f"{root}/{name}").type != pafs.FileType.File:
        return 0
    there.files.create_dir(f"{into}/{name}".rpartition("/")[0], recursive=True)
    old = store.files.open_input_stream(f"{root}/{name}")
    with old, there.files.open_output_stream(f"{into}/{name}") as new:
        while piece := old.read(1 << 22):
            new.write(piece)
    return 1
