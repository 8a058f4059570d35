"""The search in plain Python against the compiled one, which brute force judges."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace

import pytest

from anabranch.cost.estimates import ThetaEstimate, from_statistics
from anabranch.cost.resources import HASHED, NESTED, ResourceModel
from anabranch.cost.units import ENGINE
from anabranch.optimize.jtree_finder import find_jtrees
from anabranch.optimize.plain import Chains, exact_orderer, undominated
from anabranch.optimize.strategy import Budget
from anabranch.plan.join_graph import JoinGraph
from anabranch.stats.view import FixedStatistics, UnitCosts
from tests.unit.optimize.brute_force import all_shapes, best_ordered
from tests.unit.optimize.graphs import key, less, random_setting, relation


@pytest.mark.parametrize(("units", "keyed"), [(HASHED, True), (NESTED, False), (ENGINE, True)])
@pytest.mark.parametrize(("size", "extra"), [(2, 0), (3, 1), (4, 2), (5, 0), (6, 2)])
def test_both_searches_find_the_same_front(size: int, extra: int, units: UnitCosts, keyed: bool) -> None:
    rng = random.Random(size * 11 + extra)
    for _ in range(3):
        model = ResourceModel(random_setting(rng, size, extra_edges=extra), units, keyed, batch=0.5)
        found, expected = undominated(Chains(model)), find_jtrees(model, Budget())
        assert [c.cost.cpu for c in found] == pytest.approx([c.cost.cpu for c in expected])
        assert [c.cost.memory for c in found] == pytest.approx([c.cost.memory for c in expected])
        assert [model.price(c.plan).cpu for c in found] == pytest.approx([c.cost.cpu for c in found])
        assert [model.price(c.plan).memory for c in found] == pytest.approx([c.cost.memory for c in found])


def test_both_searches_obey_the_same_hints() -> None:
    rng = random.Random(7)
    for _ in range(5):
        model = ResourceModel(random_setting(rng, 5, extra_edges=1), HASHED)
        forbidden = frozenset(mask for mask in range(1, 31) if mask.bit_count() > 1 and rng.random() < 0.3)
        needed = frozenset({0b01001} - forbidden)
        found = undominated(Chains(model), forbidden=forbidden, needed=needed)
        expected = find_jtrees(model, Budget(), forbidden=forbidden, needed=needed)
        assert [c.cost.cpu for c in found] == pytest.approx([c.cost.cpu for c in expected])
        assert [c.cost.memory for c in found] == pytest.approx([c.cost.memory for c in expected])


def test_exact_orders_are_those_of_the_best_permutation() -> None:
    rng = random.Random(5)
    for _ in range(5):
        model = ResourceModel(random_setting(rng, 5, extra_edges=2), ENGINE, batch=1.0)
        orderer = exact_orderer(Chains(model))
        mjoin = next(plan for plan in all_shapes(model.estimates.names, arity=5))
        best = model.price(best_ordered(mjoin, model)).cpu
        assert orderer.price(orderer.mjoin()).cpu == pytest.approx(best)
        assert model.price(orderer.plan(orderer.mjoin())).cpu == pytest.approx(best)


def test_thetas_and_classes_of_several_relations_are_priced_alike() -> None:
    graph = JoinGraph(
        tuple(relation(name, ("x", "y")) for name in "abcd"),
        (key("k", ("a", "x"), ("b", "x"), ("c", "x")),),
        (less(("c", "y"), ("d", "y")),),
    )
    seen = FixedStatistics(rates={"a": 1, "b": 2, "c": 3, "d": 4}, selectivities={"a b": 1e-2, "c d": 0.25})
    estimates = from_statistics(graph, seen)
    late = replace(estimates, thetas=(*estimates.thetas, ThetaEstimate(0b0010, 0.1), ThetaEstimate(0b1000, 0.3)))
    for model in (ResourceModel(each, ENGINE, batch=1.0) for each in (estimates, late)):
        found, expected = undominated(Chains(model)), find_jtrees(model, Budget())
        assert [c.cost.cpu for c in found] == pytest.approx([c.cost.cpu for c in expected])
        assert [c.cost.memory for c in found] == pytest.approx([c.cost.memory for c in expected])
        for candidate in found:
            assert model.price(candidate.plan).cpu == pytest.approx(candidate.cost.cpu)


def test_a_small_query_is_planned_without_a_compiler() -> None:
    program = (
        "import sys; sys.modules['numba'] = None\n"
        "from anabranch.optimize import choose\n"
        "from anabranch.stats.view import FixedStatistics\n"
        "from tests.unit.optimize.graphs import chain_graph\n"
        "choose(chain_graph('abcde'), FixedStatistics())\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
