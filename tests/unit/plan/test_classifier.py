"""Classifiers: text that reads back, evaluation that agrees with a row-by-row reading, and refusals by name."""

from __future__ import annotations

import datetime
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import PlanError, UnknownAttribute
from anabranch.lang.schema import Field, Schema
from anabranch.plan import classify
from anabranch.plan.classifier import (
    Assign,
    CategoryTest,
    Classifier,
    NumberTest,
    attributes,
    by_leaf,
    check_attributes,
    depth,
    hour_of,
    leaves,
    parse_classifier,
    routes,
    walk,
)
from anabranch.plan.classify import MOST_BOXES, assign_routes, hours, lay_out

WORDS = ("it", "food", "", "o'clock", "back\\slash", "ünï")
NUMBERS = st.floats(allow_nan=False) | st.integers(-3, 3).map(float)


def trees(number: str = "price", text: str = "sector") -> st.SearchStrategy[Classifier]:
    leaves: st.SearchStrategy[Classifier] = st.builds(Assign, st.integers(0, 5))
    listed = st.lists(st.sampled_from(WORDS), max_size=4).map(tuple)
    return st.recursive(
        leaves,
        lambda below: (
            st.builds(NumberTest, st.just(number), NUMBERS, below, below, st.booleans())
            | st.builds(CategoryTest, st.just(text), listed, below, below, st.booleans())
        ),
        max_leaves=8,
    )


def route_of(tree: Classifier, row: dict[str, float | str | None]) -> int:
    """One row, as the classes say."""
    if isinstance(tree, Assign):
        return tree.route
    value = row[tree.attribute]
    if value is None or (isinstance(value, float) and math.isnan(value)):
        holds = tree.null_first
    elif isinstance(tree, NumberTest):
        assert not isinstance(value, str)
        holds = value <= tree.threshold
    else:
        holds = value in tree.values
    return route_of(tree.first if holds else tree.second, row)


@given(
    trees(),
    st.lists(
        st.tuples(st.none() | st.floats() | NUMBERS, st.none() | st.sampled_from((*WORDS, "unseen"))), max_size=12
    ),
    st.booleans(),
    st.sampled_from([1, 20, MOST_BOXES]),
)
def test_every_row_gets_the_route_that_the_tree_says(
    tree: Classifier, rows: list[tuple[float | None, str | None]], chunked: bool, boxes: int
) -> None:
    price, sector = pa.array([row[0] for row in rows], pa.float64()), pa.array([row[1] for row in rows], pa.string())
    columns = {"price": price, "sector": pa.chunked_array([sector[:3], sector[3:]]) if chunked else sector}
    expected = [route_of(tree, {"price": price, "sector": sector}) for price, sector in rows]
    lay_out.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        # A tree of more boxes than that is cut in two until its parts have fewer, or are one test.
        patch.setattr(classify, "MOST_BOXES", boxes)
        assert assign_routes(tree, columns, len(rows)).tolist() == expected
    lay_out.cache_clear()


@given(st.lists(st.floats() | NUMBERS), trees("price", "price"))
def test_numbers_need_not_be_in_arrows_form(values: list[float], tree: Classifier) -> None:
    numbers = np.array(values, np.float64)
    if not any(isinstance(node, CategoryTest) for node in walk(tree)):
        in_arrow = assign_routes(tree, {"price": pa.array(values, pa.float64())}, len(values))
        assert assign_routes(tree, {"price": numbers}, len(values)).tolist() == in_arrow.tolist()


@given(
    st.sampled_from([pa.int8(), pa.int16(), pa.int32(), pa.int64()]),
    st.lists(st.sampled_from([-(2**63), -(2**53) - 1, -3, 0, 3, 2**53, 2**53 + 1, 2**63 - 1]), min_size=1),
    st.floats(allow_nan=False) | st.integers(-4, 4).map(float) | st.sampled_from([2.0**53, -(2.0**53), 2.0**53 - 1]),
    st.booleans(),
)
def test_whole_numbers_are_compared_as_doubles_would_be(
    kind: pa.DataType, values: list[int], threshold: float, null_first: bool
) -> None:
    """They are compared as they are where that gives the same, which is quicker."""
    fitting = [value for value in values if -(2 ** (kind.bit_width - 1)) <= value < 2 ** (kind.bit_width - 1)]
    tree = NumberTest("price", threshold, Assign(0), Assign(1), null_first)
    expected = [0 if float(value) <= threshold else 1 for value in fitting]
    assert assign_routes(tree, {"price": pa.array(fitting, kind)}, len(fitting)).tolist() == expected


@given(trees("price in dollars", "in"))
def test_a_classifier_is_read_back_as_it_was_printed(tree: Classifier) -> None:
    assert parse_classifier(str(tree)) == tree
    assert parse_classifier(f"  {tree}  ") == tree


