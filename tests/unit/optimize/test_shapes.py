from __future__ import annotations

import random
import statistics
from dataclasses import replace
from itertools import permutations

import pytest

from anabranch.cost.estimates import Estimates, ThetaEstimate, from_edges, from_statistics
from anabranch.cost.resources import ResourceModel
from anabranch.cost.units import UnitCosts
from anabranch.optimize.ranking import ranked_orderer
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import JoinNode, PhysicalPlan, mjoin
from anabranch.plan.text import parse
from anabranch.stats.view import FixedStatistics
from lab.papers.printed_costs import HASHED, NESTED
from tests.unit.optimize.graphs import key, less, random_setting, relation

ENGINE_LIKE = UnitCosts(insert=1e-7, delete=1e-7, probe=3e-7, compare=2e-8, match=1e-7)
WITH_SIZES = UnitCosts(
    1e-7, 1e-7, 3e-7, 2e-8, 1e-7, match_relation=1e-8, check=1e-7, call=1e-5, link=1e-7, index_bytes=48
)


def least_cost(model: ResourceModel, start: int, *, cross: bool) -> float:
    """The cheapest of all permutations; without `cross`, of those in which every step follows an edge."""
    size = len(model.estimates.names)
    others = [1 << i for i in range(size) if i != start]

    def follows(order: tuple[int, ...]) -> bool:
        bound = 1 << start
        for block in order:
            if all(not (bound & _members(keys) and block & _members(keys)) for keys in model.estimates.keys):
                return False
            bound |= block
        return True

    return min(model.chain(1 << start, list(order)) for order in permutations(others) if cross or follows(order))


def mjoin_plan(setting: Estimates) -> PhysicalPlan:
    orderer = ranked_orderer(ResourceModel(setting, HASHED))
    return orderer.plan(orderer.mjoin())


def _members(keys: tuple[float, ...]) -> int:
    return sum(1 << i for i, values in enumerate(keys) if values)


@pytest.mark.parametrize("units", [HASHED, ENGINE_LIKE])
@pytest.mark.parametrize("size", [2, 3, 5, 6])
def test_orders_on_trees_are_as_good_as_the_best_permutation(size: int, units: UnitCosts) -> None:
    rng = random.Random(size)
    for _ in range(6):
        model = ResourceModel(random_setting(rng, size), units)
        blocks = tuple(1 << i for i in range(size))
        ordering = ranked_orderer(model).order(blocks)
        for start, order in enumerate(ordering.orders):
            cost = model.chain(1 << start, [blocks[i] for i in order])
            assert cost <= least_cost(model, start, cross=False) * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("size", [7, 8])
def test_orders_on_larger_trees_are_as_good_as_the_best_permutation(size: int) -> None:
    rng = random.Random(size)
    model = ResourceModel(random_setting(rng, size), HASHED)
    blocks = tuple(1 << i for i in range(size))
    for start, order in enumerate(ranked_orderer(model).order(blocks).orders):
        assert model.chain(1 << start, [blocks[i] for i in order]) <= least_cost(model, start, cross=False) * (1 + 1e-9)


@pytest.mark.parametrize(("units", "keyed"), [(HASHED, True), (NESTED, False), (WITH_SIZES, True)])
def test_the_kernel_prices_as_the_model_does(units: UnitCosts, keyed: bool) -> None:
    rng = random.Random(3)
    for _ in range(10):
        model = ResourceModel(random_setting(rng, 6, extra_edges=4), units, keyed)
        blocks = (0b1001, 0b0010, 0b0100, 0b110000)
        ordering = ranked_orderer(model).order(blocks)
        cost = sum(model.chain(blocks[i], [blocks[j] for j in order]) for i, order in enumerate(ordering.orders))
        links = model.index_counts(list(blocks), ordering.orders)
        cost += sum(model.births(block) * units.link * count for block, count in zip(blocks, links, strict=True))
        assert ordering.cpu == pytest.approx(cost, rel=1e-9)
        counts = model.index_counts(list(blocks), ordering.orders)
        held = sum(model.held(block) * count for block, count in zip(blocks, counts, strict=True))
        assert ordering.memory == pytest.approx(held * units.index_bytes)


