"""Bounds of validity: inside them the plan is the best or nearly so, and at them another plan is better."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.optimize import Budget, Objective, Proposal, choose
from anabranch.optimize.choice import answer_to
from anabranch.optimize.hints import Hints
from anabranch.optimize.problem import Problem
from anabranch.optimize.settle import ALIKE
from anabranch.optimize.validity import Bounds, validity
from anabranch.plan.physical import PhysicalPlan
from anabranch.plan.text import parse
from anabranch.stats.view import FixedStatistics, Layered
from tests.unit.adapt.simulated import chain, truth

QUERY = chain("abc")


def chosen(
    statistics: FixedStatistics, objective: str = "cpu", budget: Budget | None = None
) -> tuple[Problem, PhysicalPlan]:
    choice = choose(Problem(QUERY.graph, statistics, budget or Budget(), Objective.parse(objective)))
    return choice.problem, choice.answer.plan if isinstance(choice.answer, Proposal) else choice.answer.best


def varied(problem: Problem, what: str, value: float) -> Problem:
    """The problem with another value of a number that `Bounds.what` names."""
    kind, _, text = what.partition(" of ")
    names = " ".join(sorted({part.split(".")[0].strip() for part in text.split("=")}))
    other = FixedStatistics(rates={names: value}) if kind == "rate" else FixedStatistics(selectivities={names: value})
    return replace(problem, statistics=Layered((other, problem.statistics)))


def excess(problem: Problem, plan: PhysicalPlan) -> float:
    """The CPU of a plan over that of the best one."""
    return problem.model.price(plan).cpu / answer_to(problem).cost.cpu


SELECTIVITIES = st.floats(-5, -1.5).map(lambda power: 10.0**power)


@given(ab=SELECTIVITIES, bc=SELECTIVITIES, rate=st.sampled_from([50.0, 1_000.0]))
def test_the_plan_is_the_best_just_inside_its_bounds_and_not_outside(ab: float, bc: float, rate: float) -> None:
    problem, plan = chosen(truth(ab, bc, rate))
    for bounds in validity(problem, plan):
        assert bounds.low < bounds.now < bounds.high
        for edge, outwards in ((bounds.low, 1 / 1.02), (bounds.high, 1.02)):
            if 0 < edge < inf:
                # A bound is known to 7 %, so at most 9 % further in the plan is nearly the best.
                assert excess(varied(problem, bounds.what, edge * outwards), plan) > 1 + ALIKE
                inside = edge / outwards**6
                if bounds.low < inside < bounds.high:
                    assert excess(varied(problem, bounds.what, inside), plan) < 1 + ALIKE + 0.1


def test_a_bound_is_where_another_plan_wins() -> None:
    """With equal rates, two trees of a chain cost the same where both selectivities are equal."""
    problem, plan = chosen(truth(0.01, 0.0001))
    assert str(plan) == "(a (b c))"
    found = {bounds.what: bounds for bounds in validity(problem, plan)}
    assert found["selectivity of a.r = b.l"].high == inf
    assert 0.0001 < found["selectivity of a.r = b.l"].low < 0.01
    assert 0.0001 < found["selectivity of b.r = c.l"].high < 0.01


def test_a_plan_is_valid_only_while_it_keeps_the_limits() -> None:
    """The tree keeps an intermediate state that grows with the selectivity, the mjoin keeps none."""
    problem, plan = chosen(truth(0.01, 0.0001))
    assert str(plan) == "(a (b c))"
    (free,) = [each for each in validity(problem, plan) if each.what == "selectivity of b.r = c.l"]
    limited = replace(problem, budget=Budget(memory=1.5 * problem.model.price(plan).memory))
    (bound,) = [each for each in validity(limited, plan) if each.what == "selectivity of b.r = c.l"]
    assert bound.now < bound.high < free.high


@pytest.mark.parametrize("objective", ["rate@10 seconds", "first@100"])
def test_objectives_that_depend_on_time_have_no_bounds(objective: str) -> None:
    assert validity(*chosen(truth(0.01, 0.0001), objective)) == ()


def test_a_plan_that_is_not_the_best_has_no_bounds() -> None:
    worse = choose(Problem(QUERY.graph, truth(0.01, 0.0001), hints=Hints(plan=parse("((a b) c)"))))
    assert isinstance(worse.answer, Proposal)
    free = replace(worse.problem, hints=Hints())
    assert validity(free, worse.answer.plan) == ()


def test_bounds_are_said_in_two_digits() -> None:
    assert str(Bounds("rate of a", 1_000.0, 0.0, 93_412.0)) == "rate of a < 93,000 (now 1,000)"
    assert str(Bounds("selectivity of a.k = b.k", 2.5e-05, 1.234e-06, 0.01)) == (
        "selectivity of a.k = b.k > 1.2e-06 and < 0.01 (now 2.5e-05)"
    )
