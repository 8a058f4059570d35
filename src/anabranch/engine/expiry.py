"""When base rows expire: the time before which a row's deadline makes the row useless to every query of a set.

Law: a row stays as long as the query that needs it longest.
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
    several = [_expiry(member.query, floors, execution) for member in queries.members]
    streams = [relation.name for relation in queries.graph.streamed]
    lows = {name: min(lows[name] for lows in several if name in lows) for name in streams}
    return {**dict.fromkeys(queries.graph.names, BEFORE_ALL), **lows}


def _expiry(query: Query, floors: Mapping[str, int], execution: ExecutionModel) -> dict[str, int]:
    names = [relation.name for relation in query.whole.streamed]
    if query.waits:
        least = min(floors[name] for name in names)
        kept = _kept_after_deadline(query)
        return {name: least - kept[name] for name in names}
    if query.grouping is not None or execution.rows_wait:
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
