"""What the host needs around a plan: counted for limits, the same for all plans, and divided among the slots."""

from __future__ import annotations

import math
from dataclasses import asdict, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch import cql
from anabranch.calibrate.engine_costs import stream
from anabranch.cost.estimates import WIRE_BYTES
from anabranch.cost.host import SPARK, Host, HostCosts, host_need, need_together
from anabranch.cost.resources import NOTHING, Resources
from anabranch.errors import NoFeasiblePlan, StatisticsError
from anabranch.lang.catalog import Catalog
from anabranch.optimize import Budget, Infeasible, Proposal
from anabranch.optimize.explain import explanation
from anabranch.optimize.problem import resource_model
from anabranch.optimize.proposals import over_budget
from anabranch.plan.query_set import set_of
from anabranch.planning.choosing import decide, proposal
from anabranch.planning.options import PlanOptions, SetPlanOptions
from anabranch.planning.together import decide_together
from anabranch.stats.view import FixedStatistics

CATALOG = Catalog()
for name in "abcd":
    CATALOG.register(stream(name, ("x", "y", "v")))
WINDOWS = ", ".join(f"{name} [RANGE 10 SECONDS]" for name in "abc")
QUERY = cql.compile_query(f"SELECT a.v AS v FROM {WINDOWS} WHERE a.x = b.x AND b.y = c.y AND a.v < 5", CATALOG)
GIVEN = FixedStatistics(
    rates=dict.fromkeys("abc", 10_000.0),
    filters={"a": 0.5},
    bytes={"a": 8, "b": 0, "c": 0},
    selectivities={"a b": 1e-5, "b c": 1e-4},
)
UNIT = HostCosts(
    trigger=0.0,
    source=0.0,
    slot=0.0,
    read=0.0,
    row=0.0,
    byte=0.0,
    result=0.0,
    worker_bytes=0.0,
    batch_bytes=0.0,
    room=1.0,
)


def need(costs: HostCosts, slots: int = 1, batch: float = 1.0, share: float = 1.0) -> Resources:
    model = resource_model(QUERY.graph, GIVEN, batch)
    return host_need(QUERY, GIVEN, model, Host(costs, share=share), slots).resources


def test_each_cost_is_counted_for_what_it_is_about() -> None:
    sent = 5_000 + 20_000
    moved = 5_000 * (8 + WIRE_BYTES) + 20_000 * WIRE_BYTES
    results = resource_model(QUERY.graph, GIVEN).base.rate
    assert results > 0
    expected = {
        "trigger": Resources(1 / 2, 0, 0),
        "source": Resources(3 / 2, 0, 0),
        "slot": Resources(1 / 2, 0, 0),
        "read": Resources(30_000, 0, 0),
        "row": Resources(sent, 0, 0),
        "byte": Resources(moved, 0, 0),
        "result": Resources(results, 0, 0),
        "worker_bytes": Resources(0, 1, 0),
        "batch_bytes": Resources(0, 2 * moved, 0),
    }
    assert {*expected, "driver_bytes", "room"} == {item.name for item in fields(HostCosts)}
    for name, counted in expected.items():
        assert need(replace(UNIT, **{name: 1.0}), batch=2.0) == pytest.approx(counted), name
        # Slots share the work; each has a worker, and each costs something in a trigger.
        each = need(replace(UNIT, **{name: 1.0}), slots=4, batch=2.0)
        parts = 1 if name in ("slot", "worker_bytes") else 4
        assert (each.cpu, each.memory) == pytest.approx((counted.cpu / parts, counted.memory / parts)), name


def test_a_longer_batch_costs_less_cpu_and_more_memory() -> None:
    short, long = need(SPARK, batch=1.0), need(SPARK, batch=10.0)
    assert long.cpu < short.cpu
    assert long.memory > short.memory


def test_tables_are_not_read_and_a_stream_named_twice_is_read_once() -> None:
    twice = cql.compile_query(
        "SELECT p.v AS v FROM a [RANGE 10 SECONDS] AS p, a [RANGE 10 SECONDS] AS q WHERE p.x = q.x", CATALOG
    )
    model = resource_model(twice.graph, GIVEN, 1.0)
    found = host_need(twice, GIVEN, model, Host(replace(UNIT, source=1.0, read=1.0)), 1)
    assert found.triggers == 1.0
    assert found.rows == 10_000


def test_costs_below_zero_are_refused_and_those_of_other_releases_are_left_out() -> None:
    with pytest.raises(StatisticsError, match="'row' is -1"):
        replace(UNIT, row=-1.0)
    assert HostCosts.from_names({**asdict(SPARK), "of tomorrow": 3.0}) == SPARK


amounts = st.floats(1e-3, 1e3)


