"""Training sets: what becomes an attribute, how a sample is condensed, and how well it represents."""

from __future__ import annotations

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.tree import DecisionTreeRegressor

from anabranch.mesh.kernels import regression_cells
from anabranch.mesh.training import condense, folds, training_set
from anabranch.plan.classes import REST
from anabranch.stats.mesh.operators import OperatorMatrix


def matrix_of(selectivity: list[list[float]] | np.ndarray) -> OperatorMatrix:
    seen = np.array(selectivity, dtype=float)
    return OperatorMatrix(tuple(f"o{i}" for i in range(seen.shape[1])), seen, np.ones_like(seen))


TABLE = pa.table(
    {
        "price": [1.5, None, 3.0, float("nan")],
        "sector": ["it", "food", None, "it"],
        "at": pa.array([0, 1, 2, 3], pa.timestamp("us", "UTC")),
        "day": pa.array([datetime.date(1970, 1, 2)] * 4),
        "total": pa.array([decimal.Decimal(i) for i in range(4)], pa.decimal128(9, 2)),
    }
)


def test_columns_that_a_classifier_can_test_become_attributes() -> None:
    training = training_set("s", TABLE)
    assert [attribute.name for attribute in training.attributes] == ["price", "sector", "day"]
    price, sector, day = training.attributes
    assert price.ranks.tolist() == [0, -1, 1, -1]
    assert sector.categories == ("food", "it")
    assert sector.ranks.tolist() == [1, 0, -1, 1]
    assert day.values.tolist() == [1.0] * 4
    assert training.columns["sector"].to_pylist() == ["it", "food", None, "it"]
    assert training.columns["price"].to_pylist() == [1.5, None, 3.0, None]


def test_names_without_end_are_no_attribute_of_their_own_accord() -> None:
    table = pa.table({"name": [f"n{i}" for i in range(100)], "x": range(100)})
    assert [attribute.name for attribute in training_set("s", table).attributes] == ["x"]
    assert [attribute.name for attribute in training_set("s", table, also=["name"]).attributes] == ["name", "x"]


def test_of_many_texts_the_frequent_ones_are_categories_and_the_others_one_together() -> None:
    words = ["ord", "jfk"] * 20 + [f"n{number}" for number in range(160)]
    (attribute,) = training_set("s", pa.table({"w": [*words, None]})).attributes
    assert attribute.categories == ("jfk", "ord", REST)
    assert attribute.values[:2].tolist() == [1.0, 0.0]
    assert (attribute.values[40:200] == 2.0).all()
    assert np.isnan(attribute.values[200])
    assert attribute.column.to_pylist()[:2] == ["ord", "jfk"]
    (every,) = training_set("s", pa.table({"w": words}), also={"w"}).attributes
    assert len(every.categories or ()) == 162


rows_drawn = st.lists(
    st.tuples(
        st.none() | st.integers(-3, 3).map(float),
        st.none() | st.sampled_from("abcd"),
        st.sampled_from([0.0, 0.5, 4.0]),
        st.integers(1, 5).map(float),
    ),
    min_size=1,
    max_size=40,
)


@given(rows_drawn, st.integers(1, 12))
def test_condensed_rows_keep_weights_and_means_and_can_be_told_apart(
    rows: list[tuple[float | None, str | None, float, float]], size: int
) -> None:
    numbers, texts, fan_outs, weights = zip(*rows, strict=True)
    table = pa.table({"x": pa.array(numbers, pa.float64()), "w": pa.array(texts, pa.string())})
    sample = training_set("s", table, weights=np.array(weights))
    matrix = matrix_of([[fan_out, 1.0] for fan_out in fan_outs])
    condensed = condense(sample, matrix, size)
    assert condensed.rows.rows <= size
    assert set(condensed.cells) == set(range(condensed.rows.rows))
    assert condensed.rows.weights.sum() == pytest.approx(sum(weights))
    mean = sample.shares @ matrix.selectivity
    assert condensed.rows.shares @ condensed.matrix.selectivity == pytest.approx(mean)
    stand_ins = {
        tuple(attribute.ranks[row] for attribute in condensed.rows.attributes) for row in range(condensed.rows.rows)
    }
    assert len(stand_ins) == condensed.rows.rows
    same = {(x, w): cell for x, w, cell in zip(numbers, texts, condensed.cells, strict=True)}
    assert all(same[x, w] == cell for x, w, cell in zip(numbers, texts, condensed.cells, strict=True))


@given(st.integers(0, 10**6), st.integers(2, 60), st.integers(2, 12), st.integers(1, 4))
def test_cells_are_the_leaves_of_the_regression_tree_of_scikit_learn(
    seed: int, rows: int, size: int, least: int
) -> None:
    rng = np.random.default_rng(seed)
    ranks = np.stack([rng.permutation(rows), rng.integers(-1, 3, rows), rng.integers(-1, rows, rows)], axis=1)
    targets, weights = rng.random((rows, 3)), rng.random(rows) + 0.5
    learner = DecisionTreeRegressor(max_leaf_nodes=size, min_samples_leaf=least, random_state=0)
    columns = np.where(ranks < 0, np.nan, ranks)
    leaves = learner.fit(columns, targets, sample_weight=weights).apply(columns.astype(np.float32))
    cells = regression_cells(ranks, targets, weights, size, least)
    assert len(set(cells)) == len(set(leaves)) == len(set(zip(cells, leaves, strict=True)))


def test_rows_that_behave_alike_are_condensed_together() -> None:
    rng = np.random.default_rng(1)
    table = pa.table({"noise": rng.random(400), "sector": rng.choice(list("abcdef"), 400)})
    low = np.isin(table["sector"].to_numpy(zero_copy_only=False), ["a", "c", "e"])
    condensed = condense(training_set("s", table), matrix_of(np.where(low, 0.1, 0.9)[:, None]), 2)
    assert condensed.rows.rows == 2
    assert sorted(condensed.matrix.selectivity[:, 0].round(6)) == [0.1, 0.9]
    assert all(len(set(condensed.cells[low == side])) == 1 for side in (True, False))


def test_each_row_is_held_out_once() -> None:
    parts = folds(10, 3, np.random.default_rng(3))
    assert sorted(row for _, held in parts for row in held) == list(range(10))
    assert all(set(learning) == set(range(10)) - set(held) for learning, held in parts)
