"""Plans that merge rows before they join are considered where enough is known, and chosen where they pay."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from anabranch.cql import compile_query
from anabranch.optimize import Choice, Hints, Proposal, choose
from anabranch.optimize.explain import explanation
from anabranch.optimize.problem import Problem
from anabranch.plan.query import Query
from anabranch.stats.view import FixedStatistics
from tests.support.scripted import read_script

CATALOG = read_script(
    "\n".join(f"stream {name} (k bigint, m bigint, v bigint, label string)" for name in "abc")
).catalog
WINDOW = "[RANGE 20 SECONDS SLIDE 5 SECONDS]"


def grouped(keys: str = "b.k", conditions: str = "a.k = b.k", relations: str = "ab") -> Query:
    tables = ", ".join(f"{name} {WINDOW}" for name in relations)
    return compile_query(
        f"SELECT {keys} AS g, SUM(a.v) AS total, COUNT(*) AS n FROM {tables} WHERE {conditions} GROUP BY {keys}",
        CATALOG,
    )


def chosen(
    query: Query,
    hints: Hints | None = None,
    selectivities: Mapping[str, float] | None = None,
    groups: Mapping[str, float] | None = None,
) -> Choice:
    rates = dict.fromkeys(query.graph.names, 1000.0)
    seen = FixedStatistics(rates, {}, selectivities or {}, groups=groups or {})
    return choose(Problem(query.graph, seen, hints=hints or Hints(), batch=1.0, grouping=query.grouping))


def plan(choice: Choice) -> str:
    assert isinstance(choice.answer, Proposal)
    return str(choice.answer.plan)


def test_many_rows_of_a_key_are_merged_and_keys_that_never_repeat_are_not() -> None:
    query = grouped()
    crowded = chosen(query, selectivities={"a b": 1 / 50})
    assert plan(crowded) == "([a] [b])"
    # 1,000 rows a second for 20 s: every row meets one of 20,000, as orders meet their payments.
    assert plan(chosen(query, selectivities={"a b": 1 / 20_000})) == "(a b)"
    assert "([a] [b])" in explanation(crowded)
    assert "(a b)" in {str(each.plan) for each in crowded.answer.considered}


def test_inputs_with_unknown_groups_are_not_merged() -> None:
    assert plan(chosen(grouped())) == "(a b)"
    # A few groups, of which a row of the other side meets hardly any: there is nothing to save.
    assert plan(chosen(grouped(), groups={"a": 50.0})) == "(a b)"
    assert plan(chosen(grouped(), selectivities={"a b": 1 / 50}, groups={"b": 1e12})) == "([a] b)"


def test_rows_that_must_agree_in_more_than_keys_are_merged_only_if_their_groups_are_known() -> None:
    query = grouped("b.label")
    assert plan(chosen(query, selectivities={"a b": 1 / 50})) == "([a] b)"
    assert plan(chosen(query, selectivities={"a b": 1 / 50}, groups={"b": 200.0})) == "([a] [b])"
    assert plan(chosen(query, selectivities={"a b": 1 / 50}, groups={"b": 1e12})) == "([a] b)"


def test_a_hint_keeps_rows_apart() -> None:
    query = grouped()
    hints = Hints.parse(query.graph, query.grouping, forbid=["merging"])
    assert plan(chosen(query, hints, selectivities={"a b": 1 / 50})) == "(a b)"
    assert not any("[" in str(each.plan) for each in chosen(query, hints).answer.considered)


def test_joins_of_three_merge_what_pays() -> None:
    query = grouped("c.k", "a.k = b.k AND b.m = c.m", "abc")
    found = plan(chosen(query, selectivities={"a b": 1 / 20, "b c": 1 / 20}))
    assert found == "([([a] [b])] c)"
    apart = plan(chosen(query, selectivities={"a b": 1 / 20_000, "b c": 1 / 20_000}))
    assert "[" not in apart


@pytest.mark.parametrize("slide", [1, 5, 20])
def test_unique_keys_stay_apart_whatever_the_slide(slide: int) -> None:
    query = compile_query(
        f"SELECT COUNT(*) AS n FROM a [RANGE 20 SECONDS SLIDE {slide} SECONDS], "
        f"b [RANGE 20 SECONDS SLIDE {slide} SECONDS] WHERE a.k = b.k",
        CATALOG,
    )
    assert plan(chosen(query, selectivities={"a b": 1 / 20_000})) == "(a b)"
