"""Binds FROM, ON and WHERE: which streams a query reads, and how they are joined.

Inner joins form the core of a query, wherever they appear in FROM. Outer, semi and anti joins, and the subqueries of
WHERE, are put around the core in query order; `A RIGHT JOIN b` is `b` with the join of A as a side.

Limit: a join that reads columns which a later outer join may make NULL is rejected, as is an outer join whose preserved
input is not the core. The error explains how to rewrite the query.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from anabranch.cql.ast import (
    Exists,
    Expression,
    FromItem,
    FunctionCall,
    InQuery,
    JoinKind,
    Operation,
    SelectItem,
    Star,
    Statement,
    walk,
)
from anabranch.cql.scope import Scope, closest_first
from anabranch.cql.using import with_using
from anabranch.cql.windows import bind_window
from anabranch.errors import BindError, Span, Unsupported
from anabranch.functions import AGGREGATES, bind_call, coerce, is_nullable
from anabranch.lang.catalog import Catalog
from anabranch.lang.expr import Expr, conjuncts, relations
from anabranch.lang.schema import Field, Schema
from anabranch.lang.window import ALWAYS, FOREVER
from anabranch.plan.logical import (
    Filter,
    Join,
    LogicalPlan,
    OuterJoin,
    Output,
    Project,
    SideKind,
    Source,
    Subquery,
    result_schema,
)

_RELATION_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_SIDES = {JoinKind.LEFT: SideKind.LEFT, JoinKind.SEMI: SideKind.SEMI, JoinKind.ANTI: SideKind.ANTI}


@dataclass(frozen=True)
class Rows:
    """The rows that SELECT and GROUP BY read."""

    plan: LogicalPlan
    visible: tuple[Source, ...]
    """The relations whose columns are visible, in query order."""
    items: tuple[tuple[FromItem, Source], ...]
    """All relations, including those of subqueries."""
    statement: Statement
    """The query with ON in place of USING."""


BindQuery: TypeAlias = Callable[[Statement], LogicalPlan]


def bind_rows(statement: Statement, catalog: Catalog, bind_query: BindQuery) -> Rows:
    """Binds FROM and WHERE; `bind_query` binds a subquery in FROM."""
    items = _bind_items(statement.text, statement.sources, catalog, bind_query, [])
    statement = with_using(statement, items)
    items = [(item, source) for item, (_, source) in zip(statement.sources, items, strict=True)]
    nullable = frozenset(_nullable(items))
    items = [(item, _made_nullable(source) if source.relation in nullable else source) for item, source in items]
    plan = _Tree(statement.text).of(items)
    _refuse_tables_that_would_come_out(statement.text, items)
    visible = tuple(source for item, source in items if item.kind not in (JoinKind.SEMI, JoinKind.ANTI))
    rest: list[Expression] = []
    for node in _conditions(statement.where):
        found = _subquery(node)
        if found is None:
            rest.append(node)
            continue
        query, value, kind = found
        inner = _bind_items(statement.text, query.sources, catalog, bind_query, items)
        plan = _around(statement.text, query, value, kind, plan, visible, [source for _, source in inner])
        items += inner
    if rest:
        whole = rest[0] if len(rest) == 1 else Operation("and", tuple(rest), _span(rest))
        aliases = [item.alias for item in statement.items if isinstance(item, SelectItem)]
        names = tuple(alias.name.lower() for alias in aliases if alias is not None)
        plan = Filter(plan, Scope(statement.text, "WHERE", visible, aliases=names).condition(whole))
    return Rows(plan, visible, tuple(items), statement)


# --- streams ---------------------------------------------------------------------------------------------------------


def _bind_items(
    text: str,
    items: Sequence[FromItem],
    catalog: Catalog,
    bind_query: BindQuery,
    known: Sequence[tuple[FromItem, Source]],
) -> list[tuple[FromItem, Source]]:
    bound: list[tuple[FromItem, Source]] = []
    for item in items:
        if item.subquery is None:
            source = _bind_source(text, item, catalog)
        else:
            source = _bind_subquery(text, item, item.subquery, bind_query)
        if any(other.relation.lower() == source.relation.lower() for _, other in [*known, *bound]):
            raise BindError(
                f"relation '{source.relation}' occurs twice in FROM",
                text=text,
                span=(item.alias or item.stream).span,
                hint="give each its own alias, as in s AS a, s AS b",
            )
        bound.append((item, source))
    return bound


def _bind_source(text: str, item: FromItem, catalog: Catalog) -> Source:
    stream, table = catalog.find(item.stream.name), catalog.table(item.stream.name)
    if stream is None and table is None:
        names = closest_first(item.stream.name, (known.name for known in catalog.streams.values()))
        tables = closest_first(item.stream.name, (known.name for known in catalog.tables.values()))
        found = f"the streams are {', '.join(names)}" if names else "no stream is registered"
        raise BindError(
            f"stream '{item.stream.name}' does not exist",
            text=text,
            span=item.stream.span,
            detail=found + (f"; the tables are {', '.join(tables)}" if tables else ""),
        )
    name = _relation_name(text, item)
    if table is not None:
        if item.window is not None:
            raise BindError(
                f"table '{table.name}' cannot have a window",
                text=text,
                span=item.window.span,
                hint="leave the window out: the rows of a table have no event time and are always valid",
            )
        return Source(name, table.name, table.schema, "", ALWAYS, is_table=True)
    assert stream is not None
    window = bind_window(text, item.window, stream.schema)
    if stream.query is not None:
        return Source(name, stream.name, stream.schema, "", window, stream.disorder, is_result=True)
    time = stream.schema.find(stream.event_time)
    assert time is not None, "the declaration checked it"
    return Source(name, stream.name, stream.schema, time.name, window, stream.disorder)


def _relation_name(text: str, item: FromItem) -> str:
    name = item.alias or item.stream
    if not _RELATION_NAME.fullmatch(name.name):
        raise BindError(
            f"'{name.name}' is not a valid relation name",
            text=text,
            span=name.span,
            hint="give it an alias of letters, digits and underscores, as in AS a",
        )
    return name.name


def _bind_subquery(text: str, item: FromItem, inner: Statement, bind_query: BindQuery) -> Source:
    """Binds a subquery in FROM; its results are a stream, named by the alias until the subquery has been compiled."""
    name = _relation_name(text, item)
    plan = bind_query(replace(inner, branches=()))
    assert isinstance(plan, Project)
    if inner.branches:
        return _bind_union(
            text, item, [(each, bind_query(each)) for each in (replace(inner, branches=()), *inner.branches)]
        )
    schema = result_schema(plan.outputs)
    window = bind_window(text, item.window, schema)
    subquery = Subquery(inner.own_text, plan)
    return Source(name, name, schema, "", window, FOREVER, is_result=True, subquery=subquery)


def _bind_union(text: str, item: FromItem, several: Sequence[tuple[Statement, LogicalPlan]]) -> Source:
    """Binds a UNION ALL in FROM: its columns have the names of the first query, and types that fit all."""
    plans = [plan for _, plan in several if isinstance(plan, Project)]
    first = plans[0]
    for (statement, _), plan in zip(several[1:], plans[1:], strict=True):
        if len(plan.outputs) != len(first.outputs):
            raise BindError(
                f"a query of UNION ALL has {len(plan.outputs)} columns, the first one {len(first.outputs)}",
                text=text,
                span=_span_of_items(statement),
                hint="select as many columns in each query, in the same order",
            )
    types = []
    for place, output in enumerate(first.outputs):
        try:
            types.append(bind_call("coalesce", tuple(plan.outputs[place].expression for plan in plans)).type)
        except ValueError as error:
            raise BindError(
                f"column '{output.name}' of UNION ALL has types that do not fit: {error.args[0]}",
                text=text,
                span=_span_of_items(several[-1][0]),
                hint="cast the columns to one type",
            ) from None
    named = [
        replace(
            plan,
            outputs=tuple(
                Output(output.name, coerce(own.expression, kind))
                for output, own, kind in zip(first.outputs, plan.outputs, types, strict=True)
            ),
        )
        for plan in plans
    ]
    fields = [result_schema(plan.outputs) for plan in named]
    schema = Schema(
        tuple(replace(each[0], nullable=any(field.nullable for field in each)) for each in zip(*fields, strict=True))
    )
    queries = [Subquery(statement.own_text, plan) for (statement, _), plan in zip(several, named, strict=True)]
    name, window = _relation_name(text, item), bind_window(text, item.window, schema)
    return Source(
        name, name, schema, "", window, FOREVER, is_result=True, subquery=queries[0], others=tuple(queries[1:])
    )


def _refuse_tables_that_would_come_out(text: str, items: Sequence[tuple[FromItem, Source]]) -> None:
    """Rejects queries that emit rows of a table without a row of a stream, because a table has no watermark."""
    right = next((number for number, (item, _) in enumerate(items) if item.kind is JoinKind.RIGHT), None)
    core = items[right:] if right is not None else items
    core = [(item, source) for item, source in core if item.kind in (*_INNER, JoinKind.RIGHT)]
    kept = [each for each in items if each[0].kind is JoinKind.FULL]
    for several in (core, kept):
        if several and all(source.is_table for _, source in several):
            item, source = several[0]
            raise Unsupported(
                f"rows of table '{source.stream}' cannot come out without a row of a stream",
                text=text,
                span=item.join or item.span,
                hint="join the table to a stream by JOIN or LEFT JOIN; read the table itself with Spark",
            )


def _nullable(items: Sequence[tuple[FromItem, Source]]) -> Iterator[str]:
    """Yields the relations whose columns an outer join may make NULL."""
    for position, (item, source) in enumerate(items):
        if item.kind in (JoinKind.LEFT, JoinKind.FULL):
            yield source.relation
        if item.kind in (JoinKind.RIGHT, JoinKind.FULL):
            yield from (earlier.relation for _, earlier in items[:position])


def _made_nullable(source: Source) -> Source:
    schema = Schema(tuple(Field(field.name, field.type, True) for field in source.schema))
    return replace(source, schema=schema)


# --- joins -----------------------------------------------------------------------------------------------------------


class _Tree:
    """The joins of FROM, from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.core: list[Source] = []
        self.predicates: list[Expr] = []
        self.around: list[tuple[SideKind, LogicalPlan, tuple[Expr, ...]]] = []

    def of(self, items: Sequence[tuple[FromItem, Source]]) -> LogicalPlan:
        """Returns the plan of all items."""
        visible: list[Source] = []
        for position, (item, source) in enumerate(items):
            on: tuple[Expr, ...] = ()
            if item.condition is not None:
                on = conjuncts(Scope(self.text, "ON", (*visible, source)).condition(item.condition))
            if item.kind in (JoinKind.COMMA, JoinKind.INNER):
                self._join(item, source, on)
            elif item.kind in _SIDES:
                self.around.append((_SIDES[item.kind], source, on))
            else:
                self._keep_right(item, source, on, [earlier for earlier, _ in items[1:position]])
            if item.kind not in (JoinKind.SEMI, JoinKind.ANTI):
                visible.append(source)
        plan = _joined(self.core, self.predicates)
        for kind, side, predicates in self.around:
            plan = OuterJoin(plan, side, kind, predicates)
        return plan

    def _join(self, item: FromItem, source: Source, on: tuple[Expr, ...]) -> None:
        if any(kind is SideKind.FULL for kind, _, _ in self.around):
            raise Unsupported(
                "an inner join behind a FULL JOIN is not supported",
                text=self.text,
                span=item.join or item.span,
                hint="put the inner joins before the FULL JOIN, or use LEFT JOIN",
            )
        known = {source.relation, *(each.relation for each in self.core)}
        for predicate in on:
            if outside := sorted(relations(predicate) - known):
                assert item.condition is not None
                raise Unsupported(
                    f"JOIN reads '{outside[0]}', which an outer join before it may leave NULL",
                    text=self.text,
                    span=item.condition.span,
                    hint=f"join '{outside[0]}' by JOIN as well, or put the condition into WHERE",
                )
        self.core.append(source)
        self.predicates += on

    def _keep_right(self, item: FromItem, source: Source, on: tuple[Expr, ...], before: Sequence[FromItem]) -> None:
        """Adds a RIGHT or FULL JOIN, which may make the preceding relations NULL."""
        name = item.kind.value
        if self.around:
            raise Unsupported(
                f"{name} behind another outer join is not supported",
                text=self.text,
                span=item.join or item.span,
                hint="write it with LEFT JOIN, from the stream whose rows must all come out",
            )
        if any(earlier.kind is JoinKind.COMMA for earlier in before):
            raise Unsupported(
                f"{name} behind a comma is not supported",
                text=self.text,
                span=item.join or item.span,
                hint="write JOIN … ON or CROSS JOIN in place of the comma",
            )
        if item.kind is JoinKind.FULL:
            self.around.append((SideKind.FULL, source, on))
            return
        self.around.append((SideKind.LEFT, _joined(self.core, self.predicates), on))
        self.core, self.predicates = [source], []


