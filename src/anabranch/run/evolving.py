"""Converts the checkpoint of earlier queries to one of the queries that start now, if that is allowed.

A checkpoint belongs to the queries that wrote it. At a restart the queries may have changed. If only the place of
filters has changed, the answers are the same, and the checkpoint is converted automatically. If the queries themselves
have changed, the user must allow it (`Evolve`). `run/changing` converts the base rows as for a running set: a changed
query is removed, and a query with the same name is added.

A filter moves in one of two directions (Zhu 2006, Section 13.1). *Push down*: the kept rows are filtered once, because
the joins no longer check them. *Pull up*: rows that the filter rejected earlier are absent, which is correct, and the
kept rows get placeholders for the columns that only the filter reads (`placeholders`).

Invariant: results from before the restart do not change. A changed query emits exactly those of its results that are
not older than the announced event time, each once. Limit: streams, tables and functions are those of the checkpoint.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum

from anabranch.adapt.records import QueriesChanged
from anabranch.cql import compile_query, declared_results
from anabranch.errors import AnabranchError, BundleError, ForeignCheckpoint, QueryChanged
from anabranch.lang.catalog import Catalog
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.query import Query, titled
from anabranch.plan.query_set import ALONE, QuerySet, set_of
from anabranch.run.branching import ENTRY
from anabranch.run.changing import SetChange, change_set, promised, refuse_change
from anabranch.run.identity import Written, what_differs
from anabranch.run.lease import Lease
from anabranch.run.manifest import Manifest
from anabranch.run.store import Store


class Evolve(StrEnum):
    """The behaviour at a start if the queries of a checkpoint have changed."""

    ASK = "ask"
    """The start ends with an error that shows the difference and how to accept it."""
    ALLOW = "allow"
    REFUSE = "refuse"


def follow(
    store: Store,
    queries: QuerySet,
    catalog: Catalog,
    table: Callable[[], Partitioning],
    evolve: Evolve = Evolve.REFUSE,
) -> SetChange | None:
    """Makes a checkpoint one of these queries; returns the change, or None if there is nothing to do.

    `catalog` has the streams, tables and functions, and `table` gives the first table of the queries. A checkpoint that
    cannot be taken over is left as it is; opening it raises an error that says why.
    """
    found = store.metadata()
    if found is None or store.written_by() == queries.fingerprint:
        return None
    if found.get(ENTRY):
        raise ForeignCheckpoint(
            f"checkpoint '{store.location}' is that of a branch, which has not taken over",
            detail=f"it is a branch of '{found[ENTRY].get('of')}'",
            hint="let it take over, or remove it: anabranch branch CHECKPOINT SPEC.yaml --take-over, or --discard",
        )
    written = Written.of(found)
    is_moved = found.get("query") == queries.text and list(written.late_filters) != list(queries.late_filters)
    if not is_moved and evolve is Evolve.REFUSE:
        return None
    old = compiled(written, catalog)
    if old is None or old.fingerprint != found.get("fingerprint") or old.fingerprint == queries.fingerprint:
        return None
    if is_moved:
        return _moved(store, old, queries)
    old = _without_changed_names(store, old, queries)
    if evolve is Evolve.ASK:
        since = _refuse(store, old, queries, store.latest())
        raise QueryChanged(
            f"the {'queries' if queries.is_named else 'query'} of checkpoint '{store.location}' "
            f"{'have' if queries.is_named else 'has'} changed",
            detail=f"{what_differs(found, queries)}\n{_announced(since)}",
            hint="to accept the change, start it once with --evolve allow, or evolve('allow') on the writer; "
            "to keep the old query, undo the change",
        )
    lease = Lease(store)
    try:
        _refuse(store, old, queries, store.latest())
        change = change_set(store, old, queries, table())
        manifest = store.latest()
        store.note(QueriesChanged(manifest.batch + 1 if manifest else 0, change.joined, change.left))
    finally:
        lease.close()
    return change


def compiled(written: Written, catalog: Catalog) -> QuerySet | None:
    """Compiles the queries that wrote a checkpoint; None if they cannot be compiled any more."""
    catalog, queries = catalog.without_queries(), dict[str, Query]()
    try:
        for name, text in written.queries.items():
            query = compile_query(text, catalog, allow_unbounded=True, late_filters=written.filters_of(name))
            if name != ALONE:
                catalog.register(declared_results(name, query))
            queries[name] = query
        return set_of(queries)
    except AnabranchError:
        return None


def _moved(store: Store, old: QuerySet, queries: QuerySet) -> SetChange:
    """Carries over the rows of the same queries with other late filters; the table stays."""
    lease = Lease(store)
    try:
        manifest = store.latest()
        if manifest is None:
            store.belong_to(queries)
            return SetChange()
        return change_set(store, old, queries, manifest.partitionings[-1])
    except BundleError as error:
        raise ForeignCheckpoint(
            f"checkpoint '{store.location}' cannot be used with other late filters",
            detail=f"{error.message}: its rows lack columns, and no value is known with which the filter passes",
            hint=f"write late_filters: {list(old.late_filters)}, or start with an empty checkpoint folder",
        ) from error
    finally:
        lease.close()


def _without_changed_names(store: Store, old: QuerySet, new: QuerySet) -> QuerySet:
    """Returns the old queries with other names for those that have changed, so that they leave and the new ones join.

    The relations, and with them the layout of the rows, stay as they are.
    """
    # Over the same catalog, equal texts are equal queries.
    texts = {each.name: each.query.text for each in new.members}
    changed = [each for each in old.members if texts.get(each.name, each.query.text) != each.query.text]
    if read := [each.name for each in changed if each.feeds]:
        raise _cannot(store, f"{titled(read[0])} has changed, and other queries read its results")
    return replace(
        old,
        members=tuple(replace(each, name=f"{each.name} before") if each in changed else each for each in old.members),
    )


def _refuse(store: Store, old: QuerySet, new: QuerySet, manifest: Manifest | None) -> Mapping[str, int]:
    """Raises an error if the rows cannot be carried over; otherwise returns when each joining query begins."""
    if old.graph.counted or new.graph.counted:
        raise _cannot(store, "its windows of rows may need rows that the checkpoint no longer has")
    try:
        refuse_change(old, new, manifest)
    except BundleError as error:
        raise _cannot(store, f"{error.message}\n{error.detail}" if error.detail else error.message) from error
    if manifest is None or manifest.clocks.newest is None:
        return {}
    since = promised(old, new, manifest)[0]
    return {name: time for name, time in since.items() if name not in old.names}


def _cannot(store: Store, reason: str) -> ForeignCheckpoint:
    return ForeignCheckpoint(
        f"checkpoint '{store.location}' cannot be taken over by the changed query",
        detail=reason,
        hint="undo the change, or start with an empty checkpoint folder",
    )


def _announced(since: Mapping[str, int]) -> str:
    if not since:
        return "no row has arrived yet; the answer will be complete"
    lines = []
    for name, micros in since.items():
        time = datetime.datetime.fromtimestamp(micros / 1e6, datetime.UTC).isoformat(sep=" ")
        lines.append(f"results of {titled(name)} would be complete from event time {time} on")
    return "\n".join(lines)
