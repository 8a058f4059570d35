"""The history: a value that batches replace; its questions do not change it."""

from __future__ import annotations

from dataclasses import replace

from anabranch.adapt.advisors.routes import is_due
from anabranch.adapt.cost_trend import CostTrend
from anabranch.adapt.facts import BatchFacts, Interval
from anabranch.adapt.history import History, Observation
from anabranch.cost.units import ENGINE
from anabranch.mesh.drift import RouteTrend
from anabranch.plan.mesh import parse_mesh
from anabranch.plan.text import parse
from anabranch.stats.mesh.routes import HopStatistics, RouteStatistics
from anabranch.stats.step import ProbeStatistics, StepStatistics
from tests.unit.adapt.simulated import QUERY, observed, truth

MESH = parse_mesh("mesh(a: b; b: a)")
LEFT = parse("((a b) c)")


def test_slots_learn_at_doubling_distances() -> None:
    assert [batches for batches in range(40) if is_due(batches, first=4)] == [4, 8, 16, 32]


def routed(rows: int, kept: int) -> tuple[RouteStatistics, ...]:
    return (RouteStatistics("a", 0, rows, 0, (HopStatistics("b", rows, kept),)),)


def test_routes_that_no_longer_do_what_they_did_have_drifted_once() -> None:
    trend = RouteTrend()
    for _ in range(5):
        trend = trend.after(routed(10_000, 5_000))
        assert trend.drift(MESH) is None
    trend = trend.after(routed(10_000, 9_000))
    reason = trend.drift(MESH)
    assert reason is not None
    assert "operator 'b'" in reason
    trend = RouteTrend()
    for _ in range(8):
        trend = trend.after(routed(10_000, 9_000))
        assert trend.drift(MESH) is None


def test_a_drift_that_led_to_nothing_makes_the_next_wait_longer() -> None:
    def noticed(patience: int) -> int:
        trend = RouteTrend()
        for batch in range(99):
            trend = trend.after(routed(10_000, 5_000 if batch < 3 else 9_000))
            if trend.drift(MESH, patience) is not None:
                return batch
        raise AssertionError("the drift was never noticed")

    assert noticed(1) < noticed(2) < noticed(8)


def empty() -> History:
    return History.empty(QUERY, None, ENGINE, cool_down=Interval(batches=3))


def test_questions_do_not_change_a_history_and_batches_make_another() -> None:
    first = empty().after(observed(0, LEFT, truth(0.01, 0.001)))
    before = (first.recent, first.known, first.baseline, first.since, first.phases, first.trend)
    assert (first.is_settled, first.change, first.flow is not None) == (True, None, True)
    later = first.after(observed(1, LEFT, truth(0.01, 0.001)))
    assert (first.recent, first.known, first.baseline, first.since, first.phases, first.trend) == before
    assert len(later.recent) == 2


def test_a_change_of_plan_begins_a_cool_down_and_keeps_the_statistics() -> None:
    now = empty()
    for batch in range(4):
        now = now.after(observed(batch, LEFT, truth(0.01, 0.001)))
    now = now.after(replace(observed(4, LEFT, truth(0.01, 0.001)), is_migrating=True))
    assert (now.recent, now.since.is_cooling) == ((), True)
    assert now.statistics.rates
    cooling = []
    for batch in range(5, 8):
        now = now.after(observed(batch, parse("(a (b c))"), truth(0.01, 0.001)))
        cooling.append(now.since.is_cooling)
    assert cooling == [True, True, False]


def test_streams_that_change_are_not_settled_and_what_came_before_is_dropped() -> None:
    now = empty()
    for batch in range(8):
        now = now.after(observed(batch, LEFT, truth(0.01 if batch < 4 else 0.0001, 0.001)))
    assert not now.is_settled
    waiting = now.waiting_to_settle()
    assert [each.batch for each in waiting.recent] == [4, 5, 6, 7]
    assert waiting.is_settled


def test_rates_are_those_of_the_recent_batches() -> None:
    step = StepStatistics({"a": 15}, 4)
    now = empty().after(Observation(BatchFacts(0, None), MESH, lambda: step))
    assert now.flow is None
    for batch in (1, 2):
        now = now.after(Observation(BatchFacts(batch, 0.5), MESH, lambda: step))
    assert now.flow is not None
    assert (now.flow.rates, now.flow.results, now.flow.batch, now.flow.batches) == ({"a": 30.0}, 8.0, 0.5, 2)


def test_a_mesh_whose_rows_find_other_matches_is_not_settled() -> None:
    """A plan is charged for the rows that are looked at, not for those from before a change."""

    def matched(batch: int, matches: int) -> Observation:
        probe = ProbeStatistics("(a b)", "a", "b", 1_000, 0, 0, matches)
        return Observation(BatchFacts(batch, 0.5), MESH, lambda: StepStatistics({"a": 1_000}, probes=(probe,)))

    now = replace(empty(), trend=CostTrend())
    for batch in range(6):
        now = now.after(matched(batch, 1_000))
    assert now.is_settled
    for number in range(1, 4):
        now = now.after(matched(6 + number, 9_000))
    changed = now
    assert not changed.is_settled
    while not now.is_settled:
        now = now.waiting_to_settle()
    assert now.flow is not None
    assert {probe.matches for each in now.recent for probe in each.step.probes} == {9_000}
