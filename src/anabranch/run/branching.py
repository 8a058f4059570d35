"""A branch: changed queries run in parallel with those of a checkpoint, on a copy of its state, and later replace them.

The copy becomes the checkpoint of a set that has each changed query twice: its old version under another name, and its
new version (`run/changing`). All queries of the branch answer from one event time on, so their results can be compared.
For a take-over, the original run answers `until` an event time that neither run has seen yet, and ends when it can have
no older result; the branch drops the old queries and answers from that time on.

Invariant: the original and the branch together give each result once: older ones are those of the original, the others
those of the branch. The time is fixed in the original first; the same command resumes an interrupted take-over, and
until then the branch runs no batch. Limit: the sources must be able to deliver rows to both runs.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow.fs as pafs

from anabranch.engine.expiry import expiry
from anabranch.errors import BundleError, CheckpointError, ForeignCheckpoint
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.query import titled
from anabranch.plan.query_set import QuerySet
from anabranch.run.changing import change_set, refuse_change
from anabranch.run.clock import Clocks
from anabranch.run.floors import relation_floors
from anabranch.run.lease import Lease
from anabranch.run.manifest import Manifest
from anabranch.run.store import Store, new_attempt

ENTRY = "branch"
"""The metadata entry that marks the checkpoint of a branch."""
BEFORE, AFTER = "before", "after"


@dataclass(frozen=True)
class Pair:
    """A changed query: its name in the original, and the names of both versions in the branch."""

    name: str
    before: str
    after: str


def pairs(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[Pair, ...]:
    """Returns the queries whose texts differ, with their names in the branch.

    >>> [(pair.before, pair.after) for pair in pairs({"x": "old", "y": "same"}, {"x": "new", "y": "same"})]
    [('x_before', 'x')]
    """
    changed = [name for name in old if name in new and old[name] != new[name]]
    return tuple(Pair(name, f"{name}_{BEFORE}" if name else BEFORE, name or AFTER) for name in changed if name in new)


def renamed(queries: QuerySet, names: Mapping[str, str]) -> QuerySet:
    """Renames queries; relations and row layout stay the same."""
    return replace(
        queries, members=tuple(replace(each, name=names.get(each.name, each.name)) for each in queries.members)
    )


def split(
    store: Store, old: QuerySet, both: QuerySet, found: tuple[Pair, ...], table: Callable[[], Partitioning], of: str
) -> int | None:
    """Converts a copy of a checkpoint into the checkpoint of a branch; returns the event time from which its queries
    answer.

    Returns None if no row has arrived, so that all answers are complete. If the conversion is refused, the copy is
    unchanged.
    """
    before = renamed(old, {pair.name: pair.before for pair in found})
    if read := [each.name for each in before.members if each.feeds and each.name in {pair.before for pair in found}]:
        raise _cannot(store, f"{titled(read[0])} has changed, and other queries read its results")
    if read := [each.name for each in both.delivered if each.feeds]:
        raise _cannot(store, f"{titled(read[0])} has a sink, and other queries read its results")
    if old.graph.counted or both.graph.counted:
        raise _cannot(store, "its windows of rows may need rows that the checkpoint no longer has")
    try:
        refuse_change(before, both, store.latest())
    except BundleError as error:
        raise _cannot(store, f"{error.message}\n{error.detail}" if error.detail else error.message) from error
    lease = Lease(store)
    try:
        change_set(store, before, both, table())
        manifest, since = store.latest(), None
        if manifest is not None and manifest.since:
            since = max(manifest.since.values())
            store.commit(replace(manifest, since=_answering(both, since)))
        names = [[pair.name, pair.before, pair.after] for pair in found]
        store.note_metadata(**{ENTRY: {"of": of, "pairs": names, "since": since}})
        return since
    finally:
        lease.close()


def branch_of(store: Store) -> dict[str, Any] | None:
    """Returns the branch entry of a checkpoint's metadata; None if the checkpoint is no branch."""
    found = (store.metadata() or {}).get(ENTRY)
    return found if isinstance(found, dict) else None


