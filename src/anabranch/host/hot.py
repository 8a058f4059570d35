"""Hot state: the arrays of a slot's engine, kept between steps where any worker of the machine can map them.

    <hot folder>/anabranch-<user>/<checkpoint identity>/slot-<n>.json     the stamp
    <hot folder>/anabranch-<user>/<checkpoint identity>/slot-<n>/…        the arrays

The stamp says after which batch, of which plan and partitioning, the arrays are. It is removed before a step changes
them and written after: a step that dies half-way leaves no stamp. Whoever does not find exactly the stamp it needs
rebuilds from durable rows, so nothing here is needed for correctness; it only makes a step cost its new rows instead
of the window.
"""

from __future__ import annotations

import getpass
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from anabranch.engine.engine import Engine
from anabranch.engine.state.arena import MappedArena
from anabranch.host.slot import SlotTask, make_engine, rebuild
from anabranch.host.store import Store


def hot_root() -> Path:
    """ANABRANCH_HOT_FOLDER, else the machine's tmpfs, else its temporary folder."""
    chosen = os.environ.get("ANABRANCH_HOT_FOLDER")
    shared = Path("/dev/shm")
    base = Path(chosen) if chosen else shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
    return base / f"anabranch-{getpass.getuser()}"


def hot_folder(identity: str) -> Path:
    return hot_root() / identity


def open_engine(task: SlotTask, slot: int, identity: str, store: Store) -> tuple[Engine, bool]:
    """The slot's engine as of after the batch before the task's, and whether it was found hot.

    The stamp is gone afterwards: the caller owns the arrays until `keep_engine`.
    """
    folder = hot_folder(identity)
    arrays = folder / f"slot-{slot}"
    stamp_path = folder / f"slot-{slot}.json"
    stamp = _read(stamp_path)
    stamp_path.unlink(missing_ok=True)
    if stamp is not None and stamp["of"] == _identity(task, task.batch - 1):
        engine = make_engine(task, slot, MappedArena(arrays))
        engine.reopen(stamp["layout"])
        return engine, True
    shutil.rmtree(arrays, ignore_errors=True)
    arrays.mkdir(parents=True)
    engine = make_engine(task, slot, MappedArena(arrays))
    rebuild(engine, task, slot, store)
    return engine, False


def keep_engine(engine: Engine, task: SlotTask, slot: int, identity: str) -> None:
    """Stamps the arrays as the state after the task's batch."""
    path = hot_folder(identity) / f"slot-{slot}.json"
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({"of": _identity(task, task.batch), "layout": engine.layout()}))
    partial.rename(path)


def claim(identity: str, location: str) -> None:
    """Notes whose hot state this is, and removes that of checkpoints which are no longer there."""
    folder = hot_folder(identity)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "owner.json").write_text(json.dumps({"checkpoint": location}))
    for other in hot_root().iterdir():
        owner = _read(other / "owner.json")
        if owner is not None and owner["checkpoint"].startswith("/") and not _is_current(owner, other.name):
            shutil.rmtree(other, ignore_errors=True)


def forget(identity: str) -> None:
    """Removes the hot state of a query that has stopped; it can be rebuilt."""
    shutil.rmtree(hot_folder(identity), ignore_errors=True)


def _is_current(owner: dict[str, Any], identity: str) -> bool:
    metadata = _read(Path(owner["checkpoint"]) / "anabranch" / "metadata.json")
    return metadata is not None and metadata.get("identity") == identity


def _identity(task: SlotTask, batch: int) -> list[object]:
    partitioning = task.partitioning
    shares = [[dimension.code, dimension.share] for dimension in partitioning.dimensions]
    return [batch, str(task.plan), partitioning.slots, shares, list(partitioning.table)]


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    return value
