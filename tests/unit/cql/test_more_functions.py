"""The newer words of the language: windows of other systems, DISTINCT, fields, patterns, JSON; and what is refused."""

# ruff: noqa: E501

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from anabranch.cql import compile_query
from anabranch.errors import BindError, CqlError, ParseError, Unsupported
from anabranch.functions.json_path import json_steps
from anabranch.functions.patterns import regex
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.schema import TIMESTAMP, Schema
from anabranch.lang.window import Hop, Tumble
from anabranch.plan.physical import Leaf, mjoin
from anabranch.run.local import LocalHost

SECOND = 1_000_000
COLUMNS = pa.schema(
    [
        ("ts", TIMESTAMP),
        ("k", pa.int64()),
        ("s", pa.string()),
        ("d", pa.decimal128(9, 2)),
        ("n", pa.struct([("a", pa.int64()), ("in", pa.struct([("b", pa.string())]))])),
        ("l", pa.list_(pa.int64())),
        ("m", pa.map_(pa.string(), pa.int64())),
    ]
)


def catalog() -> Catalog:
    found = Catalog()
    for name in ("s0", "s1"):
        found.register(StreamDeclaration(name, Schema.from_arrow(COLUMNS), "ts"))
    return found


def rows(*values: dict[str, Any]) -> pa.Table:
    """Rows with a time in seconds."""
    filled = [
        {name: value.get(name) for name in COLUMNS.names} | {"ts": round(value["ts"] * SECOND)} for value in values
    ]
    return pa.Table.from_pylist(filled, schema=COLUMNS)


def answer(text: str, *batches: pa.Table) -> list[tuple[Any, ...]]:
    """The results of a query over one stream, or over two with the same rows; times in seconds."""
    query = compile_query(text, catalog())
    host = LocalHost(query, mjoin(query.graph.names) if len(query.graph.names) > 1 else Leaf(query.graph.names[0]))
    steps = [host.step(dict.fromkeys(query.graph.streams, batch)).to_pylist() for batch in batches]
    found = [tuple(v.timestamp() if hasattr(v, "timestamp") else v for v in row.values()) for s in steps for row in s]
    return sorted(found, key=str)


def test_a_tumbling_window_holds_each_row_once_and_not_its_end() -> None:
    #  0   9.999999 | 10   12 | 20        the row at 10 is in the second window alone
    batch = rows(*({"ts": ts, "k": 1} for ts in (0, 9.999999, 10, 12, 20, 35)))
    expected = [(0.0, 10.0, 2), (10.0, 20.0, 2), (20.0, 30.0, 1)]
    select = "SELECT WINDOW_START() AS a, WINDOW_END() AS b, COUNT(*) AS n FROM s0"
    assert answer(f"{select} [TUMBLE 10 SECONDS] AS a", batch) == expected
    assert answer(f"{select} [HOP 10 SECONDS SLIDE 10 SECONDS] AS a", batch) == expected
    spark = "SELECT window.start AS a, window.end AS b, COUNT(*) AS n FROM s0 GROUP BY window(ts, '10 seconds')"
    assert answer(spark, batch) == expected


def test_a_hopping_window_holds_a_row_as_often_as_it_overlaps() -> None:
    batch = rows({"ts": 7, "k": 1}, {"ts": 10, "k": 2}, {"ts": 30, "k": 3})
    text = (
        "SELECT window.end AS e, COUNT(*) AS n, SUM(k) AS k FROM s0 GROUP BY window(s0.ts, '10 seconds', '5 seconds')"
    )
    assert answer(text, batch) == [(10.0, 1, 1), (15.0, 2, 3), (20.0, 1, 2)]


def test_a_join_in_a_tumbling_window_stays_inside_it() -> None:
    text = "SELECT a.k AS x, b.k AS y FROM s0 [TUMBLE 10 SECONDS] AS a, s1 [TUMBLE 10 SECONDS] AS b WHERE a.k < b.k"
    batch = rows({"ts": 8, "k": 1}, {"ts": 9.5, "k": 2}, {"ts": 10, "k": 3}, {"ts": 19, "k": 4})
    assert answer(text, batch) == [(1, 2), (3, 4)]


def test_windows_have_their_texts() -> None:
    text = "SELECT COUNT(*) AS n FROM s0 [HOP 1 MINUTE EVERY 10 SECONDS] AS a"
    (relation,) = compile_query(text, catalog()).graph.relations
    assert relation.window == Hop(60 * SECOND - 1, 10 * SECOND)
    assert str(relation.window) == "[HOP 1 MINUTE SLIDE 10 SECONDS]"
    assert str(Tumble(10 * SECOND - 1, 10 * SECOND)) == "[TUMBLE 10 SECONDS]"


