"""The parser: precedence, positions, constants, and no crash on any text."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.cql import parse
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
    SelectItem,
    Statement,
)
from anabranch.errors import CqlError, ParseError

WORDS = """
    SELECT FROM WHERE GROUP BY HAVING AS JOIN ON AND OR NOT IN IS NULL BETWEEN LIKE CASE WHEN THEN ELSE END CAST a b s
    LEFT RIGHT FULL OUTER SEMI ANTI EXISTS
    COUNT RANGE SLIDE NOW UNBOUNDED ROWS SECONDS INTERVAL DATE TIMESTAMP ISTREAM ( ) [ ] , . * + - / % = <> <= || ;
    1 2.5 .5e3 'x' '5' "q" `b` -- /* */ ' " # é
"""


def selected(text: str) -> Expression:
    item = parse(f"SELECT {text} FROM s").items[0]
    assert isinstance(item, SelectItem)
    return item.expression


def shape(node: Expression) -> str:
    match node:
        case Operation():
            return f"{node.function}({', '.join(shape(argument) for argument in node.arguments)})"
        case FunctionCall():
            inside = "*" if node.star else ", ".join(shape(argument) for argument in node.arguments)
            return f"{node.name.name}({inside})"
        case CastTo():
            return f"cast({shape(node.argument)}, {node.type.name}{list(node.parameters)})"
        case ColumnName():
            return str(node)
        case Constant():
            return repr(node.value)
        case Exists(query=query):
            return f"exists({query.sources[0].stream.name})"
        case InQuery(value=value, query=query):
            return f"in_query({shape(value)}, {query.sources[0].stream.name})"
        case RowNumber():
            return node.text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a + b * c", "add(a, multiply(b, c))"),
        ("(a + b) * c", "multiply(add(a, b), c)"),
        ("a - b - c", "subtract(subtract(a, b), c)"),
        ("-a * 2", "multiply(negate(a), 2)"),
        ("+a", "a"),
        ("a OR b AND NOT c = d", "or(a, and(b, not(equal(c, d))))"),
        ("NOT EXISTS (SELECT 1 FROM t WHERE a = b) AND c", "and(not(exists(t)), c)"),
        ("a + 1 NOT IN (SELECT b FROM t)", "not(in_query(add(a, 1), t))"),
        ("a AND b AND c", "and(a, b, c)"),
        ("a BETWEEN 1 AND 2 AND b", "and(and(greater_equal(a, 1), less_equal(a, 2)), b)"),
        ("a NOT BETWEEN 1 AND 2", "not(and(greater_equal(a, 1), less_equal(a, 2)))"),
        ("a NOT IN (1, 'x')", "not(in(a, 1, 'x'))"),
        ("a IS NOT NULL", "is_not_null(a)"),
        ("a LIKE 'x%'", "like(a, 'x%')"),
        ("a != b", "not_equal(a, b)"),
        ("a || b || c", "concat(concat(a, b), c)"),
        ("CASE WHEN a THEN 1 END", "case(a, 1, None)"),
        ("CASE a WHEN 1 THEN 'x' ELSE 'y' END", "case(equal(a, 1), 'x', 'y')"),
        ("CAST(a AS DECIMAL(10, 2))", "cast(a, DECIMAL[10, 2])"),
        ("COUNT(*)", "COUNT(*)"),
        ("r.date", "r.date"),
        ("'it''s'", repr("it's")),
        ("1e3", "1000.0"),
        ("TRUE", "True"),
        ('"a ""b"""', 'a "b"'),
    ],
)
def test_expressions(text: str, expected: str) -> None:
    assert shape(selected(text)) == expected


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("INTERVAL '5' SECOND", 5),
        ("INTERVAL 5 SECONDS", 5),
        ("INTERVAL 1 MINUTE 30 SECONDS", 90),
        ("INTERVAL '1 hour 1 second'", 3601),
        ("INTERVAL 0.5 SECONDS", 0.5),
    ],
)
def test_intervals(text: str, seconds: float) -> None:
    node = selected(text)
    assert isinstance(node, Constant)
    assert node.value == datetime.timedelta(seconds=seconds)


