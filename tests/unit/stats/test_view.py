from __future__ import annotations

import pytest

from anabranch.errors import StatisticsError
from anabranch.stats.view import NOTHING_KNOWN, FixedStatistics, Known, KnownCosts, Layered
from tests.unit.optimize.graphs import chain_graph


def test_not_known_is_not_zero() -> None:
    seen = FixedStatistics(rates={"a": 0.0})
    assert seen.rate("a", "a_stream") == Known(0.0, "given")
    assert seen.rate("b", "b_stream") is None
    assert NOTHING_KNOWN.unit_costs() is None


def test_a_relation_overrides_its_stream() -> None:
    seen = FixedStatistics(rates={"orders": 5.0, "late": 1.0})
    assert seen.rate("late", "orders") == Known(1.0, "given")
    assert seen.rate("early", "orders") == Known(5.0, "given")


def test_pairs_have_no_order() -> None:
    seen = FixedStatistics(selectivities={"a b": 0.25})
    assert seen.pair_selectivity("b", "a") == Known(0.25, "given")


def test_the_first_view_that_knows_answers() -> None:
    given = FixedStatistics(rates={"a": 1.0})
    measured = FixedStatistics(
        rates={"a": 2.0, "b": 3.0},
        filters={"a": 0.5},
        bytes={"b": 8},
        selectivities={"a b": 0.1},
        provenance="measured",
    )
    both = Layered((given, measured))
    assert both.rate("a", "a") == Known(1.0, "given")
    assert both.rate("b", "b") == Known(3.0, "measured")
    assert both.filter_selectivity("a") == Known(0.5, "measured")
    assert both.row_bytes("b", "b") == Known(8.0, "measured")
    assert both.pair_selectivity("a", "b") == Known(0.1, "measured")
    assert both.predicate_selectivity("a.x < b.x") is None
    assert both.unit_costs() is None


def test_a_whole_block_is_read() -> None:
    seen = FixedStatistics.from_mapping(
        {
            "rates": {"a_stream": 20, "b": 3.5},
            "selectivities": {"a b": 0.01},
            "filters": {"a": 0.5},
            "bytes": {"a": 40},
            "costs": {"insert": 1e-7, "delete": 1e-7, "probe": 2e-7, "compare": 1e-8, "match": 1e-7},
        }
    )
    seen.check_names(chain_graph("ab"))
    assert seen.rate("a", "a_stream") == Known(20.0, "given")
    assert seen.unit_costs() == KnownCosts(
        {"insert": 1e-7, "delete": 1e-7, "probe": 2e-7, "compare": 1e-8, "match": 1e-7}, "given"
    )


@pytest.mark.parametrize(
    ("entries", "message", "hint"),
    [
        ({"rates": {"a": -1}}, "entry 'stats.rates.a' is -1", "rate of 0 or more"),
        ({"rates": {"a": float("nan")}}, "entry 'stats.rates.a' is nan", "rate of 0 or more"),
        ({"rates": {"a": "fast"}}, "entry 'stats.rates.a' is 'fast'", "write a rate of 0 or more"),
        ({"rates": 5}, "entry 'stats.rates' is 5", "write entries below it"),
        ({"selectivities": {"a b": 1.5}}, "entry 'stats.selectivities.a b' is 1.5", "selectivity between 0 and 1"),
        (
            {"selectivities": {"a b": 0.1, "b a": 0.2}},
            "entry 'stats.selectivities.b a' contradicts",
            "keep one of them",
        ),
        ({"filters": {"a": -0.1}}, "entry 'stats.filters.a' is -0.1", "selectivity between 0 and 1"),
        ({"bytes": {"a": -8}}, "entry 'stats.bytes.a' is -8", "number of bytes of 0 or more"),
        ({"groups": {"a": 0}}, "entry 'stats.groups.a' is 0", "number of groups of 1 or more"),
        ({"rate": {"a": 1}}, "unknown entry 'stats.rate'", "did you mean 'rates'?"),
    ],
)
def test_contradictions_are_named(entries: dict[str, object], message: str, hint: str) -> None:
    with pytest.raises(StatisticsError) as caught:
        FixedStatistics.from_mapping(entries)
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "entries",
    [
        {"rates": {"ab_stream": 1.0}},
        {"filters": {"a_stream": 0.5}},
        {"selectivities": {"a d": 0.5}},
        {"bytes": {"z": 1}},
    ],
)
def test_names_must_exist_in_the_query(entries: dict[str, object]) -> None:
    with pytest.raises(StatisticsError, match="something the query does not have"):
        FixedStatistics.from_mapping(entries).check_names(chain_graph("abc"))
