"""Queries that run at one site, that of their sink: outer, semi and anti joins, and joins with tables.

Such a query reads the gates of its streams directly; filters and unused columns are removed there. Its operator is
shared with no other query, because its output is not a join of streams that another query could read.

Limit: the load of its site is estimated as that of the inner join of its streams.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from anabranch.lang.expr import Expr, columns
from anabranch.place.load import NOTHING, Load, join_load
from anabranch.place.selection import from_filter
from anabranch.place.statistics import Statistics
from anabranch.place.view import Slot, View, needs
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.query import Query
from anabranch.plan.renaming import rewritten


def is_whole(query: Query) -> bool:
    """Returns True if a query runs at one site."""
    return bool(query.sides or query.graph.tables)


@lru_cache(maxsize=4096)
def inner_join(query: Query) -> Query:
    """Returns the inner join of a query's streams, for estimates."""
    whole = query.whole
    streams = frozenset(relation.name for relation in whole.streamed)
    keys = [replace(key, members=tuple(member for member in key.members if member[0] in streams)) for key in whole.keys]
    thetas = [theta for theta in whole.thetas if theta.relations <= streams and len(streams) > 1]
    graph = JoinGraph(whole.streamed, tuple(key for key in keys if len(key.members) > 1), tuple(thetas))
    return replace(query, graph=graph, sides=(), condition=None)


@lru_cache(maxsize=4096)
def whole_view(query: Query) -> View:
    """Returns the rows that a whole query reads: one slot for each stream, in the order of its relations."""
    read: dict[str, set[str]] = {}

    def noted(expression: Expr) -> Expr:
        for column in columns(expression):
            read.setdefault(column.relation, set()).add(column.name)
        return expression

    rewritten(query, noted, lambda relation: relation)
    slots = [
        Slot(
            relation.stream.lower(),
            from_filter(relation.filter),
            relation.window.range,
            frozenset(read.get(relation.name, ())),
        )
        for relation in query.whole.streamed
    ]
    return View(tuple(slots), frozenset())


def whole_load(query: Query, statistics: Statistics) -> Load:
    """Returns the load of a whole query at its site."""
    needed, load = needs(inner_join(query)), NOTHING
    joined = 1
    while joined < len(needed) - 1:
        added = joined + 1
        into = needed[joined | added]
        left, right = (
            (needed[mask].view, tuple(into.relations.index(relation) for relation in needed[mask].relations))
            for mask in (joined, added)
        )
        load += join_load(left, right, into.view, statistics)
        joined |= added
    return load