def _joined(sources: Sequence[Source], predicates: Sequence[Expr]) -> LogicalPlan:
    return sources[0] if len(sources) == 1 else Join(tuple(sources), tuple(predicates))


# --- subqueries ------------------------------------------------------------------------------------------------------


def _conditions(where: Expression | None) -> Iterator[Expression]:
    """Yields the conditions of a conjunction."""
    if isinstance(where, Operation) and where.function == "and":
        for part in where.arguments:
            yield from _conditions(part)
    elif where is not None:
        yield where


def _subquery(node: Expression) -> tuple[Statement, Expression | None, SideKind] | None:
    """Returns the subquery of a condition, the value to look for in it, and its kind; None if there is no subquery."""
    kind = SideKind.SEMI
    if isinstance(node, Operation) and node.function == "not":
        kind, node = SideKind.ANTI, node.arguments[0]
    match node:
        case Exists(query=query):
            return query, None, kind
        case InQuery(value=value, query=query):
            return query, value, kind
    return None


def _around(
    text: str,
    query: Statement,
    value: Expression | None,
    kind: SideKind,
    plan: LogicalPlan,
    visible: tuple[Source, ...],
    own: Sequence[Source],
) -> LogicalPlan:
    """Puts a subquery of WHERE around a plan as a side."""
    _refuse_clauses(text, query)
    scope = Scope(text, "the subquery", tuple(own), outer=visible)
    predicates: list[Expr] = []
    for position, item in enumerate(query.sources):
        if item.condition is not None:
            on = Scope(text, "ON", tuple(own[: position + 1]), outer=visible)
            predicates += conjuncts(on.condition(item.condition))
    if query.where is not None:
        predicates += conjuncts(scope.condition(query.where))
    selected = [scope.expression(item.expression) for item in query.items if isinstance(item, SelectItem)]
    if value is not None:
        predicates.append(_is_in(text, query, value, kind, selected, visible))
    return OuterJoin(plan, _joined(own, ()), kind, tuple(predicates))


