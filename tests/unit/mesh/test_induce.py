"""Learnt classifiers: pure where they can be, majority where not, and defined for NULLs and unseen categories."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.mesh.induce import cut_back, induce
from anabranch.mesh.training import training_set
from anabranch.plan.classifier import Assign, CategoryTest, NumberTest, parse_classifier
from anabranch.plan.classify import assign_routes

drawn_rows = st.lists(
    st.tuples(
        st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(2**60, 2**60 + 4).map(float),
        st.none() | st.sampled_from(["a", "b", "c", "d", "e"]),
        st.integers(0, 3),
        st.integers(1, 4).map(float),
    ),
    min_size=1,
    max_size=30,
)


@given(drawn_rows)
def test_rows_get_their_own_label_or_that_of_most_rows_like_them(
    rows: list[tuple[float | None, str | None, int, float]],
) -> None:
    numbers, texts, labels, weights = zip(*rows, strict=True)
    table = pa.table({"x": pa.array(numbers, pa.float64()), "w": pa.array(texts, pa.string())})
    training = training_set("s", table, weights=np.array(weights))
    tree = induce(training, np.array(labels))
    got = assign_routes(tree, {name: table[name] for name in table.column_names}, len(rows))
    mass: dict[tuple[object, object], dict[int, float]] = {}
    for x, w, label, weight in rows:
        votes = mass.setdefault((x, w), {})
        votes[label] = votes.get(label, 0.0) + weight
    for (x, w, _, _), route in zip(rows, got.tolist(), strict=True):
        votes = mass[x, w]
        assert votes.get(route, 0.0) == max(votes.values())


def test_thresholds_stand_halfway_between_values_of_the_sample() -> None:
    training = training_set("s", pa.table({"x": [1.0, 2.0, 6.0, 8.0]}))
    assert induce(training, np.array([0, 0, 1, 1])) == NumberTest("x", 4.0, Assign(0), Assign(1), null_first=True)


def test_values_that_single_precision_cannot_tell_apart_are_told_apart() -> None:
    day = 1_700_000_000_000_000
    table = pa.table({"x": [day + i for i in range(6)]})
    labels = np.array([0, 0, 0, 1, 1, 1])
    tree = induce(training_set("s", table), labels)
    assert assign_routes(tree, {"x": table["x"]}, 6).tolist() == labels.tolist()


def test_one_test_lists_all_categories_of_a_route() -> None:
    words = list("abcdef")
    training = training_set("s", pa.table({"w": words * 2}), weights=np.array([1.0, 2, 1, 2, 1, 2] * 2))
    tree = induce(training, np.array([0, 1, 0, 1, 0, 1] * 2))
    assert tree == CategoryTest("w", ("a", "c", "e"), Assign(0), Assign(1), null_first=False)


@pytest.mark.parametrize("own", [0, 1])
def test_a_test_lists_frequent_texts_and_never_the_rest(own: int) -> None:
    """The frequent text is the heavier branch, and is listed all the same: what is not listed goes with the rest."""
    words = ["ord"] * 300 + [f"n{number}" for number in range(100)]
    labels = np.array([own] * 300 + [1 - own] * 100)
    tree = induce(training_set("s", pa.table({"w": words})), labels)
    assert tree == CategoryTest("w", ("ord",), Assign(own), Assign(1 - own), null_first=True)
    assert assign_routes(tree, {"w": pa.array(["ord", "n5", "new"])}, 3).tolist() == [own, 1 - own, 1 - own]


def test_nulls_and_unseen_categories_go_with_the_heavier_branch() -> None:
    training = training_set("s", pa.table({"w": ["a", "b"]}), weights=np.array([1.0, 5.0]))
    tree = induce(training, np.array([0, 1]))
    assert assign_routes(tree, {"w": pa.array(["a", "b", "new", None])}, 4).tolist() == [0, 1, 1, 1]
    numbers = training_set("s", pa.table({"x": [1, 2]}), weights=np.array([5.0, 1.0]))
    assert assign_routes(induce(numbers, np.array([0, 1])), {"x": pa.array([None, 7.0])}, 2).tolist() == [0, 1]


def test_nulls_go_where_the_nulls_of_the_sample_went() -> None:
    table = pa.table({"x": pa.array([1.0, 2.0, 3.0, None, None])})
    tree = induce(training_set("s", table), np.array([0, 0, 0, 1, 1]))
    assert assign_routes(tree, {"x": table["x"]}, 5).tolist() == [0, 0, 0, 1, 1]
    words = pa.table({"w": pa.array(["a", "b", "c", None, None])})
    tree = induce(training_set("s", words), np.array([0, 0, 0, 1, 1]))
    assert assign_routes(tree, {"w": pa.array(["a", "new", None])}, 3).tolist() == [0, 0, 1]


def test_without_attributes_or_with_one_label_there_is_nothing_to_test() -> None:
    table = pa.table({"x": [1, 2, 3]})
    assert induce(training_set("s", table.select([]), weights=np.ones(3)), np.array([0, 1, 1])) == Assign(1)
    assert induce(training_set("s", table), np.array([2, 2, 2])) == Assign(2)
    with pytest.raises(ValueError, match="no rows"):
        induce(training_set("s", table[:0]), np.zeros(0, np.int64))


def test_tests_that_do_not_pay_are_taken_out() -> None:
    training = training_set("s", pa.table({"x": [1, 2, 3, 4]}))
    tree = parse_classifier("(x <= 2.5 ? (x <= 1.5 ? 0 : 1) : 2)")
    paid = np.array([[1, 9, 9], [1.3, 1, 9], [9, 9, 1], [9, 9, 1]]) / 4
    # Telling row 1 from row 0 saves 0.3 / 4 and costs half a test.
    for test, kept, cost in (
        (0.1, str(tree), 1 + 0.1 + 0.05),
        (0.2, "(x <= 2.5 ? 0 : 2)", (1 + 1.3 + 1 + 1) / 4 + 0.2),
        (100.0, "2", 20 / 4),
    ):
        left, paid_then = cut_back(tree, training, paid, test)
        assert str(left) == kept
        assert paid_then == pytest.approx(cost)
