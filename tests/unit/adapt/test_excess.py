"""What a plan takes beyond what it took: dear batches in a row add up, accidents and filling windows do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.adapt.excess import IN_A_ROW, Excess, priced
from anabranch.cost.steps import price_of_step
from anabranch.cost.units import ENGINE
from anabranch.plan.text import parse
from anabranch.stats.step import CheckStatistics, ProbeStatistics, StepStatistics
from tests.unit.adapt.simulated import observed, truth


def step(matches: int, rows: int = 1_000) -> StepStatistics:
    return StepStatistics({"a": rows}, probes=(ProbeStatistics("(a b)", "a", "b", rows, 0, matches, matches),))


USUAL, DEAR = step(1_000), step(100_000)


def after(*steps: StepStatistics, filling: float = 0.0) -> Excess:
    excess = Excess(filling)
    for each in steps:
        excess.note(priced([each], ENGINE), 1.0)
    return excess


def test_dear_batches_in_a_row_add_up_to_what_they_took_beyond_the_usual() -> None:
    assert not after(*[USUAL] * 5).paid
    assert not after(USUAL, *[DEAR] * (IN_A_ROW - 1)).paid
    beyond = price_of_step(DEAR, ENGINE) - 1.2 * price_of_step(USUAL, ENGINE)
    assert after(USUAL, *[DEAR] * IN_A_ROW).paid == pytest.approx(IN_A_ROW * beyond)
    assert after(USUAL, *[DEAR] * 5).factor == pytest.approx(price_of_step(DEAR, ENGINE) / price_of_step(USUAL, ENGINE))


@pytest.mark.parametrize("between", ["noted", "rested"])
def test_a_usual_batch_ends_the_row(between: str) -> None:
    excess = after(USUAL, DEAR, DEAR)
    if between == "noted":
        excess.note(priced([USUAL], ENGINE), 1.0)
    else:
        excess.rest(1.0)
    excess.note(priced([DEAR], ENGINE), 1.0)
    assert not excess.paid


def test_more_rows_are_not_dearer_rows() -> None:
    assert not after(USUAL, *[step(10_000, 10_000)] * 5).paid


def test_what_a_plan_was_judged_by_is_usual_with_its_dearest_batch() -> None:
    excess = after(*[USUAL] * 4, *[DEAR] * 4)
    assert excess.paid
    excess.judged()
    assert not excess.paid
    for _ in range(5):
        excess.note(priced([DEAR], ENGINE), 1.0)
    assert not excess.paid
    for _ in range(5):
        excess.note(priced([step(200_000)], ENGINE), 1.0)
    assert excess.paid


@pytest.mark.parametrize("rests", [False, True])
def test_while_windows_fill_rows_may_find_more_and_more(rests: bool) -> None:
    excess = Excess(8.0)
    for number in range(8):
        if rests and number > 2:
            excess.rest(1.0)
        else:
            excess.note(priced([step(1_000 * (number + 1))], ENGINE), 1.0)
        assert excess.is_filling == (number < 7)
    for _ in range(5):
        excess.note(priced([step(8_000)], ENGINE), 1.0)
    assert not excess.paid


def test_windows_are_mixed_until_dear_rows_have_come_for_as_long_as_they_last() -> None:
    excess = after(*[USUAL] * 4, filling=3.0)
    mixed = [excess.is_mixed]
    for _ in range(3):
        excess.note(priced([DEAR], ENGINE), 1.0)
        mixed.append(excess.is_mixed)
    assert mixed == [False, True, True, False]


def test_another_plan_begins_anew() -> None:
    excess = after(USUAL, *[DEAR] * 5)
    excess.begin()
    excess.note(priced([DEAR], ENGINE), 1.0)
    assert (excess.paid, excess.factor) == (0.0, 1.0)


def test_all_that_was_taken_is_known_also_of_batches_that_were_not_looked_at() -> None:
    excess = after(USUAL)
    excess.rest(2.0)
    assert excess.taken == pytest.approx(3 * price_of_step(USUAL, ENGINE))


def test_checks_of_predicates_have_a_price() -> None:
    checked = StepStatistics({"a": 1}, checks=(CheckStatistics("a.v < b.v", 1_000, 10, 5.0),))
    assert price_of_step(checked, ENGINE) - price_of_step(StepStatistics({"a": 1}), ENGINE) == pytest.approx(
        1_000 * ENGINE.check
    )


def test_what_another_plan_might_not_have_taken_adds_up_from_one_decision_to_the_next() -> None:
    work, _, least = priced([USUAL], ENGINE)
    assert 0 < least < work
    excess = after(USUAL, USUAL)
    excess.rest(3.0)
    assert excess.avoidable == pytest.approx(5 * (work - least))
    excess.judged()
    assert excess.avoidable
    excess.decided()
    assert not excess.avoidable


def test_the_latest_batch_tells_whether_rows_are_dear() -> None:
    assert not after(USUAL, USUAL).is_dear
    assert after(USUAL, DEAR).is_dear
    assert not after(USUAL, DEAR, USUAL).is_dear


def test_nothing_is_certain_of_what_predicates_take() -> None:
    checked = replace(USUAL, checks=(CheckStatistics("a.v < b.v", 10, 5),))
    assert priced([checked], ENGINE).least == 0.0


def test_no_plan_has_fewer_operators_than_a_tree() -> None:
    tree, flat = parse("((a b) c)"), parse("(a b c)")
    nothing = truth(0.0, 0.0, 1e-9)
    steps = [observed(0, plan, nothing).step for plan in (tree, flat)]
    works = [priced([each], ENGINE) for each in steps]
    assert works[0].work == pytest.approx(works[0].least)
    assert works[1].work > works[1].least == pytest.approx(works[0].least)
