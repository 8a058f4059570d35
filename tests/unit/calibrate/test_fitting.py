"""The fit of costs, compared with that of SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from anabranch.calibrate.fitting import nonnegative_fit


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(0, 30), st.sampled_from([1e-9, 1.0, 1e6]))
def test_no_cost_is_negative_and_none_explains_more(seed: int, columns: int, more: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    counts = scale * rng.random((columns + more, columns)) * rng.choice([1.0, 1.0, 0.01], columns)
    measured = counts @ np.maximum(0.0, rng.normal(size=columns)) + scale * rng.normal(size=columns + more)
    expected, error = nnls(counts, measured)
    found = nonnegative_fit(counts, measured)
    assert (found >= 0).all()
    assert np.linalg.norm(counts @ found - measured) == pytest.approx(error, rel=1e-9, abs=1e-9 * scale)
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_where_every_cost_would_be_negative_all_are_nothing() -> None:
    assert nonnegative_fit(np.eye(3), np.array([-1.0, -2.0, 0.0])).tolist() == [0.0, 0.0, 0.0]
