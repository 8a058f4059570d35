"""What is a trend, and what is not; policies only suggest."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from anabranch.adapt.policy import DataDriven, Interval, MemoryDriven, Periodic, Situation, Trend


@given(values=st.lists(st.floats(0, 1e6), max_size=12), batches=st.integers(2, 6), growth=st.floats(1.0, 3.0))
def test_a_trend_never_falls_and_grows_enough(values: list[float], batches: int, growth: float) -> None:
    if Trend(batches, growth).holds(values):
        recent = values[-batches:]
        assert len(recent) == batches
        assert recent == sorted(recent)
        assert recent[-1] >= growth * recent[0]


def test_a_single_jump_is_no_trend() -> None:
    assert not Trend(5, 1.3).holds([10, 10, 10, 90, 90])
    assert not Trend(5, 1.3).holds([10, 20, 30, 20, 50])
    assert Trend(5, 1.3).holds([10, 14, 20, 24, 30])


def test_an_interval_of_time_and_one_of_batches() -> None:
    assert Interval(batches=3).has_passed(3, 0.0)
    assert not Interval(seconds=3.0).has_passed(100, 2.9)
    assert not Interval(batches=3, seconds=3.0).has_passed(2, 9.0)


class Quiet:
    """A situation that fails the test if anything is computed for it."""

    batches, seconds, waiting, patience, is_telling = 1, 1.0, (), 1, False

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


def test_nothing_is_computed_for_a_policy_that_does_not_ask() -> None:
    assert Periodic(Interval(batches=2)).suggestion(Quiet(), inf) is None
    assert MemoryDriven().suggestion(Quiet(), inf) is None


def test_an_infinite_change_is_no_change_of_the_streams() -> None:
    """A plan counts other joins than the one before: then a selectivity is known on one side only."""
    seen = SimpleNamespace(batches=10, seconds=10.0, patience=1, is_telling=False, change=inf)
    found = DataDriven().suggestion(cast(Situation, seen), inf)
    assert found is not None
    assert not found.is_change
    seen.change = 1.6
    found = DataDriven().suggestion(cast(Situation, seen), inf)
    assert found is not None
    assert found.is_change