def test_a_timestamp_without_a_zone_is_utc() -> None:
    node = selected("TIMESTAMP '2026-01-31 12:00:00'")
    assert isinstance(node, Constant)
    assert node.value == datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)


@pytest.mark.parametrize("text", ["date", "timestamp", "interval", "range", "second"])
def test_soft_keywords_are_names(text: str) -> None:
    assert shape(selected(text)) == text


@pytest.mark.parametrize(
    ("window", "length", "slide", "is_now"),
    [
        ("[RANGE 10 SECONDS]", 10_000_000, None, False),
        ("[range 1 minute 30 seconds slide 5 milliseconds]", 90_000_000, 5_000, False),
        ("[NOW]", None, None, True),
        ("[UNBOUNDED]", None, None, False),
        ("[RANGE UNBOUNDED SLIDE 1 DAY]", None, 86_400_000_000, False),
    ],
)
def test_windows(window: str, length: int | None, slide: int | None, is_now: bool) -> None:
    for text in (f"SELECT a FROM s {window} AS r", f"SELECT a FROM s AS r {window}"):
        source = parse(text).sources[0]
        assert source.window is not None
        assert (source.window.range.micros if source.window.range else None) == length
        assert (source.window.slide.micros if source.window.slide else None) == slide
        assert source.window.is_now == is_now
        assert source.alias is not None


def test_spans_point_into_the_text() -> None:
    text = "SELECT a.x +\n  b.y AS z FROM s AS a"
    item = parse(text).items[0]
    assert isinstance(item, SelectItem)
    assert item.alias is not None
    assert text[item.expression.span.start : item.expression.span.end] == "a.x +\n  b.y"
    assert text[item.alias.span.start : item.alias.span.end] == "z"


def test_an_error_names_line_and_column() -> None:
    with pytest.raises(ParseError) as caught:
        parse("SELECT a\nFROM s\nWHERE a >")
    assert caught.value.position == (3, 10)
    assert "the end of the query" in str(caught.value)


@given(st.lists(st.sampled_from(WORDS.split()), max_size=25).map(" ".join))
def test_any_text_parses_or_is_refused_at_a_place_inside_it(text: str) -> None:
    _parse_or_refuse(text)


@given(st.text(max_size=30))
def test_any_characters_parse_or_are_refused(text: str) -> None:
    _parse_or_refuse("SELECT a FROM s WHERE " + text)


def _parse_or_refuse(text: str) -> None:
    refusal: CqlError | None = None
    try:
        assert isinstance(parse(text), Statement)
    except CqlError as error:
        refusal = error
    if refusal is not None:
        assert 0 <= refusal.span.start <= refusal.span.end <= len(text)
        assert str(refusal).startswith(refusal.message)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("(" * 60 + "a" + ")" * 60, 40),
        ("- " * 60 + "a", 80),
        ("NOT " * 60 + "a", 160),
        ("CASE WHEN a THEN " * 60 + "1" + " END" * 60, 17 * 39 + 10),
        (" + ".join("a" * 200), 0),
        ("9" * 5000, 0),
        ("CAST(a AS DECIMAL(" + "9" * 5000 + "))", 18),
        ("1\u0663", 1),
    ],
)
def test_what_python_would_choke_on_is_refused_with_its_place(text: str, at: int) -> None:
    with pytest.raises(ParseError) as caught:
        selected(text)
    assert caught.value.span.start == len("SELECT ") + at


def test_the_deepest_allowed_nesting_is_accepted() -> None:
    for text in ("(" * 39 + "a" + ")" * 39, " + ".join("a" * 120), "NOT " * 39 + "a"):
        selected(text)
