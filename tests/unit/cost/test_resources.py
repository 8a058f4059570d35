from __future__ import annotations

import pytest

from anabranch.cost.estimates import from_edges
from anabranch.cost.resources import HASHED, NESTED, ResourceModel, with_default_orders
from anabranch.errors import PlanError
from anabranch.plan.text import parse
from anabranch.stats.view import UnitCosts
from tests.unit.optimize.graphs import chain_graph

A, B, C, AB, BC, W = 20.0, 30.0, 50.0, 0.05, 0.5, 5.0
EXAMPLE = from_edges({"a": A, "b": B, "c": C}, W, {("a", "b"): AB, ("b", "c"): BC})
MJOIN = parse("(a b c | a>b>c, b>a>c, c>b>a)")
TREE = parse("((a b) c)")


def test_the_mjoin_costs_what_equation_2_says() -> None:
    units = HASHED
    expected = (
        (A + B + C) * (units.insert + units.delete)
        + B * C * BC * W * units.match
        + 3 * A * B * C * AB * BC * W**2 * units.match
        + 2 * A * B * AB * W * units.match
    )
    price = ResourceModel(EXAMPLE, units).price(MJOIN)
    assert price.cpu == pytest.approx(expected)
    assert price.memory == pytest.approx((A + B + C) * W)


def test_the_tree_costs_what_equations_4_and_5_say() -> None:
    units = HASHED
    expected = (
        (A + B + C) * (units.insert + units.delete)
        + 3 * A * B * C * AB * BC * W**2 * units.match
        + 2 * A * B * AB * W * (units.match + units.insert + units.delete)
    )
    price = ResourceModel(EXAMPLE, units).price(TREE)
    assert price.cpu == pytest.approx(expected)
    assert price.memory == pytest.approx((A + B + C) * W + A * B * AB * W**2)


def test_all_plans_have_the_same_output_rate() -> None:
    model = ResourceModel(EXAMPLE, HASHED)
    assert model.price(MJOIN).rate == model.price(TREE).rate == pytest.approx(3 * A * B * C * AB * BC * W**2)


def test_nested_loops_pay_for_every_pair_they_look_at() -> None:
    units = UnitCosts(insert=0, delete=0, probe=0, compare=1, match=0)
    seconds = ResourceModel(EXAMPLE, units, keyed=False).price(TREE).cpu
    pairs = 2 * A * B * W + 2 * A * B * AB * W * C * W + C * (A * B * AB * W**2)
    assert seconds == pytest.approx(pairs)
    assert NESTED.compare == HASHED.match


def test_unequal_windows_give_each_newest_row_its_own_partners() -> None:
    estimates = from_edges({"a": 2.0, "b": 3.0}, 1.0, {("a", "b"): 0.5})
    uneven = type(estimates)(estimates.names, estimates.rates, (10.0, 4.0), estimates.row_bytes, estimates.keys, ())
    # A new row of a meets 3 x 4 rows of b, a new row of b meets 2 x 10 rows of a.
    assert ResourceModel(uneven, HASHED).base.rate == pytest.approx(0.5 * (2 * 12 + 3 * 20))


def test_bytes_count_payload_once_and_row_numbers_for_joined_rows() -> None:
    units = UnitCosts(0, 0, 0, 0, 0, base_bytes=10, joined_bytes=4, joined_relation_bytes=8)
    sized = from_edges({"a": A, "b": B, "c": C}, W, {("a", "b"): AB, ("b", "c"): BC}, row_bytes=100)
    price = ResourceModel(sized, units).price(TREE)
    assert price.memory == pytest.approx((A + B + C) * W * 110 + A * B * AB * W**2 * (4 + 2 * 8))


def test_orders_must_be_explicit_and_can_be_filled_in() -> None:
    graph = chain_graph("abc")
    model = ResourceModel(EXAMPLE, HASHED)
    with pytest.raises(PlanError, match="no probe order"):
        model.price(parse("(a b c)"))
    assert with_default_orders(parse("(a b c)"), graph) == MJOIN
    assert model.price(with_default_orders(parse("(a b c)"), graph)) == model.price(MJOIN)
    assert with_default_orders(parse("((a b) c)"), graph) == TREE
