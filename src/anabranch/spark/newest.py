"""The newest event times of a micro-batch that Spark reads, by stream, and the number of its rows.

Clocks advance by these times.

Rows that Spark sends bear the place of their relation in the graph; rows that a filter rejects, and ticks of derived
relations, bear its complement.

Invariant: rows that a filter rejects count, because a stream that brings nothing else is not silent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import Column, Row
from pyspark.sql import functions as f

from anabranch.plan.query_set import QuerySet
from anabranch.run.commit import last_ticks
from anabranch.run.wire import RELATION

NEWEST, ROWS = "newest", "rows"


def maxima(queries: QuerySet, time: Column) -> list[Column]:
    """Columns to observe: the newest time of each relation."""
    return [
        f.max(f.when(f.col(RELATION).isin(position, ~position), time)).alias(relation.name)
        for position, relation in enumerate(queries.graph.relations)
        if not relation.is_table and not relation.is_result
    ]


def by_stream(queries: QuerySet, newest: Mapping[str, Any]) -> dict[str, int | None]:
    """The newest time of each stream, from that of each relation; None where nothing came."""
    seen: dict[str, int | None] = {}
    for relation in queries.graph.streamed:
        if relation.is_result:
            continue
        times = [time for time in (newest.get(relation.name), seen.get(relation.stream)) if time is not None]
        seen[relation.stream] = max(times, default=None)
    return seen


def by_relation(queries: QuerySet, observed: Mapping[str, Any]) -> dict[str, int]:
    """Returns the newest time of each relation of a stream, from what was observed; ticks of derived ones are not."""
    streams = (each for each in queries.graph.streamed if not each.is_result and not each.is_derived)
    return {each.name: observed[each.name] for each in streams if observed.get(each.name) is not None}


def of_rows(queries: QuerySet, rows: Iterable[Row]) -> dict[str, int | None]:
    """The newest time of each stream, from rows with a relation and its newest time."""
    names, newest = queries.graph.names, dict[str, int]()
    for row in rows:
        if row[NEWEST] is None:
            continue
        name = names[max(row[RELATION], ~row[RELATION])]
        if row[RELATION] < 0 and queries.graph.relation(name).is_derived:
            continue
        newest[name] = max(row[NEWEST], newest.get(name, row[NEWEST]))
    return by_stream(queries, newest)


def ticks(queries: QuerySet, rows: Iterable[Row]) -> dict[str, int | None]:
    """The last tick of each stream, from the same rows."""
    names = queries.graph.names
    return last_ticks(queries, [{names[~row[RELATION]]: row[NEWEST]} for row in rows if row[RELATION] < 0])


def counts(queries: QuerySet) -> list[Column]:
    """Columns to observe: how many rows are sent under each number of a relation."""
    return [
        f.count(f.when(f.col(RELATION) == number, 1)).alias(f"{ROWS} of {number}")
        for position, relation in enumerate(queries.graph.relations)
        if not relation.is_table and not relation.is_result
        for number in (position, ~position)
    ]


def counted(observed: Mapping[str, Any]) -> dict[int, int]:
    """The rows that are sent under each number of a relation, from what was observed."""
    prefix = f"{ROWS} of "
    return {
        int(name.removeprefix(prefix)): int(count or 0) for name, count in observed.items() if name.startswith(prefix)
    }