def _is_in(
    text: str,
    query: Statement,
    value: Expression,
    kind: SideKind,
    selected: list[Expr],
    visible: tuple[Source, ...],
) -> Expr:
    """Returns the predicate of `value [NOT] IN (SELECT …)`.

    NOT IN is true only if every comparison is false; a comparison with NULL is not false.
    """
    if len(query.items) != 1 or len(selected) != 1:
        raise BindError(
            "the subquery of IN must select one expression",
            text=text,
            span=_span_of_items(query),
            hint="name the column to compare, as in x IN (SELECT s.x FROM …)",
        )
    scope = Scope(text, "WHERE", visible)
    sought, found = scope.expression(value), selected[0]
    try:
        equal = bind_call("equal", (sought, found))
        if kind is SideKind.SEMI:
            return equal
        unknown = tuple(bind_call("is_null", (side,)) for side in (sought, found) if is_nullable(side))
        return bind_call("or", (equal, *unknown)) if unknown else equal
    except ValueError as error:
        raise scope.error(error, value.span) from None


def _refuse_clauses(text: str, query: Statement) -> None:
    """Rejects clauses that a subquery cannot have."""
    aggregates = [
        node
        for item in query.items
        if isinstance(item, SelectItem)
        for node in walk(item.expression)
        if isinstance(node, FunctionCall) and node.name.name.lower() in AGGREGATES
    ]
    for what, span in (
        *(("GROUP BY", node.span) for node in query.group_by),
        *(("HAVING", node.span) for node in ([query.having] if query.having else [])),
        *(("an aggregate", node.span) for node in aggregates),
        *((item.kind.value, item.join or item.span) for item in query.sources if item.kind not in _INNER),
        *(("USING", item.using_span) for item in query.sources if item.using_span is not None),
    ):
        raise Unsupported(
            f"{what} in a subquery is not supported",
            text=text,
            span=span,
            hint="a subquery may join streams by JOIN … ON and filter them by WHERE",
        )


_INNER = (JoinKind.COMMA, JoinKind.INNER)


def _span_of_items(query: Statement) -> Span:
    spans = [item.span if isinstance(item, Star) else item.expression.span for item in query.items]
    return Span(spans[0].start, spans[-1].end)


def _span(nodes: Sequence[Expression]) -> Span:
    return Span(nodes[0].span.start, nodes[-1].span.end)
