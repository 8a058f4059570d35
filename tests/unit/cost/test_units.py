"""Unit costs: from names and back, and what is refused."""

from __future__ import annotations

import pytest

from anabranch.cost.units import ENGINE, UnitCosts, unit_costs
from anabranch.errors import StatisticsError
from anabranch.planning.options import PlanOptions
from anabranch.stats.view import NOTHING_KNOWN, FixedStatistics


def test_costs_are_read_back_from_their_names() -> None:
    assert UnitCosts.from_names(ENGINE.by_name()) == ENGINE
    given = FixedStatistics(costs=ENGINE.by_name(), provenance="calibrated")
    assert unit_costs(given) == (ENGINE, "calibrated")


def test_costs_that_are_not_given_are_the_built_in_ones() -> None:
    assert unit_costs(NOTHING_KNOWN) == (ENGINE, "assumed")


@pytest.mark.parametrize(
    ("costs", "message", "hint"),
    [
        ({"insertt": 1}, "unknown entry 'stats.costs.insertt'", "did you mean 'insert'?"),
        ({"insert": 1e-6}, "'stats.costs' has no 'delete'", "give all of insert, delete"),
        ({**ENGINE.by_name(), "probe": -1.0}, "'stats.costs.probe' is -1", "a cost of 0 or more"),
        ({**ENGINE.by_name(), "probe": float("nan")}, "'stats.costs.probe' is nan", "a cost of 0 or more"),
    ],
)
def test_wrong_costs_of_a_stats_block_are_named(costs: dict[str, float], message: str, hint: str) -> None:
    with pytest.raises(StatisticsError) as caught:
        PlanOptions().with_stats({"costs": costs})
    assert message in caught.value.message
    assert hint in caught.value.hint
