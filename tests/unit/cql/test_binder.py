"""The binder: types, coercions, names, windows and groups."""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch import cql
from anabranch.errors import AnabranchError, BindError, UnboundedJoin
from anabranch.functions import is_nullable
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.expr import GROUPED, Call, Cast, Column, Expr, Literal, walk
from anabranch.lang.schema import TIMESTAMP, Field, Schema, type_name
from anabranch.lang.window import Window
from anabranch.plan.logical import Aggregate, Filter, Project, Source

TYPES = {
    "ts": TIMESTAMP,
    "i": pa.int64(),
    "j": pa.int64(),
    "n": pa.int32(),
    "f": pa.float64(),
    "g": pa.float32(),
    "d": pa.decimal128(10, 2),
    "s": pa.string(),
    "b": pa.bool_(),
    "day": pa.date32(),
    "tags": pa.list_(pa.string()),
}


def catalog() -> Catalog:
    known = Catalog()
    schema = Schema(tuple(Field(name, kind, nullable=name != "ts") for name, kind in TYPES.items()))
    for name in ("s0", "s1"):
        known.register(StreamDeclaration(name, schema, "TS", disorder=7))
    return known


def bound(expression: str) -> Expr:
    plan = cql.bind(f"SELECT {expression} AS result FROM s0 AS r", catalog())
    assert isinstance(plan, Project)
    return plan.outputs[0].expression


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ("i + n", "bigint"),
        ("n + n", "bigint"),
        ("i + f", "double"),
        ("g * g", "double"),
        ("i + 1.5", "double"),
        ("i / 2", "double"),
        ("i % 2", "bigint"),
        ("d + d", "decimal(11,2)"),
        ("d + 1.5", "decimal(11,2)"),
        ("d * 0.25", "decimal(13,4)"),
        ("d + n", "decimal(13,2)"),
        ("d + f", "double"),
        ("ts - ts", "interval"),
        ("ts + INTERVAL 1 DAY", "timestamp"),
        ("INTERVAL 1 DAY + ts", "timestamp"),
        ("INTERVAL 1 DAY * 2", "interval"),
        ("ts - day", "interval"),
        ("-n", "bigint"),
        ("ABS(d)", "decimal(10,2)"),
        ("CEILING(i)", "double"),
        ("ROUND(d, 1)", "double"),
        ("POW(i, 2)", "double"),
        ("SUBSTR(s, 2)", "string"),
        ("CHAR_LENGTH(s)", "bigint"),
        ("s || 'x'", "string"),
        ("YEAR(day) + HOUR(ts)", "bigint"),
        ("DATE(ts)", "date"),
        ("GREATEST(i, n, 2)", "bigint"),
        ("COALESCE(NULL, n, 1)", "bigint"),
        ("COALESCE(d, 0.125)", "decimal(11,3)"),
        ("CASE WHEN b THEN n ELSE f END", "double"),
        ("IF(b, NULL, s)", "string"),
        ("NULLIF(n, 0)", "bigint"),
        ("MOD(i, 2)", "bigint"),
        ("CAST(s AS NUMERIC(5, 1))", "decimal(5,1)"),
        ("CAST(ts AS BIGINT)", "bigint"),
        ("n", "int"),
        ("tags", "array<string>"),
        ("tags IS NULL", "boolean"),
        ("day = ts", "boolean"),
        ("i IN (1, NULL)", "boolean"),
        ("NULL = NULL", "boolean"),
    ],
)
def test_types(expression: str, kind: str) -> None:
    assert type_name(bound(expression).type) == kind


@pytest.mark.parametrize(
    "expression",
    ["n = n", "g = g", "s = s", "d = d", "day <= day", "ts > ts", "b = b"],
)
def test_comparing_one_type_needs_no_cast(expression: str) -> None:
    assert not any(isinstance(node, Cast) for node in walk(bound(expression)))


@pytest.mark.parametrize("expression", ["n < i", "n = 5", "d = i", "d < f", "day < ts", "g = f", "i IN (1, 2.5)"])
def test_comparisons_meet_in_one_type(expression: str) -> None:
    call = bound(expression)
    assert isinstance(call, Call)
    assert len({argument.type for argument in call.arguments}) == 1


def test_a_literal_beside_a_decimal_is_exact() -> None:
    call = bound("d = 0.1")
    assert isinstance(call, Call)
    literal = call.arguments[1]
    assert isinstance(literal, Literal)
    assert str(literal.value) == "0.10"