def test_the_kernel_knows_thetas_and_classes_of_several_relations() -> None:
    graph = JoinGraph(
        tuple(relation(name, ("x", "y")) for name in "abcd"),
        (key("k", ("a", "x"), ("b", "x"), ("c", "x")),),
        (less(("c", "y"), ("d", "y")),),
    )
    rates = {"a": 1, "b": 2, "c": 3, "d": 4}
    pairs = {"a b": 1e-2, "b c": 2e-3, "a c": 2e-3, "c d": 0.25}
    estimates = from_statistics(graph, FixedStatistics(rates=rates, selectivities=pairs))
    # A late filter of c, too.
    estimates = replace(estimates, thetas=(*estimates.thetas, ThetaEstimate(0b0100, 0.1)))
    model = ResourceModel(estimates, WITH_SIZES)
    ordering = ranked_orderer(model).order((1, 2, 4, 8))
    total = sum(model.chain(1 << i, [1 << j for j in order]) for i, order in enumerate(ordering.orders))
    links = model.index_counts([1, 2, 4, 8], ordering.orders)
    total += sum(model.births(1 << i) * WITH_SIZES.link * count for i, count in enumerate(links))
    assert ordering.cpu == pytest.approx(total)
    # Rows of d can only be looked up through c.
    assert ordering.orders[3][0] == 2


def test_ranks_see_past_a_costly_step() -> None:
    # A greedy order takes b first; the cheap d behind the dear c repays going there at once.
    setting = from_edges(
        {"a": 1, "b": 1.1, "c": 4, "d": 100}, 1.0, {("a", "b"): 1.0, ("a", "c"): 0.5, ("c", "d"): 0.0001}
    )
    plan = mjoin_plan(setting)
    assert isinstance(plan, JoinNode)
    assert plan.orders[0] == (2, 3, 1)


def test_a_cross_product_is_taken_when_it_is_cheaper() -> None:
    setting = from_edges({"a": 100, "b": 1, "c": 1}, 5.0, {("a", "b"): 0.5, ("a", "c"): 0.5})
    plan = mjoin_plan(setting)
    assert isinstance(plan, JoinNode)
    assert plan.orders[1] == (2, 0)
    assert plan.orders[2] == (1, 0)


def test_cyclic_graphs_get_orders_near_the_best() -> None:
    rng = random.Random(2)
    ratios = []
    for _ in range(20):
        model = ResourceModel(random_setting(rng, 5, extra_edges=3), HASHED)
        ordering = ranked_orderer(model).order((1, 2, 4, 8, 16))
        best = sum(least_cost(model, start, cross=True) for start in range(5))
        ratios.append(ordering.cpu / best)
    assert min(ratios) >= 1 - 1e-9
    assert statistics.median(ratios) < 1.1


def test_a_graph_in_two_parts_is_still_ordered() -> None:
    setting = from_edges({"a": 3, "b": 3, "c": 3, "d": 3}, 1.0, {("a", "b"): 0.1, ("c", "d"): 0.1})
    plan = mjoin_plan(setting)
    assert isinstance(plan, JoinNode)
    assert [sorted((i, *order)) for i, order in enumerate(plan.orders)] == [[0, 1, 2, 3]] * 4


def test_open_orders_are_filled_and_given_ones_kept() -> None:
    setting = from_edges({"a": 1, "b": 2, "c": 3}, 1.0, {("a", "b"): 0.5, ("b", "c"): 0.5})
    orderer = ranked_orderer(ResourceModel(setting, HASHED))
    plan = orderer.complete(parse("(a b c | b>c>a)"))
    assert isinstance(plan, JoinNode)
    assert plan.orders[1] == (2, 0)
    assert all(plan.orders)
    assert orderer.complete(parse("((a b) c)")) == parse("((a b) c)")
    assert orderer.complete(mjoin(("a",))) == mjoin(("a",))


def test_streams_without_rows_come_first() -> None:
    setting = from_edges({"a": 5, "b": 7, "c": 0}, 1.0, {("a", "b"): 0.5, ("a", "c"): 0.5})
    plan = mjoin_plan(setting)
    assert isinstance(plan, JoinNode)
    assert plan.orders[0] == (2, 1)