def test_distinct_rows_come_once_a_window() -> None:
    batch = rows({"ts": 1, "k": 1}, {"ts": 2, "k": 1}, {"ts": 3, "k": 2}, {"ts": 11, "k": 1}, {"ts": 25, "k": 9})
    assert answer("SELECT DISTINCT k FROM s0 [TUMBLE 10 SECONDS]", batch) == [(1,), (1,), (2,)]
    text = "SELECT DISTINCT k % 2 AS odd, WINDOW_END() AS at FROM s0 [RANGE 10 SECONDS SLIDE 10 SECONDS] WHERE k < 9"
    with pytest.raises(BindError, match=r"WINDOW_END\(\) is not allowed inside GROUP BY"):
        answer(text, batch)


def test_fields_and_elements_are_read() -> None:
    nested = {"a": 5, "in": {"b": "x"}}
    batch = rows({"ts": 1, "n": nested, "l": [1, None, 3], "m": [("a", 7)]}, {"ts": 2, "l": [], "m": []})
    text = (
        "SELECT a.n.a AS v, n.in.b, n.a + 1 AS w, l[2] AS e, a.l[5] AS none, GET(l, 0) AS g, m['a'] AS m, SIZE(l) AS z "
        "FROM s0 AS a WHERE n.a IS NULL OR a.n.in.b = 'x'"
    )
    first, second = (5, "x", 6, 3, None, 1, 7, 3), (None, None, None, None, None, None, None, 0)
    assert answer(text, batch) == sorted([first, second], key=str)
    grouped = "SELECT n.in.b, MAX(l[0]) AS m FROM s0 [TUMBLE 10 SECONDS] AS a GROUP BY n.in.b"
    assert answer(grouped, batch, rows({"ts": 20})) == [("x", 1), (None, None)]


def test_json_is_read_by_a_path() -> None:
    texts = [
        '{"a": {"b": [1, 2.50, "x"]}, "a": 3}',
        '{"a": null}',
        "no json",
        '[{"a b": true}]',
        '{"a":{"b":[]}}',
        None,
    ]
    batch = rows(*({"ts": i, "s": text} for i, text in enumerate(texts)))
    paths = "$.a.b[1]", "$.a.b[2]", "$.a.b", "$[0]['a b']"
    selected = ", ".join(
        f"GET_JSON_OBJECT(s, '{path.replace(chr(39), chr(39) * 2)}') AS c{i}" for i, path in enumerate(paths)
    )
    found = answer(f"SELECT k, {selected} FROM s0", batch)
    assert (None, "2.50", "x", '[1,2.50,"x"]', None) in found
    assert (None, None, None, None, "true") in found
    assert (None, None, None, "[]", None) in found
    assert found.count((None,) * 5) == 3
    assert json_steps("$.a[0]") == ("a", 0)


def test_decimals_divide_as_in_spark() -> None:
    batch = rows({"ts": 1, "d": Decimal("1.10"), "k": 3}, {"ts": 2, "d": Decimal("0.00")}, {"ts": 20})
    assert answer("SELECT d / 3 AS q, d % 0.4 AS r, 1 / d AS i FROM s0 WHERE k = 3", batch) == [
        (Decimal("0.366667"), Decimal("0.30"), Decimal("0.9090909091"))
    ]
    assert answer("SELECT AVG(d) AS a FROM s0 [TUMBLE 10 SECONDS] AS x", batch) == [(Decimal("0.550000"),)]


@pytest.mark.parametrize(
    "pattern", ["(?i)a", "a(?=b)", "\\pL", "[[:alpha:]]", "[a&&b]", "a++", "(a)\\1", "[", "\\", "a{2000}"]
)
def test_patterns_that_engines_read_differently_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        regex(pattern)


