"""What a plan was chosen by stands for what is measured of it only where it says something of all of it."""

from __future__ import annotations

import pytest

from anabranch.adapt.basis import Basis
from anabranch.adapt.knowledge import Knowledge
from anabranch.cql import compile_query
from anabranch.plan.text import parse
from anabranch.stats.view import FixedStatistics
from anabranch.testing.scripted import read_script

CATALOG = read_script(
    "stream a (k bigint, v bigint)\nstream b (k bigint, v bigint)\nstream c (k bigint, v bigint)"
).catalog
GRAPH = compile_query(
    "SELECT a.v AS v FROM a [RANGE 1 SECOND], b [RANGE 1 SECOND], c [RANGE 1 SECOND] "
    "WHERE a.k = b.k AND b.k = c.k AND a.v < c.v AND c.v > 7",
    CATALOG,
).graph
PLAN = parse("((a b) c)")
THETA = str(GRAPH.thetas[0])
CHOSEN_BY = FixedStatistics(
    rates={"a": 10.0, "b": 20.0, "c": 30.0},
    filters={"a": 1.0, "b": 1.0, "c": 0.5},
    selectivities={"b a": 0.1, "b c": 0.2, THETA: 0.3},
)
MEASURED = Knowledge(
    {"a": 11.0, "b": 21.0, "c": 14.0}, {"a b": 0.11, "b c": 0.2, THETA: 0.3}, {"a": 1.0, "b": 1.0, "c": 1.0}, batch=1.2
)


def test_what_was_measured_is_told_by_what_the_plan_was_chosen_by() -> None:
    told = Basis(PLAN, CHOSEN_BY, 1.0).told(PLAN, MEASURED, GRAPH)
    assert told is not None
    # Rates are those behind the filters.
    assert (dict(told.rates), dict(told.selectivities)) == (
        {"a": 10.0, "b": 20.0, "c": 15.0},
        {"a b": 0.1, "b c": 0.2, THETA: 0.3},
    )
    assert MEASURED.distance(told) == pytest.approx(1.1)


@pytest.mark.parametrize(
    "basis",
    [
        Basis(parse("(a (b c))"), CHOSEN_BY, 1.0),
        Basis(PLAN, CHOSEN_BY, 2.0),
        Basis(PLAN, FixedStatistics(CHOSEN_BY.rates, selectivities=CHOSEN_BY.selectivities), 1.0),
        Basis(PLAN, FixedStatistics({"a": 10.0, "b": 20.0}, CHOSEN_BY.filters, CHOSEN_BY.selectivities), 1.0),
        Basis(PLAN, FixedStatistics(CHOSEN_BY.rates, CHOSEN_BY.filters, {"a b": 0.1, "b c": 0.2}), 1.0),
    ],
    ids=["another plan", "longer batches", "no filter", "no rate", "no predicate"],
)
def test_what_was_assumed_confirms_nothing(basis: Basis) -> None:
    assert basis.told(PLAN, MEASURED, GRAPH) is None
