"""The experiment on adapting while running, small: both runs answer alike, and one of them changes its plan."""

from __future__ import annotations

import pytest

from anabranch.lab.migration_runtime import Scenario, in_process
from anabranch.lab.registry import Setting


def test_selectivities_change_places_when_they_should() -> None:
    scenario = Scenario("", 30, 10, 0.02, 0.3, (5, 20))
    first, second = (pytest.approx((0.002, 0.03)), pytest.approx((0.03, 0.002)))
    assert [scenario.selectivities(at) for at in (0, 4, 5, 19, 20)] == [first, first, second, second, first]


def test_both_runs_give_the_same_results_and_one_changes_its_plan() -> None:
    runs = in_process(Scenario("", 24, 60, 0.02, 0.3, (4,)), Setting())
    fixed, adapting = runs["fixed"], runs["adapting"]
    assert [moment.results for moment in fixed.moments] == [moment.results for moment in adapting.moments]
    assert {moment.plan for moment in fixed.moments} == {"((a b) c)"}
    assert adapting.migrations == 1
    assert adapting.moments[-1].plan != "((a b) c)"
    assert adapting.moments[-1].state_rows < fixed.moments[-1].state_rows
