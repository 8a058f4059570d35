"""The parser: recursive descent, one function per rule of the grammar.

    query      := select | ISTREAM '(' select ')'
    select     := SELECT [DISTINCT] item (',' item)* FROM source ((',' | join) source [ON expression])*
                  [WHERE expression] [GROUP BY expression (',' expression)*] [HAVING expression]
    join       := [INNER] JOIN | CROSS JOIN | (LEFT | RIGHT | FULL) [OUTER] JOIN | [LEFT] (SEMI | ANTI) JOIN
    source     := name [window] [[AS] alias] | '(' select ')' [window] [AS] alias
    window     := '[' (RANGE duration | NOW | UNBOUNDED) [SLIDE duration] ']'
                | '[' [PARTITION BY name (',' name)*] [RANGE duration] ROWS number [SLIDE duration] ']'
                | '[' TUMBLE duration ']' | '[' HOP duration SLIDE duration ']'
    duration   := (number unit)+

Valid CQL or SQL that Anabranch does not support raises `Unsupported` with an alternative. Any other unexpected token
raises `ParseError`, which states what was expected. Expressions are in `expressions.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from anabranch.cql.ast import (
    INSTEAD_OF_SESSIONS,
    NO_SESSIONS,
    Count,
    Duration,
    Expression,
    FromItem,
    Identifier,
    JoinKind,
    SelectItem,
    Star,
    Statement,
    WindowClause,
)
from anabranch.cql.cursor import NO_FUNCTIONS, Cursor
from anabranch.cql.expressions import duration, expression
from anabranch.cql.lexer import Kind
from anabranch.errors import Span
from anabranch.lang.expr import OwnFunction

_CLAUSES = {
    "ORDER": ("ORDER BY", "results of a stream have no end to sort; sort where they are read"),
    "LIMIT": ("LIMIT", "stop the query, or filter where the results are read"),
    "UNION": ("UNION", "run one query per branch into the same sink"),
    "INTERSECT": ("INTERSECT", "write it as a join"),
    "EXCEPT": ("EXCEPT", "write it as NOT EXISTS (SELECT …) in WHERE"),
    "QUALIFY": ("QUALIFY", "filter where the results are read"),
}
_OUTER = {"LEFT": JoinKind.LEFT, "RIGHT": JoinKind.RIGHT, "FULL": JoinKind.FULL}
_HALF = {"SEMI": JoinKind.SEMI, "ANTI": JoinKind.ANTI}
_WINDOW_HELP = "RANGE, ROWS, TUMBLE, HOP, NOW or UNBOUNDED, as in [RANGE 10 SECONDS]"


def parse(text: str, functions: Mapping[str, OwnFunction] = NO_FUNCTIONS) -> Statement:
    """Parses a query text; raises ParseError or Unsupported with the position of the problem.

    `functions` are the user-defined functions, by lower-case name.
    """
    cursor = Cursor(text, subquery, functions)
    for operator in ("RSTREAM", "DSTREAM"):
        if cursor.peek().is_word(operator):
            raise cursor.unsupported(
                f"{operator} is not supported", "leave it out: a join query emits each result once, as ISTREAM does"
            )
    wrapper = cursor.take_word("ISTREAM")
    if wrapper is None:
        statement = _select(cursor, None)
    else:
        cursor.expect_symbol("(")
        statement = _select(cursor, wrapper.span)
        cursor.expect_symbol(")")
    cursor.take_symbol(";")
    _refuse_clauses(cursor)
    if cursor.peek().kind is not Kind.END:
        raise cursor.unexpected(_what_may_follow(statement))
    return statement


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
    cursor.take_word("ALL")
    items = [_item(cursor)]
    while cursor.take_symbol(","):
        items.append(_item(cursor))
    cursor.expect_word("FROM", also="','")
    sources = _sources(cursor)
    where = expression(cursor) if cursor.take_word("WHERE") else None
    group_by: list[Expression] = []
    if cursor.take_word("GROUP"):
        cursor.expect_word("BY")
        group_by.append(expression(cursor))
        while cursor.take_symbol(","):
            group_by.append(expression(cursor))
    having = expression(cursor) if cursor.take_word("HAVING") else None
    _refuse_clauses(cursor)
    return Statement(
        cursor.text,
        tuple(items),
        tuple(sources),
        where,
        tuple(group_by),
        having,
        istream,
        None if distinct is None else distinct.span,
    )


def _refuse_clauses(cursor: Cursor) -> None:
    for word, (clause, remedy) in _CLAUSES.items():
        if cursor.peek().is_word(word):
            raise cursor.unsupported(f"{clause} is not supported", remedy)


def _item(cursor: Cursor) -> SelectItem | Star:
    star = cursor.take_symbol("*")
    if star is not None:
        return Star(None, star.span)
    if cursor.peek(1).is_symbol(".") and cursor.peek(2).is_symbol("*"):
        relation = cursor.identifier("a relation name")
        cursor.expect_symbol(".")
        end = cursor.expect_symbol("*")
        return Star(relation, Span(relation.span.start, end.span.end))
    value = expression(cursor)
    return SelectItem(value, _alias(cursor))


def _alias(cursor: Cursor) -> Identifier | None:
    if cursor.take_word("AS"):
        return cursor.identifier("an alias after AS")
    return cursor.identifier("an alias") if cursor.at_name() else None


def _sources(cursor: Cursor) -> list[FromItem]:
    sources = [_source(cursor)]
    while True:
        start = cursor.peek().span.start
        if cursor.take_symbol(","):
            sources.append(_source(cursor))
        elif cursor.take_word("CROSS"):
            cursor.expect_word("JOIN")
            crossed = _source(cursor)
            sources.append(replace(crossed, kind=JoinKind.INNER, join=Span(start, crossed.span.end)))
        elif (kind := _join_kind(cursor)) is not None:
            words = Span(start, cursor.end_of_last)
            joined = _source(cursor)
            sources.append(replace(joined, kind=kind, join=words, condition=_on(cursor)))
        else:
            return sources


def _join_kind(cursor: Cursor) -> JoinKind | None:
    """Takes the join keywords before the next source; returns None if there are none."""
    word = cursor.peek().value.upper() if cursor.peek().kind is Kind.WORD else ""
    if word in ("NATURAL", "LATERAL"):
        raise cursor.unsupported(f"{word} joins are not supported", "write JOIN … ON with the columns to compare")
    if word not in ("JOIN", "INNER", *_OUTER, *_HALF):
        return None
    kind = _HALF.get(word) or _OUTER.get(word, JoinKind.INNER)
    if word != "JOIN":
        cursor.take()
    if word == "LEFT" and cursor.peek().is_word(*_HALF):
        kind = _HALF[cursor.take().value.upper()]
    elif word in _OUTER:
        cursor.take_word("OUTER")
    cursor.expect_word("JOIN")
    return kind


def _source(cursor: Cursor) -> FromItem:
    if cursor.peek().is_symbol("("):
        return _subquery(cursor)
    stream = cursor.identifier("the name of a stream")
    window = _window(cursor)
    alias = _alias(cursor)
    window = window or _window(cursor)
    last = (alias or stream).span.end
    return FromItem(stream, window, alias, None, Span(stream.span.start, max(last, window.span.end if window else 0)))


def _subquery(cursor: Cursor) -> FromItem:
    opened = cursor.expect_symbol("(")
    if not cursor.peek().is_word("SELECT"):
        raise cursor.unexpected("SELECT, the begin of a subquery")
    with cursor.nested():
        inner = _select(cursor, None)
    closed = cursor.expect_symbol(")")
    inner = replace(inner, span=Span(opened.span.end, closed.span.start))
    window = _window(cursor)
    cursor.take_word("AS")
    alias = cursor.identifier("an alias for the subquery, as in (SELECT …) AS x")
    window = window or _window(cursor)
    end = max(alias.span.end, window.span.end if window else 0)
    return FromItem(alias, window, alias, None, Span(opened.span.start, end), subquery=inner)


def _on(cursor: Cursor) -> Expression:
    if cursor.peek().is_word("USING"):
        raise cursor.unsupported("USING is not supported", "write ON left.column = right.column")
    cursor.expect_word("ON")
    return expression(cursor)


def _step(cursor: Cursor) -> Duration:
    """Parses the slide of [HOP …]."""
    if cursor.take_word("SLIDE", "EVERY") is None:
        raise cursor.unexpected("SLIDE, as in [HOP 1 MINUTE SLIDE 10 SECONDS]")
    return duration(cursor, "a length of time such as 10 SECONDS")


def _window(cursor: Cursor) -> WindowClause | None:
    opened = cursor.take_symbol("[")
    if opened is None:
        return None
    if cursor.peek().is_word("SESSION"):
        raise cursor.unsupported(NO_SESSIONS, INSTEAD_OF_SESSIONS)
    if cursor.peek().is_word("ROWS", "PARTITION"):
        return _count_window(cursor, opened.span.start, None)
    length: Duration | None = None
    kind = cursor.take_word("TUMBLE", "HOP")
    if kind is not None:
        length = duration(cursor, "a length of time such as 10 SECONDS")
        step = None if kind.is_word("TUMBLE") else _step(cursor)
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
        for item in waiting.pop().sources:
            if item.subquery is None:
                found.append(item.stream.name)
            else:
                waiting.append(item.subquery)
    return tuple(dict.fromkeys(found))
