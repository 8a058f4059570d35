"""Derives from floors the watermark of each query, and the time at which no query needs a base row any more.

Invariant: a row is kept as long as any query needs it. A query answers by the watermark of its own relations. If rows
are buffered until the watermark, one buffer serves all queries and waits for the lowest watermark.

A row is out of reach of a relation when its deadline is before the relation's floor, or earlier if a band over event
times is narrower than the window (`plan.pairwise`). A row can be dropped when it is out of reach of all relations but
its own, because every future combination contains a future row. In a grouped query the row must also count at no
pending boundary, so that pending groups can be recomputed from the rows kept.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from anabranch.lang.window import BEFORE_ALL, FOREVER
from anabranch.plan.execution import DEFAULT_EXECUTION, ExecutionModel
from anabranch.plan.logical import SideKind
from anabranch.plan.pairwise import PairwiseWindows, leaving_early
from anabranch.plan.query import Query
from anabranch.plan.query_set import QuerySet

_LATEST = 2 * FOREVER - 1


def expiry(
    queries: QuerySet, floors: Mapping[str, int], execution: ExecutionModel = DEFAULT_EXECUTION
) -> dict[str, int]:
    """Returns, for each relation, the time before which a row's deadline makes the row useless.

    If rows are buffered until the watermark, these rows and those that they may match are kept as well.
    """
    streams = [relation.name for relation in queries.graph.streamed]
    lone, latest = _LATEST, dict.fromkeys(streams, _LATEST)
    if execution.rows_wait:
        lone = min(floors[name] for name in streams)
        floors = dict.fromkeys(streams, lone)
        # A buffered row is kept even if it is out of reach of future rows: it has not met the rows before it.
        latest = {each.name: lone + each.window.reach for each in queries.graph.streamed}
    several = [_expiry(member.query, floors, lone) for member in queries.members]
    lows = {name: min(latest[name], *(lows[name] for lows in several if name in lows)) for name in streams}
    return {**dict.fromkeys(queries.graph.names, BEFORE_ALL), **lows}


def kept_from(queries: QuerySet, floors: Mapping[str, int]) -> dict[str, int]:
    """Returns, for each stream relation, the event time from which no row has been dropped, for any execution model."""
    lows = expiry(queries, floors)
    return {each.name: each.window.earliest(lows[each.name]) for each in queries.graph.streamed}


def early_leavers(queries: QuerySet) -> frozenset[str]:
    """The relations whose rows may be dropped before their deadlines have passed the floors of all others."""
    early = {name for member in queries.members for name in leaving_early(member.query)}
    return frozenset(early - queries.may_be_absent)


def out_of_reach(floors: Mapping[str, int], relations: Collection[str], windows: PairwiseWindows) -> tuple[int, int]:
    """Returns when combinations of some, not all, relations are useless: by deadline, and by newest time.

    A combination can be dropped if its deadline is before the first time or its newest time is before the second.
    Tables have no floor, because they get no new rows. A combination that lacks only tables will never be completed.
    """
    left = [other for other in floors if other not in relations]
    low = min((floors[other] for other in left), default=_LATEST)
    newest = min((floors[other] - windows.from_any(relations, other) for other in left), default=_LATEST)
    return low, max(newest, -_LATEST)


def watermarks(
    queries: QuerySet, floors: Mapping[str, int], execution: ExecutionModel = DEFAULT_EXECUTION
) -> dict[str, int]:
    """Returns, for each query, the event time that all its streams have passed: the lowest floor of its relations."""
    if execution.rows_wait:
        return dict.fromkeys(queries.names, min(floors[each.name] for each in queries.graph.streamed))
    return {member.name: min(floors[each.name] for each in member.query.whole.streamed) for member in queries.members}


def _expiry(query: Query, floors: Mapping[str, int], lone: int) -> dict[str, int]:
    """Computes `expiry` for one query; `lone` is the time for a stream whose rows match no future row."""
    names = [relation.name for relation in query.whole.streamed]
    if query.grouping is not None or query.waits:
        least, kept, early = min(floors[name] for name in names), _kept_after_deadline(query), spares(query)
        return {name: least - kept[name] + early[name] for name in names}
    # Sides without waiting combinations have only tables, so these are the relations of the core.
    spare = query.pairwise.spare
    return {
        name: min((floors[other] + spare(name, other) for other in names if other != name), default=lone)
        for name in names
    }


def spares(query: Query) -> dict[str, int]:
    """Returns, for each relation, how long before its deadline a row becomes useless to newer results."""
    windows, names = query.pairwise, [relation.name for relation in query.whole.streamed]
    if query.grouping is not None or query.waits:
        early = leaving_early(query)
        return {name: windows.spare_at_end(name) if name in early else 0 for name in names}
    return {
        name: min((windows.spare(name, other) for other in names if other != name), default=_LATEST) for name in names
    }


def _kept_after_deadline(query: Query) -> dict[str, int]:
    """Returns, for each relation of a query with sides, how long after its deadline a row must be kept.

    A waiting combination must be able to recompute its matches from rows alone. A matched row has a deadline not before
    the time of any row of the combination. So the combination's own deadline is later by at most the shortest range of
    its relations. In a grouped query nothing counts after its deadline.
    """
    kept = dict.fromkeys(query.whole.names, 0)
    if query.grouping is not None:
        return kept
    # Combinations also contain relations of earlier sides; their deadlines can only shorten the combination.
    core = min(relation.window.reach for relation in query.graph.streamed)
    for side in query.sides:
        kept |= dict.fromkeys(side.names, core)
        if side.kind is SideKind.FULL:
            (own,) = side.own
            kept |= dict.fromkeys(query.graph.names, own.window.reach)
            # Rows that a full join adds contain no row of the core.
            core = max(core, own.window.reach)
    return kept
