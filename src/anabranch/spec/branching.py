"""The command `anabranch branch`: changed queries run beside those of a checkpoint, and take over or are discarded.

A branch is a run of a spec: both versions of each changed query, on a copy of the checkpoint (`run/branching`), with
results in a folder of the copy instead of the sinks. A comparison reads that folder. For a take-over, the command
requests from the original run, through its checkpoint, the event time until which it answers.

Invariant: the original is not modified before the take-over, and its sinks never. Limit: a comparison reads all results
of the branch into memory.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.console import Console

from anabranch.checkpoint.copying import copy
from anabranch.checkpoint.examine import opened
from anabranch.errors import CheckpointError, ForeignCheckpoint, SpecError
from anabranch.plan.query import titled
from anabranch.plan.query_set import QuerySet, partitioning_of
from anabranch.run import control
from anabranch.run.branching import (
    ENTRY,
    Pair,
    become_another,
    branch_of,
    earliest,
    finish,
    pairs,
    pairs_of,
    split,
    take_over,
)
from anabranch.run.evolving import compiled
from anabranch.run.identity import Written, what_differs
from anabranch.run.lease import Holder, Lease
from anabranch.run.store import Store
from anabranch.settings.commands import add_command
from anabranch.spec.change_commands import FINISH
from anabranch.spec.comparing import comparison, note_costs, results_folder
from anabranch.spec.model import QuerySpec, SinkSpec, Spec
from anabranch.spec.options import add_run_options, add_spec, spec_of
from anabranch.spec.run_command import prepared, run_spec

if TYPE_CHECKING:
    from anabranch.api.run import Run
    from anabranch.settings.commands import Commands


def add_arguments(commands: Commands) -> None:
    """Adds the command."""
    command = add_command(
        commands,
        "branch",
        "run a changed query beside the old one on a copy of its state; compare them; take over or discard it",
        """
        anabranch branch checkpoint new.yaml                  run both on the same rows; the old run goes on meanwhile
        anabranch branch checkpoint new.yaml --compare        show how results and cost differ so far
        anabranch branch checkpoint new.yaml --take-over      results before an event time are the old run's
        anabranch branch checkpoint new.yaml --discard        remove the copy

        new.yaml is the spec of the run with its query changed and a 'checkpoint' folder of its own, which the branch
        makes. After the take-over, start it with: anabranch run new.yaml
        """,
    )
    command.add_argument("of", metavar="CHECKPOINT", help="the checkpoint folder of the running or stopped query")
    add_spec(command)
    add_run_options(command)
    action = command.add_mutually_exclusive_group()
    action.add_argument("--compare", action="store_true", help="show the difference of the results so far")
    action.add_argument("--take-over", action="store_true", help="replace the old query by the changed one")
    action.add_argument("--discard", action="store_true", help="remove the branch")
    command.set_defaults(run=branch, report=None)


def branch(arguments: argparse.Namespace) -> int:
    """Runs, compares, takes over or removes a branch."""
    original, _ = opened(arguments.of)
    chosen = spec_of(arguments)
    if chosen.spark_checkpoint is not None:
        raise SpecError("a branch cannot have a 'spark_checkpoint'", hint="omit it: a branch is one folder")
    store = Store(chosen.checkpoint)
    if store.location.rstrip("/") == original.location.rstrip("/"):
        raise SpecError(
            f"'{arguments.spec}' has the checkpoint of the old query",
            detail="a branch is a copy in a separate folder",
            hint=f"write another folder, such as checkpoint: {chosen.checkpoint}-2",
        )
    if arguments.discard:
        return _discard(store)
    if arguments.compare:
        _entry(store)
        print(comparison(store))
        return 0
    if arguments.take_over:
        return _take_over(arguments, chosen, original, store)
    return _run(arguments, chosen, original, store)


def _run(arguments: argparse.Namespace, chosen: Spec, original: Store, store: Store) -> int:
    written = Written.of(original.metadata() or {})
    entry = branch_of(store)
    if entry is not None and entry.get("time") is not None:
        raise CheckpointError(
            f"the branch in '{store.location}' is taking over",
            hint="finish the take-over: run the same command with --take-over",
        )
    if entry is None and store.metadata() is not None:
        raise ForeignCheckpoint(
            f"'{store.location}' is already a checkpoint, but not of a branch", hint="name a new folder in the spec"
        )
    found = pairs(written.queries, _texts(chosen)) if entry is None else pairs_of(entry)
    if not found:
        raise SpecError(
            f"no query of '{arguments.spec}' differs from those of '{original.location}'",
            detail=", ".join(name or "the query" for name in written.queries),
            hint="change the query in the spec; new queries join a run with `anabranch add`",
        )
    both = _beside(chosen, written, found, store.location)

    def begin(run: Run, console: Console) -> None:
        if entry is not None:
            return
        old = _old(written, run, original)
        since = _made(original, store, old, run.queries, found)
        when = "complete" if since is None else f"compared from event time {_text(since)} on"
        console.print(
            f"a branch of '{original.location}' is in '{store.location}'; its results are {when}", soft_wrap=True
        )

    status = run_spec(arguments, both, begin, lambda handle: note_costs(store, handle))
    print(comparison(store))
    return status


def _texts(chosen: Spec) -> dict[str, str]:
    return {name: query.query for name, query in chosen.queries.items()}


def _beside(chosen: Spec, written: Written, found: Collection[Pair], location: str) -> Spec:
    """Returns the spec of the branch: both versions of each changed query, with results inside the checkpoint."""
    queries = dict(chosen.queries)
    for pair in found:
        queries[pair.after] = replace(queries.pop(pair.name), switches=())
        filters = tuple(written.filters_of(pair.name))
        queries[pair.before] = QuerySpec(written.queries[pair.name], None, allow_unbounded=True, late_filters=filters)
    placed = {
        name: replace(query, sink=SinkSpec("parquet", results_folder(location, name)))
        for name, query in queries.items()
        if query.sink is not None or name in {pair.before for pair in found}
    }
    # Shared joins would attribute the work of one version to the other.
    return replace(
        chosen, queries=queries | placed, late=None, moves=(), together=replace(chosen.together, share="off")
    )


def _old(written: Written, run: Run, original: Store) -> QuerySet:
    old = compiled(written, run.session.catalog)
    if old is None or old.fingerprint != (original.metadata() or {}).get("fingerprint"):
        raise ForeignCheckpoint(
            f"the query of checkpoint '{original.location}' cannot be compiled over the streams of this spec",
            detail=what_differs(original.metadata() or {}, run.queries),
            hint="the spec must have the streams, tables and functions of the old one",
        )
    return old


def _made(original: Store, store: Store, old: QuerySet, both: QuerySet, found: tuple[Pair, ...]) -> int | None:
    """Copies the checkpoint and converts the copy to that of the branch; removes the copy if this is refused."""
    copy(original.location, store.location)
    try:
        become_another(store)
        return split(store, old, both, found, lambda: partitioning_of(both, _slots(store)), original.location)
    except BaseException:
        _remove(store)
        raise


def _slots(store: Store) -> int:
    manifest = store.latest(is_used=False)
    return 1 if manifest is None else manifest.partitionings[-1].slots


def _take_over(arguments: argparse.Namespace, chosen: Spec, original: Store, store: Store) -> int:
    entry = _entry(store)
    lease = Lease(store)
    try:
        with prepared(chosen, Console(stderr=True)) as new:
            both = compiled(Written.of(store.metadata() or {}), new.session.catalog)
            if both is None or both.fingerprint != (store.metadata() or {}).get("fingerprint"):
                raise ForeignCheckpoint(
                    f"the branch in '{store.location}' cannot be compiled over the streams of this spec",
                    hint="use the spec with which the branch was made",
                )
            changed = {pair.name: written_text(store, pair.after) for pair in pairs_of(entry)}
            if other := [name for name, text in changed.items() if chosen.queries[name].query != text]:
                raise ForeignCheckpoint(
                    f"{titled(other[0])} differs from the query that the branch ran",
                    detail=f"the branch ran: {changed[other[0]]}",
                    hint="undo the change, or discard the branch and make another one",
                )
            time = entry.get("time")
            if time is None:
                time = _end_of_original(original, new, earliest(store.latest(), since=entry["since"]))
                store.note_metadata(**{ENTRY: {**entry, "time": time}})
            wanted, slots = new.queries, _slots(store)
            take_over(store, both, wanted, lambda: partitioning_of(wanted, slots), time)
    finally:
        lease.close()
    print(f"'{original.location}' answers until event time {_text(time)}, the changed query from then on")
    print(f"start it now: anabranch run {arguments.spec}")
    return 0


def written_text(store: Store, name: str) -> str:
    """Returns the text of a query of a checkpoint."""
    return Written.of(store.metadata() or {}).queries[name]


def _end_of_original(original: Store, new: Run, least: int) -> int:
    """Sets the event time until which the original answers, through its driver if it has one; returns the time."""
    value = original.lease()
    holder = None if value is None else Holder.from_json(value)
    if holder is not None and holder.is_alive_now():
        return int(control.request(original, FINISH, {"least": least})["until"])
    lease = Lease(original)
    try:
        return finish(original, _old(Written.of(original.metadata() or {}), new, original), least)
    finally:
        lease.close()


def _discard(store: Store) -> int:
    entry = _entry(store)
    if entry.get("time") is not None:
        raise CheckpointError(
            f"the branch in '{store.location}' is taking over",
            detail=f"'{entry['of']}' answers until event time {_text(entry['time'])} only",
            hint="finish the take-over: run the same command with --take-over",
        )
    Lease(store)  # raises if a driver runs the branch
    _remove(store)
    print(f"removed '{store.location}'")
    return 0


def _remove(store: Store) -> None:
    store.files.delete_dir(store.root.removesuffix("/anabranch"))


def _entry(store: Store) -> dict[str, Any]:
    entry = branch_of(store)
    if entry is None:
        raise CheckpointError(
            f"there is no branch in '{store.location}'", hint="create one: anabranch branch CHECKPOINT SPEC.yaml"
        )
    return entry


def _text(micros: int) -> str:
    return datetime.datetime.fromtimestamp(micros / 1e6, datetime.UTC).isoformat(sep=" ")
