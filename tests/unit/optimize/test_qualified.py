"""Min-state, state-selection, state-removal, JTree-Finder and the two-layer framework, against brute force."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from anabranch.cost.estimates import from_edges
from anabranch.cost.resources import ResourceModel
from anabranch.cost.units import UnitCosts
from anabranch.errors import SpecError
from anabranch.optimize.choice import choose
from anabranch.optimize.jtree_finder import find_jtrees
from anabranch.optimize.min_state import min_state
from anabranch.optimize.problem import Problem
from anabranch.optimize.proposals import Budget, Infeasible, Proposal, kind
from anabranch.optimize.ranking import ranked_orderer
from anabranch.optimize.shapes import dissolved
from anabranch.optimize.state_removal import remove_states
from anabranch.optimize.state_selection import select_states
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import nodes
from anabranch.plan.text import parse
from anabranch.stats.view import FixedStatistics
from lab.papers.printed_costs import HASHED, NESTED
from lab.papers.two_layer import two_layer
from tests.unit.optimize.brute_force import all_shapes, shape_of, undominated_costs
from tests.unit.optimize.graphs import key, random_setting, relation

ENGINE_LIKE = UnitCosts(
    1e-6,
    1e-6,
    3e-6,
    2e-7,
    1e-6,
    match_relation=1e-7,
    link=3e-7,
    call=1e-5,
    code_bytes=8,
    index_bytes=48,
    joined_relation_bytes=8,
    lingers=True,
)


def tree_state(model: ResourceModel, plan_text: str) -> float:
    return model.price(parse(plan_text)).memory


def is_free_of_cross_products(model: ResourceModel, shape_text: str) -> bool:
    mask = model.estimates.mask
    return all(
        model.connected(mask(node.inputs[0].relations), mask(node.inputs[1].relations))
        for node in nodes(parse(shape_text))
    )


def test_the_number_of_jtrees_is_schroeders() -> None:
    assert [sum(1 for _ in all_shapes(tuple("abcde"[:size]))) for size in (2, 3, 4, 5)] == [1, 4, 26, 236]


@pytest.mark.parametrize("seed", range(8))
def test_min_state_is_optimal_on_stars(seed: int) -> None:
    model = ResourceModel(random_setting(random.Random(seed), 5, star=True), HASHED)
    orderer = ranked_orderer(model)
    trees = [str(plan) for plan in all_shapes(model.estimates.names, arity=2)]
    best = min(tree_state(model, text) for text in trees if is_free_of_cross_products(model, text))
    assert orderer.price(min_state(orderer)).memory <= best * (1 + 1e-9)


def test_min_state_joins_two_slow_streams_across() -> None:
    setting = from_edges({"a": 100, "b": 1, "c": 1}, 1.0, {("a", "b"): 0.5, ("a", "c"): 0.5})
    orderer = ranked_orderer(ResourceModel(setting, HASHED))
    assert orderer.plan(min_state(orderer)) == parse("(a (b c))")


def test_shapes_price_and_plan_as_the_model_does() -> None:
    rng = random.Random(11)
    for _ in range(5):
        model = ResourceModel(random_setting(rng, 6, extra_edges=2), ENGINE_LIKE, batch=0.1)
        orderer = ranked_orderer(model)
        for shape in remove_states(orderer, Budget(memory=1e-9), min_state(orderer)):
            plan = orderer.plan(shape)
            price = orderer.price(shape)
            assert price.cpu == pytest.approx(model.price(plan).cpu)
            assert price.memory == pytest.approx(model.price(plan).memory)
            assert shape_of(plan, model) == dict(shape)


def test_removing_a_state_hands_its_inputs_up() -> None:
    assert dissolved({0b111: (0b011, 0b100), 0b011: (0b001, 0b010)}, 0b011) == {0b111: (0b001, 0b010, 0b100)}


@pytest.mark.parametrize("seed", range(6))
def test_state_selection_lowers_cpu_and_keeps_the_memory_bound(seed: int) -> None:
    model = ResourceModel(random_setting(random.Random(seed), 7, extra_edges=2), NESTED, keyed=False)
    orderer = ranked_orderer(model)
    memory = orderer.price(orderer.mjoin()).memory * 3
    trail = [orderer.price(shape) for shape in select_states(orderer, Budget(cpu=1e-12, memory=memory))]
    assert all(later.cpu < earlier.cpu for earlier, later in pairwise(trail))
    assert all(cost.memory <= memory for cost in trail)


def test_state_selection_stops_at_the_first_plan_that_fits() -> None:
    model = ResourceModel(random_setting(random.Random(2), 6), NESTED, keyed=False)
    orderer = ranked_orderer(model)
    trail = select_states(orderer, Budget(cpu=1e-12))
    assert len(trail) > 2
    enough = orderer.price(trail[1]).cpu
    assert len(select_states(orderer, Budget(cpu=enough))) == 2


def test_state_selection_merges_operators_that_gain_both_resources() -> None:
    # Upkeep is dear here, so that a state inside a kept join is not worth its keep.
    dear = UnitCosts(insert=50.0, delete=50.0, probe=0.0, compare=0.0, match=1.0)
    rates = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 500.0, "e": 500.0}
    edges = {("a", "b"): 1.0, ("b", "c"): 0.5, ("c", "d"): 0.9, ("d", "e"): 0.9}
    orderer = ranked_orderer(ResourceModel(from_edges(rates, 1.0, edges), dear))
    shapes = select_states(orderer, Budget(cpu=1e-12))
    assert any(len(blocks) > 2 for shape in shapes[1:] for joined, blocks in shape.items() if joined != 0b11111)


def test_state_removal_ends_at_the_mjoin_when_nothing_fits() -> None:
    orderer = ranked_orderer(ResourceModel(random_setting(random.Random(4), 6), HASHED))
    trail = remove_states(orderer, Budget(memory=1e-9), min_state(orderer))
    assert len(trail) == 5
    assert trail[-1] == orderer.mjoin()


@pytest.mark.parametrize("seed", range(10))
def test_two_layers_never_claim_an_unqualified_plan(seed: int) -> None:
    rng = random.Random(seed)
    model = ResourceModel(random_setting(rng, 6, extra_edges=seed % 3), NESTED, keyed=False)
    costs = [c.cost for c in find_jtrees(model, Budget())]
    for _ in range(10):
        corner = rng.choice(costs)
        budget = Budget(corner.cpu * rng.uniform(0.9, 1.5), corner.memory * rng.uniform(0.9, 1.5))
        match two_layer(ranked_orderer(model), budget):
            case Proposal() as proposal:
                assert budget.allows(model.price(proposal.plan))
                assert model.price(proposal.plan).cpu == pytest.approx(proposal.cost.cpu)
            case Infeasible() as answer:
                assert not any(budget.allows(c.cost) for c in answer.considered)


def test_two_layers_name_the_bound_that_fails() -> None:
    orderer = ranked_orderer(ResourceModel(random_setting(random.Random(3), 5), NESTED, keyed=False))
    least_memory = orderer.price(orderer.mjoin())
    short_of_memory = two_layer(orderer, Budget(memory=least_memory.memory / 2, cpu=least_memory.cpu / 2))
    assert isinstance(short_of_memory, Infeasible)
    assert short_of_memory.bound == "memory"
    assert kind(short_of_memory.best) == "mjoin"
    short_of_cpu = two_layer(orderer, Budget(cpu=1e-12))
    assert isinstance(short_of_cpu, Infeasible)
    assert short_of_cpu.bound == "cpu"
    assert short_of_cpu.cost.cpu == min(c.cost.cpu for c in short_of_cpu.considered)


def test_two_layers_take_the_mjoin_when_it_fits() -> None:
    answer = two_layer(ranked_orderer(ResourceModel(random_setting(random.Random(3), 5), HASHED)), Budget())
    assert isinstance(answer, Proposal)
    assert kind(answer.plan) == "mjoin"
    assert len(answer.considered) == 1


@pytest.mark.parametrize(
    ("limits", "entry"), [({"cpu": 0.0}, "cpu"), ({"memory": -1.0}, "memory"), ({"slots": 0}, "slots")]
)
def test_an_empty_budget_is_refused(limits: dict[str, float], entry: str) -> None:
    with pytest.raises(SpecError, match=entry):
        Budget(**limits)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(6))
def test_a_cyclic_query_has_a_plan_whenever_brute_force_has_one(seed: int) -> None:
    """Orders that share an index need less memory, so they alone fit some budgets."""
    rng = random.Random(seed)
    edges = [*pairwise("abcd"[: 3 + seed % 2]), ("a", "abcd"[2 + seed % 2])]
    names = "abcd"[: 3 + seed % 2]
    columns = tuple(f"{one}{other}" for one, other in edges)
    graph = JoinGraph(
        tuple(relation(name, columns, 20) for name in names),
        tuple(key(f"k{i}", *((name, columns[i]) for name in edge)) for i, edge in enumerate(edges)),
    )
    seen = FixedStatistics(
        rates={name: rng.uniform(10, 1000) for name in names},
        selectivities={f"{one} {other}": 10 ** rng.uniform(-4, -1) for one, other in edges},
    )
    costs = undominated_costs(Problem(graph, seen).model, all_shapes(graph.names))
    for cpu, memory in costs:
        answer = choose(Problem(graph, seen, Budget(cpu * (1 + 1e-6), memory * (1 + 1e-6)))).answer
        assert isinstance(answer, Proposal)
        below = choose(Problem(graph, seen, Budget(cpu * (1 + 1e-6), memory * (1 - 1e-6)))).answer
        fits = any(other[0] <= cpu * (1 + 1e-6) and other[1] <= memory * (1 - 1e-6) for other in costs)
        assert isinstance(below, Proposal) if fits else isinstance(below, Infeasible) and below.is_proven
