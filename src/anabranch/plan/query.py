"""The normal form of a query: a join graph, optionally a grouping, and the output list.

It is derived from a rewritten logical plan and shared by optimizers, engine and hosts. The fingerprint identifies the
meaning of the query (not its plan, slots or machine); a checkpoint stores it, so that state is never used for another
query.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

from anabranch.expr import GROUPED, AggregateCall, Expr, columns
from anabranch.plan.join_graph import JoinGraph, render
from anabranch.plan.logical import Output
from anabranch.schema import Schema


@dataclass(frozen=True)
class Grouping:
    """GROUP BY, evaluated at every multiple of `slide` microseconds that the watermark has passed."""

    keys: tuple[Expr, ...]
    aggregates: tuple[AggregateCall, ...]
    having: Expr | None
    """Over the columns of GROUPED: boundary, key0…, aggregate0…"""
    slide: int


@dataclass(frozen=True)
class Query:
    """A bound query in normal form."""

    text: str
    graph: JoinGraph
    outputs: tuple[Output, ...]
    grouping: Grouping | None = None

    @cached_property
    def schema(self) -> Schema:
        return Schema(tuple(output.field for output in self.outputs))

    @cached_property
    def fingerprint(self) -> str:
        """A short digest of everything that decides the results."""
        parts = [render(self.graph)]
        for relation in self.graph.relations:
            types = ", ".join(f"{field.name} {field.type}" for field in relation.schema)
            parts.append(f"{relation.name}: {types}; {relation.event_time}")
        parts += [f"{output.expression} AS {output.name}" for output in self.outputs]
        if self.grouping is not None:
            parts.append(str(self.grouping))
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    @property
    def late_filters(self) -> tuple[str, ...]:
        """The deferred filters, as texts; part of the fingerprint."""
        return late_filters(self.graph)

    @property
    def seconds_between_boundaries(self) -> float:
        """The slide of a grouped query; 0 for any other."""
        return self.grouping.slide / 1e6 if self.grouping is not None else 0.0

    def result_columns(self, relation: str) -> tuple[str, ...]:
        """Return the relation's columns that a result needs, in schema order."""
        if self.grouping is None:
            expressions = [output.expression for output in self.outputs]
        else:
            expressions = [*self.grouping.keys]
            expressions += [a.argument for a in self.grouping.aggregates if a.argument is not None]
        wanted = {
            column.name
            for expression in expressions
            for column in columns(expression)
            if column.relation == relation and column.relation != GROUPED
        }
        return tuple(field.name for field in self.graph.relation(relation).schema if field.name in wanted)


def late_filters(graph: JoinGraph) -> tuple[str, ...]:
    """Return the deferred filters of a graph, as texts."""
    return tuple(str(theta) for theta in graph.thetas if len(theta.relations) == 1)