@given(st.text() | st.text("(<=?:)0 {}'`inornull,.-e"))
def test_any_text_is_a_classifier_or_a_plan_error(text: str) -> None:
    try:
        tree = parse_classifier(text)
    except PlanError:
        return
    assert parse_classifier(str(tree)) == tree


def test_a_tree_lists_its_attributes_and_routes() -> None:
    tree = parse_classifier("(price <= 3.5 ? 4 : (sector in {'it'} or null ? 0 : (price <= 9.0 ? 4 : 1)))")
    assert attributes(tree) == ("price", "sector")
    assert routes(tree) == (0, 1, 4)
    assert depth(tree) == 3
    assert (attributes(Assign(0)), routes(Assign(0)), depth(Assign(0))) == ((), (0,), 0)


def test_leaves_can_be_counted_and_told_apart() -> None:
    tree = parse_classifier("(price <= 3.5 ? 4 : (price <= 9.0 ? 4 : 1))")
    assert leaves(tree) == ((4, 1), (4, 2), (1, 2))
    assert str(by_leaf(tree)) == "(price <= 3.5 ? 0 : (price <= 9.0 ? 1 : 2))"
    assert leaves(Assign(3)) == ((3, 0),)


@pytest.mark.parametrize(
    ("text", "place"),
    [("", 1), ("x", 1), ("(a < 1 ? 0 : 1)", 4), ("(a <= b ? 0 : 1)", 7), ("(a in {b} ? 0 : 1)", 8), ("0 1", 3)],
)
def test_what_is_not_a_classifier_is_refused_at_its_place(text: str, place: int) -> None:
    with pytest.raises(PlanError, match=f"character {place}:"):
        parse_classifier(text)


def test_other_types_are_read_as_numbers() -> None:
    moment = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    columns = {
        "flag": pa.array([True, False, None]),
        "day": pa.array([datetime.date(1970, 1, 3), datetime.date(1970, 1, 1), None]),
        "at": pa.array([moment, moment + datetime.timedelta(microseconds=1), None], pa.timestamp("us", "UTC")),
        "big": pa.array([2**62, -(2**62), None], pa.int64()),
    }
    for name, threshold, expected in (
        ("flag", 0.5, [1, 0, 1]),
        ("day", 1.0, [1, 0, 1]),
        ("at", moment.timestamp() * 1e6, [0, 1, 1]),
        ("big", 0.0, [1, 0, 1]),
    ):
        assert assign_routes(NumberTest(name, threshold, Assign(0), Assign(1)), columns, 3).tolist() == expected


def test_an_attribute_that_the_stream_lacks_is_refused_by_name() -> None:
    schema = Schema((Field("price", pa.float64()), Field("sector", pa.string()), Field("sum", pa.decimal128(9, 2))))
    check_attributes(parse_classifier("(price <= 1.0 ? 0 : (sector in {'it'} ? 0 : 1))"), schema, "s")
    with pytest.raises(UnknownAttribute, match="attribute 'volume' is not a column of relation 's'"):
        check_attributes(parse_classifier("(price <= 1.0 ? 0 : (volume <= 1.0 ? 0 : 1))"), schema, "s")
    with pytest.raises(UnknownAttribute, match="'volume'"):
        assign_routes(parse_classifier("(volume <= 1.0 ? 0 : 1)"), {"price": np.zeros(1)}, 1)
    for text in ("(sector <= 1.0 ? 0 : 1)", "(price in {'it'} ? 0 : 1)", "(sum <= 1.0 ? 0 : 1)"):
        with pytest.raises(PlanError, match="and its test needs"):
            check_attributes(parse_classifier(text), schema, "s")


def test_the_hour_of_a_timestamp_is_an_attribute() -> None:
    text = "(hour(at) <= 11.5 or null ? 0 : (hour(`the time`) <= 3.0 ? 1 : 0))"
    tree = parse_classifier(text)
    assert str(tree) == text
    assert attributes(tree) == ("hour(at)", "hour(the time)")
    assert [hour_of(name) for name in (*attributes(tree), "hour", "at")] == ["at", "the time", None, None]
    micros = pa.array([0, -1, 3_599_999_999, 3_600_000_000, None], pa.int64())
    expected = [0.0, 23.0, 0.0, 1.0]
    assert hours(micros.cast(pa.timestamp("us", "UTC"))).tolist()[:4] == expected
    assert math.isnan(hours(micros.cast(pa.timestamp("us", "UTC")))[4])
    assert hours(micros.drop_null().to_numpy()).tolist() == expected
    with pytest.raises(PlanError, match="expected '\\)'"):
        parse_classifier("(hour(at <= 3.0 ? 0 : 1)")
