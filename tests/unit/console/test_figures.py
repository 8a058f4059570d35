"""Figures over the last minute: rates per second of the wall clock, whatever the number and length of batches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.console.figures import Curve
from anabranch.console.points import BatchPoint
from tests.unit.console.scripted import BEGAN_AT, progress

FIRST = BatchPoint.of(progress(0))
assert FIRST is not None


def batch(number: int, start: float, trigger: float = 0.5, rows: int = 60) -> BatchPoint:
    """A batch whose trigger begins some seconds after the first one."""
    assert FIRST is not None
    return replace(FIRST, batch=number, at=BEGAN_AT + start, trigger=trigger, rows_in={"a": rows}, late={"a": 2})


def curve_of(*batches: BatchPoint, most: int = 1000) -> Curve:
    curve = Curve(most)
    curve.add(batches)
    return curve


def figures(curve: Curve) -> dict[str, object]:
    assert curve.minute is not None
    return curve.minute.to_json({"a": 9}, {"": 7})


def test_rates_are_those_of_the_minute_that_ended_with_the_latest_batch() -> None:
    # One batch of 60 rows every two seconds, for five minutes.
    curve = curve_of(*(batch(number, 2.0 * number) for number in range(150)))
    found = figures(curve)
    assert found["seconds"] == 60
    assert found["in"] == pytest.approx(30, rel=0.05)
    assert found["batches"] == 30
    assert (found["trigger"], found["longest"]) == (0.5, 0.5)


def test_a_young_run_is_measured_over_its_own_time() -> None:
    found = figures(curve_of(batch(0, 0.0), batch(1, 9.5)))
    assert (found["seconds"], found["in"]) == (10, 12)


def test_a_trigger_longer_than_a_minute_counts_with_the_part_in_the_minute() -> None:
    found = figures(curve_of(batch(0, 0.0), batch(1, 1.0, trigger=600, rows=60_000)))
    assert found["in"] == pytest.approx(100)


def test_the_headline_is_the_end_of_the_curve() -> None:
    curve = curve_of(*(batch(number, 1.7 * number, rows=number) for number in range(100)))
    assert figures(curve)["in"] == curve.samples[-1].rows_in


def test_hundreds_of_batches_are_folded_into_seconds() -> None:
    curve = curve_of(*(batch(number, 0.01 * number, trigger=0.01) for number in range(500)))
    assert len(curve.samples) == 6  # the first batch ends 0.01 s after a whole second
    last = curve.samples[-2].to_json()
    assert (last["batches"], last["first"], last["batch"], last["trigger"]) == (100, 399, 498, 0.01)
    assert figures(curve)["in"] == pytest.approx(500 * 60 / 5)


def test_batches_give_one_curve_however_they_are_added() -> None:
    batches = [batch(number, 0.3 * number, trigger=0.2) for number in range(100)]
    whole, one_by_one = curve_of(*batches), Curve(1000)
    for each in batches:
        one_by_one.add([each])
    assert [each.to_json() for each in one_by_one.samples] == [each.to_json() for each in whole.samples]
    assert figures(one_by_one) == figures(whole)


def test_a_minute_without_batches_is_a_zero_in_the_curve() -> None:
    curve = curve_of(batch(0, 0.0), batch(1, 300.0))
    idle = curve.samples[1]
    assert [each.number - BEGAN_AT for each in curve.samples] == [0, 60, 300]
    assert (idle.rows_in, idle.second, idle.batch) == (0, None, 1)
    assert curve.samples[-1].rows_in == 1  # 60 rows in the last minute


def test_a_clock_that_is_set_back_does_not_reverse_the_curve() -> None:
    curve = curve_of(batch(0, 100.0), batch(1, 50.0), batch(2, 101.0))
    numbers = [each.number for each in curve.samples]
    assert numbers == sorted(set(numbers))
    assert curve.samples[-1].batch == 2


def test_the_oldest_samples_are_dropped() -> None:
    curve = curve_of(*(batch(number, 2.0 * number) for number in range(50)), most=20)
    assert [each.batch for each in curve.samples] == list(range(30, 50))


def test_streams_and_slots_are_told_apart() -> None:
    assert FIRST is not None
    found = figures(curve_of(FIRST, replace(FIRST, batch=1, at=BEGAN_AT + 8.5)))
    streams = {each["stream"]: each for each in found["streams"]}  # type: ignore[attr-defined]
    assert (streams["a"]["rate"], streams["a"]["late"], streams["a"]["lateTotal"]) == (8, 2, 9)
    assert streams["a"]["lag"] == pytest.approx(18.5)  # from its newest row to the start of the latest trigger
    assert (streams["b"]["rate"], streams["b"]["lag"], streams["b"]["lateTotal"]) == (4, None, 0)
    slots = found["slots"]
    assert [(each["slot"], each["load"]) for each in slots] == [(0, pytest.approx(0.06)), (1, pytest.approx(0.02))]  # type: ignore[attr-defined]
    assert found["skew"] == pytest.approx(1.5)
