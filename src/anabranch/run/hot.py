"""Hot state: the arrays of a slot's engine, kept between steps where any worker of the machine can map them.

    <hot folder>/anabranch-<uid>/<checkpoint identity>/slot-<n>.json     the stamp
    <hot folder>/anabranch-<uid>/<checkpoint identity>/slot-<n>-<attempt>/…   the arrays, by who built them first

Every process uses the folder of the user that it runs as, so executors may run as a different user than the driver. The
folder belongs to that user (`run/private`), which is checked before anything in it is read or written.

The stamp names the attempt that left the arrays, and their folder; its layout names the plans of the arrays, or the two
plans of a running migration. A step removes the stamp before it changes the arrays and writes it afterwards, so a step
that dies half-way leaves no stamp. State of another plan than the task's is migrated in place. A worker that does not
find the stamp of the attempt that it needs rebuilds from durable rows in a new folder, where workers that outlived
their query cannot interfere. Invariant: hot state is never needed for correctness; with it, a step costs its new rows
instead of the whole window.

Cleanup: a starting query, and on every machine each worker that builds the state of a query for the first time, removes
state of checkpoints that are gone or have been replaced, and state that no step has used for a day. A query that ends
removes its own state. A query that loses its hot state in this way rebuilds it.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from anabranch.engine.engine import Engine
from anabranch.engine.state.arena import MappedArena
from anabranch.errors import HostError, PlanError
from anabranch.run.private import PRIVATE, own_folder
from anabranch.run.rebuilding import Rows, durable_sources, follow, rebuild, refresh
from anabranch.run.slot import SlotTask, bring_to, can_reach, make_engine
from anabranch.run.store import Store
from anabranch.stats.report import PlanChange

UNUSED = 24 * 3600
"""Seconds without a step after which hot state is removed; the cost is at most a rebuild."""
UNOWNED = 60
"""Seconds after which hot state without an owner is removed; the creator of a folder records its owner at once."""


def hot_root() -> Path:
    """ANABRANCH_HOT_FOLDER, else the machine's tmpfs, else its temporary folder."""
    chosen = os.environ.get("ANABRANCH_HOT_FOLDER")
    shared = Path("/dev/shm")
    base = Path(chosen) if chosen else shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
    return base / f"anabranch-{os.geteuid()}"


def hot_folder(identity: str) -> Path:
    return hot_root() / identity


@dataclass(frozen=True)
class OpenEngine:
    """A slot's engine after the batch before the task's, the location of its arrays, and whether it was found hot.

    It runs the task's plans, or is migrating to them; `changes` records what was just done for that, by query.
    """

    engine: Engine
    arrays: str
    was_hot: bool
    changes: Mapping[str, PlanChange] = field(default_factory=dict)
    taken: Rows = field(default_factory=dict)
    """Rows that the slot took over from others along with their partition groups."""


@dataclass(frozen=True)
class MappedEngines:
    """The engines of a query in the hot folder of each machine, for workers that are interchangeable."""

    identity: str

    def open(self, task: SlotTask, slot: int, store: Store) -> OpenEngine:
        return open_engine(task, slot, self.identity, store)

    def keep(self, opened: OpenEngine, task: SlotTask, slot: int) -> None:
        keep_engine(opened, task, slot, self.identity)


class OwnEngines:
    """The engines of slots that one process serves alone, in its memory."""

    def __init__(self) -> None:
        self._engines: dict[int, tuple[str, Engine]] = {}
        """The engine of each slot, and the name of its state."""

    def open(self, task: SlotTask, slot: int, store: Store) -> OpenEngine:
        known = self._engines.pop(slot, None)
        if known is not None and known[0] == before(task) and can_reach(known[1], task, slot):
            engine = known[1]
            refresh(engine, task, slot, store.read_table)
            taken = _followed(engine, task, slot, store)
            if taken is not None:
                changes = bring_to(engine, task, slot) if not task.stage else {}
                return OpenEngine(engine, "", was_hot=True, changes=changes, taken=taken)
        engine = make_engine(task, slot)
        taken = rebuild(engine, task, slot, durable_sources(task, store, slot), store.read_table)
        return OpenEngine(engine, "", was_hot=False, taken=taken)

    def keep(self, opened: OpenEngine, task: SlotTask, slot: int) -> None:
        self._engines[slot] = after(task), opened.engine


