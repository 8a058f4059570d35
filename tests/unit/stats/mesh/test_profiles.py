"""Profiles travel in reports, and arrive as they were."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from anabranch.stats.mesh.operators import OperatorMatrix
from anabranch.stats.mesh.profiles import OperatorProfile


@given(
    st.lists(st.tuples(st.none() | st.integers(-9, 9), st.none() | st.text(max_size=3)), max_size=20),
    st.lists(st.sampled_from(["b", "c", "#0"]), unique=True),
)
def test_a_profile_arrives_as_it_was(rows: list[tuple[int | None, str | None]], operators: list[str]) -> None:
    rng = np.random.default_rng(len(rows))
    matrix = OperatorMatrix(tuple(operators), *rng.random((2, len(rows), len(operators))))
    columns = pa.table(
        {"k": pa.array([k for k, _ in rows], pa.int64()), "c": pa.array([c for _, c in rows], pa.string())}
    )
    arrived = OperatorProfile.from_json(
        json.loads(json.dumps(OperatorProfile("a", columns, matrix, 7, 2e-5).to_json()))
    )
    assert arrived.relation == "a"
    assert arrived.columns == columns
    assert arrived.matrix.operators == matrix.operators
    assert np.array_equal(arrived.matrix.selectivity, matrix.selectivity)
    assert np.array_equal(arrived.matrix.cost, matrix.cost)
    assert (arrived.batch_rows, arrived.call) == (7, 2e-5)
