"""Local rate maximization and local time minimization, named by a hint."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from anabranch.cost.progress import at
from anabranch.optimize import Hints, Objective, Proposal, choose
from anabranch.optimize.problem import Problem
from anabranch.optimize.proposals import kind
from anabranch.plan.physical import JoinNode, PhysicalPlan, shape
from anabranch.stats.view import FixedStatistics
from tests.unit.adapt.simulated import chain
from tests.unit.optimize.brute_force import all_shapes, best_ordered

NAMED = pytest.mark.parametrize(
    ("optimizer", "objective"), [("local-rate", "rate@20 seconds"), ("local-time", "first@1000")]
)


def asked(problem: Problem, optimizer: str) -> Proposal:
    hints = Hints.parse(problem.graph, optimizer=optimizer)
    answer = choose(Problem(problem.graph, problem.statistics, problem.budget, problem.objective, hints)).answer
    assert isinstance(answer, Proposal)
    assert {each.origin for each in answer.considered} == {optimizer}
    return answer


def achieved(problem: Problem, plan: PhysicalPlan) -> float:
    """Results by the time of the objective, or one over the time to its results."""
    going, amount = problem.progress(plan), problem.objective.amount
    return going.results_by(amount) if problem.objective.kind == "rate" else 1 / going.time_to(amount)


@NAMED
@pytest.mark.parametrize("selective", ["a b", "b c"])
def test_the_selective_join_comes_first(optimizer: str, objective: str, selective: str) -> None:
    keys = {"a b": 1e-3, "b c": 1e-3, selective: 1e-6}
    statistics = FixedStatistics(rates=dict.fromkeys("abc", 5e4), selectivities=keys)
    problem = Problem(chain("abc").graph, statistics, objective=Objective.parse(objective))
    assert shape(asked(problem, optimizer).plan) == {"a b": "((a b) c)", "b c": "(a (b c))"}[selective]


@NAMED
@pytest.mark.parametrize("seed", range(6))
def test_they_come_close_to_the_best_tree(optimizer: str, objective: str, seed: int) -> None:
    rng = random.Random(seed)
    statistics = FixedStatistics(
        rates={name: 10 ** rng.uniform(2, 5) for name in "abcd"},
        selectivities={f"{one} {other}": 10 ** rng.uniform(-6, -3) for one, other in pairwise("abcd")},
    )
    problem = Problem(chain("abcd", 30).graph, statistics, objective=Objective.parse(objective))
    every = [best_ordered(plan, problem.model) for plan in all_shapes(problem.graph.names)]
    trees = sorted(achieved(problem, plan) for plan in every if kind(plan) == "tree")
    assert trees[0] < trees[-1] / 2, "the trees must differ"
    assert achieved(problem, asked(problem, optimizer).plan) >= 0.9 * trees[-1]


@pytest.mark.parametrize("seed", range(4))
def test_local_time_is_the_least_time_of_the_slowest_part(seed: int) -> None:
    """The recursion of Section 4.2.2 over every tree, in numbers of results instead of fractions."""
    rng = random.Random(seed)
    statistics = FixedStatistics(
        rates={name: 10 ** rng.uniform(3, 5) for name in "abcd"},
        selectivities={f"{one} {other}": 10 ** rng.uniform(-5, -3) for one, other in pairwise("abcd")},
    )
    problem = Problem(chain("abcd", 30).graph, statistics, objective=Objective.parse("first@100000"))
    model, seconds = at(problem.model, problem.horizon / 2), problem.horizon
    places = {name: 1 << number for number, name in enumerate(problem.graph.names)}

    def mask(plan: PhysicalPlan) -> int:
        return sum(places[name] for name in plan.relations)

    def time(plan: PhysicalPlan, results: float) -> tuple[float, float]:
        """Returns the time to so many results, and the mean rate until then."""
        own = mask(plan)
        if not isinstance(plan, JoinNode):
            return results / model.births(own), model.births(own)
        left, right = plan.inputs
        share = (results / (model.births(own) * seconds)) ** 0.5
        (left_time, left_rate), (right_time, right_rate) = (
            time(side, model.births(mask(side)) * seconds * share) for side in (left, right)
        )
        work = left_rate / model.rows(mask(left)) * model.step(mask(left), mask(right))
        work += right_rate / model.rows(mask(right)) * model.step(mask(right), mask(left))
        work += model.upkeep(own) if plan is not tree else 0.0
        rate = model.births(own) * left_rate * right_rate / model.births(mask(left)) / model.births(mask(right))
        slowest = max(left_time, right_time, results / rate * max(1.0, work / problem.budget.slots))
        return slowest, results / slowest

    times = {}
    for tree in all_shapes(problem.graph.names):
        if kind(tree) == "tree":
            times[shape(tree)] = time(tree, problem.objective.amount)[0]
    assert max(times.values()) > 1.1 * min(times.values()), "the trees must differ"
    assert times[shape(asked(problem, "local-time").plan)] == pytest.approx(min(times.values()))
