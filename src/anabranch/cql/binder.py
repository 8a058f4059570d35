"""Binds a syntax tree to a logical plan: resolves names in the catalog and types expressions.

The plan is `Project(Filter(Join(Source…)))`, with the ON conditions on the join (`from_clause` binds everything below
the projection). A grouped query has an `Aggregate` and a `Filter` for HAVING in between; everything above the aggregate
reads only columns of GROUPED. Nothing is optimised here; `rewrite` does that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from anabranch.cql.asof import with_asof
from anabranch.cql.ast import (
    CastTo,
    ColumnName,
    Constant,
    Exists,
    Expression,
    FromItem,
    FunctionCall,
    InQuery,
    Numbered,
    Operation,
    RowNumber,
    SelectItem,
    Star,
    Statement,
    walk,
)
from anabranch.cql.compiling import results_behind
from anabranch.cql.cursor import Cursor
from anabranch.cql.expressions import expression
from anabranch.cql.from_clause import Rows, bind_rows
from anabranch.cql.lexer import Kind
from anabranch.cql.parser import parse
from anabranch.cql.ranking import with_ranking
from anabranch.cql.scope import Scope, aggregate_column
from anabranch.cql.windows import (
    bind_window,
    common_slide,
    event_time_of,
    lag_of,
    refuse_sides,
    refuse_small_slide,
    refuse_steps,
    step_of,
    window_call,
    window_clause,
    with_window_calls,
    without_window_calls,
)
from anabranch.errors import BindError, Span, UnboundedJoin, Unsupported
from anabranch.functions import AGGREGATES, is_nullable, kind_of
from anabranch.lang.catalog import Catalog
from anabranch.lang.expr import GROUPED, AggregateCall, Call, Cast, Column, Expr, Literal, Ranking, columns, transform
from anabranch.lang.schema import Schema, type_name
from anabranch.lang.window import ALWAYS, FOREVER, SessionWindow, Window
from anabranch.plan.intervals import unbounded_by, with_implied_windows
from anabranch.plan.logical import (
    ROW_NUMBER,
    Aggregate,
    Filter,
    LogicalPlan,
    Output,
    Project,
    Source,
    Subquery,
    render,
    result_schema,
    sources_of,
    with_sources,
)

_BindItem: TypeAlias = Callable[[Expression], Expr]


def bind(text: str, catalog: Catalog, *, allow_unbounded: bool = False) -> LogicalPlan:
    """Binds a query text to the streams of a catalog and returns its logical plan."""
    return _bind(parse(text, catalog.functions), catalog, allow_unbounded=allow_unbounded)


def bind_expression(text: str, relation: str, schema: Schema) -> Expr:
    """Binds the text of one expression over the columns of one relation."""
    cursor = Cursor(text)
    written = expression(cursor)
    if cursor.peek().kind is not Kind.END:
        raise cursor.unexpected("the end of the expression")
    source = Source(relation, relation, schema, "", ALWAYS, is_table=True)
    return Scope(text, "the expression", (source,)).expression(written)


def _bind(written: Statement, catalog: Catalog, *, allow_unbounded: bool) -> LogicalPlan:
    text = written.text
    written = with_ranking(with_asof(written, catalog))
    if (call := window_call(written)) is not None and _reads_streams(written, catalog) > 1:
        return _joined_first(written, call, catalog, allow_unbounded=allow_unbounded)
    statement = with_window_calls(written)

    def bind_inner(inner: Statement) -> LogicalPlan:
        return _bind(inner, catalog, allow_unbounded=allow_unbounded)

    rows = bind_rows(statement, catalog, bind_inner)
    statement = rows.statement
    items = tuple(item for item, source in rows.items if not source.is_table)
    plan, sources = _with_event_times(written, rows, catalog)
    if not _is_grouped(statement) and statement.distinct is None:
        plan = with_implied_windows(plan)
    refuse_sides(statement, items, plan)
    if statement.distinct is not None:
        statement = _distinct(statement, items)
    slide = common_slide(statement, items)
    if _is_grouped(statement) and slide is None:
        raise _no_slide(statement, [source for source in sources if not source.is_table])
    if not allow_unbounded:
        _refuse_unbounded(statement, rows, plan)
    if slide is not None and _is_grouped(statement):
        if not allow_unbounded:
            refuse_small_slide(statement, items)
        return _grouped(statement, sources, plan, slide, lag_of(statement, items))
    scope = Scope(text, "SELECT", sources)
    outputs = _outputs(statement, scope, scope.expression)
    # Checked after the outputs: an error about a misspelt or missing aggregate is more helpful.
    refuse_steps(statement, items)
    return Project(plan, outputs)


def _distinct(statement: Statement, items: tuple[FromItem, ...]) -> Statement:
    """Rewrites SELECT DISTINCT as a grouping: each distinct row once per window."""
    assert statement.distinct is not None
    if _is_grouped(statement):
        raise BindError(
            "DISTINCT is not allowed in a grouped query",
            text=statement.text,
            span=statement.distinct,
            hint="remove it: a grouped query emits one row per group and window",
        )
    stars = [item for item in statement.items if isinstance(item, Star)]
    if stars:
        raise BindError("DISTINCT does not take *", text=statement.text, span=stars[0].span, hint="name the columns")
    if common_slide(statement, items) is None:
        raise BindError(
            "SELECT DISTINCT needs windows that end",
            text=statement.text,
            span=statement.distinct,
            hint="write [TUMBLE 1 HOUR] for each row once an hour, or [RANGE 1 HOUR SLIDE 10 MINUTES]",
        )
    keys = tuple(item.expression for item in statement.items if isinstance(item, SelectItem))
    return replace(statement, group_by=keys, distinct=None)


def _reads_streams(statement: Statement, catalog: Catalog) -> int:
    """Returns how many streams FROM and the subqueries of WHERE read."""
    sources = list(statement.sources)
    for node in () if statement.where is None else walk(statement.where):
        if isinstance(node, Exists | InQuery):
            sources += node.query.sources
    return sum(item.subquery is not None or catalog.table(item.stream.name) is None for item in sources)


def _with_event_times(statement: Statement, rows: Rows, catalog: Catalog) -> tuple[LogicalPlan, tuple[Source, ...]]:
    """Returns the plan and the sources of FROM; raises unless the column of `window()` is the event time of its stream.

    Results of a query have the event time that the column names, if it is in every result.
    """
    times: dict[str, str] = {}
    for item, source in rows.items:
        named = event_time_of(statement, item)
        if named is None:
            continue
        if source.is_result:
            column = source.schema.find(named.name)
            if column is None or results_behind(source, column.name, catalog) is None:
                raise BindError(
                    f"'{named.name}' is not an event time of '{source.relation}'",
                    text=statement.text,
                    span=named.span,
                    detail="results have the event time of a stream that is in every result, or the end of a window",
                    hint=f"select that column in '{source.relation}', or write [TUMBLE 10 MINUTES] behind it in FROM",
                )
            times[source.relation] = column.name
        elif named.name.lower() != source.event_time.lower():
            raise BindError(
                f"'{named.name}' is not the event time of '{source.relation}'",
                text=statement.text,
                span=named.span,
                hint=f"write window({source.event_time}, …): windows count by the event time",
            )

    def timed(source: Source) -> Source:
        return replace(source, event_time=times.get(source.relation, source.event_time))

    return with_sources(rows.plan, timed), tuple(map(timed, rows.visible))


def _refuse_unbounded(statement: Statement, rows: Rows, plan: LogicalPlan) -> None:
    streams = [(item, source) for item, source in rows.items if not source.is_table]
    known = sources_of(plan)
    for item, source in streams:
        window = known[source.relation].window
        if window.is_bounded or (len(streams) == 1 and (window.slide is None or not _is_grouped(statement))):
            continue
        hint = "write a window such as [RANGE 10 MINUTES], or set 'allow_unbounded' for this query"
        other = None if _is_grouped(statement) else unbounded_by(plan, source.relation)
        if other is not None and source.event_time and other.event_time:
            older, newer = f"{source.relation}.{source.event_time}", f"{other.relation}.{other.event_time}"
            hint = f"add a condition such as {newer} <= {older} + INTERVAL 10 MINUTES, {hint}"
        raise UnboundedJoin(
            f"the window of relation '{source.relation}' is unbounded",
            text=statement.text,
            span=item.window.span if item.window else item.span,
            detail="all its rows would be kept for ever",
            hint=hint,
        )


# --- SELECT ----------------------------------------------------------------------------------------------------------


def _outputs(statement: Statement, scope: Scope, bind_item: _BindItem) -> tuple[Output, ...]:
    outputs: list[Output] = []
    for position, item in enumerate(statement.items):
        if isinstance(item, Star):
            _add(outputs, _starred(statement, item, scope), item.span, scope)
        else:
            expression = bind_item(item.expression)
            if kind_of(expression.type) == "null":
                raise BindError(
                    "an untyped NULL cannot be selected",
                    text=statement.text,
                    span=item.expression.span,
                    hint="write CAST(NULL AS type)",
                )
            name = item.alias.name if item.alias else _default_name(item.expression, position)
            span = item.alias.span if item.alias else item.expression.span
            _add(outputs, [Output(_declared(name, expression, item), expression)], span, scope)
    return tuple(outputs)


def _declared(name: str, expression: Expr, item: SelectItem) -> str:
    """Returns the declared spelling of an unnamed column, regardless of the case used in the query."""
    plain = item.alias is None and isinstance(expression, Column) and expression.relation != GROUPED
    return expression.name if plain and isinstance(expression, Column) else name


def _add(outputs: list[Output], more: list[Output], span: Span, scope: Scope) -> None:
    for output in more:
        if any(output.name.lower() == other.name.lower() for other in outputs):
            raise BindError(
                f"two output columns are called '{output.name}'",
                text=scope.text,
                span=span,
                hint=f"rename one of them, as in … AS other_{output.name}",
            )
        outputs.append(output)


def _starred(statement: Statement, star: Star, scope: Scope) -> list[Output]:
    chosen = [source for source in scope.sources if _covers(star, source)]
    if not chosen:
        assert star.relation is not None
        raise BindError(
            f"relation '{star.relation.name}' does not exist",
            text=statement.text,
            span=star.relation.span,
            detail=f"FROM has {', '.join(source.relation for source in scope.sources)}",
        )
    stars = [item for item in statement.items if isinstance(item, Star)]
    names = [
        field.name.lower()
        for source in scope.sources
        for field in source.schema
        if any(_covers(item, source) and _shows(item, field.name) for item in stars)
    ]
    for left_out in star.excluded:
        if not any(source.schema.find(left_out.name) for source in chosen):
            raise BindError(
                f"column '{left_out.name}' of EXCEPT does not exist",
                text=statement.text,
                span=left_out.span,
                detail=f"* has {', '.join(dict.fromkeys(name for source in chosen for name in source.schema.names))}",
            )
    return [
        Output(f"{column.relation}_{column.name}" if names.count(column.name.lower()) > 1 else column.name, column)
        for source in chosen
        for column in source.columns
        if _shows(star, column.name)
    ]


def _shows(star: Star, column: str) -> bool:
    return all(column.lower() != each.name.lower() for each in star.excluded)


def _covers(star: Star, source: Source) -> bool:
    return star.relation is None or star.relation.name.lower() == source.relation.lower()


def _default_name(node: Expression, position: int) -> str:
    match node:
        case ColumnName():
            return node.name.name
        case FunctionCall():
            return node.name.name.lower()
        case RowNumber():
            return "row_number"
        case CastTo():
            return _default_name(node.argument, position)
        case Operation(function="field", arguments=(_, Constant(value=str() as name))):
            return name
        case _:
            return f"column{position + 1}"


# --- join, then aggregate --------------------------------------------------------------------------------------------


def _joined_first(written: Statement, call: FunctionCall, catalog: Catalog, *, allow_unbounded: bool) -> LogicalPlan:
    """Binds `GROUP BY window(a.ts, …)` over several streams: groups of the results of the join, by that event time."""
    column, clause = window_clause(written, call)
    if clause.kind == "session":
        raise _sessions_of_a_join(written, call.span)
    statement = without_window_calls(written)
    rows = bind_rows(statement, catalog, lambda inner: _bind(inner, catalog, allow_unbounded=allow_unbounded))
    statement = rows.statement
    time = Scope(written.text, "GROUP BY", rows.visible).expression(column)
    plan = with_implied_windows(rows.plan)
    items = tuple(item for item, source in rows.items if not source.is_table)
    refuse_sides(statement, items, plan)
    refuse_steps(statement, items)
    if not allow_unbounded:
        _refuse_unbounded(replace(statement, group_by=(), items=(), having=None), rows, plan)
        refuse_small_slide(statement, (replace(items[0], window=clause),))
    window = bind_window(written.text, clause, Schema(()))
    # For WINDOW_START(), the windows are those of the groups.
    sources = tuple(source if source.is_table else replace(source, window=window) for source in rows.visible)
    step = step_of(clause)
    assert step is not None
    groups = _grouped(statement, sources, plan, step.micros, 1)
    source = _results(written, plan, groups, time, window)
    if not isinstance(time, Column) or results_behind(source, source.event_time, catalog) is None:
        raise BindError(
            f"'{column}' is not the event time of a stream that is in every result",
            text=written.text,
            span=column.span,
            detail="a group is complete when the watermark has passed the end of its window",
            hint="name the event time of a stream that no outer join may leave NULL",
        )
    return _over(groups, source)


def _results(statement: Statement, plan: LogicalPlan, groups: LogicalPlan, time: Expr, window: Window) -> Source:
    """Returns the results of a join as a source, with the columns that the groups read and their event time."""
    grouped = _aggregate_of(groups)
    read = [*grouped.key_expressions, *(e for each in grouped.aggregates for e in each.arguments), time]
    wanted = dict.fromkeys(each for expression in read for each in columns(expression))
    outputs: list[Output] = []
    for each in wanted:
        name = f"{each.relation}_{each.name}"
        while any(name.lower() == other.name.lower() for other in outputs):
            name += "_"
        outputs.append(Output(name, each))
    inner = Project(plan, tuple(outputs))
    named = next(iter(columns(time)))
    spans = [statement.sources[-1].span, *(each.condition.span for each in statement.sources if each.condition)]
    spans += [] if statement.where is None else [statement.where.span]
    source = statement.text[statement.sources[0].span.start : max(span.end for span in spans)]
    text = f"SELECT {', '.join(map(str, wanted))} FROM {source}"
    # Queries that run together identify a relation by its name.
    digest = hashlib.sha256(f"{named}\n{render(inner)}".encode()).hexdigest()[:8]
    name = f"joined_{digest}"
    schema, event_time = result_schema(outputs), next(each.name for each in outputs if each.expression == named)
    return Source(name, name, schema, event_time, window, FOREVER, is_result=True, subquery=Subquery(text, inner))


def _over(groups: LogicalPlan, source: Source) -> LogicalPlan:
    """Returns the groups over the results of a join instead of the join itself."""

    assert source.subquery is not None
    assert isinstance(source.subquery.plan, Project)
    named = dict(zip((each.expression for each in source.subquery.plan.outputs), source.columns, strict=True))

    def read(expression: Expr) -> Expr:
        return named.get(expression, expression)

    grouped = _aggregate_of(groups)
    aggregates = tuple(
        replace(
            each,
            argument=None if each.argument is None else transform(each.argument, read),
            others=tuple(transform(other, read) for other in each.others),
        )
        for each in grouped.aggregates
    )
    keys = tuple(transform(each, read) for each in grouped.key_expressions)
    over = replace(grouped, input=source, key_expressions=keys, aggregates=aggregates)
    assert isinstance(groups, Project)
    below = groups.input
    return replace(groups, input=replace(below, input=over) if isinstance(below, Filter) else over)


def _aggregate_of(groups: LogicalPlan) -> Aggregate:
    """Returns the aggregate of a grouped query."""
    assert isinstance(groups, Project)
    found = groups.input.input if isinstance(groups.input, Filter) else groups.input
    assert isinstance(found, Aggregate)
    return found


# --- GROUP BY --------------------------------------------------------------------------------------------------------


def _is_grouped(statement: Statement) -> bool:
    selected = [item.expression for item in statement.items if isinstance(item, SelectItem)]
    calls = (node for root in selected for node in walk(root) if isinstance(node, FunctionCall))
    aggregated = any(call.name.name.lower() in AGGREGATES for call in calls)
    return statement.numbered is not None or bool(statement.group_by) or statement.having is not None or aggregated


def _no_slide(statement: Statement, streams: Sequence[Source]) -> BindError:
    """Returns the error of a grouped query whose windows do not say when it has results."""
    first, timed = statement.sources[0], streams[0] if streams else None
    what = "a grouped query needs a SLIDE, the interval between its results"
    hint = "write a window such as [RANGE 1 MINUTE SLIDE 10 SECONDS] or [TUMBLE 1 MINUTE]"
    if statement.numbered is not None:
        what = "the first rows of each window need windows that end"
    elif meant := _instead_of_truncated(statement):
        hint += f", or GROUP BY {meant}"
    elif timed is not None and timed.event_time and (len(streams) > 1 or first.window is None):
        each = f"window({timed.relation}.{timed.event_time}, '1 minute')"
        hint = f"add {each} to GROUP BY{', which groups after the join' if len(streams) > 1 else ''}; or {hint}"
    return BindError(what, text=statement.text, span=first.window.span if first.window else first.span, hint=hint)


def _grouped(statement: Statement, sources: tuple[Source, ...], plan: LogicalPlan, slide: int, lag: int) -> LogicalPlan:
    if statement.istream is not None:
        raise Unsupported(
            "ISTREAM around a grouped query is not supported",
            text=statement.text,
            span=statement.istream,
            hint="remove it: a grouped query emits each result once",
        )
    plan, sources = _in_sessions(statement, sources, plan)
    if statement.numbered is not None:
        return _ranked(statement, statement.numbered, sources, plan, slide, lag)
    key_expressions = _keys(statement, sources)
    keys = tuple(
        Column(GROUPED, f"key{position}", key.type, is_nullable(key)) for position, key in enumerate(key_expressions)
    )
    aggregates: list[AggregateCall] = []
    by_key = dict(zip(key_expressions, keys, strict=True))

    def over_groups(scope: Scope, node: Expression, expr: Expr) -> Expr:
        replaced = _replace_keys(expr, by_key)
        for column in columns(replaced):
            if column.relation != GROUPED:
                raise BindError(
                    f"column '{column}' is neither a group key nor inside an aggregate",
                    text=statement.text,
                    span=_place_of(column, node, scope),
                    hint=f"add {column} to GROUP BY, or use MIN({column})",
                )
        return replaced

    select = Scope(statement.text, "SELECT", sources, aggregates)
    for item in statement.items:
        if isinstance(item, Star):
            raise BindError(
                "* is not allowed in a grouped query",
                text=statement.text,
                span=item.span,
                hint="name the group keys and the aggregates",
            )
    outputs = _outputs(statement, select, lambda node: over_groups(select, node, select.expression(node)))
    having_scope = Scope(statement.text, "HAVING", sources, aggregates)
    having: Expr | None = None
    if statement.having is not None:
        condition = having_scope.condition(statement.having)
        having = over_groups(having_scope, statement.having, condition)
    results = tuple(aggregate_column(position, aggregate) for position, aggregate in enumerate(aggregates))
    grouped: LogicalPlan = Aggregate(plan, keys, key_expressions, results, tuple(aggregates), slide, lag, _gap(sources))
    return Project(Filter(grouped, having) if having is not None else grouped, outputs)


def _instead_of_truncated(statement: Statement) -> str:
    """Returns the `window()` that DATE_TRUNC in GROUP BY means; "" if there is none."""
    for node in statement.group_by:
        match node:
            case FunctionCall(arguments=(Constant(value=str() as unit), column)) as call:
                if call.name.name.lower() == "date_trunc":
                    return f"window({column}, '1 {unit.lower()}')"
            case FunctionCall(arguments=(column, *_)) as call if call.name.name.lower() in {"tumble", "hop"}:
                return f"window({column}, '1 minute')"
    return ""


def _in_sessions(
    statement: Statement, sources: tuple[Source, ...], plan: LogicalPlan
) -> tuple[LogicalPlan, tuple[Source, ...]]:
    """Returns the plan with the group keys as the partitions of a session window, if it has one."""
    known = sources_of(plan)
    if not any(isinstance(each.window, SessionWindow) for each in known.values()):
        return plan, sources
    span = next((item.window.span for item in statement.sources if item.window is not None), statement.sources[0].span)
    if len(known) > 1:
        raise _sessions_of_a_join(statement, span)
    keys = _keys(statement, sources)
    for key, node in zip(keys, statement.group_by, strict=False):
        if not isinstance(key, Column):
            raise Unsupported(
                f"sessions of each '{key}' are not supported",
                text=statement.text,
                span=node.span,
                hint="group by columns of the stream; compute the value in the DataFrame that you register",
            )
    partition = tuple(dict.fromkeys(key.name for key in keys if isinstance(key, Column)))

    def partitioned(source: Source) -> Source:
        assert isinstance(source.window, SessionWindow)
        return replace(source, window=replace(source.window, partition=partition))

    return with_sources(plan, partitioned), tuple(map(partitioned, sources))


def _sessions_of_a_join(statement: Statement, span: Span) -> Unsupported:
    return Unsupported(
        "session windows of a join are not supported",
        text=statement.text,
        span=span,
        detail="they are computed over the rows of a single stream",
        hint="write the results of the join to a topic or folder, and group that stream; or use [TUMBLE …]",
    )


def _gap(sources: tuple[Source, ...]) -> int:
    return next((each.window.gap for each in sources if isinstance(each.window, SessionWindow)), 0)


def _ranked(
    statement: Statement,
    numbered: Numbered,
    sources: tuple[Source, ...],
    plan: LogicalPlan,
    slide: int,
    lag: int,
) -> LogicalPlan:
    """Returns the first rows of each partition and boundary: an aggregate that keeps the values which outputs read."""
    text, number, collected = statement.text, numbered.number, list[AggregateCall]()
    select = Scope(text, "SELECT", sources, collected, number=number)
    outputs = _outputs(statement, select, select.expression)
    condition: Expr | None = None
    if numbered.around is not None:
        outputs, condition = _around_ranked(numbered.around, numbered, outputs)
    elif numbered.condition is not None:
        condition = Scope(text, "QUALIFY", sources, collected, number=number).condition(numbered.condition)
    order = Scope(text, "ORDER BY", sources)
    key_expressions = _keys(statement, sources)
    sort_items = [(order.expression(item.expression), item) for item in number.order]
    telling = [(each, item) for each, item in sort_items if each not in key_expressions]
    sort_items = telling or sort_items
    if not telling and not number.text:
        raise BindError(
            "the rows of a partition have no order",
            text=text,
            span=number.span,
            detail="ORDER BY names nothing but the partition" if number.order else "there is no ORDER BY",
            hint="write ORDER BY ts for the first row, or ORDER BY ts DESC for the last",
        )
    sort_keys = [each for each, _ in sort_items]
    read = [output.expression for output in outputs] + ([] if condition is None else [condition])
    values = dict.fromkeys(each for one in read for each in columns(one) if each.relation != GROUPED)
    for each in (*sort_keys, *values):
        if kind_of(each.type) in {"other", "null"}:
            raise BindError(
                f"cannot rank rows by '{each}', a value of type {type_name(each.type)}",
                text=text,
                span=number.span,
                detail="rows that ORDER BY does not tell apart are ordered by their values",
                hint="select its fields instead of the whole value",
            )
    kept = {each: Column(GROUPED, f"ranked_value{i}", each.type, each.nullable) for i, each in enumerate(values)}

    def of_rank(expression: Expr) -> Expr:
        return transform(expression, lambda each: kept.get(each, each) if isinstance(each, Column) else each)

    ranked: list[Expr] = [*values, *sort_keys]
    first, others = ranked[0], ranked[1:]
    ranking = Ranking(
        numbered.rows,
        tuple(item.is_descending for _, item in sort_items),
        tuple(item.nulls_first for _, item in sort_items),
    )
    aggregate = AggregateCall("ranked", first, first.type, tuple(others), ranking)
    keys = tuple(Column(GROUPED, f"key{i}", each.type, is_nullable(each)) for i, each in enumerate(key_expressions))
    results = (ROW_NUMBER, *kept.values())
    if collected:
        raise Unsupported(
            "WINDOW_START() of a session beside ROW_NUMBER() is not supported",
            text=text,
            span=number.span,
            hint="leave it out, or compute it by GROUP BY in a query of its own",
        )
    grouped: LogicalPlan = Aggregate(plan, keys, key_expressions, results, (aggregate,), slide, lag, _gap(sources))
    grouped = grouped if condition is None else Filter(grouped, of_rank(condition))
    return Project(grouped, tuple(Output(each.name, of_rank(each.expression)) for each in outputs))


def _around_ranked(
    around: Statement, numbered: Numbered, inner: tuple[Output, ...]
) -> tuple[tuple[Output, ...], Expr | None]:
    """Binds the query around ranked rows: its outputs and its condition, over the rows themselves."""
    (item,) = around.sources
    assert item.alias is not None
    name = item.alias.name
    source = Source(name, name, result_schema(inner), "", ALWAYS, is_result=True)
    meant = dict(zip(source.columns, (output.expression for output in inner), strict=True))

    def through(expression: Expr) -> Expr:
        return transform(expression, lambda each: meant.get(each, each) if isinstance(each, Column) else each)

    scope = Scope(around.text, "SELECT", (source,))
    outputs = _outputs(around, scope, scope.expression)
    where = replace(scope, clause="WHERE", number=numbered.number)
    condition = None if numbered.condition is None else where.condition(numbered.condition)
    outputs = tuple(replace(each, expression=through(each.expression)) for each in outputs)
    return outputs, None if condition is None else through(condition)


def _keys(statement: Statement, sources: tuple[Source, ...]) -> tuple[Expr, ...]:
    scope = Scope(statement.text, "GROUP BY", sources)
    keys: list[Expr] = []
    for node in statement.group_by:
        meant = _meant(statement, scope, node)
        key = scope.expression(meant)
        if kind_of(key.type) in {"other", "null"}:
            raise BindError(
                f"cannot group by a value of type {type_name(key.type)}", text=statement.text, span=node.span
            )
        if key not in keys:
            keys.append(key)
    return tuple(keys)


def _meant(statement: Statement, scope: Scope, node: Expression) -> Expression:
    """Resolves an output position or alias in GROUP BY; a column takes precedence over an alias with its name."""
    if isinstance(node, Constant) and isinstance(node.value, int) and not isinstance(node.value, bool):
        item = statement.items[node.value - 1] if 1 <= node.value <= len(statement.items) else None
        if not isinstance(item, SelectItem):
            raise BindError(
                f"GROUP BY {node.value} is not the position of an output expression",
                text=statement.text,
                span=node.span,
                hint=f"positions run from 1 to {len(statement.items)}",
            )
        return item.expression
    if isinstance(node, ColumnName) and node.relation is None and not scope.has_column(node.name.name):
        for item in statement.items:
            alias = item.alias if isinstance(item, SelectItem) else None
            if alias is not None and alias.name.lower() == node.name.name.lower():
                assert isinstance(item, SelectItem)
                return item.expression
    return node


def _replace_keys(expr: Expr, by_key: dict[Expr, Column]) -> Expr:
    """Replaces the largest subexpressions that are group keys by columns of GROUPED.

    A constant remains a constant even if it is a key: IN lists, patterns and digits must be constants.
    """
    if isinstance(expr, Literal):
        return expr
    if expr in by_key:
        return by_key[expr]
    match expr:
        case Call():
            arguments = tuple(_replace_keys(argument, by_key) for argument in expr.arguments)
            return replace(expr, arguments=arguments)
        case Cast():
            return Cast(_replace_keys(expr.argument, by_key), expr.type)
        case _:
            return expr


def _place_of(column: Column, node: Expression, scope: Scope) -> Span:
    for part in walk(node):
        if isinstance(part, ColumnName) and column in columns(scope.expression(part)):
            return part.span
    return node.span
