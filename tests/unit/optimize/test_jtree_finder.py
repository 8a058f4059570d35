"""JTree-Finder against brute force, and its compiled form against its interpreted one."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace

import pytest

from anabranch.cost.estimates import ThetaEstimate, from_statistics
from anabranch.cost.resources import ResourceModel, Resources
from anabranch.cost.units import ENGINE, UnitCosts
from anabranch.errors import PlanError
from anabranch.optimize import jtree_finder
from anabranch.optimize.jtree_finder import Space, find_jtrees
from anabranch.optimize.problem import Problem
from anabranch.optimize.proposals import Budget, Candidate, pareto
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import JoinNode, Leaf, nodes
from anabranch.stats.view import FixedStatistics
from lab.papers.printed_costs import HASHED, NESTED
from tests.unit.optimize.brute_force import all_shapes, best_ordered, shape_of, undominated_costs
from tests.unit.optimize.graphs import key, less, random_setting, relation


def assert_same_front(found: tuple[Candidate, ...], expected: tuple[Candidate, ...], model: ResourceModel) -> None:
    assert [c.cost.cpu for c in found] == pytest.approx([c.cost.cpu for c in expected])
    assert [c.cost.memory for c in found] == pytest.approx([c.cost.memory for c in expected])
    assert [model.price(c.plan).cpu for c in found] == pytest.approx([c.cost.cpu for c in found])
    assert [model.price(c.plan).memory for c in found] == pytest.approx([c.cost.memory for c in found])


def by_brute_force(model: ResourceModel, arity: int | None = None) -> tuple[Candidate, ...]:
    costs = undominated_costs(model, all_shapes(model.estimates.names, arity=arity))
    return tuple(Candidate(Leaf(""), Resources(*cost, 0.0), "") for cost in costs)


@pytest.mark.parametrize(("units", "keyed"), [(HASHED, True), (NESTED, False), (ENGINE, True)])
@pytest.mark.parametrize(("size", "extra"), [(2, 0), (3, 0), (3, 1), (4, 0), (4, 2), (5, 0), (5, 2)])
def test_it_finds_exactly_the_undominated_plans(size: int, extra: int, units: UnitCosts, keyed: bool) -> None:
    rng = random.Random(size * 7 + extra)
    for _ in range(3 if size < 5 else 1):
        model = ResourceModel(random_setting(rng, size, extra_edges=extra), units, keyed, batch=0.1)
        assert_same_front(find_jtrees(model), by_brute_force(model), model)


@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 1_000), marks=pytest.mark.slow)])
def test_it_finds_exactly_the_undominated_plans_of_random_graphs(seeds: range) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        estimates = random_setting(rng, rng.randint(3, 4), extra_edges=rng.randint(0, 3), star=rng.random() < 0.2)
        model = ResourceModel(estimates, ENGINE, batch=rng.choice([0.1, 0.5, 5.0]))
        front = Space(model).undominated()
        assert front.is_complete
        assert_same_front(front.plans, by_brute_force(model), model)


def test_a_search_beyond_its_effort_proves_nothing() -> None:
    model = ResourceModel(random_setting(random.Random(3), 5, extra_edges=3), ENGINE, batch=0.5)
    front = Space(model).undominated(effort=jtree_finder.Effort(1, 1, is_whole=True))
    assert front.plans
    assert not front.is_complete


def test_a_quick_search_misses_only_plans_that_need_more_cpu_than_the_mjoin() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        model = ResourceModel(random_setting(rng, 4, extra_edges=seed % 4), ENGINE, batch=0.5)
        space = Space(model)
        quick = space.undominated(effort=jtree_finder.QUICK)
        assert quick.is_complete
        reach = space.orderer.price(space.orderer.mjoin()).cpu
        expected = tuple(each for each in by_brute_force(model) if each.cost.cpu <= reach)
        assert_same_front(quick.plans[: len(expected)], expected, model)


def test_it_finds_exactly_the_undominated_trees() -> None:
    model = ResourceModel(random_setting(random.Random(2), 5, extra_edges=1), ENGINE, batch=0.5)
    found = Space(model).undominated(widest=2).plans
    assert_same_front(found, by_brute_force(model, arity=2), model)
    assert all(len(node.inputs) == 2 for each in found for node in nodes(each.plan))


@pytest.mark.parametrize(("units", "keyed"), [(HASHED, True), (NESTED, False), (ENGINE, True)])
@pytest.mark.parametrize(("size", "extra"), [(2, 0), (3, 1), (4, 2), (6, 2), (7, 0)])
def test_it_finds_the_same_when_compiled(
    size: int, extra: int, units: UnitCosts, keyed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(size * 11 + extra)
    model = ResourceModel(random_setting(rng, size, extra_edges=extra), units, keyed, batch=0.5)
    effort = jtree_finder.Effort(1 << 14, 1 << 14, is_whole=True)
    interpreted = Space(model).undominated(effort=effort)
    monkeypatch.setattr(jtree_finder, "INTERPRETED", 1)
    compiled = Space(model).undominated(effort=effort)
    assert_same_front(compiled.plans, interpreted.plans, model)
    assert compiled.is_complete == interpreted.is_complete


@pytest.mark.parametrize("seed", range(4))
def test_it_finds_a_plan_whenever_brute_force_does(seed: int) -> None:
    rng = random.Random(seed)
    model = ResourceModel(random_setting(rng, 5, extra_edges=seed % 3), NESTED, keyed=False)
    costs = [Resources(*cost, 0.0) for cost in undominated_costs(model, all_shapes(model.estimates.names))]
    for _ in range(20):
        corner = rng.choice(costs)
        budget = Budget(corner.cpu * rng.uniform(0.8, 1.2), corner.memory * rng.uniform(0.8, 1.2))
        exists = any(budget.allows(cost) for cost in costs)
        found = find_jtrees(model, budget)
        assert bool(found) == exists
        assert all(budget.allows(model.price(c.plan)) for c in found)


@pytest.mark.parametrize("size", [9, 10])
def test_large_queries_have_no_plan_that_dominates_an_answer(size: int) -> None:
    rng = random.Random(size)
    model = ResourceModel(random_setting(rng, size, extra_edges=1), ENGINE, batch=0.5)
    found = find_jtrees(model)
    assert [model.price(c.plan).cpu for c in found] == pytest.approx([c.cost.cpu for c in found])
    assert pareto(found) == found
    orderer = Space(model).orderer
    for _ in range(200):
        cost = orderer.price(shape_of(_random_plan(list(model.estimates.names), rng), model))
        assert any(c.cost.cpu <= cost.cpu * (1 + 1e-9) and c.cost.memory <= cost.memory * (1 + 1e-9) for c in found)


def _random_plan(names: list[str], rng: random.Random) -> JoinNode:
    """A random jtree: some parts are joined until one is left."""
    parts = list(all_shapes((names[0],))) + [plan for name in names[1:] for plan in all_shapes((name,))]
    while len(parts) > 1:
        rng.shuffle(parts)
        taken = rng.randint(2, min(4, len(parts)))
        parts = [JoinNode(tuple(parts[:taken])), *parts[taken:]]
    assert isinstance(parts[0], JoinNode)
    return parts[0]


def test_it_obeys_hints() -> None:
    model = ResourceModel(random_setting(random.Random(8), 5), HASHED)
    free = find_jtrees(model)
    unwanted = {mask for c in free for mask in shape_of(c.plan, model)} - {0b11111}
    without = find_jtrees(model, forbidden=frozenset(unwanted))
    assert without
    assert not unwanted & {mask for c in without for mask in shape_of(c.plan, model)}
    together = find_jtrees(model, needed=frozenset({0b10001}))
    assert together
    assert all(0b10001 in shape_of(c.plan, model) for c in together)


def test_hints_are_obeyed_as_brute_force_obeys_them() -> None:
    rng = random.Random(7)
    for _ in range(5):
        model = ResourceModel(random_setting(rng, 5, extra_edges=1), HASHED)
        forbidden = frozenset(mask for mask in range(1, 31) if mask.bit_count() > 1 and rng.random() < 0.3)
        needed = frozenset({0b01001} - forbidden)
        obeying = [
            plan
            for plan in all_shapes(model.estimates.names)
            if not forbidden & shape_of(plan, model).keys() and needed <= shape_of(plan, model).keys()
        ]
        costs = undominated_costs(model, obeying)
        expected = tuple(Candidate(Leaf(""), Resources(*cost, 0.0), "") for cost in costs)
        assert_same_front(find_jtrees(model, forbidden=forbidden, needed=needed), expected, model)


def test_it_refuses_queries_that_are_too_large() -> None:
    with pytest.raises(PlanError, match="13 relations"):
        find_jtrees(ResourceModel(random_setting(random.Random(1), 13), HASHED))


def test_orders_are_those_of_the_best_permutation() -> None:
    rng = random.Random(5)
    for _ in range(5):
        model = ResourceModel(random_setting(rng, 5, extra_edges=2), ENGINE, batch=1.0)
        orderer = Space(model).orderer
        mjoin = next(plan for plan in all_shapes(model.estimates.names, arity=5))
        best = model.price(best_ordered(mjoin, model)).cpu
        assert orderer.price(orderer.mjoin()).cpu == pytest.approx(best)
        assert model.price(orderer.plan(orderer.mjoin())).cpu == pytest.approx(best)


@pytest.mark.parametrize("interpreted", [1, 8])
def test_thetas_and_classes_of_several_relations_are_priced_alike(
    interpreted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jtree_finder, "INTERPRETED", interpreted)
    graph = JoinGraph(
        tuple(relation(name, ("x", "y")) for name in "abcd"),
        (key("k", ("a", "x"), ("b", "x"), ("c", "x")),),
        (less(("c", "y"), ("d", "y")),),
    )
    seen = FixedStatistics(rates={"a": 1, "b": 2, "c": 3, "d": 4}, selectivities={"a b": 1e-2, "c d": 0.25})
    plain = from_statistics(graph, seen)
    deferred = replace(plain, thetas=(*plain.thetas, ThetaEstimate(0b0010, 0.1), ThetaEstimate(0b1000, 0.3)))
    banded = replace(plain, thetas=(*plain.thetas, ThetaEstimate(0b1001, 0.01, is_band=True)))
    for model in (ResourceModel(each, ENGINE, batch=1.0) for each in (plain, deferred, banded)):
        assert_same_front(find_jtrees(model), by_brute_force(model), model)


@pytest.mark.parametrize("interpreted", [1, 8])
def test_copies_in_several_slots_are_priced_alike(interpreted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jtree_finder, "INTERPRETED", interpreted)
    graph = JoinGraph(
        tuple(relation(name, ("x", "y")) for name in "abcd"),
        (key("k", ("a", "x"), ("b", "x")), key("l", ("b", "y"), ("c", "y")), key("m", ("c", "x"), ("d", "x"))),
    )
    seen = FixedStatistics(rates={"a": 10, "b": 20, "c": 30, "d": 40}, selectivities={"a b": 1e-2, "b c": 0.25})
    problem = Problem(graph, seen, Budget(slots=6))
    model = problem.model
    assert model.partitioning is not None
    assert model.copies(model.estimates.everything) == 1.0
    assert max(model.copies(1 << position) for position in range(4)) > 1
    assert_same_front(find_jtrees(model), by_brute_force(model), model)
    alone = replace(model, partitioning=None)
    assert model.base.memory > alone.base.memory
    assert model.base.cpu > alone.base.cpu


def test_a_small_query_is_planned_without_a_compiler() -> None:
    program = (
        "import sys; sys.modules['numba'] = None\n"
        "from anabranch.optimize import choose\n"
        "from anabranch.optimize.problem import Problem\n"
        "from anabranch.stats.view import FixedStatistics\n"
        "from tests.unit.optimize.graphs import chain_graph\n"
        "choose(Problem(chain_graph('abcdefgh'), FixedStatistics()))\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