@pytest.mark.parametrize(
    ("text", "error", "message", "place"),
    [
        ("SELECT DATE_TRUNC('age', ts) FROM s0", BindError, "DATE_TRUNC does not know the unit 'age'", "DATE_TRUNC('age', ts)"),
        ("SELECT EXTRACT(AGE FROM ts) FROM s0", ParseError, "EXTRACT does not know the part 'AGE'", "AGE"),
        ("SELECT s.a FROM s0", BindError, "a value of type string has no field 'a'", "s.a"),
        ("SELECT n.z FROM s0", BindError, "struct<a:bigint,in:struct<b:string>> has no field 'z'", "n.z"),
        ("SELECT k[0] FROM s0", BindError, "a value of type bigint has no elements", "k[0]"),
        ("SELECT l['a'] FROM s0", BindError, "the position in an array is a whole number, found string", "l['a']"),
        ("SELECT m[1] FROM s0", BindError, "a value of map<string,bigint> is found by a string literal", "m[1]"),
        ("SELECT s RLIKE '(?i)a' FROM s0", BindError, "the pattern '(?i)a' has '(?i'", "s RLIKE '(?i)a'"),
        ("SELECT REGEXP_EXTRACT(s, 'a', 1) FROM s0", BindError, "the pattern 'a' has 0 groups", "REGEXP_EXTRACT(s, 'a', 1)"),
        ("SELECT REGEXP_REPLACE(s, 'a*', 'b') FROM s0", BindError, "the pattern 'a*' of REGEXP_REPLACE may match nothing", "REGEXP_REPLACE(s, 'a*', 'b')"),
        ("SELECT REGEXP_REPLACE(s, 'a', '$1') FROM s0", BindError, "the replacement '$1' has '$1'", "REGEXP_REPLACE(s, 'a', '$1')"),
        ("SELECT GET_JSON_OBJECT(s, 'a') FROM s0", BindError, "'a' is not a path into JSON", "GET_JSON_OBJECT(s, 'a')"),
        ("SELECT SUM(DISTINCT k) FROM s0", Unsupported, "DISTINCT inside SUM is not supported", "DISTINCT"),
        ("SELECT APPROX_PERCENTILE(k, 0.5) FROM s0", Unsupported, "APPROX_PERCENTILE is not supported", "APPROX_PERCENTILE(k, 0.5)"),
        ("SELECT PERCENTILE(k, 2) FROM s0 [TUMBLE 1 SECOND]", BindError, "the share of PERCENTILE is a number from 0 to 1", "PERCENTILE(k, 2)"),
        ("SELECT COLLECT_LIST(k) FROM s0 [TUMBLE 1 SECOND]", BindError, "'COLLECT_LIST' takes two arguments, found 1", "COLLECT_LIST(k)"),
        ("SELECT COLLECT_LIST(k, 0) FROM s0 [TUMBLE 1 SECOND]", BindError, "the limit of COLLECT_LIST", "COLLECT_LIST(k, 0)"),
        ("SELECT MIN_BY(k, k > 1) FROM s0 [TUMBLE 1 SECOND]", BindError, "'MIN_BY' cannot compare values of type boolean", "MIN_BY(k, k > 1)"),
        ("SELECT FIRST(a.k + b.k) FROM s0 [TUMBLE 1 SECOND] AS a, s1 [TUMBLE 1 SECOND] AS b", BindError, "'FIRST' goes by the event time of one stream", "FIRST(a.k + b.k)"),
        ("SELECT DISTINCT k FROM s0", BindError, "SELECT DISTINCT needs windows that end", "DISTINCT"),
        ("SELECT DISTINCT * FROM s0 [TUMBLE 1 SECOND]", BindError, "DISTINCT does not take *", "*"),
        ("SELECT DISTINCT COUNT(*) FROM s0 [TUMBLE 1 SECOND]", BindError, "DISTINCT is not allowed in a grouped query", "DISTINCT"),
        ("SELECT k FROM s0 [HOP 1 MINUTE SLIDE 1 SECOND]", BindError, "HOP is not allowed in a query without aggregates", "1 SECOND"),
        ("SELECT COUNT(*) FROM s0 [TUMBLE 1 SECOND] AS a, s1 [RANGE 1 SECOND] AS b", BindError, "windows with and without their end", "[RANGE 1 SECOND]"),
        ("SELECT COUNT(*) FROM s0 [TUMBLE 0 SECONDS] AS a", BindError, "TUMBLE must be more than zero", "0 SECONDS"),
        ("SELECT COUNT(*) FROM s0 [HOP 1 MINUTE]", ParseError, "expected SLIDE", "]"),
        ("SELECT COUNT(*) FROM s0 GROUP BY window(k, '1 minute')", BindError, "'k' is not the event time of 's0'", "k"),
        ("SELECT COUNT(*) FROM s0 GROUP BY window(ts, 5)", BindError, "a length of time is a text here", "5"),
        ("SELECT COUNT(*) FROM s0 GROUP BY window(ts)", BindError, "WINDOW takes the event time of a stream", "window(ts)"),
        ("SELECT COUNT(*) FROM s0 [TUMBLE 1 SECOND] GROUP BY window(ts, '1 minute')", BindError, "'s0' has a window of its own already", "[TUMBLE 1 SECOND]"),
        ("SELECT COUNT(*) FROM s0 AS a, s1 AS b GROUP BY window(ts, '1 minute')", BindError, "column 'ts' is ambiguous", "ts"),
        ("SELECT WINDOW_START() AS w, COUNT(*) FROM s0 [RANGE 1 SECOND SLIDE 1 SECOND] AS a, s1 [RANGE 2 SECONDS] AS b", BindError, "WINDOW_START() is not known", "WINDOW_START()"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_with_its_place(
    text: str, error: type[CqlError], message: str, place: str
) -> None:
    with pytest.raises(error) as caught:
        compile_query(text, catalog())
    assert caught.value.message.startswith(message)
    assert text[caught.value.span.start : caught.value.span.end] == place