def open_engine(task: SlotTask, slot: int, identity: str, store: Store) -> OpenEngine:
    """Finds the slot's engine or rebuilds it; there is no stamp until `keep_engine`."""
    folder = own_folder(hot_root()) / identity
    stamp_path = folder / f"slot-{slot}.json"
    stamp = _read(stamp_path)
    stamp_path.unlink(missing_ok=True)
    needed = before(task)
    if stamp is not None and needed is not None and stamp.get("after") == needed:
        arena = MappedArena(folder / stamp["arrays"])
        try:
            engine = make_engine(task, slot, arena)
            engine.reopen(stamp["layout"])
        except (OSError, ValueError, KeyError, PlanError):  # files gone or truncated, a layout without a state
            pass
        else:
            taken = None
            if can_reach(engine, task, slot):
                refresh(engine, task, slot, store.read_table)
                taken = _followed(engine, task, slot, store)
            if taken is not None:
                changes = bring_to(engine, task, slot) if not task.stage else {}
                return OpenEngine(engine, stamp["arrays"], was_hot=True, changes=changes, taken=taken)
    # The driver did this only on its own machine, and removes the folder when it considers the query ended.
    _note_owner(identity, store.location)
    _sweep_once(identity)
    for old in folder.glob(f"slot-{slot}-*"):
        shutil.rmtree(old, ignore_errors=True)
    arrays = Path(tempfile.mkdtemp(prefix=f"slot-{slot}-", dir=folder))
    engine = make_engine(task, slot, MappedArena(arrays))
    taken = rebuild(engine, task, slot, durable_sources(task, store, slot), store.read_table)
    return OpenEngine(engine, arrays.name, was_hot=False, taken=taken)


def _followed(engine: Engine, task: SlotTask, slot: int, store: Store) -> Rows | None:
    """Adapts an engine to the task's table; returns None if the engine must be rebuilt."""
    if not task.is_moving or task.stage:
        return {}
    return follow(engine, task, slot, durable_sources(task, store, slot))


def before(task: SlotTask) -> str | None:
    """Returns the name of the state from which a task starts; None at the first batch."""
    return after(task.at(task.stage - 1)) if task.stage else task.after


def after(task: SlotTask) -> str:
    """Returns the name of the state after a task: its attempt and, before the last stage, the stage."""
    return task.attempt if task.is_last else f"{task.attempt}-{task.stage}"


def keep_engine(opened: OpenEngine, task: SlotTask, slot: int, identity: str) -> None:
    """Stamps the arrays as the state after the task's batch, or after its stage."""
    path = hot_folder(identity) / f"slot-{slot}.json"
    partial = path.with_suffix(f".{opened.arrays}.partial")
    stamp = {
        "after": after(task),
        "arrays": opened.arrays,
        "layout": opened.engine.layout(),
    }
    # The folder is gone if the query ended or was cleaned up during the step.
    with suppress(FileNotFoundError):
        partial.write_text(json.dumps(stamp))
        partial.rename(path)


def claim(identity: str, location: str) -> None:
    """Records the owner of the hot state, and removes unused hot state from this machine."""
    try:
        _note_owner(identity, location)
    except OSError as error:
        raise HostError(
            f"hot state cannot be kept in '{hot_root()}'",
            detail=str(error),
            hint="set ANABRANCH_HOT_FOLDER to a writable folder, preferably in memory",
        ) from error
    _sweep(identity)


def forget(identity: str) -> None:
    """Removes the hot state of a query that has stopped; it can be rebuilt."""
    _remove(hot_folder(identity))


def _note_owner(identity: str, location: str) -> None:
    folder = own_folder(hot_root()) / identity
    folder.mkdir(PRIVATE, exist_ok=True)
    owner = folder / "owner.json"
    partial = owner.with_suffix(f".{uuid.uuid4().hex}.partial")
    partial.write_text(json.dumps({"checkpoint": location}))
    partial.rename(owner)


@cache
def _sweep_once(identity: str) -> None:
    """Cleans up once for each query in this process; frequent rebuilds of a slot need not repeat it."""
    _sweep(identity)


def _sweep(identity: str) -> None:
    """Removes unused hot state; the current time is that of the query's own folder, which has just been written to."""
    own = hot_folder(identity)
    now = own.stat().st_mtime
    for other in hot_root().iterdir():
        if other != own and not _is_wanted(other, now):
            _remove(other)


def _remove(folder: Path) -> None:
    """Renames the folder, then removes it: a running worker could refill it while it is emptied."""
    with suppress(FileNotFoundError):
        gone = folder.rename(folder.with_name(f"{folder.name}.{uuid.uuid4().hex}.gone"))
        shutil.rmtree(gone, ignore_errors=True)


def _is_wanted(folder: Path, now: float) -> bool:
    owner = _read(folder / "owner.json")
    if folder.suffix == ".gone":
        return False
    if owner is not None and owner["checkpoint"].startswith("/") and not _is_current(owner, folder.name):
        return False
    try:
        # Every step removes a stamp from the folder and renames another into it.
        return now - folder.stat().st_mtime < (UNUSED if owner is not None else UNOWNED)
    except FileNotFoundError:
        return False


def _is_current(owner: dict[str, Any], identity: str) -> bool:
    metadata = _read(Path(owner["checkpoint"]) / "anabranch" / "metadata.json")
    return metadata is not None and metadata.get("identity") == identity


def _read(path: Path) -> dict[str, Any] | None:
    """Reads a JSON object from a file; None if the file is missing or incomplete."""
    try:
        value = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return value if isinstance(value, dict) else None