def test_in_over_expressions_is_a_disjunction() -> None:
    call = bound("i IN (j, 5)")
    assert isinstance(call, Call)
    assert call.function == "or"


@pytest.mark.parametrize(
    "expression",
    [
        "s + 1",
        "s = 1",
        "b + b",
        "day + INTERVAL 1 DAY",
        "NOT i",
        "i AND b",
        "s LIKE s",
        "REPLACE(s, s, 'x')",
        "LENGTH(i)",
        "HOUR(day)",
        "tags = tags",
        "COALESCE(tags, tags)",
        "UPPER(tags)",
        "CAST(i AS DATE)",
        "CAST(tags AS STRING)",
        "CAST(s AS DECIMAL(50, 2))",
        "CASE WHEN i THEN 1 ELSE 2 END",
        "CASE WHEN b THEN 1 ELSE 'x' END",
        "COALESCE(NULL, NULL)",
        "INTERVAL 1 DAY / 2",
        "POWER(2)",
        "s IN (1)",
        r"s LIKE 'a\b'",
        r"s LIKE 'a\\\'",
        "ROUND(f, 23)",
        "ROUND(f, -23)",
    ],
)
def test_wrong_types_are_refused_with_a_place(expression: str) -> None:
    with pytest.raises(BindError) as caught:
        bound(expression)
    start = len("SELECT ")
    assert start <= caught.value.span.start < start + len(expression)