def pairs_of(entry: Mapping[str, Any]) -> tuple[Pair, ...]:
    """Returns the changed queries of a branch."""
    return tuple(Pair(*names) for names in entry["pairs"])


def earliest(*manifests: Manifest | None, since: int | None = None) -> int:
    """Returns the first event time at which a branch can take over: all rows seen by any run are older."""
    newest = [each.clocks.newest for each in manifests if each is not None and each.clocks.newest is not None]
    return max([time + 1 for time in newest] + [since or 0])


def finish(store: Store, queries: QuerySet, least: int) -> int:
    """Sets the event time until which the stopped queries of a checkpoint answer; returns it.

    It is `least` if no row of that time or newer has arrived. A time that was set before is kept.
    """
    manifest = store.latest()
    if manifest is None:
        raise CheckpointError(
            f"checkpoint '{store.location}' has no batch yet", hint="start the changed query in its place"
        )
    if manifest.until:
        return max(manifest.until.values())
    time = earliest(manifest, since=least)
    # The states stay as they are, and so does the name of the attempt that made them.
    store.commit(replace(manifest, until=_answering(queries, time)))
    return time


def has_answered(queries: QuerySet, manifest: Manifest | None) -> bool:
    """Returns True if queries that answer until an event time can emit no more results older than it."""
    if manifest is None or not manifest.until:
        return False
    return all(_is_past(queries, manifest.clocks, time) for time in set(manifest.until.values()))


def _is_past(queries: QuerySet, clocks: Clocks, time: int) -> bool:
    floors = relation_floors(queries, clocks)
    if any(floors[each.name] < time for each in queries.graph.streamed):
        return False
    if not any(member.query.waits for member in queries.members):
        return True
    # A combination without a match becomes known after its newest row; until then its rows are kept.
    lows = expiry(queries, floors)
    return all(each.window.deadline(time - 1) < lows[each.name] for each in queries.graph.streamed)


def take_over(store: Store, both: QuerySet, new: QuerySet, table: Callable[[], Partitioning], time: int) -> None:
    """Converts the checkpoint of a branch to the new queries alone, which answer from an event time on."""
    entry = branch_of(store)
    assert entry is not None
    under = renamed(both, {pair.after: pair.name for pair in pairs_of(entry)})
    lease = Lease(store)
    try:
        if store.written_by() != new.fingerprint:
            change_set(store, under, new, table())
        manifest = store.latest()
        if manifest is not None:
            store.commit(replace(manifest, attempt=new_attempt(), since=_answering(new, time)))
        store.note_metadata(**{ENTRY: None})
    finally:
        lease.close()


def become_another(store: Store) -> None:
    """Assigns new identities to a copy of a checkpoint, so that the copy and the original can run at the same time.

    Both number their batches from the same one on. A sink replaces the results of a batch that has the same number and
    the same identity of Spark's query, so the copy needs another one of those, too.
    """
    store.note_metadata(identity=uuid.uuid4().hex)
    folder = f"{store.root.removesuffix('/anabranch')}/{store.sparks_name}"
    if (found := store.read_json(f"{folder}/metadata")) is None:
        return
    store.write_json(f"{folder}/metadata", {**found, "id": str(uuid.uuid4())})
    checksum = f"{folder}/.metadata.crc"
    if store.files.get_file_info(checksum).type != pafs.FileType.NotFound:
        store.files.delete_file(checksum)


def _answering(queries: QuerySet, time: int) -> dict[str, int]:
    """Assigns a time to each query whose results no other query reads; a reader may need other results than its own."""
    return {each.name: time for each in queries.members if not each.feeds}


def _cannot(store: Store, reason: str) -> ForeignCheckpoint:
    return ForeignCheckpoint(
        f"checkpoint '{store.location}' cannot have a branch with the changed query",
        detail=reason,
        hint="give the relations of the changed query other aliases, or start it with an empty checkpoint folder",
    )
