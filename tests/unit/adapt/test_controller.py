"""The controller over simulated batches: it follows a drift, stands still under noise, and explains every decision."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.adapt.advisors.plan import Found
from anabranch.adapt.controller import Controller
from anabranch.adapt.facts import BatchFacts, Interval
from anabranch.adapt.gate import Gate
from anabranch.adapt.history import Observation
from anabranch.adapt.policy import DataDriven, MemoryDriven, Periodic, Policy, RefinedMemoryDriven
from anabranch.adapt.records import Decision
from anabranch.adapt.rules import Criteria
from anabranch.adapt.settings import Settings
from anabranch.cost.resources import ResourceModel, with_default_orders
from anabranch.migrate.strategies.strategy import Price
from anabranch.optimize.hints import NO_HINTS, Hints, Kind
from anabranch.optimize.proposals import UNLIMITED, Budget, kind
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.mesh import Mesh
from anabranch.plan.physical import PhysicalPlan
from anabranch.plan.text import parse
from anabranch.stats.measured import intermediate_rows
from anabranch.stats.view import FixedStatistics
from tests.unit.adapt.simulated import QUERY, controller, observe, observed, pricing, run, steady_step, truth

LEFT, RIGHT = parse("((a b) c)"), parse("(a (b c))")
FOR_LEFT, FOR_RIGHT = truth(0.0001, 0.01), truth(0.01, 0.0001)
OFTEN = Periodic(Interval(batches=5))


TREES = Hints(kinds=("tree",))
"""Without the mjoin, which is never bad under these statistics: what is followed is followed by a change of tree."""


def loop(
    policy: Policy = OFTEN, cpu: float = 0.01, hints: Hints = NO_HINTS, budget: Budget = UNLIMITED, **others: object
) -> Controller:
    criteria = Criteria(pricing=pricing(cpu), hints=hints, budget=budget)
    return controller(QUERY, replace(Settings(policy=policy), **others), criteria)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", [OFTEN, DataDriven(Interval(batches=5)), DataDriven(eager=True)])
def test_a_drift_is_followed_once(policy: Policy) -> None:
    adapting = loop(policy, hints=TREES)
    plan, before = run(adapting, LEFT, [FOR_LEFT] * 20)
    assert plan == LEFT
    assert {decision.action for decision in before} == {"keep"}
    plan, after = run(adapting, plan, [FOR_RIGHT] * 40, first=20)
    assert plan == RIGHT
    assert [decision.action for decision in after].count("migrate") == 1
    (change,) = [decision for decision in after if decision.action == "migrate"]
    assert change.cost.cpu > 1.2 * change.proposed_cost.cpu
    assert "saves" in change.reason
    assert change.strategy == "moving-state"


def test_a_frozen_loop_says_what_it_would_do_and_does_nothing() -> None:
    plan, decisions = run(loop(freeze=True), LEFT, [FOR_RIGHT] * 20)
    assert plan == LEFT
    assert decisions
    assert all(decision.action == "keep" and decision.reason.startswith("frozen") for decision in decisions)


def test_nothing_is_decided_on_statistics_that_are_half_of_yesterday() -> None:
    """In between, half a b of the one kind and half of the other, the mjoin would look best: two changes for one."""
    adapting = loop(Periodic(Interval(batches=1)), remember=8, hints=TREES)
    run(adapting, LEFT, [FOR_LEFT] * 10)
    _, decisions = run(adapting, LEFT, [FOR_RIGHT] * 20, first=10)
    assert {decision.proposed for decision in decisions} == {RIGHT}
    assert [decision.action for decision in decisions].count("migrate") == 1
    # What came before the change is forgotten, so the decision rests on new batches alone, and comes soon.
    assert decisions[0].batch == 13
    assert decisions[0].statistics.selectivities["a b"] == pytest.approx(0.01, rel=0.05)


def test_streams_that_never_settle_do_not_stop_the_loop() -> None:
    swing = [FOR_LEFT if batch // 4 % 2 else FOR_RIGHT for batch in range(60)]
    _, decisions = run(loop(Periodic(Interval(batches=1)), gate=Gate(ratio=1000.0), remember=8), LEFT, swing)
    assert len(decisions) >= 4


@pytest.mark.parametrize("restarts", [False, True])
def test_a_plan_that_ran_before_is_a_candidate_of_later_decisions(
    restarts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An optimizer that finds nothing but the plan in force does not keep the loop from a plan that it knows."""
    adapting = loop(hints=TREES)
    _, decisions = run(adapting, LEFT, [*[FOR_LEFT] * 20, *[FOR_RIGHT] * 30])
    if restarts:
        adapting = loop(hints=TREES)
        records = [json.loads(json.dumps(decision.to_json())) for decision in decisions]
        adapting.history = adapting.history.recalling(records)
    monkeypatch.setattr("anabranch.adapt.advisors.plan.best_plan", lambda *_: Found(RIGHT))
    plan, later = run(adapting, RIGHT, [FOR_LEFT] * 60, first=50)
    assert plan == LEFT
    assert [decision.action for decision in later].count("migrate") == 1


