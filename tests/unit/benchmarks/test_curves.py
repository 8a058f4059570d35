"""A curve has the slope of its points, a promise can be missed, and its picture says what was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from benchmarks.bench import QUICK, Bench
from benchmarks.curve import Curve, Point, Promise, draw, figures, middle, record, slope
from benchmarks.curves import CURVES, over_state, over_streams
from benchmarks.measure import Cost, Memory
from benchmarks.scenarios import SCENARIOS

CURVE = Curve("state", "rows in state", Promise("time of a step", 0.1, "…"), Promise("bytes", 1.05, "…"))
SIZES = (10.0, 100.0, 1_000.0, 10_000.0)
TINY = Bench(replace(QUICK, growth_rows_per_batch=120), 1, True)


def points(time_slope: float, memory_slope: float) -> list[Point]:
    return [Point(size, 0.003 * size**time_slope, 70 * size**memory_slope) for size in SIZES]


@pytest.mark.parametrize("wanted", [0.0, 0.5, 1.0, -0.2])
def test_the_slope_is_the_exponent(wanted: float) -> None:
    assert slope(CURVE, points(wanted, 1.0), "seconds") == pytest.approx(wanted)
    assert slope(CURVE, points(0.0, wanted), "bytes") == pytest.approx(wanted)


def test_a_fixed_cost_below_the_fitted_sizes_does_not_count() -> None:
    found = [Point(1.0, 5.0, 1.0), *points(1.0, 1.0)]
    assert slope(CURVE, found, "seconds") < 0.5
    assert slope(replace(CURVE, fitted_from=10.0), found, "seconds") == pytest.approx(1.0)


def test_a_promise_is_kept_or_missed() -> None:
    kept, missed = figures(CURVE, [points(0.05, 1.2), points(0.0, 1.3)])
    assert kept.is_reached
    assert missed.is_reached is False
    assert missed.values == pytest.approx((1.2, 1.3))


def test_the_middle_of_several_runs_is_that_of_each_point() -> None:
    runs = [[Point(1.0, seconds, 10 * seconds)] for seconds in (3.0, 1.0, 2.0)]
    assert middle(runs) == [Point(1.0, 2.0, 20.0)]


@pytest.mark.parametrize("time_slope", [0.0, 1.0])
def test_the_picture_says_what_was_measured_and_promised(tmp_path: Path, time_slope: float) -> None:
    draw(CURVE, points(time_slope, 1.0), tmp_path / "curve.svg")
    text = (tmp_path / "curve.svg").read_text()
    for said in ("rows in state", "time of a step", f"measured, slope {time_slope:.2f}", "promised, at most 0.1"):
        assert said in text
    draw(CURVE, points(time_slope, 1.0), tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == text


def test_every_curve_is_a_scenario_with_a_name_of_its_own() -> None:
    names = [grown.curve.name for grown in CURVES]
    assert len(set(names)) == len(names)
    assert {f"curve-{name}" for name in names} <= {scenario.name for scenario in SCENARIOS}


def test_bytes_grow_with_rows_in_state_and_not_with_streams() -> None:
    state, streams = list(over_state(TINY)), list(over_streams(TINY))
    assert [point.size for point in state] == [120, 360, 1_200, 3_600]
    assert [point.bytes for point in state] == sorted({point.bytes for point in state})
    assert [point.size for point in streams] == [2, 3, 4]
    assert record(CURVE, state)["points"][0] == {"size": 120, "seconds": state[0].seconds, "bytes": state[0].bytes}


def test_the_peak_of_a_stretch_is_of_its_samples() -> None:
    cost = Cost(0, 4.0, 9.0, Memory(0, 0, 0), 4, (1.0, 2.0, 3.0, 4.0), (0.0,) * 4, memory=(5, 9, 7, 8))
    assert cost.peak_between(0.0, 5.0) == 9
    assert cost.peak_between(2.5, 5.0) == 8
    assert cost.peak_between(2.5, 2.6) == 7
