"""The search: Equation 2 by hand, paths as in the classifier, the start, and merging."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.tree import DecisionTreeClassifier

from anabranch.mesh.induce import induce
from anabranch.mesh.routes import Router
from anabranch.mesh.search import MeshCosts, Space, by_route, merge_down
from anabranch.mesh.training import training_set
from anabranch.plan.classifier import by_leaf, leaves
from anabranch.plan.classify import assign_routes
from anabranch.stats.mesh.operators import OperatorMatrix


def space_of(seed: int, rows: int, costs: MeshCosts | None = None, operators: int = 3) -> Space:
    """Rows with a number each of their own, so that they can be told apart, and a coarse text."""
    rng = np.random.default_rng(seed)
    table = pa.table({"x": rng.permutation(rows), "w": rng.choice(list("abc"), rows)})
    training = training_set("s", table, weights=rng.integers(1, 6, rows).astype(float))
    selectivity = rng.choice([0.05, 0.3, 0.8, 1.0, 2.0], (rows, operators))
    matrix = OperatorMatrix(tuple(f"o{i}" for i in range(operators)), selectivity, np.ones_like(selectivity))
    return Space(training, Router(matrix, training.shares, ((),) * operators), costs or MeshCosts(0.02, 0.03))


def test_a_mesh_costs_its_routes_its_tests_and_its_overhead() -> None:
    training = training_set("s", pa.table({"x": [1, 2, 3]}), weights=np.array([2.0, 1.0, 1.0]))
    selectivity = np.array([[0.1, 1.0], [1.0, 0.1], [0.1, 1.0]])
    matrix = OperatorMatrix(("a", "b"), selectivity, np.ones((3, 2)))
    space = Space(training, Router(matrix, training.shares, ((), ())), MeshCosts(test=0.01, route=0.05))
    # Each row on its best route pays 1 + 0.1. Row 1 is cut off first (gain: 3 of 4 are then pure), row 2 after it.
    apart = space.solution(np.array([0, 1, 0]))
    assert apart.routes == ((0, 1), (1, 0))
    assert apart.labels.tolist() == [0, 1, 0]
    assert apart.cost == pytest.approx(1.1 + 0.01 * (0.5 * 1 + 0.25 * 2 + 0.25 * 2) + 2 * 0.05)
    assert space.solution(np.array([0, 1, 2])).cost == pytest.approx(apart.cost), (
        "two subsets of one route are one class"
    )
    # All on a>b: 0.5 x 1.1 + 0.25 x 2 + 0.25 x 1.1, and no test.
    together = space.solution(np.array([0, 0, 0]))
    assert together.cost == pytest.approx(0.75 * 1.1 + 0.25 * 2 + 0.05)


@given(st.integers(0, 10**6), st.integers(2, 9), st.integers(2, 4), st.booleans())
def test_paths_are_as_long_as_in_the_classifier_and_in_that_of_scikit_learn(
    seed: int, rows: int, routes: int, hole: bool
) -> None:
    rng = np.random.default_rng(seed)
    numbers = pa.array(rng.permutation(rows), mask=np.arange(rows) == 1 if hole else None)
    # One attribute only: with several, equal gains may be taken in another order by scikit-learn. Sums of weights are
    # exact: it goes on testing where rounding makes a pure leaf look impure.
    training = training_set("s", pa.table({"x": numbers}), weights=rng.integers(1, 2**20, rows) / 2**20)
    space = Space(training, space_of(seed, rows).router, MeshCosts())
    labels = rng.integers(0, routes, rows)
    tree = induce(training, labels)
    leaf_of = assign_routes(by_leaf(tree), training.columns, rows)
    tests = np.array([tests for _, tests in leaves(tree)])[leaf_of]
    assert space.path(labels) == pytest.approx(float(training.shares @ tests))
    columns = training.attributes[0].values[:, None]
    learner = DecisionTreeClassifier(criterion="entropy", random_state=0)
    learner.fit(columns, labels, sample_weight=training.weights)
    lengths = np.asarray(learner.decision_path(columns).sum(axis=1)).ravel() - 1
    assert tests.tolist() == lengths.tolist()


def test_rows_that_differ_only_where_hardly_any_row_comes_start_together() -> None:
    training = training_set("s", pa.table({"x": [1, 2, 3]}))
    selectivity = np.array([[0.01, 0.5, 0.6], [0.01, 0.6, 0.5], [0.9, 0.01, 0.5]])
    matrix = OperatorMatrix(("a", "b", "c"), selectivity, np.ones((3, 3)))
    space = Space(training, Router(matrix, training.shares, ((), (), ())), MeshCosts())
    assert len(space.solution(np.arange(3)).routes) == 3
    assert by_route(space).subsets.tolist() == [0, 0, 1]


@given(st.integers(0, 10**6), st.integers(1, 8))
def test_merging_ends_where_no_merge_of_two_subsets_saves(seed: int, rows: int) -> None:
    space = space_of(seed, rows)
    start = by_route(space)
    found = merge_down(space, start)
    assert found.cost <= start.cost
    count = int(found.subsets.max()) + 1
    for kept in range(count):
        for gone in range(kept):
            assert space.solution(np.where(found.subsets == gone, kept, found.subsets)).cost >= found.cost
