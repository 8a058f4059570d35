"""Windows of FROM items: binds window clauses, and translates `GROUP BY window(ts, '1 minute')` to them.

`[TUMBLE size]` and `[HOP size SLIDE step]` are the windows of other systems: they do not include their end. The windows
of CQL include both ends. A grouped query uses one kind or the other.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from anabranch.cql.ast import (
    ColumnName,
    Constant,
    Duration,
    Expression,
    FromItem,
    FunctionCall,
    Identifier,
    JoinKind,
    Operation,
    SelectItem,
    Statement,
    WindowClause,
)
from anabranch.cql.scope import closest_first
from anabranch.errors import BindError, Unsupported
from anabranch.lang.schema import Schema, is_decimal, is_float, is_integer, is_text, type_name
from anabranch.lang.window import CountWindow, Hop, SessionWindow, Tumble, Window, parse_duration
from anabranch.plan.logical import LogicalPlan, OuterJoin, inputs

MOST_ROWS = 10**9
"""The most rows of a count window, more than a state can hold."""
MOST_BOUNDARIES = 100_000
"""The most boundaries at which a row may count.

A row produces a result at each of them, which takes seconds for this many. A day in steps of a second (86,400) is
allowed; more is almost always a wrong unit.
"""


def bind_window(text: str, clause: WindowClause | None, schema: Schema) -> Window:
    """Returns the window of a FROM item; `schema` is that of its stream."""
    if clause is None:
        return Window(None)
    if clause.slide is not None and clause.slide.micros <= 0:
        raise BindError("SLIDE must be more than zero", text=text, span=clause.slide.span)
    if clause.range is not None and clause.range.micros <= 0:
        raise BindError(
            f"{clause.kind.upper()} must be more than zero",
            text=text,
            span=clause.range.span,
            hint="write [NOW] to join a row only with rows that are not newer",
        )
    slide = clause.slide.micros if clause.slide is not None else None
    if clause.kind != "range":
        assert clause.range is not None
        size = clause.range.micros
        if clause.kind == "session":
            return SessionWindow(None, gap=size)
        return Tumble(size - 1, size) if clause.kind == "tumble" else Hop(size - 1, slide)
    if clause.rows is not None:
        return _count_window(text, clause, slide, schema)
    if clause.is_now:
        return Window(0, slide)
    return Window(clause.range.micros if clause.range is not None else None, slide)


def _count_window(text: str, clause: WindowClause, slide: int | None, schema: Schema) -> CountWindow:
    assert clause.rows is not None
    if not 1 <= clause.rows.rows <= MOST_ROWS:
        raise BindError(
            f"ROWS must be between 1 and {MOST_ROWS:,}",
            text=text,
            span=clause.rows.span,
            hint="a window holds at least its newest row, and all its rows are kept in memory",
        )
    partition = []
    for name in clause.partition:
        known = {field.name.lower(): field for field in schema}
        field = known.get(name.name.lower())
        if field is None:
            raise BindError(
                f"column '{name.name}' of PARTITION BY does not exist",
                text=text,
                span=name.span,
                hint=f"the stream has {', '.join(closest_first(name.name, schema.names))}",
            )
        if not _can_be_key(field.type):
            raise BindError(
                f"cannot partition by a value of type {type_name(field.type)}",
                text=text,
                span=name.span,
                hint="partition by numbers, texts, booleans, dates or timestamps",
            )
        partition.append(field.name)
    length = clause.range.micros if clause.range is not None else None
    return CountWindow(length, slide, clause.rows.rows, tuple(dict.fromkeys(partition)))


def _can_be_key(kind: pa.DataType) -> bool:
    """True for types that keys may have."""
    is_time = pa.types.is_date32(kind) or pa.types.is_timestamp(kind)
    return is_integer(kind) or is_float(kind) or is_decimal(kind) or is_text(kind) or is_time or kind == pa.bool_()


def step_of(clause: WindowClause) -> Duration | None:
    """Returns the distance between results of a grouped query over this window, if the window sets it."""
    if clause.kind == "session":
        # A session ends at any microsecond.
        return Duration(1, clause.span)
    return clause.range if clause.kind == "tumble" else clause.slide


def common_slide(statement: Statement, items: tuple[FromItem, ...]) -> int | None:
    """Returns the slide of a grouped query, on which all windows must agree."""
    given = [step for item in items if item.window is not None and (step := step_of(item.window))]
    for slide in given[1:]:
        if slide.micros != given[0].micros:
            raise BindError(
                "the slides of the windows differ",
                text=statement.text,
                span=slide.span,
                hint="a grouped query has one slide: give every window the same SLIDE, or only one of them",
            )
    return given[0].micros if given else None


def refuse_small_slide(statement: Statement, items: tuple[FromItem, ...]) -> None:
    """Rejects a slide that is tiny beside the shortest window of a grouped query, the lifetime of its combinations.

    Limit: the lifetime of the rows of `[ROWS n]` without a range depends on the rows that follow, and is not checked.
    """
    given = [item.window for item in items if item.window is not None and item.window.kind != "session"]
    slides = [step for window in given if (step := step_of(window)) is not None]
    ranges = [window.range.micros for window in given if window.range is not None]
    ranges += [0 for window in given if window.is_now]
    boundaries = min(ranges) // slides[0].micros if slides and ranges else 0
    if boundaries > MOST_BOUNDARIES:
        raise BindError(
            f"SLIDE is too small: every row would count at {boundaries:,} boundaries",
            text=statement.text,
            span=slides[0].span,
            detail=f"a group has a result at each boundary; up to {MOST_BOUNDARIES:,} for a row are allowed",
            hint="write a longer SLIDE or a shorter window, or set 'allow_unbounded' for this query",
        )


def lag_of(statement: Statement, items: tuple[FromItem, ...]) -> int:
    """Returns 1 if the windows of a grouped query do not include their end, else 0."""
    kinds = {item.window is not None and item.window.kind in ("tumble", "hop") for item in items}
    if kinds == {True}:
        return 1
    if kinds == {False}:
        return 0
    other = next(item for item in items if item.window is None or item.window.kind == "range")
    raise BindError(
        "windows with and without their end stand side by side",
        text=statement.text,
        span=other.window.span if other.window is not None else other.span,
        detail="[TUMBLE] and [HOP] do not include their end, [RANGE], [NOW] and [UNBOUNDED] do",
        hint="to join first and group afterwards, give every stream a [RANGE] and add window(…) to GROUP BY; "
        "to join within one window only, give every stream that [TUMBLE] or [HOP]",
    )


def refuse_sides(statement: Statement, items: tuple[FromItem, ...], plan: LogicalPlan) -> None:
    """Rejects [ROWS n] if rows wait for a match: the wait might never end.

    A row with [NOW] waits for the watermark only, and then its match is known.
    """
    if not _has_sides(plan):
        return
    is_now = bool(items) and items[0].window is not None and items[0].window.is_now
    is_now &= not any(item.window is not None and step_of(item.window) for item in items)
    for item in items:
        if is_now and item.kind in (JoinKind.COMMA, JoinKind.INNER, JoinKind.LEFT):
            continue
        if item.window is not None and item.window.rows is not None:
            raise Unsupported(
                "[ROWS n] in an outer, semi or anti join is not supported",
                text=statement.text,
                span=item.window.span,
                detail="a row may stay for ever, and with it every row that it has met",
                hint="write [RANGE …]",
            )


def _has_sides(plan: LogicalPlan) -> bool:
    return isinstance(plan, OuterJoin) or any(map(_has_sides, inputs(plan)))


def refuse_steps(statement: Statement, items: tuple[FromItem, ...]) -> None:
    """Rejects slides in queries without grouping."""
    for item in items:
        if item.window is not None and item.window.kind == "session":
            raise BindError(
                "[SESSION] is not allowed in a query without aggregates",
                text=statement.text,
                span=item.window.span,
                hint="add GROUP BY and aggregates, or QUALIFY ROW_NUMBER() OVER (…) <= 10",
            )
        if item.window is not None and item.window.slide is not None:
            raise BindError(
                f"{'HOP' if item.window.kind == 'hop' else 'SLIDE'} is not allowed in a query without aggregates",
                text=statement.text,
                span=item.window.slide.span,
                hint="write [TUMBLE size], or add GROUP BY and aggregates"
                if item.window.kind == "hop"
                else "remove SLIDE, or add GROUP BY and aggregates",
            )


# --- window() in GROUP BY --------------------------------------------------------------------------------------------


def with_window_calls(statement: Statement) -> Statement:
    """Moves `window(ts, size[, slide])` from GROUP BY to the stream with that event time."""
    call = window_call(statement)
    return statement if call is None else without_window_calls(_with_window(statement, call))


def window_call(statement: Statement) -> FunctionCall | None:
    """Returns the call of `window()` in GROUP BY, if there is one."""
    calls = [node for node in statement.group_by if isinstance(node, FunctionCall) and _is_window(node)]
    if len(calls) > 1:
        raise Unsupported(
            "GROUP BY takes one window()",
            text=statement.text,
            span=calls[1].span,
            hint="keep the window of the event time by which results are counted",
        )
    return calls[0] if calls else None


def without_window_calls(statement: Statement) -> Statement:
    """Removes `window()` from GROUP BY, and replaces it and its fields elsewhere by functions of a grouped query."""
    items = tuple(
        replace(item, expression=_named(item.expression)) if isinstance(item, SelectItem) else item
        for item in statement.items
    )
    having = None if statement.having is None else _named(statement.having)
    groups = tuple(node for node in statement.group_by if not _is_window(node))
    numbered = statement.numbered
    if numbered is not None and numbered.condition is not None and numbered.around is None:
        numbered = replace(numbered, condition=_named(numbered.condition))
    return replace(statement, items=items, having=having, group_by=groups, numbered=numbered)


_WINDOWS = ("window", "session_window")


def _is_window(node: Expression) -> bool:
    return isinstance(node, FunctionCall) and node.name.name.lower() in _WINDOWS and node.own is None


def _with_window(statement: Statement, call: FunctionCall) -> Statement:
    column, clause = window_clause(statement, call)
    position = _position(statement, call, column)
    item = statement.sources[position]
    if item.window is not None:
        raise BindError(
            f"'{(item.alias or item.stream).name}' has a window of its own already",
            text=statement.text,
            span=item.window.span,
            hint="write the window in one place",
        )
    sources = list(statement.sources)
    sources[position] = replace(item, window=clause)
    return replace(statement, sources=tuple(sources))


def window_clause(statement: Statement, call: FunctionCall) -> tuple[ColumnName, WindowClause]:
    """Returns the event time that `window()` names, and its window as a clause."""
    column, *lengths = call.arguments or (None,)
    if call.name.name.lower() == "session_window":
        if not isinstance(column, ColumnName) or len(lengths) != 1:
            raise BindError(
                "SESSION_WINDOW takes the event time of a stream and a gap",
                text=statement.text,
                span=call.span,
                hint="write session_window(ts, '10 minutes')",
            )
        return column, WindowClause(_length(statement, lengths[0]), False, None, call.span, "session")
    if not isinstance(column, ColumnName) or not 1 <= len(lengths) <= 2:
        raise BindError(
            "WINDOW takes the event time of a stream, a size and a slide",
            text=statement.text,
            span=call.span,
            hint="write window(ts, '10 minutes') or window(ts, '10 minutes', '5 minutes')",
        )
    size, slide = _length(statement, lengths[0]), _length(statement, lengths[-1])
    is_tumbling = size.micros == slide.micros
    kind = "tumble" if is_tumbling else "hop"
    return column, WindowClause(size, False, None if is_tumbling else slide, call.span, kind)


def _length(statement: Statement, node: Expression) -> Duration:
    try:
        if not isinstance(node, Constant) or not isinstance(node.value, str):
            raise ValueError("a length of time is a text here")
        return Duration(parse_duration(node.value), node.span)
    except ValueError as error:
        raise BindError(str(error), text=statement.text, span=node.span, hint="write it as '10 minutes'") from None


def _position(statement: Statement, call: FunctionCall, column: ColumnName) -> int:
    def is_meant(item: FromItem) -> bool:
        return column.relation is None or (item.alias or item.stream).name.lower() == column.relation.name.lower()

    found = [position for position, item in enumerate(statement.sources) if is_meant(item)]
    if len(found) != 1:
        raise BindError(
            f"the stream of '{column}' is not known", text=statement.text, span=call.span, hint="write alias.column"
        )
    return found[0]


def event_time_of(statement: Statement, item: FromItem) -> Identifier | None:
    """Returns the column that `window()` names as the event time of a FROM item."""
    for node in statement.group_by:
        if isinstance(node, FunctionCall) and _is_window(node) and isinstance(node.arguments[0], ColumnName):
            column = node.arguments[0]
            name = (item.alias or item.stream).name.lower()
            if column.relation is None or column.relation.name.lower() == name:
                return column.name
    return None


def _named(node: Expression) -> Expression:
    """Replaces `window.start`, `window.end` and the window itself by functions of a grouped query."""
    match node:
        case ColumnName(relation=Identifier(name=relation)) if relation.lower() in _WINDOWS:
            if node.name.name.lower() in {"start", "end"}:
                called = Identifier(f"window_{node.name.name.lower()}", node.span)
                return FunctionCall(called, (), False, node.span)
            return node
        case FunctionCall() if _is_window(node):
            return replace(node, arguments=())
        case ColumnName(relation=None) if node.name.name.lower() in _WINDOWS:
            return FunctionCall(node.name, (), False, node.span)
        case Operation() | FunctionCall():
            return replace(node, arguments=tuple(map(_named, node.arguments)))
        case _:
            return node
