"""What a check costs inside Spark: the ratio of the functions that it calls."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from anabranch.errors import StatisticsError
from anabranch.plan.check_ratios import BUILT_IN, CheckRatios
from anabranch.plan.dearness import DEAR_CALLS
from anabranch.spark_checks import CHECKS, READING, condition

ODD = CheckRatios.from_names({kind: 2.0 + number for number, kind in enumerate(asdict(BUILT_IN))})


def test_a_check_of_one_kind_has_its_ratio() -> None:
    assert set(CHECKS) == set(asdict(BUILT_IN))
    assert {kind: ODD.of(condition(text)) for kind, text in CHECKS.items()} == pytest.approx(asdict(ODD))


def test_a_check_of_several_functions_has_the_mean_by_what_they_cost() -> None:
    both = condition("CONCAT(SUBSTRING(s.note, 1, 3), 'x') RLIKE 'a|b'")
    calls = ("concat", "substring", "rlike")
    whole = sum(DEAR_CALLS[name] * getattr(ODD, name) for name in calls) / sum(DEAR_CALLS[name] for name in calls)
    assert ODD.of(both) == pytest.approx(whole)


@pytest.mark.parametrize("text", [READING, "s.note = 'x'", "GET_JSON_OBJECT(s.note, '$.x') = '1'"])
def test_other_checks_cost_as_much_as_in_the_engine(text: str) -> None:
    assert ODD.of(condition(text)) == 1.0


def test_a_pattern_that_begins_anywhere_has_a_ratio_of_its_own() -> None:
    assert ODD.of(condition("s.note RLIKE '.*x'")) == ODD.rlike_any
    assert ODD.of(condition("s.note RLIKE 'x.*'")) == ODD.rlike


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_ratio_is_a_positive_number(value: float) -> None:
    with pytest.raises(StatisticsError, match="'like'"):
        CheckRatios.from_names({"like": value})
