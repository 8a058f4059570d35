"""The parser: recursive descent, one function per rule of the grammar.

    query      := [WITH name AS '(' union ')' (',' name AS '(' union ')')*] (union | ISTREAM '(' select ')')
    union      := select (UNION ALL select)*
    select     := SELECT [DISTINCT [ON '(' expression (',' expression)* ')']] item (',' item)*
                  FROM source ((',' | join) source [ON expression | USING '(' name (',' name)* ')'])*
                  [WHERE expression] [GROUP BY (ALL | expression (',' expression)*)] [HAVING expression]
                  [QUALIFY expression] [ORDER BY sort (',' sort)*, with DISTINCT ON only]
    join       := [INNER] JOIN | CROSS JOIN | [LEFT] ASOF JOIN | [LEFT] (SEMI | ANTI) JOIN
                | (LEFT | RIGHT | FULL) [OUTER] JOIN
    source     := name [window] [[AS] alias] | '(' union ')' [window] [[AS] alias]
    window     := '[' (RANGE duration | NOW | UNBOUNDED) [SLIDE duration] ']'
                | '[' [PARTITION BY name (',' name)*] [RANGE duration] ROWS number [SLIDE duration] ']'
                | '[' (TUMBLE | SESSION) duration ']' | '[' HOP duration SLIDE duration ']'
    duration   := (number unit)+

Valid CQL or SQL that Anabranch does not support raises `Unsupported` with an alternative. Any other unexpected token
raises `ParseError`, which states what was expected. Expressions are in `expressions.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from anabranch.cql.ast import (
    Constant,
    Count,
    Duration,
    Expression,
    FromItem,
    FunctionCall,
    Identifier,
    JoinKind,
    SelectItem,
    Star,
    Statement,
    WindowClause,
    walk,
)
from anabranch.cql.cursor import NO_FUNCTIONS, Cursor
from anabranch.cql.expressions import duration, expression, sort_items
from anabranch.cql.lexer import Kind
from anabranch.cql.refusals import AT_ALIAS, CLAUSES, GROUPINGS, ITEMS, SOURCES, STATEMENTS, refuse
from anabranch.errors import ParseError, Span
from anabranch.functions import AGGREGATES
from anabranch.lang.expr import OwnFunction

_OUTER = {"LEFT": JoinKind.LEFT, "RIGHT": JoinKind.RIGHT, "FULL": JoinKind.FULL}
_HALF = {"SEMI": JoinKind.SEMI, "ANTI": JoinKind.ANTI}
_WINDOW_HELP = "RANGE, ROWS, TUMBLE, HOP, SESSION, NOW or UNBOUNDED, as in [RANGE 10 SECONDS]"


def parse(text: str, functions: Mapping[str, OwnFunction] = NO_FUNCTIONS) -> Statement:
    """Parses a query text; raises ParseError or Unsupported with the position of the problem.

    `functions` are the user-defined functions, by lower-case name.
    """
    cursor = Cursor(text, subquery, functions)
    refuse(cursor, STATEMENTS)
    for operator in ("RSTREAM", "DSTREAM"):
        if cursor.peek().is_word(operator):
            raise cursor.unsupported(
                f"{operator} is not supported", "leave it out: a join query emits each result once, as ISTREAM does"
            )
    _with(cursor)
    wrapper = cursor.take_word("ISTREAM")
    if wrapper is None:
        statement = _united(cursor)
        if statement.branches:
            name = Identifier("union_all", Span(0, len(text)))
            whole = FromItem(name, None, name, None, name.span, subquery=statement)
            statement = Statement(text, (Star(None, name.span),), (whole,), None, (), None, None)
    else:
        cursor.expect_symbol("(")
        statement = _select(cursor, wrapper.span)
        cursor.expect_symbol(")")
    cursor.take_symbol(";")
    refuse(cursor, CLAUSES)
    if cursor.peek().kind is not Kind.END:
        raise cursor.unexpected(_what_may_follow(statement))
    return statement


def _with(cursor: Cursor) -> None:
    """Parses WITH; its names stand for their subqueries in FROM of all that follows."""
    if cursor.take_word("WITH") is None:
        return
    if cursor.peek().is_word("RECURSIVE") and not cursor.peek(1).is_word("AS"):
        raise cursor.unsupported("WITH RECURSIVE is not supported", "a query cannot read its own results")
    while True:
        name = cursor.identifier("a name for a subquery, as in WITH x AS (SELECT …)")
        if name.name.lower() in cursor.named:
            raise ParseError(f"WITH names '{name.name}' twice", text=cursor.text, span=name.span)
        if cursor.peek().is_symbol("("):
            raise cursor.unsupported("names of columns in WITH are not supported", "name them in SELECT … AS name")
        cursor.expect_word("AS")
        cursor.named[name.name.lower()] = _bracketed(cursor)
        if cursor.take_symbol(",") is None:
            return


def _bracketed(cursor: Cursor) -> Statement:
    """Parses a subquery in brackets; its span is that of its text."""
    opened = cursor.expect_symbol("(")
    if not cursor.peek().is_word("SELECT"):
        raise cursor.unexpected("SELECT, the begin of a subquery")
    with cursor.nested():
        inner = _united(cursor)
    closed = cursor.expect_symbol(")")
    return inner if inner.branches else replace(inner, span=Span(opened.span.end, closed.span.start))


def _united(cursor: Cursor) -> Statement:
    """Parses a SELECT and those that UNION ALL adds to it; each has the span of its own text."""
    found: list[Statement] = []
    while True:
        start = cursor.peek().span.start
        each = _select(cursor, None)
        found.append(replace(each, span=Span(start, cursor.end_of_last)))
        if not (cursor.peek().is_word("UNION") and cursor.peek(1).is_word("ALL")):
            refuse(cursor, CLAUSES)
            return replace(found[0], branches=tuple(found[1:])) if found[1:] else each
        cursor.take()
        cursor.take()


def _what_may_follow(statement: Statement) -> str:
    end = "the end of the query"
    if statement.having is not None:
        return end
    if statement.group_by:
        return f"',', HAVING or {end}"
    if statement.where is not None:
        return f"AND, OR, GROUP BY, HAVING or {end}"
    return f"',', JOIN, WHERE, GROUP BY, HAVING or {end}"


def subquery(cursor: Cursor) -> Statement:
    """Parses a SELECT inside an expression, up to its closing bracket."""
    return _select(cursor, None)


def _select(cursor: Cursor, istream: Span | None) -> Statement:
    cursor.expect_word("SELECT")
    distinct = cursor.take_word("DISTINCT")
    distinct_on = _distinct_on(cursor) if distinct is not None else ()
    cursor.take_word("ALL")
    refuse(cursor, ITEMS)
    items = [_item(cursor)]
    while cursor.take_symbol(","):
        items.append(_item(cursor))
    cursor.expect_word("FROM", also="','")
    sources = _sources(cursor)
    where = expression(cursor) if cursor.take_word("WHERE") else None
    group_by = _group_by(cursor, items)
    having = expression(cursor) if cursor.take_word("HAVING") else None
    qualify = expression(cursor) if cursor.take_word("QUALIFY") else None
    order_by = sort_items(cursor) if distinct_on and cursor.peek().is_word("ORDER") else ()
    if not cursor.peek().is_word("UNION"):
        refuse(cursor, CLAUSES)
    return Statement(
        cursor.text,
        tuple(items),
        tuple(sources),
        where,
        tuple(group_by),
        having,
        istream,
        None if distinct is None else distinct.span,
        distinct_on=distinct_on,
        qualify=qualify,
        order_by=order_by,
    )


def _group_by(cursor: Cursor, items: list[SelectItem | Star]) -> list[Expression]:
    """Parses GROUP BY; ALL are the selected expressions without an aggregate."""
    if cursor.take_word("GROUP") is None:
        return []
    cursor.expect_word("BY")
    if (every := cursor.take_word("ALL")) is not None:
        if any(isinstance(item, Star) for item in items):
            raise ParseError("GROUP BY ALL does not take *", text=cursor.text, span=every.span, hint="name the columns")
        selected = [item.expression for item in items if isinstance(item, SelectItem)]
        return [each for each in selected if not isinstance(each, Constant) and not any(map(_is_of_group, walk(each)))]
    refuse(cursor, GROUPINGS)
    found = [expression(cursor)]
    while cursor.take_symbol(","):
        refuse(cursor, GROUPINGS)
        found.append(expression(cursor))
    return found


def _is_of_group(node: Expression) -> bool:
    """True for a value that a whole group has."""
    if not isinstance(node, FunctionCall) or node.own is not None:
        return False
    is_edge = not node.arguments and node.name.name.lower() in {"window_start", "window_end"}
    return is_edge or node.name.name.lower() in AGGREGATES


def _distinct_on(cursor: Cursor) -> tuple[Expression, ...]:
    if not cursor.take_word("ON"):
        return ()
    cursor.expect_symbol("(")
    found = [expression(cursor)]
    while cursor.take_symbol(","):
        found.append(expression(cursor))
    cursor.expect_symbol(")", also="','")
    return tuple(found)


def _item(cursor: Cursor) -> SelectItem | Star:
    star = cursor.take_symbol("*")
    if star is not None:
        return _excluding(cursor, Star(None, star.span))
    if cursor.peek(1).is_symbol(".") and cursor.peek(2).is_symbol("*"):
        relation = cursor.identifier("a relation name")
        cursor.expect_symbol(".")
        end = cursor.expect_symbol("*")
        return _excluding(cursor, Star(relation, Span(relation.span.start, end.span.end)))
    value = expression(cursor)
    return SelectItem(value, _alias(cursor))


def _excluding(cursor: Cursor, star: Star) -> Star:
    """Parses `EXCEPT (column, …)` behind a star."""
    is_list = cursor.peek(1).is_symbol("(") and not cursor.peek(2).is_word("SELECT")
    if not cursor.peek().is_word("EXCEPT", "EXCLUDE") or not is_list:
        return star
    cursor.take()
    cursor.expect_symbol("(")
    names = [cursor.identifier("a column to leave out")]
    while cursor.take_symbol(","):
        names.append(cursor.identifier("a column to leave out"))
    cursor.expect_symbol(")", also="','")
    return replace(star, excluded=tuple(names))


def _alias(cursor: Cursor) -> Identifier | None:
    if cursor.take_word("AS"):
        return cursor.identifier("an alias after AS")
    refuse(cursor, AT_ALIAS)
    return cursor.identifier("an alias") if cursor.at_name() and not _is_asof(cursor) else None


def _sources(cursor: Cursor) -> list[FromItem]:
    sources = [_source(cursor)]
    while True:
        start = cursor.peek().span.start
        if cursor.take_symbol(","):
            sources.append(_source(cursor))
        elif cursor.peek().is_word("CROSS") and not cursor.peek(1).is_word("APPLY"):
            cursor.take()
            cursor.expect_word("JOIN")
            crossed = _source(cursor)
            sources.append(replace(crossed, kind=JoinKind.INNER, join=Span(start, crossed.span.end)))
        elif (kind := _join_kind(cursor)) is not None:
            words = Span(start, cursor.end_of_last)
            joined = replace(_source(cursor), kind=kind, join=words)
            sources.append(_with_on(cursor, joined))
        else:
            return sources


def _join_kind(cursor: Cursor) -> JoinKind | None:
    """Takes the join keywords before the next source; returns None if there are none."""
    word = cursor.peek().value.upper() if cursor.peek().kind is Kind.WORD else ""
    if word == "NATURAL":
        remedy = "write JOIN … USING (column) or JOIN … ON: a column added to a stream would change the query"
        raise cursor.unsupported("NATURAL joins are not supported", remedy)
    if word not in ("JOIN", "INNER", *_OUTER, *_HALF) and not _is_asof(cursor):
        return None
    kind = _HALF.get(word) or _OUTER.get(word, JoinKind.INNER)
    if word != "JOIN":
        cursor.take()
    if word == "ASOF" or cursor.peek().is_word("ASOF"):
        return _asof(cursor, word)
    if word == "LEFT" and cursor.peek().is_word(*_HALF):
        kind = _HALF[cursor.take().value.upper()]
    elif word in _OUTER:
        cursor.take_word("OUTER")
    cursor.expect_word("JOIN")
    return kind


def _is_asof(cursor: Cursor) -> bool:
    """True before ASOF JOIN; ASOF alone is a name."""
    return cursor.peek().is_word("ASOF") and cursor.peek(1).is_word("JOIN", "LEFT", "INNER", "RIGHT", "FULL")


def _asof(cursor: Cursor, first: str) -> JoinKind:
    """Parses the rest of `ASOF [LEFT] JOIN` or `LEFT ASOF JOIN`, after its first word."""
    second = cursor.take().value.upper() if not cursor.peek().is_word("JOIN") else ""
    words = {first, second} - {"", "ASOF"}
    if words & {"RIGHT", "FULL", "SEMI", "ANTI"}:
        raise cursor.unsupported(f"{words.pop()} ASOF JOIN is not supported", "write ASOF JOIN or LEFT ASOF JOIN")
    cursor.expect_word("JOIN")
    return JoinKind.LEFT_ASOF if "LEFT" in words else JoinKind.ASOF


def _source(cursor: Cursor) -> FromItem:
    refuse(cursor, SOURCES)
    if cursor.peek().is_symbol("("):
        return _subquery(cursor)
    stream = cursor.identifier("the name of a stream")
    window = _window(cursor)
    as_of = _as_of(cursor)
    alias = _alias(cursor)
    window = window or _window(cursor)
    if (named := cursor.named.get(stream.name.lower())) is not None:
        name = alias or stream
        span = Span(stream.span.start, cursor.end_of_last)
        return FromItem(name, window, name, None, span, subquery=named, as_of=as_of)
    return FromItem(stream, window, alias, None, Span(stream.span.start, cursor.end_of_last), as_of=as_of)


def _as_of(cursor: Cursor) -> Expression | None:
    """Parses `FOR SYSTEM_TIME AS OF time`."""
    if not (cursor.peek().is_word("FOR") and cursor.peek(1).is_word("SYSTEM_TIME")):
        return None
    for word in ("FOR", "SYSTEM_TIME", "AS", "OF"):
        cursor.expect_word(word)
    return expression(cursor)


def _subquery(cursor: Cursor) -> FromItem:
    start = cursor.peek().span.start
    inner = _bracketed(cursor)
    brackets = Span(start, cursor.end_of_last)
    window = _window(cursor)
    alias = _alias(cursor) or Identifier("subquery", brackets)
    window = window or _window(cursor)
    return FromItem(alias, window, alias, None, Span(start, cursor.end_of_last), subquery=inner)


def _with_on(cursor: Cursor, joined: FromItem) -> FromItem:
    """Parses ON or USING behind a joined source."""
    start = cursor.peek().span.start
    if cursor.peek().is_word("USING") and joined.kind in (JoinKind.ASOF, JoinKind.LEFT_ASOF):
        raise cursor.unsupported("USING in an ASOF JOIN is not supported", "write ON b.key = a.key AND b.ts <= a.ts")
    if cursor.take_word("USING") is None:
        if not cursor.peek().is_word("ON"):
            raise cursor.unexpected("ON or USING", hint="write CROSS JOIN, or a comma, to join every pair of rows")
        cursor.take()
        return replace(joined, condition=expression(cursor))
    cursor.expect_symbol("(")
    names = [cursor.identifier("a column of both sides")]
    while cursor.take_symbol(","):
        names.append(cursor.identifier("a column of both sides"))
    cursor.expect_symbol(")", also="','")
    return replace(joined, using=tuple(names), using_span=Span(start, cursor.end_of_last))


def _step(cursor: Cursor) -> Duration:
    """Parses the slide of [HOP …]."""
    if cursor.take_word("SLIDE", "EVERY") is None:
        raise cursor.unexpected("SLIDE, as in [HOP 1 MINUTE SLIDE 10 SECONDS]")
    return duration(cursor, "a length of time such as 10 SECONDS")


def _window(cursor: Cursor) -> WindowClause | None:
    opened = cursor.take_symbol("[")
    if opened is None:
        return None
    if cursor.peek().is_word("ROWS", "PARTITION"):
        return _count_window(cursor, opened.span.start, None)
    length: Duration | None = None
    kind = cursor.take_word("TUMBLE", "HOP", "SESSION")
    if kind is not None:
        length = duration(cursor, "a length of time such as 10 SECONDS")
        step = _step(cursor) if kind.is_word("HOP") else None
        closed = cursor.expect_symbol("]")
        return WindowClause(length, False, step, Span(opened.span.start, closed.span.end), kind.value.lower())
    is_now = cursor.take_word("NOW") is not None
    if not is_now and not cursor.take_word("UNBOUNDED"):
        cursor.expect_word("RANGE", instead=_WINDOW_HELP)
        length = None if cursor.take_word("UNBOUNDED") else duration(cursor, "a length of time such as 10 SECONDS")
        if length is not None and cursor.peek().is_word("ROWS"):
            return _count_window(cursor, opened.span.start, length)
    slide = duration(cursor, "a length of time such as 5 SECONDS") if cursor.take_word("SLIDE") else None
    closed = cursor.expect_symbol("]", also="SLIDE" if slide is None else "")
    return WindowClause(length, is_now, slide, Span(opened.span.start, closed.span.end))


def _count_window(cursor: Cursor, start: int, length: Duration | None) -> WindowClause:
    """Parses the rest of a count window, after its bracket or after its RANGE."""
    partition: list[Identifier] = []
    if cursor.take_word("PARTITION"):
        cursor.expect_word("BY")
        partition.append(cursor.identifier("a column of the stream"))
        while cursor.take_symbol(","):
            partition.append(cursor.identifier("a column of the stream"))
        if cursor.take_word("RANGE"):
            length = duration(cursor, "a length of time such as 10 SECONDS")
    cursor.expect_word("ROWS", instead="ROWS, as in [PARTITION BY k ROWS 10]")
    number = cursor.peek()
    if number.kind is not Kind.NUMBER or not number.value.isdigit():
        raise cursor.unexpected("a number of rows, as in [ROWS 10]")
    rows = Count(int(cursor.take().value[:20]), number.span)
    if length is None and cursor.take_word("RANGE"):
        length = duration(cursor, "a length of time such as 10 SECONDS")
    slide = duration(cursor, "a length of time such as 5 SECONDS") if cursor.take_word("SLIDE") else None
    closed = cursor.expect_symbol("]", also="SLIDE" if slide is None else "")
    return WindowClause(length, False, slide, Span(start, closed.span.end), rows=rows, partition=tuple(partition))


def streams_read(text: str) -> tuple[str, ...]:
    """Parses a query text and returns the names in FROM, including those of subqueries."""
    found: list[str] = []
    waiting = [parse(text)]
    while waiting:
        statement = waiting.pop()
        waiting += statement.branches
        for item in statement.sources:
            if item.subquery is None:
                found.append(item.stream.name)
            else:
                waiting.append(item.subquery)
    return tuple(dict.fromkeys(found))
