"""The trend of costs: expensive batches in a row add up, single ones and filling windows do not."""

from __future__ import annotations

import pytest

from anabranch.adapt.cost_trend import IN_A_ROW, CostTrend, priced
from anabranch.cost.steps import price_of_step
from anabranch.cost.units import ENGINE
from anabranch.stats.step import CheckStatistics, ProbeStatistics, StepStatistics


def step(matches: int, rows: int = 1_000) -> StepStatistics:
    return StepStatistics({"a": rows}, probes=(ProbeStatistics("(a b)", "a", "b", rows, 0, matches, matches),))


USUAL, DEAR = step(1_000), step(100_000)


def after(*steps: StepStatistics, filling: float = 0.0) -> CostTrend:
    trend = CostTrend(filling)
    for each in steps:
        trend = trend.after(priced(each, ENGINE), 1.0)
    return trend


def test_dear_batches_in_a_row_add_up_to_what_they_took_beyond_the_usual() -> None:
    assert not after(*[USUAL] * 5).has_risen(0.0)
    assert not after(USUAL, *[DEAR] * (IN_A_ROW - 1)).has_risen(0.0)
    beyond = price_of_step(DEAR, ENGINE) - 1.2 * price_of_step(USUAL, ENGINE)
    assert after(USUAL, *[DEAR] * IN_A_ROW).paid == pytest.approx(IN_A_ROW * beyond)
    assert after(USUAL, *[DEAR] * 5).factor == pytest.approx(price_of_step(DEAR, ENGINE) / price_of_step(USUAL, ENGINE))


def test_a_usual_batch_ends_the_row() -> None:
    assert not after(USUAL, DEAR, DEAR, USUAL, DEAR).has_risen(0.0)


def test_more_rows_are_not_dearer_rows() -> None:
    assert not after(USUAL, *[step(10_000, 10_000)] * 5).has_risen(0.0)


def test_what_a_plan_was_judged_by_is_usual_with_its_dearest_batch() -> None:
    trend = after(*[USUAL] * 4, *[DEAR] * 4)
    assert trend.has_risen(0.0)
    trend = trend.judged()
    assert not trend.has_risen(0.0)
    for _ in range(5):
        trend = trend.after(priced(DEAR, ENGINE), 1.0)
    assert not trend.has_risen(0.0)
    for _ in range(5):
        trend = trend.after(priced(step(200_000), ENGINE), 1.0)
    assert trend.has_risen(0.0)


def test_while_windows_fill_rows_may_find_more_and_more() -> None:
    filling = [step(1_000 * (number + 1)) for number in range(8)]
    assert not after(*filling, *[step(8_000)] * 5, filling=8.0).has_risen(0.0)
    assert after(*filling, *[step(8_000)] * 5).has_risen(0.0)


def test_windows_are_mixed_until_dear_rows_have_come_for_as_long_as_they_last() -> None:
    trend = after(*[USUAL] * 4, filling=3.0)
    mixed = [trend.is_mixed]
    for _ in range(3):
        trend = trend.after(priced(DEAR, ENGINE), 1.0)
        mixed.append(trend.is_mixed)
    assert mixed == [False, True, True, False]


def test_another_plan_begins_anew() -> None:
    trend = after(USUAL, *[DEAR] * 5)
    trend = trend.restarted()
    trend = trend.after(priced(DEAR, ENGINE), 1.0)
    assert (trend.paid, trend.factor) == (0.0, 1.0)


def test_checks_of_predicates_have_a_price() -> None:
    checked = StepStatistics({"a": 1}, checks=(CheckStatistics("a.v < b.v", 1_000, 10, 5.0),))
    assert price_of_step(checked, ENGINE) - price_of_step(StepStatistics({"a": 1}), ENGINE) == pytest.approx(
        1_000 * ENGINE.check
    )
