"""Reports the steps that repair a damaged checkpoint; changes nothing.

The two latest manifests are kept, so a query can go back one batch if the files of the older one are intact: remove the
latest manifest and Spark's commit of the batch, and Spark repeats the batch. Its sources must still have the rows of
that batch; an idempotent sink replaces what the batch had written.

Invariant: a repair is suggested only if every file that it needs was read to its end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow.fs as pafs

from anabranch.checkpoint.examine import Fault, damaged_files, faults, opened, spark_batches
from anabranch.errors import AnabranchError
from anabranch.run.store import UNFINISHED, Store


@dataclass(frozen=True)
class Repair:
    """The faults of a checkpoint and the steps to repair it."""

    location: str
    faults: tuple[Fault, ...]
    whole: tuple[int, ...]
    """The committed batches whose files are all intact."""
    steps: tuple[str, ...]
    leftovers: tuple[str, ...]
    """Unfinished files; the next start removes them."""

    @property
    def is_whole(self) -> bool:
        return not self.faults

    def to_json(self) -> dict[str, object]:
        found = [{"what": fault.what, "remedy": fault.remedy} for fault in self.faults]
        return {**vars(self), "faults": found, "whole": list(self.whole)}


def examine(location: str) -> Repair:
    """Reads the whole checkpoint and returns the report."""
    store, _ = opened(location)
    found = tuple(faults(location))
    whole = tuple(_whole_batches(store))
    return Repair(store.location, found, whole, tuple(_steps(store, found, whole)), tuple(_leftovers(store)))


def _whole_batches(store: Store) -> Iterator[int]:
    for batch in store.batches():
        try:
            manifest = store.manifest(batch)
        except AnabranchError:
            continue
        if manifest is not None and not damaged_files(store, manifest):
            yield batch


def _steps(store: Store, found: tuple[Fault, ...], whole: tuple[int, ...]) -> Iterator[str]:
    if not found:
        return
    batches = store.batches()
    spark = spark_batches(store)
    yield "stop the query, and copy the folder as it is"
    if store.metadata() is None or not whole:
        yield "restore the folder as a whole from a copy; no committed batch has all its files"
        yield "without a copy: start with an empty checkpoint folder and read the sources again from where you can"
        return
    last = max(whole)
    folder = store.root.removesuffix("/anabranch")
    for batch in batches:
        if batch > last:
            yield f"delete {store.root}/manifests/{batch:09d}.json"
    for batch in spark:
        if batch > last:
            yield f"delete {folder}/{store.sparks_name}/commits/{batch}"
    if (batches and max(batches) > last) or any(batch > last for batch in spark):
        yield f"start the query: Spark repeats batch {last + 1}, if the sources still have its rows"
    else:
        yield "restore the named files from a copy, then run 'anabranch checkpoint verify'"


def _leftovers(store: Store) -> Iterator[str]:
    for folder in ("", "rows", "late", "manifests", "tables"):
        selector = pafs.FileSelector(f"{store.root}/{folder}", allow_not_found=True)
        for info in store.files.get_file_info(selector):
            if info.is_file and UNFINISHED.fullmatch(info.base_name):
                yield info.path


def as_text(found: Repair) -> str:
    """Returns the report for a terminal."""
    if found.is_whole:
        lines = ["the checkpoint is valid; no repair is needed"]
    else:
        lines = [f"{len(found.faults)} faults:", *(f"  {fault.what}" for fault in found.faults)]
        lines += [f"whole batches: {', '.join(map(str, found.whole)) or 'none'}", "what to do, in this order:"]
        lines += [f"  {number}. {step}" for number, step in enumerate(found.steps, 1)]
    if found.leftovers:
        lines += [f"{len(found.leftovers)} unfinished files, which the next start removes"]
    return "\n".join(lines)


def as_json(found: Repair) -> str:
    return json.dumps(found.to_json(), indent=2)
