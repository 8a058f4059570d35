"""What floors mean for the queries of a set: their watermarks, and when a base row is of use to none of them.

Law: a row stays as long as the query that needs it longest. A query answers by the watermark of its own relations;
where rows wait for the watermark, they wait in one place for all queries, and so for the least of the watermarks.

A row is out of reach of a relation when its deadline lies before the floor of the relation; if a band over event times
is narrower than the window, as much sooner (`plan.pairwise`). A row may go when it is out of reach of all relations but
its own: every combination still to come has a row still to come. In a grouped query it must count at no boundary any
more, so that pending groups can be found again from the rows that are kept.
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
    """For each relation the time before which a row's deadline makes the row useless.

    Where rows wait for the watermark, the rows that they may meet wait as well.
    """
    streams = [relation.name for relation in queries.graph.streamed]
    lone = _LATEST
    if execution.rows_wait:
        lone = min(floors[name] for name in streams)
        floors = dict.fromkeys(streams, lone)
    several = [_expiry(member.query, floors, lone) for member in queries.members]
    lows = {name: min(_LATEST, *(lows[name] for lows in several if name in lows)) for name in streams}
    return {**dict.fromkeys(queries.graph.names, BEFORE_ALL), **lows}


def kept_from(queries: QuerySet, floors: Mapping[str, int]) -> dict[str, int]:
    """For each relation of a stream the event time from which on no row has been dropped, whatever the execution."""
    lows = expiry(queries, floors)
    return {each.name: each.window.earliest(lows[each.name]) for each in queries.graph.streamed}


def early_leavers(queries: QuerySet) -> frozenset[str]:
    """The relations whose rows may leave before their deadlines have passed the floors of all others."""
    early = {name for member in queries.members for name in leaving_early(member.query)}
    return frozenset(early - queries.may_be_absent)


def out_of_reach(floors: Mapping[str, int], relations: Collection[str], windows: PairwiseWindows) -> tuple[int, int]:
    """When combinations of some relations, but not all, are of no use: by their deadline, and by their newest time.

    A combination may go if the one lies before the first of these times, or the other before the second. Tables have no
    floor: no row of theirs will come. What only they are missing from will never be completed.
    """
    left = [other for other in floors if other not in relations]
    low = min((floors[other] for other in left), default=_LATEST)
    newest = min((floors[other] - windows.from_any(relations, other) for other in left), default=_LATEST)
    return low, max(newest, -_LATEST)


def watermarks(
    queries: QuerySet, floors: Mapping[str, int], execution: ExecutionModel = DEFAULT_EXECUTION
) -> dict[str, int]:
    """For each query the event time that all its streams have passed: the least floor of its relations."""
    if execution.rows_wait:
        return dict.fromkeys(queries.names, min(floors[each.name] for each in queries.graph.streamed))
    return {member.name: min(floors[each.name] for each in member.query.whole.streamed) for member in queries.members}


def _expiry(query: Query, floors: Mapping[str, int], lone: int) -> dict[str, int]:
    """As `expiry`, for one query; `lone` is the time for a stream whose rows meet no row still to come."""
    names = [relation.name for relation in query.whole.streamed]
    if query.grouping is not None or query.waits:
        least, kept, early = min(floors[name] for name in names), _kept_after_deadline(query), spares(query)
        return {name: least - kept[name] + early[name] for name in names}
    # Sides that nothing waits at have tables only, so these are the relations of the core.
    spare = query.pairwise.spare
    return {
        name: min((floors[other] + spare(name, other) for other in names if other != name), default=lone)
        for name in names
    }


def spares(query: Query) -> dict[str, int]:
    """For each relation, how much sooner than its deadline a row is of no use to results that are newer still."""
    windows, names = query.pairwise, [relation.name for relation in query.whole.streamed]
    if query.grouping is not None or query.waits:
        early = leaving_early(query)
        return {name: windows.spare_at_end(name) if name in early else 0 for name in names}
    return {
        name: min((windows.spare(name, other) for other in names if other != name), default=_LATEST) for name in names
    }


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
