"""Scopes: resolve names to columns and turn syntax into typed expressions.

A scope holds the relations that a clause may read, the clause's name for messages, and, in the select list and HAVING
of a grouped query, the list that collects aggregates. Elsewhere an aggregate is an error.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher, get_close_matches

import pyarrow as pa

from anabranch.cql.ast import (
    CastTo,
    ColumnName,
    Constant,
    Exists,
    Expression,
    FunctionCall,
    InQuery,
    Operation,
    RowNumber,
)
from anabranch.cql.ranking import no_limit
from anabranch.cql.refusals import FUNCTIONS
from anabranch.errors import BindError, Span, Unsupported
from anabranch.functions import (
    AGGREGATES,
    APPROXIMATE,
    BY_TIME,
    SPELLINGS,
    bind_aggregate,
    bind_call,
    bind_cast,
    bind_own,
    filtered,
    kind_of,
    type_named,
)
from anabranch.lang.expr import GROUPED, AggregateCall, Call, Column, Expr, Literal, LiteralValue, OwnFunction, columns
from anabranch.lang.schema import INTERVAL, TIMESTAMP, type_name
from anabranch.lang.window import CountWindow, Hop, SessionWindow
from anabranch.plan.logical import BOUNDARY, ROW_NUMBER, Source

WINDOW = pa.struct([pa.field("start", TIMESTAMP), pa.field("end", TIMESTAMP)])
"""The type of a window as a value, as in Spark."""


@dataclass(frozen=True)
class Scope:
    """The relations and aggregates that the expressions of one clause may use."""

    text: str
    clause: str
    sources: tuple[Source, ...]
    aggregates: list[AggregateCall] | None = field(default=None, compare=False)
    """The distinct aggregates found so far; None where aggregates are not allowed."""
    outer: tuple[Source, ...] = ()
    """The relations of the outer query; those of the subquery take precedence."""
    number: RowNumber | None = None
    """The row number that the query limits."""
    aliases: tuple[str, ...] = ()
    """The names that SELECT gives and this clause cannot read, in lower case."""

    def expression(self, node: Expression) -> Expr:
        """Returns the typed expression of a syntax node."""
        match node:
            case ColumnName():
                return self._field(node) if self._is_field(node) else self.column(node)
            case Constant():
                return self._constant(node)
            case Operation():
                return self._call(node.function, node.arguments, node.span)
            case FunctionCall():
                return self._function(node)
            case RowNumber():
                if node != self.number:
                    raise no_limit(self.text, node.span)
                return ROW_NUMBER
            case Exists() | InQuery():
                what = "EXISTS" if isinstance(node, Exists) else "IN (SELECT …)"
                raise Unsupported(
                    f"{what} is not supported here",
                    text=self.text,
                    span=node.span,
                    hint="write it in WHERE, as a condition of its own that AND joins to the others",
                )
            case CastTo():
                argument = self.expression(node.argument)
                try:
                    return bind_cast(argument, type_named(node.type.name, node.parameters))
                except ValueError as error:
                    raise self.error(error, node.span) from None

    def condition(self, node: Expression) -> Expr:
        """Returns the typed expression; raises BindError if it is not boolean."""
        expr = self.expression(node)
        if kind_of(expr.type) == "null":
            return Literal(None, pa.bool_())
        if kind_of(expr.type) != "boolean":
            raise BindError(
                f"{self.clause} expects a condition, found a value of type {type_name(expr.type)}",
                text=self.text,
                span=node.span,
                hint="compare it with something, as in x > 0",
            )
        return expr

    def column(self, node: ColumnName) -> Column:
        if self._is_of_outer(node):
            return replace(self, sources=self.outer, outer=()).column(node)
        sources = self.sources if node.relation is None else (self._relation(node),)
        found = [(source, f) for source in sources if (f := source.schema.find(node.name.name)) is not None]
        if len(found) > 1:
            candidates = " or ".join(f"'{source.relation}.{f.name}'" for source, f in found)
            raise BindError(f"column '{node}' is ambiguous", text=self.text, span=node.span, hint=f"write {candidates}")
        if not found:
            raise self._unknown_column(node, sources)
        source, match = found[0]
        return Column(source.relation, match.name, match.type, match.nullable)

    def _is_of_outer(self, node: ColumnName) -> bool:
        """True if only the outer query has the column, or the relation, of that name."""
        if node.relation is None:
            name = node.name.name
            return not self.has_column(name) and any(source.schema.find(name) is not None for source in self.outer)
        wanted = node.relation.name.lower()
        mine = any(source.relation.lower() == wanted for source in self.sources)
        return not mine and any(source.relation.lower() == wanted for source in self.outer)

    def _is_field(self, node: ColumnName) -> bool:
        """True for `column.field` if no relation has the name of the column."""
        if node.relation is None or any(s.relation.lower() == node.relation.name.lower() for s in self.sources):
            return False
        return self.has_column(node.relation.name)

    def _field(self, node: ColumnName) -> Expr:
        assert node.relation is not None
        column = ColumnName(None, node.relation, node.relation.span)
        return self._call("field", (column, Constant(node.name.name, node.name.span)), node.span)

    def has_column(self, name: str) -> bool:
        return any(source.schema.find(name) is not None for source in self.sources)

    def error(self, error: ValueError, span: Span) -> BindError:
        """Converts the ValueError of a type rule to a BindError with a position."""
        message, hint = (*error.args, "")[:2]
        return BindError(message, text=self.text, span=span, hint=hint)

    def _relation(self, node: ColumnName) -> Source:
        assert node.relation is not None
        wanted = node.relation.name
        found = next((source for source in self.sources if source.relation.lower() == wanted.lower()), None)
        if found is not None:
            return found
        names = closest_first(wanted, (source.relation for source in self.sources))
        by_stream = [source.relation for source in self.sources if source.stream.lower() == wanted.lower()]
        hint = f"stream '{wanted}' is called '{by_stream[0]}' in this query" if by_stream else ""
        raise BindError(
            f"relation '{wanted}' does not exist",
            text=self.text,
            span=node.relation.span,
            detail=f"{self.clause} may read {', '.join(names)}",
            hint=hint,
        )

    def _unknown_column(self, node: ColumnName, sources: tuple[Source, ...]) -> BindError:
        lines = [
            f"relation '{source.relation}' has {', '.join(closest_first(node.name.name, source.schema.names))}"
            for source in sources
        ]
        is_quoted = self.text[node.name.span.start : node.name.span.start + 1] == '"'
        hint = FUNCTIONS.get(node.name.name.lower(), "") if node.relation is None else ""
        if node.relation is None and node.name.name.lower() in self.aliases:
            hint = f"SELECT names its results after {self.clause}; write the expression of '{node}' in its place"
        return BindError(
            f"column '{node}' does not exist",
            text=self.text,
            span=node.span,
            detail="\n".join(lines),
            hint=f"double quotes mark a name; write text as '{node.name.name}'" if is_quoted else hint,
        )

    def _constant(self, node: Constant) -> Literal:
        if isinstance(node.value, int) and not isinstance(node.value, bool) and node.value >= 2**63:
            raise BindError(
                f"number {node.value} does not fit a bigint",
                text=self.text,
                span=node.span,
                hint="write it with a decimal point to make it a double",
            )
        if isinstance(node.value, float) and not math.isfinite(node.value):
            written = self.text[node.span.start : node.span.end]
            raise BindError(f"number {written} does not fit a double", text=self.text, span=node.span)
        return Literal(node.value, _type_of(node.value))

    def _call(self, function: str, arguments: tuple[Expression, ...], span: Span) -> Expr:
        bound = tuple(self.expression(argument) for argument in arguments)
        try:
            return bind_call(function, bound)
        except ValueError as error:
            raise self.error(error, span) from None

    def _function(self, node: FunctionCall) -> Expr:
        name = node.name.name.lower()
        if node.own is not None:
            return self._own(node, node.own)
        if name in AGGREGATES:
            return self._aggregate(node)
        if node.filter is not None:
            raise BindError(
                f"'{node.name.name.upper()}' does not take FILTER",
                text=self.text,
                span=node.filter.span,
                hint="FILTER (WHERE …) follows an aggregate, such as SUM(x)",
            )
        if name in {"window_end", "window_start"}:
            return self._window_edge(node, name.upper())
        if name in {"window", "session_window"} and not node.arguments and self.aggregates is not None:
            edges = self._window_edge(node, "WINDOW_START"), self._window_edge(node, "WINDOW_END")
            return Call("window", edges, WINDOW)
        if name in {"istream", "rstream", "dstream"}:
            raise Unsupported(
                f"{name.upper()} in the select list is not supported",
                text=self.text,
                span=node.span,
                hint="remove it: a join query only adds results; or write ISTREAM(SELECT …) around the query",
            )
        if name in APPROXIMATE:
            raise Unsupported(
                f"{name.upper()} is not supported",
                text=self.text,
                span=node.span,
                hint=f"its value would depend on the plan and the batches; write {APPROXIMATE[name]}",
            )
        if name in FUNCTIONS:
            raise Unsupported(
                f"function '{node.name.name}' does not exist", text=self.text, span=node.name.span, hint=FUNCTIONS[name]
            )
        if name not in SPELLINGS:
            known = get_close_matches(name, [*SPELLINGS, *AGGREGATES, "window_end", "window_start"])
            raise BindError(
                f"function '{node.name.name}' does not exist",
                text=self.text,
                span=node.name.span,
                detail=f"did you mean {' or '.join(known)}?" if known else "",
                hint="docs/cql.md lists the functions; session.function() adds one of your own",
            )
        if node.star:
            raise BindError(f"'{name.upper()}' does not take *", text=self.text, span=node.span)
        return self._call(name, node.arguments, node.span)

    def _own(self, node: FunctionCall, own: OwnFunction) -> Expr:
        if node.star:
            raise BindError(f"'{own.name}' does not take *", text=self.text, span=node.span)
        try:
            return bind_own(own, tuple(self.expression(argument) for argument in node.arguments))
        except ValueError as error:
            raise self.error(error, node.span) from None

    def _aggregate(self, node: FunctionCall) -> Column:
        name = node.name.name.upper()
        if self.aggregates is None:
            nested = self.clause.lower() in AGGREGATES
            raise BindError(
                f"aggregate '{name}' is not allowed inside {self.clause}",
                text=self.text,
                span=node.span,
                hint="" if nested else "put conditions on aggregates into HAVING",
            )
        if not node.arguments and not node.star:
            raise BindError(f"'{name}' needs an argument", text=self.text, span=node.span)
        inner = replace(self, clause=name, aggregates=None)
        condition = None if node.filter is None else replace(inner, clause="FILTER").condition(node.filter)
        try:
            if name == "COUNT_IF":
                aggregate = filtered(bind_aggregate("count", ()), self._counted(node, inner))
            else:
                arguments = tuple(inner.expression(argument) for argument in node.arguments)
                called = "count_distinct" if node.is_distinct else name
                aggregate = bind_aggregate(called, arguments, self._time_of(node, arguments))
            return self._collected(aggregate if condition is None else filtered(aggregate, condition))
        except ValueError as error:
            raise self.error(error, node.span) from None

    def _counted(self, node: FunctionCall, inner: Scope) -> Expr:
        """Returns the condition of COUNT_IF."""
        if node.star or len(node.arguments) != 1:
            raise ValueError(f"'{node.name.name.upper()}' takes one argument, a condition")
        return inner.condition(node.arguments[0])

    def _collected(self, aggregate: AggregateCall) -> Column:
        """Returns the column of an aggregate, which the query computes once."""
        assert self.aggregates is not None
        if aggregate not in self.aggregates:
            self.aggregates.append(aggregate)
        return aggregate_column(self.aggregates.index(aggregate), aggregate)

    def _time_of(self, node: FunctionCall, arguments: tuple[Expr, ...]) -> Expr | None:
        """Returns the event time of the argument's relation, for aggregates that order by it."""
        if node.name.name.lower() not in BY_TIME or not arguments:
            return None
        names = {column.relation for column in columns(arguments[0])}
        if len(names) != 1:
            raise BindError(
                f"'{node.name.name.upper()}' goes by the event time of one stream, and its argument is of {len(names)}",
                text=self.text,
                span=node.span,
                hint="write MIN_BY(x, time) or MAX_BY(x, time)",
            )
        (source,) = (source for source in self.sources if source.relation in names)
        found = source.schema.find(source.event_time)
        if found is None:
            raise BindError(
                f"'{node.name.name.upper()}' goes by event time, and '{source.relation}' has no such column",
                text=self.text,
                span=node.span,
                hint="write MIN_BY(x, y) or MAX_BY(x, y)",
            )
        return Column(source.relation, found.name, found.type, found.nullable)

    def _window_edge(self, node: FunctionCall, name: str) -> Expr:
        if self.aggregates is None:
            raise BindError(
                f"{name}() is not allowed inside {self.clause}",
                text=self.text,
                span=node.span,
                hint="it is an end of a grouped result's window; use it in SELECT or HAVING of a grouped query",
            )
        if node.arguments or node.star:
            raise BindError(f"{name} takes no argument", text=self.text, span=node.span)
        if name == "WINDOW_END":
            return BOUNDARY
        (first, *_) = (each for each in self.sources if not each.is_table)
        if isinstance(first.window, SessionWindow):
            found = first.schema.find(first.event_time)
            if found is None:
                raise BindError(
                    f"{name}() needs the event time of '{first.relation}' as a column",
                    text=self.text,
                    span=node.span,
                    detail="a session begins with its first row, and results of a query have their event time outside "
                    "their columns",
                    hint=f"name the column that has it: GROUP BY session_window({first.relation}.ts, '1 minute')",
                )
            return self._collected(
                bind_aggregate("min", (Column(first.relation, found.name, found.type, found.nullable),))
            )
        sizes = {(type(each.window), each.window.range) for each in self.sources if not each.is_table}
        (kind, reach) = next(iter(sizes))
        if len(sizes) > 1 or reach is None or issubclass(kind, CountWindow):
            raise BindError(
                "WINDOW_START() is not known: the windows differ, or have no start",
                text=self.text,
                span=node.span,
                hint="compute it from WINDOW_END() and the window that is meant",
            )
        size = datetime.timedelta(microseconds=reach + issubclass(kind, Hop))
        return bind_call("subtract", (BOUNDARY, Literal(size, INTERVAL)))


def aggregate_column(position: int, aggregate: AggregateCall) -> Column:
    """Returns the column of GROUPED that holds an aggregate."""
    return Column(GROUPED, f"aggregate{position}", aggregate.type, nullable=not aggregate.function.startswith("count"))


def closest_first(name: str, names: Iterable[str]) -> list[str]:
    """Sorts names by their similarity to a mistyped one, most similar first."""
    return sorted(names, key=lambda other: -SequenceMatcher(None, name.lower(), other.lower()).ratio())


def _type_of(value: LiteralValue) -> pa.DataType:
    match value:
        case None:
            return pa.null()
        case bool():
            return pa.bool_()
        case int():
            return pa.int64()
        case str():
            return pa.string()
        case datetime.datetime():
            return TIMESTAMP
        case datetime.date():
            return pa.date32()
        case datetime.timedelta():
            return INTERVAL
        case _:
            return pa.float64()
