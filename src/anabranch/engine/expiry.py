"""When base rows expire: the time before which a row's deadline makes the row useless to every query of a set.

Law: a row stays as long as the query that needs it longest.
"""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.plan.execution import DEFAULT_EXECUTION, ExecutionModel
from anabranch.plan.query import Query
from anabranch.plan.query_set import QuerySet
from anabranch.window import FOREVER


def expiry(
    queries: QuerySet, floors: Mapping[str, int], execution: ExecutionModel = DEFAULT_EXECUTION
) -> dict[str, int]:
    """For each relation the time before which a row's deadline makes the row useless.

    Where rows wait for the watermark, the rows that they may meet wait as well.
    """
    several = [_expiry(member.query, floors, execution) for member in queries.members]
    return {name: min(lows[name] for lows in several if name in lows) for name in queries.graph.names}


def _expiry(query: Query, floors: Mapping[str, int], execution: ExecutionModel) -> dict[str, int]:
    names = query.graph.names
    if query.grouping is not None or execution.rows_wait:
        return dict.fromkeys(names, min(floors[name] for name in names))
    return {name: min((floors[other] for other in names if other != name), default=2 * FOREVER - 1) for name in names}
