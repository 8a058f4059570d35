"""The normal form of a query: a join graph, the sides around it, optionally a grouping, and the output list.

It is derived from a rewritten logical plan and shared by optimizers, engine and hosts. The fingerprint identifies the
meaning of the query (not its plan, slots or machine). A checkpoint stores it, so that state is never used for another
query.

Invariant: queries with equal fingerprints have equal results over equal rows.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from anabranch.lang.expr import GROUPED, AggregateCall, Column, Expr, columns, own_functions
from anabranch.lang.schema import Schema
from anabranch.plan.join_graph import JoinGraph, KeyClass, render
from anabranch.plan.logical import BOUNDARY, Output, SideKind
from anabranch.plan.pairwise import PairwiseWindows, pairwise_windows
from anabranch.plan.sides import Side

_DERIVED = re.compile(r"(derived|union)_[0-9a-f]{8}")


@dataclass(frozen=True)
class Grouping:
    """GROUP BY, evaluated at every multiple of `slide` microseconds that the watermark has passed."""

    keys: tuple[Expr, ...]
    aggregates: tuple[AggregateCall, ...]
    having: Expr | None
    """Over the columns of GROUPED: boundary, key0…, aggregate0…"""
    slide: int
    lag: int = field(default=0, repr=False)
    """1 if windows do not include their end: a boundary then counts rows up to one microsecond before it."""
    gap: int = field(default=0, repr=False)
    """The gap of session windows, which end at any microsecond: `slide` is 1. 0 for all other windows."""

    @property
    def pace(self) -> int:
        """About how many microseconds lie between two results of a group."""
        return self.gap or self.slide

    @property
    def ranked(self) -> AggregateCall | None:
        """The first rows of each group, if they are the results; the query has no other aggregate then."""
        return next((each for each in self.aggregates if each.ranking is not None), None)

    def first_boundary(self, times: Any) -> Any:
        """Returns the number of the first boundary that counts a row with this event time; accepts arrays."""
        return -(-(times + self.lag) // self.slide)

    def last_boundary(self, deadlines: Any) -> Any:
        """Returns the number of the last boundary that counts a row with this deadline; accepts arrays."""
        return (deadlines + self.lag) // self.slide

    def last_answered(self, watermark: int) -> int:
        """Returns the number of the last boundary that a watermark has passed."""
        return -(-(watermark + self.lag) // self.slide) - 1

    def instant(self, boundary: Any) -> Any:
        """Returns the time up to which a boundary, by its number, counts rows."""
        return boundary * self.slide - self.lag


@dataclass(frozen=True)
class Query:
    """A bound query in normal form."""

    text: str
    graph: JoinGraph
    """The inner joins, which plans cover; for a query with sides, its core."""
    outputs: tuple[Output, ...]
    grouping: Grouping | None = None
    sides: tuple[Side, ...] = ()
    """The outer, semi and anti joins around the core, in order."""
    condition: Expr | None = None
    """The predicate on a combination after all sides."""
    inputs: tuple[tuple[str, Query], ...] = ()
    """The queries whose results this one reads, by stream name."""

    @cached_property
    def whole(self) -> JoinGraph:
        """The core and all sides: every relation that is read, and every key and band that states are indexed by."""
        if not self.sides:
            return self.graph
        keys: dict[str, KeyClass] = {}
        for graph in (self.graph, *(side.graph for side in self.sides)):
            for key in graph.keys:
                known = keys.get(key.name)
                members = {**(dict(known.members) if known else {}), **dict(key.members)}
                keys[key.name] = replace(key, members=tuple(members.items()))
        own = [relation for side in self.sides for relation in side.own]
        thetas = dict.fromkeys([*self.graph.thetas, *(theta for side in self.sides for theta in side.graph.thetas)])
        return JoinGraph((*self.graph.relations, *own), tuple(keys.values()), tuple(thetas))

    @cached_property
    def pairwise(self) -> PairwiseWindows:
        """The bounds between the event times of rows of one result; for a query with sides, of its core."""
        return pairwise_windows(self.graph)

    @property
    def may_be_absent(self) -> frozenset[str]:
        """The relations that a combination may lack."""
        extending = [side for side in self.sides if side.kind.extends]
        absent = {name for side in extending for name in side.names}
        return frozenset(absent | {n for side in extending if side.kind is SideKind.FULL for n in self.graph.names})

    @property
    def waits(self) -> bool:
        """True if combinations wait at a side until the watermark proves that they have no match."""
        return any(not side.is_known_at_once for side in self.sides)

    def behind(self, column: str = "") -> int | None:
        """Returns how far below its watermark the event times of future results can be; `FOREVER` if unbounded.

        A result has the event time in a column if the column is that of a relation which is in every result; None for
        any other column. Without a column it has that of its newest row, or the end of its window.
        """
        if self.grouping is not None:
            is_end = any(each.name == column and each.expression == BOUNDARY for each in self.outputs)
            return 0 if not column or is_end else None
        if not column:
            # A combination waits at a side until its deadline, at most the shortest range after its newest row.
            wait = min(relation.window.reach for relation in self.graph.streamed)
            full = [relation.window.reach for side in self.sides if side.kind is SideKind.FULL for relation in side.own]
            return max([wait, *full]) if self.waits else 0
        found = next((each.expression for each in self.outputs if each.name == column), None)
        names = [relation.name for relation in self.graph.streamed if relation.name not in self.may_be_absent]
        if not isinstance(found, Column) or found.relation not in names:
            return None
        relation = self.graph.relation(found.relation)
        if found.name != relation.event_time:
            return None
        if self.waits:
            return relation.window.reach
        others = (self.pairwise.between(relation.name, name) for name in names if name != relation.name)
        return max((0, *others))

    @property
    def merging(self) -> Grouping | None:
        """The grouping by which a plan may merge rows before they join; None if merging is not allowed.

        Combinations with sides must be matched one by one, and deadlines of count windows are unknown when rows arrive.
        """
        return None if self.sides or self.graph.counted else self.grouping

    @cached_property
    def schema(self) -> Schema:
        return Schema(tuple(output.field for output in self.outputs))

    @cached_property
    def fingerprint(self) -> str:
        """A short digest of everything that determines the results."""
        parts = [render(self.graph)]
        parts += [f"{render(side.graph)}\n{side} READY {side.ready}" for side in self.sides]
        if self.condition is not None:
            parts.append(f"condition: {self.condition}")
        for relation in self.whole.relations:
            types = ", ".join(f"{field.name} {field.type}" for field in relation.schema)
            parts.append(f"{relation.name}: {types}; {relation.event_time}")
        parts += [f"{output.expression} AS {output.name}" for output in self.outputs]
        if self.grouping is not None:
            parts.append(str(self.grouping))
            # Not in the text of a grouping, so that older checkpoints keep their fingerprint.
            read = [*self.grouping.keys, *(e for a in self.grouping.aggregates for e in a.arguments)]
            parts += [own.title for expression in read for own in own_functions(expression)]
            parts += [str(aggregate) for aggregate in self.grouping.aggregates if aggregate.others or aggregate.ranking]
        parts += [f"{name} = {query.fingerprint}" for name, query in sorted(self.inputs)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    @property
    def late_filters(self) -> tuple[str, ...]:
        """The deferred filters, as texts; part of the fingerprint."""
        return late_filters(self.graph)

    @property
    def seconds_between_boundaries(self) -> float:
        """The slide of a grouped query; 0 for any other."""
        return self.grouping.pace / 1e6 if self.grouping is not None else 0.0

    def result_columns(self, relation: str) -> tuple[str, ...]:
        """Returns the relation's columns that a result needs, in schema order."""
        if self.grouping is None:
            expressions = [output.expression for output in self.outputs]
        else:
            expressions = [*self.grouping.keys]
            expressions += [e for a in self.grouping.aggregates for e in a.arguments]
        wanted = {
            column.name
            for expression in expressions
            for column in columns(expression)
            if column.relation == relation and column.relation != GROUPED
        }
        return tuple(field.name for field in self.whole.relation(relation).schema if field.name in wanted)


def late_filters(graph: JoinGraph) -> tuple[str, ...]:
    """Returns the deferred filters of a graph, as texts."""
    return tuple(str(theta) for theta in graph.thetas if len(theta.relations) == 1)


def render_query(query: Query) -> str:
    """Returns the join graph of a query and its sides, as text."""
    lines = [render(query.graph)]
    for side in query.sides:
        lines += [f"side {line}" for line in render(JoinGraph(side.own)).splitlines()]
        lines.append(str(side))
    if query.condition is not None:
        lines.append(f"behind all sides: {query.condition}")
    return "\n".join(lines)


def derived_name(query: Query) -> str:
    """Returns the name under which a subquery in FROM runs; users did not write it, so errors show `titled` instead."""
    return f"derived_{query.fingerprint[:8]}"


def is_subquery(name: str) -> bool:
    """Returns True for the name under which a subquery in FROM runs."""
    return _DERIVED.fullmatch(name) is not None


def titled(name: str) -> str:
    """Returns how errors name a query.

    >>> titled("alerts"), titled(""), titled("derived_e4c15823")
    ("query 'alerts'", 'the query', 'the subquery in FROM')
    """
    if is_subquery(name):
        return "the subquery in FROM"
    return f"query '{name}'" if name else "the query"