@given(amounts, amounts, amounts, amounts, amounts, amounts, st.integers(1, 8), st.floats(1, 2))
def test_a_budget_leaves_to_plans_what_the_host_does_not_take(
    cpu: float, memory: float, own: float, size: float, taken: float, base: float, slots: int, room: float
) -> None:
    budget = Budget(cpu, memory, slots, taken=Resources(taken, base, 0.0), room=room)
    cost = Resources(own, size, 1.0)
    slot = budget.of_slot(cost)
    fits = slot.cpu <= cpu and slot.memory <= memory
    if not math.isclose(slot.cpu, cpu, rel_tol=1e-9) and not math.isclose(slot.memory, memory, rel_tol=1e-9):
        assert budget.allows(cost) == fits
        assert bool(over_budget(cost, budget)) != fits
        assert (budget.use(cost) <= 1) == fits


def test_the_host_counts_for_the_limit_and_not_for_the_ranking() -> None:
    alone = decide(QUERY, PlanOptions(given=GIVEN))
    hosted = decide(QUERY, PlanOptions(given=GIVEN), host=Host(SPARK))
    assert isinstance(alone.answer, Proposal)
    assert isinstance(hosted.answer, Proposal)
    assert [c.plan for c in hosted.answer.considered] == [c.plan for c in alone.answer.considered]
    assert hosted.answer.cost == alone.answer.cost
    assert alone.budget.taken == NOTHING
    assert alone.host is None


def test_a_limit_that_the_plan_keeps_and_the_whole_does_not_is_refused_with_the_parts() -> None:
    plan_options = PlanOptions(given=GIVEN, cpu=0.1)
    assert isinstance(decide(QUERY, plan_options).answer, Proposal)
    choice = decide(QUERY, plan_options, host=Host(SPARK))
    assert isinstance(choice.answer, Infeasible)
    with pytest.raises(NoFeasiblePlan) as caught:
        proposal(choice)
    assert "for Spark" in (caught.value.detail or "")
    assert "set a longer trigger" in (caught.value.hint or "")
    # With the limit that the hint names there is a plan.
    named = float((caught.value.hint or "").split("cpu: ")[1].split("}")[0])
    assert isinstance(decide(QUERY, replace(plan_options, cpu=named), host=Host(SPARK)).answer, Proposal)
    # A longer trigger is the cheaper remedy.
    assert isinstance(decide(QUERY, plan_options, batch=60.0, host=Host(SPARK)).answer, Proposal)


def test_memory_counts_the_worker_its_rows_and_the_room_that_states_take() -> None:
    answer = decide(QUERY, PlanOptions(given=GIVEN, plan="mjoin")).answer
    assert isinstance(answer, Proposal)
    host = Host(replace(UNIT, worker_bytes=1e6, room=2.0))
    just = 2 * answer.cost.memory + 1e6
    kept = PlanOptions(given=GIVEN, plan="mjoin", memory=just * 1.001)
    assert isinstance(decide(QUERY, kept, host=host).answer, Proposal)
    refused = decide(QUERY, replace(kept, memory=just * 0.999), host=host).answer
    assert isinstance(refused, Infeasible)
    assert refused.bound == "memory"


def test_an_explanation_shows_plan_spark_and_sum_of_a_slot() -> None:
    choice = decide(QUERY, PlanOptions(given=GIVEN, cpu=0.8), slots=2, host=Host(SPARK, length="trigger"))
    text = explanation(choice)
    slot = choice.budget.of_slot(choice.answer.cost)
    assert f"in each slot {slot.cpu:.4g} cores: {choice.answer.cost.cpu / 2:.4g} for the plan" in text
    assert "for a trigger every 1 s (by the trigger)" in text
    assert "slot cpu" in text
    assert "slot cpu" not in explanation(decide(QUERY, PlanOptions(given=GIVEN, cpu=0.8)))
    assert "assumed; a trigger sets it" in explanation(decide(QUERY, PlanOptions(given=GIVEN), host=Host(SPARK)))


def test_queries_that_run_together_share_the_trigger_and_the_rows() -> None:
    other = cql.compile_query(
        "SELECT a.v AS v FROM a [RANGE 10 SECONDS], d [RANGE 10 SECONDS] WHERE a.x = d.x", CATALOG
    )
    queries = {"one": QUERY, "two": other}
    given_of = {"one": GIVEN, "two": FixedStatistics(rates={"a": 10_000.0, "d": 10_000.0})}
    host = Host(replace(UNIT, trigger=1.0, source=1.0, row=1.0), share=0.5)
    choices = {name: decide(query, PlanOptions(given=given_of[name]), host=host) for name, query in queries.items()}
    needs = [choice.host for choice in choices.values() if choice.host is not None]
    assert [each.triggers for each in needs] == [0.5 + 3, 0.5 + 2]
    joint = need_together(needs)
    # One trigger, four streams; of 'a' the rows that any of both wants.
    assert joint.triggers == 1 + 4
    assert joint.rows == 10_000 + 10_000 + 10_000 + 10_000
    plan_options = dict.fromkeys(queries, PlanOptions())
    with pytest.raises(NoFeasiblePlan):
        decide_together(set_of(queries), choices, plan_options, SetPlanOptions(cpu=4.0))
    roomy = decide_together(set_of(queries), choices, plan_options, SetPlanOptions(cpu=50_000.0))
    assert roomy is not None
    assert roomy.budget.taken == joint.resources
