"""Filters that compare: covering is sound, unions cover, shares grow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.place.selection import EVERYTHING, MOST_ALTERNATIVES, Selection, from_filter
from anabranch.place.statistics import Statistics, StreamStatistics
from tests.unit.place import builders

STATISTICS = Statistics({"a": StreamStatistics("n0", 10.0, distinct={"x": 10.0, "y": 4.0})})
OPERATORS = ("=", "<", "<=", ">", ">=")

conditions = st.lists(
    st.tuples(st.sampled_from(("x", "y")), st.sampled_from(OPERATORS), st.integers(0, 6)), min_size=0, max_size=3
)


def _selection(condition: list[tuple[str, str, int]]) -> Selection:
    where = " AND ".join(f"a.{column} {operator} {value}" for column, operator, value in condition)
    asked = builders.query("q", f"SELECT a.ts FROM a [RANGE 1 MINUTE]{' WHERE ' + where if where else ''}", "n0")
    return from_filter(asked.query.graph.relations[0].filter)


def _passes(selection: Selection, row: dict[str, int]) -> bool:
    tests = {
        "equal": int.__eq__,
        "less": int.__lt__,
        "less_equal": int.__le__,
        "greater": int.__gt__,
        "greater_equal": int.__ge__,
    }
    return any(
        all(
            tests[atom.operator](row[atom.column or ""], atom.value)  # type: ignore[arg-type]
            for atom in alternative
            if atom.operator in tests
        )
        for alternative in selection.alternatives
    )


ROWS = [{"x": x, "y": y} for x in range(-1, 8) for y in range(-1, 8)]


@given(conditions, conditions)
def test_covering_never_loses_a_row(one: list[tuple[str, str, int]], other: list[tuple[str, str, int]]) -> None:
    weaker, stricter = _selection(one), _selection(other)
    if weaker.covers(stricter):
        assert all(_passes(weaker, row) for row in ROWS if _passes(stricter, row))


@given(conditions, conditions, conditions)
def test_a_union_covers_its_parts_and_keeps_to_them(
    one: list[tuple[str, str, int]], other: list[tuple[str, str, int]], third: list[tuple[str, str, int]]
) -> None:
    first, second = _selection(one), _selection(other)
    both = first.union(second)
    assert both.covers(first)
    assert both.covers(second)
    assert all(_passes(both, row) == (_passes(first, row) or _passes(second, row)) for row in ROWS)
    wider = both.union(_selection(third))
    assert wider.selectivity("a", STATISTICS) >= both.selectivity("a", STATISTICS) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("weaker", "stricter", "covers"),
    [
        ([], [("x", "=", 1)], True),
        ([("x", "<", 5)], [("x", "<", 3)], True),
        ([("x", "<", 3)], [("x", "<", 5)], False),
        ([("x", "<=", 3)], [("x", "=", 3)], True),
        ([("x", "<", 3)], [("x", "=", 3)], False),
        ([("x", ">", 1)], [("x", ">=", 1)], False),
        ([("x", "<", 5)], [("y", "<", 3)], False),
        ([("x", "<", 5)], [("x", "<", 3), ("y", "=", 2)], True),
    ],
)
def test_comparisons_imply_each_other(
    weaker: list[tuple[str, str, int]], stricter: list[tuple[str, str, int]], covers: bool
) -> None:
    assert _selection(weaker).covers(_selection(stricter)) is covers


def test_equalities_on_one_column_exclude_each_other() -> None:
    several = EVERYTHING
    for value in range(4):
        one = _selection([("x", "=", value)])
        several = one if value == 0 else several.union(one)
    assert several.selectivity("a", STATISTICS) == pytest.approx(0.4)
    assert several.fixed_values("x") == 4
    assert several.fixed_values("y") is None


def test_a_filter_with_too_many_alternatives_keeps_what_they_share() -> None:
    several = _selection([("x", "=", 0), ("y", "=", 2)])
    for value in range(1, MOST_ALTERNATIVES + 1):
        several = several.union(_selection([("x", "=", value), ("y", "=", 2)]))
    assert several == _selection([("y", "=", 2)])


def _where(text: str) -> Selection:
    asked = builders.query("q", f"SELECT a.ts FROM a [RANGE 1 MINUTE] WHERE {text}", "n0")
    return from_filter(asked.query.graph.relations[0].filter)


@pytest.mark.parametrize("stricter", ["a.x < 3", "a.x = 3", "3 <= a.x", "a.x > 3 AND a.y = 1"])
def test_a_comparison_implies_that_its_column_is_not_null(stricter: str) -> None:
    """A join requires its keys not to be NULL; a query with a filter on the key can use it as it is."""
    keys = _where("a.x IS NOT NULL")
    assert keys.covers(_where(stricter))
    assert not _where(stricter).covers(keys)
    assert not _where("a.y IS NOT NULL").covers(_where("a.x < 3"))
    assert keys.union(_where(stricter)) == keys
    both = _where("a.x IS NOT NULL AND a.y < 4")
    assert both.covers(_where("a.x < 3 AND a.y < 2"))
    assert not both.covers(_where("a.x < 3"))
