"""The way that a decision takes: the cheapest that has memory enough while it lasts, else box by box, else none."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from anabranch.adapt.advisors.ways import by_boxes, way
from anabranch.adapt.facts import Interval
from anabranch.adapt.gate import Gate, has_memory_for, judge
from anabranch.adapt.policy import MemoryDriven, Periodic
from anabranch.adapt.rules import Criteria
from anabranch.adapt.settings import Settings
from anabranch.cost.resources import ResourceModel, Resources, with_default_orders
from anabranch.migrate.itinerary import box_by_box
from anabranch.migrate.strategies.pricing import prices
from anabranch.migrate.strategies.strategy import Price
from anabranch.optimize.hints import Objective
from anabranch.optimize.problem import resource_model
from anabranch.optimize.proposals import Budget
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import PhysicalPlan
from anabranch.plan.text import parse
from anabranch.stats.view import FixedStatistics
from tests.unit.adapt.simulated import QUERY, chain, controller, run, truth

SIX = chain("abcdef")
OLD, NEW = parse("(((a b) c) ((d e) f))"), parse("((a (b c)) (d (e f)))")
STATISTICS = FixedStatistics(
    rates=dict.fromkeys("abcdef", 1000.0),
    selectivities={"a b": 5e-4, "b c": 4e-4, "c d": 1e-6, "d e": 5e-4, "e f": 4e-4},
)
MODEL = resource_model(SIX.graph, STATISTICS, 1.0)


def memory_of(plan: PhysicalPlan) -> float:
    return MODEL.price(with_default_orders(plan, SIX.graph)).memory


COST = MODEL.price(with_default_orders(OLD, SIX.graph))


def chosen(memory: float, wished: str = "auto") -> Price | None:
    criteria = Criteria(pricing=prices, budget=Budget(memory=memory))
    return way(criteria, SIX.graph, OLD, NEW, MODEL, COST, wished)


def test_without_a_limit_the_cheapest_way_is_taken_at_once() -> None:
    first = prices(SIX.graph, OLD, NEW, MODEL)[0]
    assert chosen(float("inf")) == first
    assert first.memory > 0


def test_with_too_little_memory_the_boxes_change_one_after_another() -> None:
    first = prices(SIX.graph, OLD, NEW, MODEL)[0]
    plans = (OLD, *box_by_box(OLD, NEW, SIX.graph.thetas))
    assert len(plans) == 3
    steps = by_boxes(SIX.graph, plans, MODEL, prices, first.strategy)
    assert steps is not None
    assert steps.steps == 2
    assert steps.memory < first.memory
    # At the worst moment one box is held twice.
    legs = [prices(SIX.graph, before, after, MODEL) for before, after in pairwise(plans)]
    worst = max(
        memory_of(plan) + next(each.memory for each in leg if each.strategy == first.strategy)
        for plan, leg in zip(plans, legs, strict=False)
    )
    assert COST.memory + steps.memory == max(worst, COST.memory)
    between = COST.memory + (steps.memory + first.memory) / 2
    assert chosen(between) == steps
    assert chosen(COST.memory + steps.memory * 0.5) == first  # nothing fits: the gate refuses it
    assert not has_memory_for(first, COST, Budget(memory=COST.memory + steps.memory * 0.5))


def test_a_wished_strategy_is_not_exchanged_and_a_broken_limit_is_no_hindrance() -> None:
    parallel = chosen(COST.memory + 1, "parallel-track")
    assert parallel is not None
    assert parallel.strategy == "parallel-track"
    assert chosen(COST.memory / 2) == prices(SIX.graph, OLD, NEW, MODEL)[0]


amounts = st.floats(1e-3, 1e3)


@given(amounts, amounts, amounts, amounts, amounts, amounts)
def test_no_plan_within_its_memory_is_left_by_a_way_that_breaks_it(
    has: float, needs: float, state: float, after: float, extra: float, limit: float
) -> None:
    current, proposed = Resources(has, state, 1.0), Resources(needs, after, 1.0)
    budget, price = Budget(memory=limit), Price("moving-state", 0.0, extra, 1.0)
    verdict = judge(Gate(1.0, 0.0), current, proposed, price, Objective("cpu"), budget)
    if verdict.passed and state <= limit:
        assert state + extra <= limit
    if state <= limit < state + extra and after <= limit:
        assert "beside the state" in verdict.reason


def moves_much(graph: JoinGraph, old: PhysicalPlan, new: PhysicalPlan, model: ResourceModel) -> tuple[Price, ...]:
    return (Price("moving-state", 0.01, 4_000_000.0, 0.01),)


def test_a_migration_without_room_is_refused_with_its_reason() -> None:
    left, drifted = parse("((a b) c)"), truth(0.01, 0.0001)
    settings = Settings(policy=Periodic(Interval(batches=5)))
    step = resource_model(QUERY.graph, drifted, 1.0).price(left)
    free = Criteria(pricing=moves_much, budget=Budget(memory=3 * step.memory + 8_000_000))
    assert run(controller(QUERY, settings, free), left, [drifted] * 6)[0] != left
    tight = replace(free, budget=Budget(memory=step.memory + 1_000_000))
    plan, decisions = run(controller(QUERY, settings, tight), left, [drifted] * 6)
    assert plan == left
    assert any("beside the state" in decision.reason for decision in decisions)


def test_the_memory_driven_policy_takes_the_limit_where_no_memory_is_given() -> None:
    left, drifted = parse("((a b) c)"), truth(0.01, 0.0001)
    size = resource_model(QUERY.graph, drifted, 1.0).price(left).memory

    def triggers(budget: Budget, policy: MemoryDriven) -> list[str]:
        criteria = Criteria(pricing=moves_much, budget=budget)
        adapting = controller(QUERY, Settings(policy=policy), criteria)
        return [each.trigger for each in run(adapting, left, [drifted] * 6)[1]]

    assert not triggers(Budget(), MemoryDriven())
    assert not triggers(Budget(memory=10 * size), MemoryDriven())
    assert any("the state takes" in each for each in triggers(Budget(memory=size), MemoryDriven()))
    # What the host takes of the limit is not there for the state.
    taken = Budget(memory=10 * size, taken=Resources(0.0, 9 * size, 0.0))
    assert any("the state takes" in each for each in triggers(taken, MemoryDriven()))
