"""The experiment on adapting while running, small: both runs answer alike, and one of them changes its plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import pytest

from lab.migration_runtime import (
    ON_SPARK,
    QUERY,
    Moment,
    Run,
    Scenario,
    changed_once,
    changed_once_on_spark,
    changed_repeatedly,
    in_process,
    mean_of,
)
from lab.registry import Setting, Verdict


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


def _run(cpu: float, state_rows: int) -> Run:
    """The plan changes after the first of twenty seconds."""
    plans = ["((a b) c)", *["(a (b c))"] * 19]
    moments = [Moment(at, cpu, cpu, 100, 10, state_rows, 10 * state_rows, plan) for at, plan in enumerate(plans)]
    return Run(tuple(moments), 1, 0.0)


@pytest.mark.parametrize(
    ("cpu", "state_rows", "missed"),
    [
        (0.5, 40, ()),
        (0.9, 40, ("throughput",)),
        (0.5, 60, ("rows", "bytes")),
        (0.9, 60, ("throughput", "rows", "bytes")),
    ],
)
@pytest.mark.parametrize(
    "verdict", [changed_once, *(partial(changed_once_on_spark, scenario=scenario) for scenario in ON_SPARK)]
)
def test_what_falls_short_of_the_paper_is_marked(
    verdict: Callable[[Mapping[str, Run]], Verdict], cpu: float, state_rows: int, missed: tuple[str, ...]
) -> None:
    assert verdict({"fixed": _run(1.0, 100), "adapting": _run(cpu, state_rows)}).missed == missed


def test_being_ahead_now_and_then_is_not_consistently() -> None:
    fixed, adapting = _run(1.0, 100), _run(0.5, 40)
    behind = [replace(moment, cpu=1.1) for moment in adapting.moments[-2:]]
    sometimes = replace(adapting, moments=(*adapting.moments[:-2], *behind), migrations=4)
    assert changed_repeatedly({"fixed": fixed, "adapting": sometimes}).missed == ("throughput",)


def test_a_run_that_never_changed_its_plan_has_missed_all() -> None:
    same = replace(_run(1.0, 100), moments=_run(1.0, 100).moments[1:])
    assert changed_once({"fixed": same, "adapting": same}).missed == ("throughput", "rows", "bytes")


def test_two_spark_runs_of_a_kind_give_the_mean_of_their_times() -> None:
    mean = mean_of(_run(1.0, 100), _run(3.0, 100))
    assert {(moment.cpu, moment.wall, moment.rows) for moment in mean.moments} == {(2.0, 2.0, 100)}


def test_the_query_selects_as_the_papers_does() -> None:
    batch = next(iter(Scenario("", 1, 10, 0.02, 0.3).batches(1)))
    assert {"ts", "l", "r", "v"} == set(batch["b"].column_names)
    assert "b.v < " in QUERY
