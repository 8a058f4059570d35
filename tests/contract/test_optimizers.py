"""The contract of optimizers: from a problem to a valid plan within the budget, or to the bound that no plan keeps.

Every optimizer of the registry is held to it, and so is a toy that is defined here: adding an optimizer touches its
module, the registry and its test, and nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest

from anabranch.cost.units import ENGINE
from anabranch.optimize import Budget, Candidate, Hints, Infeasible, Objective, Proposal, choose
from anabranch.optimize.optimizers import NAMED, Optimizer
from anabranch.optimize.problem import Problem
from anabranch.optimize.proposals import kind, pareto
from anabranch.optimize.settle import settle
from anabranch.plan.check import validate
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import JoinNode, Leaf, PhysicalPlan
from anabranch.stats.view import FixedStatistics
from tests.unit.optimize.brute_force import all_shapes, best_ordered
from tests.unit.optimize.graphs import key, less, relation

OBJECTIVES = ("qualified", "cpu", "memory", "rate@3 seconds", "first@100")


def left_deep(problem: Problem) -> Proposal | Infeasible:
    """A toy: joins the relations two at a time, in the order of the query."""
    first, *others = problem.graph.names
    plan: PhysicalPlan = Leaf(first)
    for other in others:
        plan = JoinNode((plan, Leaf(other)))
    return settle(problem, [problem.candidate(plan, "left-deep")])


EVERY = {**NAMED, "left-deep": left_deep}
every = pytest.mark.parametrize("optimizer", EVERY.values(), ids=EVERY)


def problems(size: int, count: int, seed: int) -> Iterator[tuple[JoinGraph, FixedStatistics]]:
    """Random join graphs with random statistics: keys between neighbours in a random tree, at times a theta."""
    rng = random.Random(seed)
    for number in range(count):
        names = [f"s{i}" for i in range(size)]
        edges = [(names[rng.randrange(i)], names[i]) for i in range(1, size)]
        columns = tuple(f"{one}{other}" for one, other in edges)
        graph = JoinGraph(
            tuple(relation(name, columns, rng.choice([2, 5, 20])) for name in names),
            tuple(key(f"k{i}", *((name, columns[i]) for name in edge)) for i, edge in enumerate(edges)),
            (less((names[0], columns[0]), (names[-1], columns[-1])),) if number % 2 else (),
        )
        rates = {name: 10 ** rng.uniform(0, 3) for name in names}
        selectivities = {f"{one} {other}": 10 ** rng.uniform(-4, -0.5) for one, other in edges}
        yield graph, FixedStatistics(rates=rates, selectivities=selectivities)


def all_costs(problem: Problem) -> list[Candidate]:
    plans = [best_ordered(plan, problem.model) for plan in all_shapes(problem.graph.names)]
    return [problem.candidate(plan, "brute force") for plan in plans]


def check(problem: Problem, answer: Proposal | Infeasible) -> None:
    """What must hold of every answer."""
    assert answer.considered
    for each in answer.considered:
        validate(each.plan, problem.graph)
        cost = problem.model.price(each.plan)
        assert (each.cost.cpu, each.cost.memory) == pytest.approx((cost.cpu, cost.memory))
        assert each.reason or each.standing == "lost"
    match answer:
        case Proposal():
            assert problem.budget.allows(answer.cost)
            assert not problem.hints.objection(answer.plan)
            assert answer.reason
            assert [each.plan for each in answer.considered if each.standing == "chosen"] == [answer.plan]
        case Infeasible(bound="hints"):
            assert all(problem.hints.objection(each.plan) for each in answer.considered)
        case Infeasible():
            assert not any(each.standing in ("chosen", "lost") for each in answer.considered)
            assert not problem.budget.allows(answer.cost)
            if answer.bound == "memory":
                assert answer.cost.memory > problem.budget.total_memory
            elif answer.bound == "cpu":
                assert answer.cost.cpu > problem.budget.total_cpu


@every
@pytest.mark.parametrize("size", [2, 3, 4])
def test_answers_are_valid_and_never_better_than_brute_force(optimizer: Optimizer, size: int) -> None:
    rng = random.Random(size)
    for graph, statistics in problems(size, 4, seed=size):
        free = Problem(graph, statistics)
        known = all_costs(free)
        front = pareto(known)
        for _ in range(4):
            corner = rng.choice(known).cost
            budget = Budget(corner.cpu * rng.uniform(0.7, 1.3), corner.memory * rng.uniform(0.7, 1.3))
            problem = Problem(graph, statistics, budget)
            answer = optimizer(problem)
            check(problem, answer)
            exists = any(budget.allows(each.cost) for each in known)
            if isinstance(answer, Proposal):
                assert exists
                assert answer.cost.cpu >= front[0].cost.cpu * (1 - 1e-9)
                assert answer.cost.memory >= front[-1].cost.memory * (1 - 1e-9)
            elif answer.is_proven:
                assert not exists


@every
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_is_served(optimizer: Optimizer, objective: str) -> None:
    for graph, statistics in problems(4, 2, seed=11):
        problem = Problem(graph, statistics, objective=Objective.parse(objective))
        answer = optimizer(problem)
        check(problem, answer)
        assert isinstance(answer, Proposal)


@every
@pytest.mark.parametrize(
    "wanted",
    [{"force": "tree"}, {"force": "mjoin"}, {"forbid": ["tree"]}, {"keep": ["s0 s1"]}, {"forbid": ["(s0 s1)"]}],
)
def test_hints_are_obeyed(optimizer: Optimizer, wanted: dict[str, object]) -> None:
    for graph, statistics in problems(4, 2, seed=5):
        problem = Problem(graph, statistics, hints=Hints.parse(graph, **wanted))  # type: ignore[arg-type]
        check(problem, optimizer(problem))


@every
def test_answers_can_be_repeated(optimizer: Optimizer) -> None:
    for graph, statistics in problems(5, 3, seed=3):
        assert optimizer(Problem(graph, statistics)) == optimizer(Problem(graph, statistics))


@every
@pytest.mark.parametrize("size", [9, 14])
def test_large_queries_are_answered(optimizer: Optimizer, size: int) -> None:
    for graph, statistics in problems(size, 1, seed=size):
        problem = Problem(graph, statistics)
        check(problem, optimizer(problem))


def test_a_toy_takes_part_in_the_choice() -> None:
    for graph, statistics in problems(4, 3, seed=8):
        alone = choose(Problem(graph, statistics), optimizers={"left-deep": left_deep}).answer
        assert isinstance(alone, Proposal)
        assert kind(alone.plan) == "tree"
        with_others = choose(Problem(graph, statistics, objective=Objective("cpu")), optimizers=EVERY).answer
        assert isinstance(with_others, Proposal)
        assert with_others.cost.cpu <= alone.cost.cpu
        assert str(alone.plan) in {str(each.plan) for each in with_others.considered}


def test_no_optimizer_beats_the_search() -> None:
    for graph, statistics in problems(5, 3, seed=21):
        answers = {name: optimizer(Problem(graph, statistics)) for name, optimizer in EVERY.items()}
        front = answers["jtree-finder"].considered
        for answer in answers.values():
            for each in answer.considered:
                slack = 1 + 1e-9
                assert any(
                    other.cost.cpu <= each.cost.cpu * slack and other.cost.memory <= each.cost.memory * slack
                    for other in front
                )


def test_between_nine_and_twelve_relations_infeasible_is_proven() -> None:
    names = [f"s{i}" for i in range(9)]
    columns = tuple(f"{one}{other}" for one, other in pairwise(names))
    graph = JoinGraph(
        tuple(relation(name, columns) for name in names),
        tuple(key(f"k{i}", *((name, columns[i]) for name in edge)) for i, edge in enumerate(pairwise(names))),
    )
    statistics = FixedStatistics(rates=dict.fromkeys(names, 100.0))
    least = choose(Problem(graph, statistics, objective=Objective("cpu"))).answer
    assert isinstance(least, Proposal)
    assert least.cost.cpu > ENGINE.insert
    fails = choose(Problem(graph, statistics, Budget(cpu=least.cost.cpu * 0.999))).answer
    assert isinstance(fails, Infeasible)
    assert fails.is_proven
    assert fails.bound == "cpu"
    fits = choose(Problem(graph, statistics, Budget(cpu=least.cost.cpu * 1.001))).answer
    assert isinstance(fits, Proposal)
