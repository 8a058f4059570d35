"""What floors mean for the queries of a set: their watermarks, and when a base row is of use to none of them.

Law: a row stays as long as the query that needs it longest. A query answers by the watermark of its own relations;
where rows wait for the watermark, they wait in one place for all queries, and so for the least of the watermarks.
"""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.plan.execution import DEFAULT_EXECUTION, ExecutionModel
from anabranch.plan.logical import SideKind
from anabranch.plan.query import Query
from anabranch.plan.query_set import QuerySet
from anabranch.window import BEFORE_ALL, FOREVER


def expiry(
    queries: QuerySet, floors: Mapping[str, int], execution: ExecutionModel = DEFAULT_EXECUTION
) -> dict[str, int]:
    """For each relation the time before which a row's deadline makes the row useless.

    Where rows wait for the watermark, the rows that they may meet wait as well.
    """
    streams = [relation.name for relation in queries.graph.streamed]
    if execution.rows_wait:
        lows = dict.fromkeys(streams, min(floors[name] for name in streams))
    else:
        several = [_expiry(member.query, floors) for member in queries.members]
        lows = {name: min(lows[name] for lows in several if name in lows) for name in streams}
    return {**dict.fromkeys(queries.graph.names, BEFORE_ALL), **lows}


def watermarks(
    queries: QuerySet, floors: Mapping[str, int], execution: ExecutionModel = DEFAULT_EXECUTION
) -> dict[str, int]:
    """For each query the event time that all its streams have passed: the least floor of its relations."""
    if execution.rows_wait:
        return dict.fromkeys(queries.names, min(floors[each.name] for each in queries.graph.streamed))
    return {member.name: min(floors[each.name] for each in member.query.whole.streamed) for member in queries.members}


def _expiry(query: Query, floors: Mapping[str, int]) -> dict[str, int]:
    names = [relation.name for relation in query.whole.streamed]
    if query.waits:
        least = min(floors[name] for name in names)
        kept = _kept_after_deadline(query)
        return {name: least - kept[name] for name in names}
    if query.grouping is not None:
        return dict.fromkeys(names, min(floors[name] for name in names))
    return {name: min((floors[other] for other in names if other != name), default=2 * FOREVER - 1) for name in names}


def _kept_after_deadline(query: Query) -> dict[str, int]:
    """For each relation of a query with sides, how long after its deadline a row must stay.

    A combination that waits must find again, from rows alone, what it has met. A row that it met has a deadline not
    before any row of the combination; so the combination's own deadline is later by the shortest range of its
    relations at most. In a grouped query nothing counts after its deadline.
    """
    kept = dict.fromkeys(query.whole.names, 0)
    if query.grouping is not None:
        return kept
    # The relations of earlier sides are part of combinations too; their deadlines only make those shorter.
    core = min(relation.window.reach for relation in query.graph.streamed)
    for side in query.sides:
        kept |= dict.fromkeys(side.names, core)
        if side.kind is SideKind.FULL:
            (own,) = side.own
            kept |= dict.fromkeys(query.graph.names, own.window.reach)
            # What a full join adds has no row of the core.
            core = max(core, own.window.reach)
    return kept
