"""A dear predicate is checked where fewer combinations are left, if that costs less; a plain one stays."""

from __future__ import annotations

import pytest

from anabranch.cql import compile_query
from anabranch.optimize.choice import choose
from anabranch.optimize.deferring import deferring_variants
from anabranch.optimize.hints import Hints
from anabranch.optimize.problem import Problem, resource_model
from anabranch.optimize.proposals import Candidate, Proposal
from anabranch.plan.check import validate
from anabranch.plan.query import Query
from anabranch.plan.selections import deferred_thetas
from anabranch.plan.text import parse
from anabranch.stats.view import FixedStatistics
from tests.support.scripted import read_script

STREAMS = read_script("\n".join(f"stream {name} (l bigint, r bigint, note string)" for name in "abc")).catalog
PATTERN = "CONCAT(a.note, b.note) RLIKE 'lot [0-9]+'"


def query(predicate: str) -> Query:
    windows = ", ".join(f"{name} [RANGE 10 SECONDS]" for name in "abc")
    text = f"SELECT a.l AS l FROM {windows} WHERE a.r = b.l AND b.r = c.l AND {predicate}"
    return compile_query(text, STREAMS)


def known(compiled: Query, passing: float, bc: float) -> FixedStatistics:
    predicate = str(compiled.graph.thetas[0])
    return FixedStatistics(
        rates=dict.fromkeys("abc", 1000.0), selectivities={"a b": 0.001, "b c": bc, predicate: passing}
    )


def variant(compiled: Query, statistics: FixedStatistics, text: str = "((a b) c)") -> str | None:
    model = resource_model(compiled.graph, statistics)
    plan = parse(text)
    found = deferring_variants([Candidate(plan, model.price(plan), "given")], model, compiled.graph)
    for each in found:
        validate(each.plan, compiled.graph, None)
        assert each.cost.cpu < model.price(plan).cpu
        assert each.origin == "given, deferred"
    return str(found[0].plan) if found else None


def test_a_pattern_waits_for_a_join_that_drops_most_rows() -> None:
    compiled = query(PATTERN)
    assert variant(compiled, known(compiled, 0.9, 1e-6)) == "((a b) c #0)"


@pytest.mark.parametrize(("passing", "bc"), [(0.001, 1e-6), (0.9, 0.01)])
def test_it_is_checked_at_once_if_it_drops_most_itself_or_if_the_join_multiplies(passing: float, bc: float) -> None:
    compiled = query(PATTERN)
    assert variant(compiled, known(compiled, passing, bc)) is None


def test_a_plain_comparison_stays() -> None:
    compiled = query("a.l < b.r")
    assert variant(compiled, known(compiled, 0.9, 1e-6)) is None


def test_a_predicate_that_guards_another_stays() -> None:
    guarded = compile_query(
        f"SELECT a.l AS l FROM {', '.join(f'{name} [RANGE 10 SECONDS]' for name in 'abc')} "
        "WHERE a.r = b.l AND b.r = c.l AND "
        "CONCAT(a.note, b.note) RLIKE '^[0-9]+$' AND CAST(CONCAT(a.note, b.note) AS bigint) > a.l + b.r",
        STREAMS,
    )
    statistics = FixedStatistics(rates=dict.fromkeys("abc", 1000.0), selectivities={"a b": 0.001, "b c": 1e-6})
    found = variant(guarded, statistics)
    assert found is None or "#0" not in found


def test_choosing_considers_it_and_the_hints_still_hold() -> None:
    compiled = query(PATTERN)
    statistics = known(compiled, 0.9, 1e-6)
    answer = choose(Problem(compiled.graph, statistics, hints=Hints.parse(compiled.graph, None, keep=("a b",)))).answer
    assert isinstance(answer, Proposal)
    assert str(answer.plan) == "((a b) c #0)"
    assert deferred_thetas(answer.plan) == {0: frozenset("abc")}
