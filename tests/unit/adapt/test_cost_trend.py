"""The trend of costs: expensive batches in a row add up, single ones and filling windows do not."""

from __future__ import annotations

import pytest

from anabranch.adapt.cost_trend import SEVERAL, CostTrend
from anabranch.cost.steps import price_of_step
from anabranch.cost.units import ENGINE
from anabranch.stats.step import CheckStatistics, ProbeStatistics, StepStatistics


def step(matches: int, rows: int = 1_000) -> StepStatistics:
    return StepStatistics({"a": rows}, probes=(ProbeStatistics("(a b)", "a", "b", rows, 0, matches, matches),))


USUAL, DEAR = step(1_000), step(100_000)


def taking_in(trend: CostTrend, seen: StepStatistics) -> CostTrend:
    return trend.after(price_of_step(seen, ENGINE), sum(seen.rows_in.values()), 1.0)


def after(*steps: StepStatistics, filling: float = 0.0) -> CostTrend:
    trend = CostTrend(filling)
    for each in steps:
        trend = taking_in(trend, each)
    return trend


def test_dear_batches_in_a_row_are_a_regression() -> None:
    assert not after(*[USUAL] * 5).has_risen()
    assert not after(USUAL, *[DEAR] * (SEVERAL - 1)).has_risen()
    risen = after(USUAL, *[DEAR] * SEVERAL)
    assert risen.has_risen()
    assert not risen.has_risen(patience=2)
    assert after(USUAL, *[DEAR] * 2 * SEVERAL).has_risen(patience=2)
    assert risen.factor == pytest.approx(price_of_step(DEAR, ENGINE) / price_of_step(USUAL, ENGINE))


def test_a_usual_batch_ends_the_row() -> None:
    assert not after(USUAL, DEAR, DEAR, USUAL, DEAR).has_risen()


def test_more_rows_are_not_dearer_rows() -> None:
    assert not after(USUAL, *[step(10_000, 10_000)] * 5).has_risen()


def test_what_a_plan_was_judged_by_is_usual_with_its_dearest_batch() -> None:
    trend = after(*[USUAL] * 4, *[DEAR] * 4)
    assert trend.has_risen()
    trend = trend.judged()
    assert not trend.has_risen()
    for _ in range(5):
        trend = taking_in(trend, DEAR)
    assert not trend.has_risen()
    for _ in range(5):
        trend = taking_in(trend, step(200_000))
    assert trend.has_risen()


def test_while_windows_fill_rows_may_find_more_and_more() -> None:
    filling = [step(1_000 * (number + 1)) for number in range(8)]
    assert not after(*filling, *[step(8_000)] * 5, filling=8.0).has_risen()
    assert after(*filling, *[step(8_000)] * 5).has_risen()


def test_windows_are_mixed_until_dear_rows_have_come_for_as_long_as_they_last() -> None:
    trend = after(*[USUAL] * 4, filling=3.0)
    mixed = [trend.is_mixed]
    for _ in range(3):
        trend = taking_in(trend, DEAR)
        mixed.append(trend.is_mixed)
    assert mixed == [False, True, True, False]


def test_another_plan_begins_anew() -> None:
    trend = after(USUAL, *[DEAR] * 5)
    trend = trend.restarted()
    trend = taking_in(trend, DEAR)
    assert (trend.in_a_row, trend.factor) == (0, 1.0)


def test_checks_of_predicates_have_a_price() -> None:
    checked = StepStatistics({"a": 1}, checks=(CheckStatistics("a.v < b.v", 1_000, 10, 5.0),))
    assert price_of_step(checked, ENGINE) - price_of_step(StepStatistics({"a": 1}), ENGINE) == pytest.approx(
        1_000 * ENGINE.check
    )
