from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.cost.estimates import Estimates, ThetaEstimate, from_edges
from anabranch.cost.resources import ResourceModel, with_default_orders
from anabranch.cost.units import UnitCosts
from anabranch.errors import PlanError
from anabranch.plan.text import parse
from lab.papers.printed_costs import HASHED, NESTED
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


def test_unequal_windows_give_each_newest_row_its_own_matches() -> None:
    estimates = from_edges({"a": 2.0, "b": 3.0}, 1.0, {("a", "b"): 0.5})
    uneven = type(estimates)(estimates.names, estimates.rates, (10.0, 4.0), estimates.row_bytes, estimates.keys, ())
    # A new row of a meets 3 x 4 rows of b, a new row of b meets 2 x 10 rows of a.
    assert ResourceModel(uneven, HASHED).base.rate == pytest.approx(0.5 * (2 * 12 + 3 * 20))


SIZES = UnitCosts(0, 0, 0, 0, 0, code_bytes=8, index_bytes=48, joined_relation_bytes=8)
SIZED = from_edges({"a": A, "b": B, "c": C}, W, {("a", "b"): AB, ("b", "c"): BC}, row_bytes=100)


def test_bytes_count_payload_codes_and_indexes() -> None:
    base = ((A + B + C) * 100 + (A + 2 * B + C) * 8) * W
    tree = ResourceModel(SIZED, SIZES).price(TREE)
    assert tree.memory == pytest.approx(base + (A + B + C) * W * 48 + A * B * AB * W**2 * (3 * 8 + 48))
    # In the mjoin, b is looked up by rows of a and by rows of c, through different keys.
    mjoin = ResourceModel(SIZED, SIZES).price(MJOIN)
    assert mjoin.memory == pytest.approx(base + (A + 2 * B + C) * W * 48)
    assert ResourceModel(SIZED, SIZES).least_memory == pytest.approx(base + (A + B + C) * W * 48)


def test_rows_linger_in_joined_states_and_for_a_batch_in_all() -> None:
    lingering = replace(SIZES, lingers=True)
    model = ResourceModel(SIZED, lingering, batch=2.0)
    assert model.held(0b001) == pytest.approx(A * (W + 2))
    assert model.held(0b011) == pytest.approx(2 * A * B * AB * W * (W + 1))
    assert ResourceModel(SIZED, SIZES).held(0b011) == pytest.approx(A * B * AB * W**2)


def test_each_lookup_and_state_costs_something_in_each_batch() -> None:
    calls = UnitCosts(0, 0, 0, 0, 0, call=1e-4)
    assert ResourceModel(EXAMPLE, calls, batch=0.5).price(MJOIN).cpu == pytest.approx(9 * 1e-4 / 0.5)
    assert ResourceModel(EXAMPLE, calls, batch=0.5).price(TREE).cpu == pytest.approx(8 * 1e-4 / 0.5)


def test_thetas_are_checked_on_what_the_keys_let_through() -> None:
    units = UnitCosts(0, 0, 0, 0, 0, check=1.0)
    theta = Estimates(("a", "b"), (2.0, 3.0), (10.0, 10.0), (1.0, 1.0), (), (ThetaEstimate(0b11, 0.2),))
    assert ResourceModel(theta, units).price(parse("(a b)")).cpu == pytest.approx(2 * 2 * 3 * 10)
    band = replace(theta, thetas=(ThetaEstimate(0b11, 0.2, is_band=True),))
    # Two buckets of the band's width are looked into.
    assert ResourceModel(band, units).price(parse("(a b)")).cpu == pytest.approx(2 * 2 * 3 * 10 * 0.4)
    assert ResourceModel(band, units).index(0b01, 0b10) == -1
    assert ResourceModel(theta, units).index(0b01, 0b10) == 0


def test_orders_must_be_explicit_and_can_be_filled_in() -> None:
    graph = chain_graph("abc")
    model = ResourceModel(EXAMPLE, HASHED)
    with pytest.raises(PlanError, match="no probe order"):
        model.price(parse("(a b c)"))
    explicit = parse("(a b c | a>b>c, b>c>a, c>b>a)")
    assert with_default_orders(parse("(a b c)"), graph) == explicit
    assert model.price(with_default_orders(parse("(a b c)"), graph)) == model.price(explicit)
    assert with_default_orders(parse("((a b) c)"), graph) == TREE


def test_a_theta_that_is_put_off_fills_the_states_below_and_is_checked_on_what_arrives() -> None:
    theta = ThetaEstimate(0b011, 0.2)
    estimates = replace(EXAMPLE, thetas=(theta,))
    units = UnitCosts(insert=0, delete=0, probe=0, compare=0, match=0, check=1.0)
    model = ResourceModel(estimates, units)
    pairs, triples = 2 * A * B * AB * W, 3 * A * B * C * AB * BC * W**2
    assert model.price(TREE).cpu == pytest.approx(pairs)
    late = parse("((a b) c #0)")
    assert model.price(late).cpu == pytest.approx(triples)
    assert model.price(late).rate == model.price(TREE).rate == pytest.approx(0.2 * triples)
    assert model.of_plan(late).rows(0b011) == pytest.approx(A * B * AB * W**2)
    assert model.rows(0b011) == pytest.approx(0.2 * A * B * AB * W**2)
    assert model.price(late).memory > model.price(TREE).memory


def test_a_late_filter_leaves_the_base_state_and_is_checked_by_the_first_join() -> None:
    estimates = replace(EXAMPLE, thetas=(ThetaEstimate(0b001, 0.2),))
    units = UnitCosts(insert=0, delete=0, probe=0, compare=0, match=0, check=1.0)
    model = ResourceModel(estimates, units)
    assert model.rows(0b001) == pytest.approx(A * W)
    assert model.rows(0b011) == pytest.approx(0.2 * A * B * AB * W**2)
    assert model.rows(0b111) == pytest.approx(0.2 * A * B * C * AB * BC * W**3)
    assert model.price(TREE).cpu == pytest.approx(2 * A * B * AB * W)
    assert model.price(parse("((b c) a)")).cpu == pytest.approx(3 * A * B * C * AB * BC * W**2)
    # Behind a join that lets little through, checking costs less.
    few = ResourceModel(
        replace(estimates, keys=from_edges({"a": A, "b": B, "c": C}, W, {("a", "b"): AB, ("b", "c"): 1e-4}).keys), units
    )
    assert few.price(parse("((a b) c #0)")).cpu < few.price(TREE).cpu
