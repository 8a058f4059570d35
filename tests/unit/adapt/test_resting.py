"""A calm query is left alone; its batches are put aside, none is lost, and a change that matters ends the rest."""

from __future__ import annotations

import pytest

from anabranch.adapt.calm import Calm, counts
from anabranch.adapt.facts import BatchFacts
from anabranch.adapt.loop import Loop
from anabranch.adapt.policy import DataDriven, Interval, MemoryDriven, Periodic, Policy
from anabranch.adapt.resting import Batch, Rest
from anabranch.adapt.rules import Criteria
from anabranch.adapt.settings import Settings
from anabranch.plan.slots import SlotPlan
from anabranch.plan.text import parse
from anabranch.stats.report import QueryReport
from anabranch.stats.step import ProbeStatistics, StepStatistics
from tests.unit.adapt.simulated import QUERY, observed, pricing, run, truth

PLAN = parse("((a b) c)")
STEADY = truth(0.0001, 0.01)


def step(rows: int = 1_000, matches: int = 500) -> StepStatistics:
    return StepStatistics({"a": rows, "b": rows}, probes=(ProbeStatistics("(a b)", "a", "b", rows, 0, 0, matches),))


def batch(number: int, counted: StepStatistics | None = None) -> Batch:
    report = QueryReport(PLAN, statistics=step() if counted is None else counted)
    return Batch(BatchFacts(number, 1.0), {0: report}, (SlotPlan(PLAN),))


USUAL = counts([step()] * 8, 8.0)


def test_batches_are_put_aside_in_their_order_and_none_is_lost() -> None:
    rest = Rest()
    rest.begin(Calm(0, 3, USUAL), 7)
    assert [rest.takes(batch(number)) for number in range(4)] == [True, True, True, False]
    assert [each.facts.batch for each in rest.end()] == [0, 1, 2]
    assert not list(rest.end())


def test_the_rest_has_a_limit() -> None:
    rest = Rest()
    rest.begin(Calm(0, 100, USUAL), 7)
    assert rest.left == 7


@pytest.mark.parametrize("changed", [step(2_000, 1_000), step(1_000, 1_500), step(1_000, 50)])
def test_a_change_ends_a_calm_rest_at_once(changed: StepStatistics) -> None:
    rest = Rest()
    rest.begin(Calm(0, 100, USUAL), 7)
    assert rest.takes(batch(0))
    assert not rest.takes(batch(1, changed))
    assert rest.left == 0
    assert [each.facts.batch for each in rest.end()] == [0]


def test_a_change_that_hides_in_the_totals_ends_a_calm_rest_at_once() -> None:
    def two(left: int, right: int) -> StepStatistics:
        probes = (
            ProbeStatistics("(a b)", "a", "b", 1_000, 0, 0, left),
            ProbeStatistics("(a b)", "b", "a", 1_000, 0, 0, right),
        )
        return StepStatistics({"a": 1_000, "b": 1_000}, probes=probes)

    rest = Rest()
    rest.begin(Calm(0, 100, counts([two(500, 4_000)] * 8, 8.0)), 7)
    assert rest.takes(batch(0, two(500, 4_000)))
    assert not rest.takes(batch(1, two(4_000, 500)))


def test_while_it_waits_a_query_rests_whatever_changes_until_its_rows_are_dear() -> None:
    work, rows, _ = batch(0).priced([0])
    rest = Rest()
    rest.begin(Calm(0, 0, USUAL, waiting=3, bound=1.2 * work / rows), 7)
    assert rest.takes(batch(0, step(4_000, 100)))
    assert not rest.takes(batch(1, step(1_000, 500_000)))
    rest.begin(Calm(0, 0, USUAL, waiting=3, bound=1.2 * work / rows), 7)
    assert [rest.takes(batch(number)) for number in range(4)] == [True, True, True, False]


def test_a_query_rests_no_longer_than_until_a_decision_may_pay() -> None:
    work, rows, least = batch(0).priced([0])
    rest = Rest()
    rest.begin(Calm(waiting=7, bound=2 * work / rows, allowed=2.5 * (work - least)), 7)
    assert [rest.takes(batch(number)) for number in range(3)] == [True, True, False]


def test_what_slots_did_adds_up() -> None:
    report = QueryReport(PLAN, statistics=step())
    both = Batch(BatchFacts(0, 1.0), {0: report, 1: report}, (SlotPlan(PLAN),) * 2)
    assert both.priced([0, 1]) == pytest.approx(tuple(2 * each for each in both.priced([0])))


def test_a_batch_of_which_no_slot_reports_costs_nothing() -> None:
    assert Batch(BatchFacts(0, 1.0), {}, ()).priced(()) == (0, 0, 0)


def test_whatever_a_batch_brings_it_is_put_aside_where_nothing_would_be_decided() -> None:
    rest = Rest()
    rest.begin(Calm(2), 7)
    assert [rest.takes(batch(number, step(9, 9))) for number in range(3)] == [True, True, False]


@pytest.mark.parametrize(
    ("policy", "silent"),
    [
        (DataDriven(), 9),
        (DataDriven(eager=True), 0),
        (DataDriven(Interval(seconds=10.0)), 0),
        (Periodic(Interval(batches=4)), 3),
        (MemoryDriven(), 0),
    ],
)
def test_a_policy_says_for_how_long_it_suggests_nothing(policy: Policy, silent: int) -> None:
    assert policy.silent_for(0) == silent
    assert policy.silent_for(100) == 0


def test_a_loop_is_silent_after_a_decision_and_then_calm_for_as_long_as_nothing_changes() -> None:
    loop = Loop(QUERY, Settings(), Criteria(pricing=pricing()))
    assert loop.calm == Calm()
    _, decisions = run(loop, PLAN, [STEADY] * 3)
    assert [decision.batch for decision in decisions] == [2]
    assert loop.calm == Calm(9)
    for number in range(3, 12):
        # Batches that were put aside.
        loop.watch(observed(number, PLAN, STEADY))
    assert loop.observe(observed(12, PLAN, STEADY)) is None
    calm = loop.calm
    assert (calm.silent, calm.lasted) == (0, 10)
    assert loop.observe(observed(13, PLAN, truth(0.01, 0.01))) is None
    assert loop.calm.lasted == 0
