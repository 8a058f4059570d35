"""What is a trend, and what is not; policies only suggest."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from anabranch.adapt.facts import RATIO, WATCHED, BatchFacts, Interval, Since, is_rising
from anabranch.adapt.history import History, Observation
from anabranch.adapt.knowledge import Knowledge
from anabranch.adapt.policy import DataDriven, MemoryDriven, Periodic
from anabranch.cost.units import ENGINE
from anabranch.plan.text import parse
from anabranch.stats.step import StepStatistics
from tests.unit.adapt.simulated import QUERY


@given(values=st.lists(st.floats(0, 1e6), max_size=12))
def test_a_trend_never_falls_and_grows_enough(values: list[float]) -> None:
    if is_rising(values):
        recent = values[-WATCHED:]
        assert len(recent) == WATCHED
        assert recent == sorted(recent)
        assert recent[-1] >= RATIO * recent[0]


def test_a_single_jump_is_no_trend() -> None:
    assert not is_rising([10, 10, 10, 90, 90])
    assert not is_rising([10, 20, 30, 20, 50])
    assert is_rising([10, 14, 20, 24, 30])


def test_an_interval_of_time_and_one_of_batches() -> None:
    assert Since(3, 0.0).has_passed(Interval(batches=3))
    assert not Since(100, 2.9).has_passed(Interval(seconds=3.0))
    assert not Since(2, 9.0).has_passed(Interval(batches=3, seconds=3.0))


def test_nothing_is_measured_for_a_policy_that_does_not_ask() -> None:
    def fails() -> StepStatistics:
        raise AssertionError("nothing needs to be read")

    seen = History.empty(QUERY, None, ENGINE)
    seen = replace(seen, recent=(Observation(BatchFacts(0, 1.0), parse("(a b c)"), fails),), since=Since(1, 1.0))
    assert Periodic(Interval(batches=2)).suggestion(seen, inf) is None
    assert MemoryDriven().suggestion(seen, inf) is None


def test_an_infinite_change_is_no_change_of_the_streams() -> None:
    """A plan counts other joins than the one before: then a selectivity is known on one side only."""
    seen = replace(History.empty(QUERY, None, ENGINE), since=Since(10, 10.0), known=Knowledge({"a": 1.0}))
    found = DataDriven().suggestion(replace(seen, baseline=Knowledge({"a": 1.0, "b": 1.0})), inf)
    assert found is not None
    assert not found.is_change
    found = DataDriven().suggestion(replace(seen, baseline=Knowledge({"a": 1.6})), inf)
    assert found is not None
    assert found.is_change
