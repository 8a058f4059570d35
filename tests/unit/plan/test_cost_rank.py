"""The order in which predicates are checked: by rank, behind those that guard them."""

from __future__ import annotations

import pytest

from anabranch.cql import compile_query
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.ddl import parse_schema
from anabranch.lang.expr import Expr, conjuncts
from anabranch.plan.cost_rank import assumed_cost, by_rank, costliest_last, rank


def filter_of(condition: str) -> Expr:
    catalog = Catalog()
    catalog.register(StreamDeclaration("a", parse_schema("ts timestamp, x bigint, y bigint, s string"), "ts"))
    found = compile_query(f"SELECT a.x FROM a [NOW] WHERE {condition}", catalog).graph.relation("a").filter
    assert found is not None
    return found


def texts(condition: Expr) -> list[str]:
    return [str(part) for part in conjuncts(condition)]


def test_a_pattern_comes_after_a_comparison() -> None:
    written = filter_of("a.s LIKE '%x%y%' AND a.x > 3")
    assert texts(costliest_last(written)) == texts(written)[::-1]


def test_the_predicate_that_rejects_most_for_its_cost_is_first() -> None:
    written = filter_of("a.x > 3 AND a.y = 5")
    assert texts(costliest_last(written)) == texts(written)[::-1]
    assert costliest_last(filter_of("a.y = 5 AND a.x > 3")) == filter_of("a.y = 5 AND a.x > 3")


def test_the_opening_example_of_the_paper() -> None:
    """Two selections of selectivity 0.1, one of which passes 50 rows per second and the other any number."""
    slow, fast = rank(1 / 50, 0.1), rank(1e-9, 0.1)
    parts = conjuncts(filter_of("a.x > 3 AND a.y > 5"))
    assert by_rank(parts, [slow, fast]) == [1, 0]


def test_a_predicate_stays_behind_the_one_that_guards_it() -> None:
    written = filter_of("a.s LIKE '1%' AND CAST(a.s AS BIGINT) = 5 AND a.x > 3")
    ordered = texts(costliest_last(written))
    first, second, third = texts(written)
    assert ordered.index(first) < ordered.index(second)
    assert ordered[0] == third


def test_one_that_rejects_nothing_comes_last() -> None:
    parts = conjuncts(filter_of("a.x > 3 AND a.y > 5 AND a.x < 9"))
    assert by_rank(parts, [rank(1e-9, 1.0), rank(1e-3, 0.9), rank(1e-3, 0.5)]) == [2, 1, 0]


@pytest.mark.parametrize(("costly", "cheap"), [("a.s LIKE '%x%'", "a.x = 3"), ("a.s || a.s = 'xx'", "a.s = 'x'")])
def test_functions_make_a_predicate_costly(costly: str, cheap: str) -> None:
    assert assumed_cost(filter_of(costly)) > assumed_cost(filter_of(cheap))
