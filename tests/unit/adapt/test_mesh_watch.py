"""Watching the routes of a mesh: when a slot looks for another, and what it says of its rates."""

from __future__ import annotations

from anabranch.adapt.mesh_watch import MeshWatch
from anabranch.adapt.policy import Interval
from anabranch.adapt.routing import Flow
from anabranch.adapt.rules import Staging
from anabranch.plan.mesh import parse_mesh
from anabranch.stats.mesh.routes import HopStatistics, RouteStatistics
from anabranch.stats.step import ProbeStatistics, StepStatistics

FIRST, SECOND = parse_mesh("mesh(a: b; b: a)"), parse_mesh("mesh(a: b by 0; b: a, a by 0)")


def test_slots_learn_at_doubling_distances() -> None:
    assert [batches for batches in range(40) if Staging(first=4).is_due(batches)] == [4, 8, 16, 32]


def seen(rows: int, kept: int) -> StepStatistics:
    route = RouteStatistics("a", 0, rows, 0, (HopStatistics("b", rows, kept),))
    return StepStatistics({"a": rows}, kept, routes=(route,))


def test_a_mesh_that_no_longer_does_what_it_did_is_told_once() -> None:
    watch = MeshWatch(Interval())
    assert [watch.note(FIRST, seen(10_000, 5_000), 1.0) for _ in range(5)] == [None] * 5
    reason = watch.note(FIRST, seen(10_000, 9_000), 1.0)
    assert reason is not None
    assert "operator 'b'" in reason
    assert watch.note(FIRST, seen(10_000, 9_000), 1.0) is None


def test_nothing_is_told_while_the_last_change_cools_down() -> None:
    watch = MeshWatch(Interval(batches=8))
    watch.note(SECOND, seen(10_000, 5_000), 1.0)
    assert not watch.is_cooling
    told = [watch.note(FIRST, seen(10_000, 5_000 if number < 4 else 9_000), 1.0) for number in range(8)]
    assert [reason is not None for reason in told] == [False] * 7 + [True]
    assert not watch.is_cooling


def test_rates_are_those_of_the_latest_batches() -> None:
    watch = MeshWatch(Interval())
    watch.note(FIRST, seen(1_000, 10), None)
    assert watch.flow is None
    for rows in (10, 20):
        watch.note(FIRST, seen(rows, 4), 0.5)
    assert watch.flow == Flow({"a": 30.0}, 8.0, 0, 0.5)


def test_another_mesh_starts_another_watch() -> None:
    watch = MeshWatch(Interval())
    for _ in range(5):
        watch.note(FIRST, seen(10_000, 5_000), 1.0)
    assert watch.note(SECOND, seen(10_000, 9_000), 1.0) is None


def test_windows_that_fill_are_no_drift() -> None:
    watch = MeshWatch(Interval(), filling=6.0)
    told = [watch.note(FIRST, seen(10_000, 1_000 * number), 1.0) for number in range(1, 7)]
    assert told == [None] * 6
    assert [watch.note(FIRST, seen(10_000, 7_000), 1.0) for _ in range(3)] == [None] * 3
    assert watch.note(FIRST, seen(10_000, 2_000), 1.0) is not None


def test_a_flow_has_only_batches_like_the_latest() -> None:
    """A plan is charged what it takes of the rows that are looked at, not of those from before a change."""

    def matched(matches: int) -> StepStatistics:
        return StepStatistics({"a": 1_000}, probes=(ProbeStatistics("(a b)", "a", "b", 1_000, 0, 0, matches),))

    watch = MeshWatch(Interval())
    for _ in range(6):
        watch.note(FIRST, matched(1_000), 0.5)
    assert watch.flow is not None
    assert watch.flow.batches == 6
    for number in range(1, 4):
        watch.note(FIRST, matched(9_000), 0.5)
        assert watch.flow is not None
        assert (watch.flow.batches, sum(probe.matches for probe in watch.flow.step.probes)) == (number, number * 9_000)