@settings(max_examples=settings().max_examples // 3)
@given(
    noise=st.lists(st.floats(0.85, 1.15), min_size=12, max_size=30),
    alternation=st.sampled_from([1, 2, 3, 5]),
)
def test_noise_around_a_draw_changes_nothing(noise: list[float], alternation: int) -> None:
    """The two joins are alike, and now the one, now the other comes out a little better."""
    batches = []
    for number, factor in enumerate(noise):
        one, other = (factor, 1 / factor) if number // alternation % 2 else (1 / factor, factor)
        batches.append(truth(0.0005 * one, 0.0005 * other))
    best, _ = run(loop(), LEFT, [truth(0.0005, 0.0005)] * 20)
    _, decisions = run(loop(), best, batches)
    assert decisions
    assert all(decision.action == "keep" for decision in decisions)


@settings(max_examples=settings().max_examples // 3)
@given(period=st.integers(1, 12), cool_down=st.integers(1, 15), every=st.integers(1, 6))
def test_there_is_a_cool_down_between_changes_however_the_streams_swing(
    period: int, cool_down: int, every: int
) -> None:
    adapting = loop(Periodic(Interval(batches=every)), gate=Gate(cool_down=Interval(batches=cool_down)), remember=1)
    swing = [FOR_LEFT if batch // period % 2 else FOR_RIGHT for batch in range(50)]
    _, decisions = run(adapting, LEFT, swing)
    changes = [decision.batch for decision in decisions if decision.action == "migrate"]
    # The batch after a decision is the one in which the plan is being changed; the cool-down begins behind it.
    assert all(later - earlier > cool_down for earlier, later in pairwise(changes))


@given(ab=st.floats(1e-5, 1e-2), bc=st.floats(1e-5, 1e-2), cpu=st.floats(0, 100), horizon=st.floats(1, 1000))
def test_nothing_is_changed_that_does_not_pay_back(ab: float, bc: float, cpu: float, horizon: float) -> None:
    adapting = loop(cpu=cpu, gate=Gate(horizon=horizon))
    _, decisions = run(adapting, LEFT, [truth(ab, bc)] * 6)
    for decision in decisions:
        if decision.action == "migrate":
            assert decision.price is not None
            assert decision.price.cpu <= (decision.cost.cpu - decision.proposed_cost.cpu) * horizon
            assert decision.cost.cpu >= adapting.settings.gate.ratio * decision.proposed_cost.cpu


def test_baselines_move_only_with_a_decision() -> None:
    """A drift in steps that are each below the threshold adds up until it is seen."""
    adapting = loop(DataDriven(threshold=2.0, eager=True), remember=1)
    observe(adapting, observed(0, LEFT, truth(0.0001, 0.001)))
    seen = [observe(adapting, observed(n, LEFT, truth(0.0001 * 1.2**n, 0.001))) for n in range(1, 12)]
    decided = [n for n, decision in enumerate(seen, 1) if decision is not None]
    assert decided[:2] == [4, 8]


def test_batches_of_a_changing_plan_are_not_learned_from() -> None:
    adapting = loop(Periodic(Interval(batches=1)), gate=Gate(cool_down=Interval(batches=3)))
    for batch in range(5):
        assert observe(adapting, replace(observed(batch, LEFT, FOR_RIGHT), is_migrating=True)) is None
    decided = [observe(adapting, observed(batch, LEFT, FOR_LEFT)) for batch in range(5, 9)]
    assert [decision is not None for decision in decided] == [False, False, True, True]
    assert decided[2] is not None
    assert decided[2].statistics.selectivities["a b"] == pytest.approx(0.0001, rel=0.05)


def test_a_batch_of_unknown_length_teaches_nothing() -> None:
    adapting = loop(Periodic(Interval(batches=1)))
    assert observe(adapting, replace(observed(0, LEFT, FOR_LEFT), facts=BatchFacts(0, None))) is None
    assert observe(adapting, observed(1, LEFT, FOR_LEFT)) is not None


def test_a_wished_strategy_is_taken_or_the_plan_is_kept() -> None:
    _, decisions = run(loop(strategy="parallel-track"), LEFT, [FOR_RIGHT] * 6)
    assert [decision.strategy for decision in decisions] == ["parallel-track"]
    alone = controller(
        QUERY, Settings(policy=OFTEN, strategy="parallel-track"), Criteria(pricing=pricing(0.01, "moving-state"))
    )
    plan, decisions = run(alone, LEFT, [FOR_RIGHT] * 6)
    assert plan == LEFT
    assert [decision.reason for decision in decisions] == ["parallel-track cannot serve this change"]


def test_memory_that_runs_short_is_a_reason_to_look() -> None:
    adapting = loop(MemoryDriven(), hints=TREES, budget=Budget(memory=20_000_000))
    _, quiet = run(adapting, LEFT, [FOR_LEFT] * 10)
    assert not quiet
    plan, decisions = run(adapting, LEFT, [FOR_RIGHT] * 20, first=10)
    assert plan == RIGHT
    assert "of 20,000,000 bytes" in decisions[0].trigger


def test_rows_that_pile_up_at_the_inputs_are_a_reason_to_look() -> None:
    adapting = loop(MemoryDriven())
    waiting = [100, 130, 170, 230, 300, 390]
    decisions = [observe(adapting, observed(n, LEFT, FOR_RIGHT, waiting=rows)) for n, rows in enumerate(waiting)]
    assert [decision is not None for decision in decisions] == [False, False, False, False, True, False]


def test_rows_that_a_limited_source_keeps_back_are_waiting_too() -> None:
    def decisions(behind: list[float | None]) -> list[Decision | None]:
        adapting = loop(MemoryDriven())
        batches = [observed(n, LEFT, FOR_RIGHT, waiting=100, behind=each) for n, each in enumerate(behind)]
        return [observe(adapting, each) for each in batches]

    # Every batch takes 100 rows of one second, and takes more than a second.
    slow = decisions([2.0, 2.5, 3.0, 3.5, 4.0])
    assert slow[-1] is not None
    assert slow[-1].trigger == "rows waiting at the inputs rose to 300 over 5 batches"
    assert decisions([2.0, 2.0, 2.1, 2.0, 2.0]) == [None] * 5
    assert decisions([1e6, 9e5, 8e5, 7e5, 6e5]) == [None] * 5
    assert decisions([None] * 5) == [None] * 5


def test_the_refined_policy_sees_the_rows_inside_before_any_wait() -> None:
    drift = [truth(0.0001 * 1.15**n, 0.001) for n in range(8)]
    _, plain = run(loop(MemoryDriven()), LEFT, drift)
    _, refined = run(loop(RefinedMemoryDriven()), LEFT, drift)
    assert not plain
    assert "intermediate rows rose" in refined[0].trigger


def test_a_plan_over_its_limits_is_left_for_one_that_keeps_them() -> None:
    criteria = Criteria(pricing=pricing(), budget=Budget(memory=10_000_000))
    adapting = controller(QUERY, Settings(policy=OFTEN, gate=Gate(ratio=1000.0)), criteria)
    plan, decisions = run(adapting, LEFT, [FOR_RIGHT] * 6)
    assert plan != LEFT
    assert "keeps the limits" in decisions[0].reason


def test_a_decision_is_a_record_that_json_holds() -> None:
    _, decisions = run(loop(), LEFT, [FOR_RIGHT] * 6)
    record = json.loads(json.dumps(decisions[0].to_json()))
    assert record["action"] == "migrate"
    assert record["plan"] == "((a b) c)"
    assert record["proposed"] == "(a (b c))"
    assert record["cost"]["cpu"] > record["proposedCost"]["cpu"] > 0
    assert record["strategy"] == "moving-state"
    lost = {each["plan"].partition(" |")[0]: each["reason"] for each in record["considered"]}
    assert record["proposed"] not in lost
    assert all(lost.values())
    assert record["statistics"]["rates"] == {"a": 1000.0, "b": 1000.0, "c": 1000.0}


def test_intermediate_rows_are_those_that_are_no_results() -> None:
    statistics = FixedStatistics(rates=dict.fromkeys("abc", 100.0), selectivities={"a b": 0.01, "b c": 0.02})
    step = steady_step(QUERY, LEFT, statistics)
    (inner,) = [state for state in step.states if state.state == "(a b)"]
    assert intermediate_rows(step, LEFT, QUERY.graph) == inner.inserted


# --- what was counted, how long things stay, and how a plan is reached ----------------------------------------------


def test_a_plan_that_disappointed_is_not_tried_again() -> None:
    """The counts of RIGHT are many times what the model expects; then LEFT is better, and stays so."""

    def dear(batch: int, plan: PhysicalPlan) -> Observation:
        seen = observed(batch, plan, FOR_LEFT if batch < 20 else FOR_RIGHT)
        if plan != RIGHT:
            return seen
        step = steady_step(QUERY, plan, FOR_RIGHT)
        probes = tuple(replace(probe, visited=200 * probe.visited + 100 * probe.probes) for probe in step.probes)
        return replace(seen, read=lambda: replace(step, probes=probes))

    adapting, plan, path = loop(gate=Gate(cool_down=Interval(batches=2)), remember=2, hints=TREES), LEFT, []
    for batch in range(120):
        decision = observe(adapting, dear(batch, plan))
        if decision is not None and decision.action == "migrate":
            assert not isinstance(decision.proposed, Mesh)
            plan = decision.proposed
            path.append(str(plan))
    assert path.count(str(RIGHT)) == 1
    assert path[-1] == str(LEFT)
    assert adapting.history.experience.factors[str(RIGHT)] > 3


def test_streams_that_swing_faster_than_they_can_be_followed_are_not_followed() -> None:
    swing = [FOR_LEFT if batch // 12 % 2 else FOR_RIGHT for batch in range(240)]
    gate = Gate(cool_down=Interval(batches=1))
    _, decisions = run(loop(DataDriven(Interval(batches=1)), cpu=1.0, gate=gate, remember=4), LEFT, swing)
    # Without phases there would be one change for each of the twenty swings.
    assert sum(decision.action == "migrate" for decision in decisions) <= 5


def test_of_plans_that_pay_the_one_is_taken_that_is_cheapest_with_the_way_to_it() -> None:
    """The best plan is dear to reach; its rival costs a little more and is there at once."""

    def price(graph: JoinGraph, old: PhysicalPlan, new: PhysicalPlan, model: ResourceModel) -> tuple[Price, ...]:
        return (Price("moving-state", 100.0, 0.0, 1.0),) if new == RIGHT else (Price("none", 0.0, 0.0, 0.0),)

    adapting = controller(QUERY, Settings(policy=OFTEN), Criteria(pricing=price))
    _, decisions = run(adapting, LEFT, [FOR_RIGHT] * 20)
    (change,) = [decision for decision in decisions if decision.action == "migrate"]
    assert change.proposed != RIGHT
    assert change.strategy == "none"


@pytest.mark.parametrize(("rate", "first"), [(1_000.0, 2), (100.0, 9)])
def test_the_first_decision_comes_as_soon_as_there_are_rows_enough(rate: float, first: int) -> None:
    decisions = run(loop(DataDriven()), LEFT, [truth(0.0001, 0.01, rate)] * 12)[1]
    assert decisions[0].batch == first
    assert decisions[0].trigger == "the first statistics are in"


def swinging(period: int, batches: int) -> list[FixedStatistics]:
    return [FOR_LEFT if batch // period % 2 else FOR_RIGHT for batch in range(batches)]


@pytest.mark.parametrize(("lasts", "followed"), [(3, False), (30, True)])
def test_a_plan_is_left_once_staying_has_cost_as_much_as_leaving_could(lasts: int, followed: bool) -> None:
    """The first change that a query meets: it may be gone as soon as it is followed."""
    streams = [*[FOR_LEFT] * 30, *[FOR_RIGHT] * lasts, *[FOR_LEFT] * 30]
    _, decisions = run(loop(DataDriven(Interval(batches=1)), remember=8, hints=TREES), LEFT, streams)
    changes = [decision.batch for decision in decisions if decision.action == "migrate"]
    assert bool(changes) == followed
    if followed:
        # As many batches as a change goes unnoticed for, as both plans are alike when they are wrong.
        assert changes[0] - 30 == pytest.approx(4, abs=1)


def test_at_first_a_change_must_pay_back_in_as_long_as_the_query_has_run() -> None:
    """A saving of half a core repays the migration after some seconds, and is looked at again then."""
    first = run(loop(hints=TREES), LEFT, [FOR_RIGHT] * 20)[1][0]
    saved = first.cost.cpu - first.proposed_cost.cpu
    _, decisions = run(loop(DataDriven(), cpu=25 * saved, hints=TREES), LEFT, [FOR_RIGHT] * 60)
    (change,) = [decision for decision in decisions if decision.action == "migrate"]
    assert decisions[0].batch < 10
    assert 24 <= change.batch <= 27
    assert "have stayed as they are" in change.trigger


@pytest.mark.parametrize("kinds", [("tree",), ("mjoin",)])
def test_plans_that_a_hint_excludes_are_not_weighed(kinds: tuple[Kind, ...]) -> None:
    """They are listed beside the plan that is proposed, and some of them are cheaper."""
    criteria = Criteria(pricing=pricing(0.0), hints=Hints(kinds=kinds))
    first = LEFT if kinds == ("tree",) else with_default_orders(parse("(a b c)"), QUERY.graph)
    adapting = controller(QUERY, Settings(policy=OFTEN, gate=Gate(cool_down=Interval(batches=1))), criteria)
    _, decisions = run(adapting, first, swinging(20, 200))
    changes = [decision for decision in decisions if decision.action == "migrate"]
    assert changes
    assert {kind(change.proposed) for change in changes if not isinstance(change.proposed, Mesh)} == set(kinds)


def test_a_change_that_moves_no_state_needs_a_smaller_margin() -> None:
    ordered, better = (parse(f"(a b c | a>b>c, b>{orders}, c>b>a)") for orders in ("a>c", "c>a"))
    between, gate = truth(0.001, 0.0002), Gate(cores=0.0)

    def changes(way: str) -> list[str]:
        criteria = Criteria(pricing=pricing(0.0, way), hints=Hints(kinds=("mjoin",)))
        adapting = controller(QUERY, Settings(policy=OFTEN, gate=gate), criteria)
        return [str(each.proposed) for each in run(adapting, ordered, [between] * 20)[1] if each.action == "migrate"]

    assert changes("none") == [str(better)]
    assert changes("moving-state") == []


def test_a_plan_is_charged_for_the_next_change_too() -> None:
    """Migrations cost nothing here; what following a swing costs is the wrong plan until the next swing is noticed."""
    gate = Gate(cool_down=Interval(batches=1))
    adapting = loop(DataDriven(Interval(batches=1)), cpu=0.0, gate=gate, remember=8)
    plan, decisions = run(adapting, LEFT, swinging(12, 240))
    changes = [decision for decision in decisions if decision.action == "migrate"]
    assert len(changes) <= 4
    assert str(plan).startswith("(a b c")
    assert any("s are allowed" in decision.reason for decision in decisions)


def test_long_phases_are_followed_and_what_was_put_off_is_taken_when_the_streams_stay() -> None:
    gate = Gate(cool_down=Interval(batches=1))

    def changes(statistics: list[FixedStatistics]) -> list[Decision]:
        adapting = loop(DataDriven(Interval(batches=1)), cpu=0.0, gate=gate, remember=8)
        return [each for each in run(adapting, LEFT, statistics)[1] if each.action == "migrate"]

    assert len(changes(swinging(100, 600))) >= 5
    calm = changes([*swinging(12, 120), *[FOR_RIGHT] * 200])
    assert calm[-1].proposed == RIGHT
    assert calm[-1].batch > 120
    assert "have stayed as they are" in calm[-1].trigger


SELDOM = Interval(batches=100)
CALM, DEAR = truth(0.0001, 0.0001), truth(0.01, 0.0001)


def test_a_plan_that_has_become_dear_is_decided_on_before_its_interval_has_passed() -> None:
    first, *later = run(loop(DataDriven(SELDOM), hints=TREES), LEFT, [*[CALM] * 30, *[DEAR] * 10])[1]
    assert first.trigger == "the first statistics are in"
    assert 30 < later[0].batch < 40
    assert later[0].trigger.startswith("the cost of a row changed by a factor of")
    assert later[0].action == "migrate"


@pytest.mark.parametrize("policy", [Periodic(SELDOM), MemoryDriven()])
def test_who_asks_for_an_interval_or_for_memory_gets_no_other_reasons(policy: Policy) -> None:
    decisions = run(loop(policy, hints=TREES), LEFT, [*[CALM] * 30, *[DEAR] * 10])[1]
    assert all("cost of a row" not in decision.trigger for decision in decisions)


def test_what_is_dear_for_a_batch_or_two_is_no_reason() -> None:
    streams = [*[CALM] * 30, *([DEAR] * 2 + [CALM] * 8) * 3]
    decisions = run(loop(DataDriven(SELDOM), hints=TREES), LEFT, streams)[1]
    assert [decision.trigger for decision in decisions] == ["the first statistics are in"]


def test_statistics_that_swing_and_change_nothing_are_looked_at_more_and_more_seldom() -> None:
    often, rare = truth(0.00005, 0.01), truth(0.0001, 0.01)
    streams = [often if batch // 8 % 2 else rare for batch in range(400)]
    decisions = run(loop(DataDriven(), hints=TREES), LEFT, streams)[1]
    distances = [later.batch - earlier.batch for earlier, later in pairwise(decisions)]
    assert len(distances) > 3
    assert {decision.action for decision in decisions} == {"keep"}
    assert distances[-1] > 2 * distances[0]
    assert all(later >= earlier - 8 for earlier, later in pairwise(distances))
