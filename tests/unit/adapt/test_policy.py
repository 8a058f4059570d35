"""What is a trend, and what is not; policies only suggest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.adapt.policy import Interval, MemoryDriven, Periodic, Situation, Trend


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


def test_nothing_is_computed_for_a_policy_that_does_not_ask() -> None:
    def never() -> int:
        raise AssertionError

    def never_either() -> tuple[float, ...]:
        raise AssertionError

    seen = Situation(batches=1, seconds=1.0, memory=never, change=never, between=never_either)
    assert Periodic(Interval(batches=2)).suggestion(seen) is None
    assert MemoryDriven().suggestion(seen) is None
