"""Invariants of clocks: floors never go back, the watermark is the least of those awake, silence stalls no stream."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from anabranch.lang.window import BEFORE_ALL
from anabranch.run.clock import Clocks, StreamClock

NAMES = ["a", "b", "c"]
Step = tuple[dict[str, int | None], int]


@st.composite
def histories(draw: st.DrawFn) -> tuple[dict[str, int], dict[str, int | None], list[Step]]:
    """Allowed disorder, idle timeouts, and batches of largest event times with the processing time passed since."""
    disorder = {name: draw(st.integers(0, 20)) for name in NAMES}
    timeout = {name: draw(st.none() | st.integers(1, 50)) for name in NAMES}
    newest = st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, st.none() | st.integers(-100, 100)))
    return disorder, timeout, draw(st.lists(st.tuples(newest, st.integers(0, 40)), max_size=12))


def run(history: tuple[dict[str, int], dict[str, int | None], list[Step]]) -> list[tuple[int, Clocks]]:
    disorder, timeout, steps = history
    now = 1000
    states = [(now, Clocks.at_start(NAMES, now))]
    for newest, passed in steps:
        now += passed
        states.append((now, states[-1][1].advance(newest, disorder, now, timeout)))
    return states


@given(histories())
def test_floors_and_watermark_never_go_back(history: tuple[dict[str, int], dict[str, int | None], list[Step]]) -> None:
    states = [clocks for _, clocks in run(history)]
    for before, after in itertools.pairwise(states):
        assert after.watermark >= before.watermark
        for name in NAMES:
            assert after.streams[name].floor >= before.streams[name].floor


@given(histories())
def test_a_floor_is_the_largest_time_less_the_disorder_unless_idleness_raised_it(
    history: tuple[dict[str, int], dict[str, int | None], list[Step]],
) -> None:
    disorder, timeout, steps = history
    for count, (_, clocks) in enumerate(run(history)):
        for name in NAMES:
            seen = [time for newest, _ in steps[:count] if (time := newest.get(name)) is not None]
            own = max(seen) - disorder[name] if seen else BEFORE_ALL
            assert clocks.streams[name].floor >= own
            if timeout[name] is None:
                assert clocks.streams[name].floor == own
                assert not clocks.streams[name].is_idle


@given(histories())
def test_the_watermark_is_the_least_floor_of_the_streams_awake(
    history: tuple[dict[str, int], dict[str, int | None], list[Step]],
) -> None:
    states = run(history)
    for (_, before), (now, clocks) in itertools.pairwise(states):
        awake = [clock.floor for clock in clocks.streams.values() if not clock.is_idle]
        assert clocks.watermark == (min(awake) if awake else before.watermark)
        for name, clock in clocks.streams.items():
            timeout = history[1][name]
            assert clock.is_idle == (timeout is not None and clock.heard < now and now - clock.heard >= timeout)


@given(histories())
def test_clocks_survive_json(history: tuple[dict[str, int], dict[str, int | None], list[Step]]) -> None:
    for _, clocks in run(history):
        assert Clocks.from_json(clocks.to_json()) == clocks


def test_a_stream_that_wakes_is_late_below_what_was_answered_without_it() -> None:
    clocks = Clocks.at_start(["a", "b"], 0)
    clocks = clocks.advance({"a": 10, "b": 4}, {"a": 0, "b": 0}, 0, {"a": 30, "b": 30})
    clocks = clocks.advance({"a": 90}, {"a": 0, "b": 0}, 30, {"a": 30, "b": 30})
    assert clocks.streams["b"] == StreamClock(floor=90, newest=4, heard=0, is_idle=True)
    clocks = clocks.advance({"b": 50}, {"a": 0, "b": 0}, 31, {"a": 30, "b": 30})
    assert clocks.streams["b"] == StreamClock(floor=90, newest=50, heard=31, is_idle=False)
    assert clocks.watermark == 90


def test_the_floor_of_a_derived_stream_never_goes_back() -> None:
    """Rows below a floor were called late, whatever the next tick is."""
    clocks = Clocks.at_start(["a", "r"], 0).advance({"a": 10}, {"a": 0}, 0, {}, {"r": 8})
    clocks = clocks.advance({"a": 12}, {"a": 0}, 1, {}, {"r": 5})
    assert clocks.streams["r"].floor == 8
    assert clocks.advance({}, {"a": 0}, 2, {}, {"r": 9}).streams["r"].floor == 9


def test_when_all_are_silent_time_stands_still() -> None:
    clocks = Clocks.at_start(["a", "b"], 0).advance({"a": 10, "b": 4}, {"a": 0, "b": 0}, 0, {"a": 5, "b": 5})
    later = clocks.advance({}, {"a": 0, "b": 0}, 100, {"a": 5, "b": 5})
    assert later.watermark == 4


def test_there_is_no_watermark_to_tell_of_before_every_stream_has_had_a_row() -> None:
    """A number that stands for 'before all' would be taken for a time, and rates reckoned from it."""
    disorder, timeout = dict.fromkeys(NAMES, 5), dict.fromkeys(NAMES)
    clocks = Clocks.at_start(NAMES, 0).advance({"a": 100, "b": 90}, disorder, 1, timeout)
    assert clocks.known_watermark is None
    assert clocks.advance({"c": 80}, disorder, 2, timeout).known_watermark == 75