@given(
    st.recursive(
        st.sampled_from(["i", "j", "3", "-7", "n", "NULL"]),
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from(["+", "-", "*", "%"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
            inner.map(lambda t: f"ABS({t})"),
            st.tuples(inner, inner).map(lambda t: f"CASE WHEN {t[0]} < {t[1]} THEN {t[0]} ELSE 1 END"),
            st.tuples(inner, inner).map(lambda t: f"COALESCE({t[0]}, {t[1]}, 2)"),
        ),
        max_leaves=8,
    )
)
def test_the_text_of_an_expression_means_the_expression(expression: str) -> None:
    try:
        first = bound(f"{expression} > 0 OR b")
    except BindError:
        return
    assert bound(str(first)) == first


WORDS = """
    SELECT FROM WHERE GROUP BY HAVING s0 s1 r i f s tags COUNT ( ) , * + = < [RANGE 5 SECONDS SLIDE ] AS 1 'x' NULL SUM
    WINDOW_END AND
"""


@given(st.lists(st.sampled_from(WORDS.split()), max_size=20).map(" ".join))
def test_any_text_binds_or_is_refused_by_name(text: str) -> None:
    for query in (text, f"SELECT {text} FROM s0 AS r", f"SELECT i FROM s0 AS r WHERE {text}"):
        with suppress(AnabranchError):
            assert cql.compile_query(query, catalog()).outputs


# --- names and windows -----------------------------------------------------------------------------------------------


def test_names_keep_their_declared_spelling() -> None:
    plan = cql.bind("SELECT R.TS, r.Day AS D FROM S0 AS r", catalog())
    assert isinstance(plan, Project)
    assert plan.schema.names == ("ts", "D")
    source = plan.input
    assert isinstance(source, Source)
    assert (source.stream, source.event_time, source.disorder) == ("s0", "ts", 7)


def test_on_reads_only_what_stands_before_it() -> None:
    with pytest.raises(BindError, match="relation 'c' does not exist"):
        cql.bind("SELECT a.i FROM s0 [NOW] a JOIN s1 [NOW] b ON a.i = c.i, s1 [NOW] c", catalog())


def test_a_missing_window_is_unbounded() -> None:
    plan = cql.bind("SELECT i FROM s0", catalog())
    assert isinstance(plan, Project)
    assert isinstance(plan.input, Source)
    assert plan.input.window == Window(None)


def test_consent_allows_an_unbounded_join() -> None:
    text = "SELECT a.i FROM s0 AS a, s1 [NOW] AS b WHERE a.i = b.i"
    with pytest.raises(UnboundedJoin):
        cql.compile_query(text, catalog())
    query = cql.compile_query(text, catalog(), allow_unbounded=True)
    assert not query.graph.relation("a").window.is_bounded


def test_a_grouped_unbounded_stream_needs_consent_too() -> None:
    text = "SELECT COUNT(*) FROM s0 [UNBOUNDED SLIDE 5 SECONDS]"
    with pytest.raises(UnboundedJoin):
        cql.bind(text, catalog())
    assert isinstance(cql.bind(text, catalog(), allow_unbounded=True), Project)


# --- groups ----------------------------------------------------------------------------------------------------------

GROUPED_FROM = "FROM s0 [RANGE 1 MINUTE SLIDE 5 SECONDS] AS r"


def test_above_the_aggregate_only_groups_are_read() -> None:
    plan = cql.bind(f"SELECT n + 1 AS m, SUM(i) + n AS t {GROUPED_FROM} GROUP BY n HAVING n > 2", catalog())
    assert isinstance(plan, Project)
    having = plan.input
    assert isinstance(having, Filter)
    assert isinstance(having.input, Aggregate)
    assert having.input.slide == 5_000_000
    for expression in (having.predicate, *(output.expression for output in plan.outputs)):
        read = [node for node in walk(expression) if isinstance(node, Column)]
        assert read
        assert all(column.relation == GROUPED for column in read)


def test_a_constant_that_is_a_group_key_stays_a_constant() -> None:
    """Lists after IN, patterns and digits are constants for the kernels; they were read from the group as columns."""
    text = f"SELECT 2 AS two, 'x%' AS p, ROUND(AVG(f), 2) AS m {GROUPED_FROM} GROUP BY 1, 2"
    query = cql.compile_query(f"{text} HAVING MIN(s) LIKE 'x%' AND COUNT(*) IN (1, 2)", catalog())
    assert query.grouping is not None
    assert str(query.grouping.having) == "(aggregate1 LIKE 'x%') AND (aggregate2 IN (1, 2))"
    assert [str(output.expression) for output in query.outputs] == ["2", "'x%'", "ROUND(aggregate0, 2)"]


def test_an_aggregate_written_twice_is_computed_once() -> None:
    query = cql.compile_query(f"SELECT COUNT(*) AS a, COUNT(*) + 1 AS b {GROUPED_FROM}", catalog())
    assert query.grouping is not None
    assert len(query.grouping.aggregates) == 1


def test_a_column_is_meant_before_an_alias() -> None:
    query = cql.compile_query(f"SELECT i AS n, MAX(f) AS m {GROUPED_FROM} GROUP BY i", catalog())
    assert query.grouping is not None
    with pytest.raises(BindError, match="neither a group key"):
        cql.bind(f"SELECT i AS n {GROUPED_FROM} GROUP BY n", catalog())


@pytest.mark.parametrize(
    ("aggregate", "kind"),
    [
        ("COUNT(tags)", "bigint"),
        ("SUM(n)", "bigint"),
        ("SUM(g)", "double"),
        ("SUM(d)", "decimal(20,2)"),
        ("MIN(s)", "string"),
        ("MAX(n)", "int"),
        ("AVG(d)", "decimal(14,6)"),
    ],
)
def test_aggregate_types(aggregate: str, kind: str) -> None:
    query = cql.compile_query(f"SELECT {aggregate} AS result {GROUPED_FROM}", catalog())
    assert type_name(query.schema.fields[0].type) == kind


@pytest.mark.parametrize("pattern", [r"a\\", r"\%\_\\", "", "%"])
def test_patterns_with_escapes_are_taken(pattern: str) -> None:
    assert bound(f"s LIKE '{pattern}'").type == pa.bool_()


@pytest.mark.parametrize("function", ["GREATEST", "LEAST", "COALESCE"])
def test_of_one_value_it_is_that_value(function: str) -> None:
    """Spark knows no GREATEST of one value, so the same query ran in process and failed there."""
    assert bound(f"{function}(n)") == bound("n")


def test_a_cast_that_makes_null_is_nullable() -> None:
    assert is_nullable(bound("CAST(COALESCE(f, 0.0) AS DECIMAL(10, 2))"))
    assert not is_nullable(bound("CAST(COALESCE(i, 0) AS DECIMAL(20, 0))"))


@pytest.mark.parametrize("number", ["1e100", "1e308", "1e-308", "1e38"])
def test_a_number_too_long_for_a_decimal_is_a_double_beside_one(number: str) -> None:
    """Numbers of more than 76 digits came out of Python as an InvalidOperation."""
    call = bound(f"d < {number}")
    assert isinstance(call, Call)
    assert {argument.type for argument in call.arguments} == {pa.float64()}


def test_a_round_number_beside_a_decimal_is_exact() -> None:
    call = bound("d < 1e3")
    assert isinstance(call, Call)
    assert call.arguments[1] == Literal(Decimal(1000), pa.decimal128(10, 2))
