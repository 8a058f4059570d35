from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from anabranch.cost.estimates import EVER, from_edges
from anabranch.cost.progress import at, progress, stream_time_to
from anabranch.cost.resources import ResourceModel
from anabranch.cost.units import UnitCosts
from anabranch.plan.text import parse

SETTING = from_edges({"a": 10.0, "b": 20.0}, 4.0, {("a", "b"): 0.1})
FREE = UnitCosts(0, 0, 0, 0, 0)
DEAR = UnitCosts(0, 0, 1.0, 0, 0)
PLAN = parse("(a b)")


def test_a_plan_that_keeps_up_puts_out_what_the_windows_hold() -> None:
    going = progress(PLAN, ResourceModel(SETTING, FREE), cores=1.0)
    # While the windows fill, every pair so far is a result; then 2 x 10 x 20 x 0.1 x 4 a second.
    assert going.results_by(2.0) == pytest.approx(10 * 20 * 0.1 * 2**2, rel=0.02)
    assert going.results_by(10.0) == pytest.approx(10 * 20 * 0.1 * 4**2 + 6 * 160, rel=0.02)
    assert going.time_to(going.results_by(3.0)) == pytest.approx(3.0, rel=1e-6)
    assert going.time_to(going.results_by(30.0)) == pytest.approx(30.0)


@pytest.mark.parametrize("window", [4.0, 400.0, 40_000.0])
def test_results_before_any_window_is_full_do_not_depend_on_the_windows(window: float) -> None:
    model = ResourceModel(from_edges({"a": 10.0, "b": 20.0}, window, {("a", "b"): 0.1}), FREE)
    assert progress(PLAN, model, 1.0, until=2.0).results_by(2.0) == pytest.approx(10 * 20 * 0.1 * 2**2)
    assert stream_time_to(model, 80.0) == pytest.approx(2.0, rel=0.01)


def test_a_saturated_plan_falls_behind_in_proportion() -> None:
    # 30 rows a second cost a second each.
    slow = progress(PLAN, ResourceModel(SETTING, DEAR), cores=10.0)
    free = progress(PLAN, ResourceModel(SETTING, FREE), cores=10.0)
    assert slow.rate == pytest.approx(free.rate / 3)
    assert slow.time_to(100.0) == pytest.approx(3 * free.time_to(100.0), rel=0.05)


def test_no_results_never_come() -> None:
    empty = from_edges({"a": 0.0, "b": 20.0}, 4.0, {("a", "b"): 0.1})
    assert progress(PLAN, ResourceModel(empty, FREE), cores=1.0).time_to(1.0) == inf


def test_windows_hold_no_more_than_has_passed() -> None:
    assert at(ResourceModel(SETTING, FREE), 1.5).estimates.windows == (1.5, 1.5)
    assert at(ResourceModel(SETTING, FREE), 9.0).estimates.windows == (4.0, 4.0)
    table = ResourceModel(replace(SETTING, windows=(4.0, EVER)), FREE)
    assert at(table, 1.5).estimates.windows == (1.5, EVER)
