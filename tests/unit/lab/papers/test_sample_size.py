"""How well a sample represents its stream."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.stats.mesh.operators import OperatorMatrix
from lab.papers.sample_size import bootstrap_error, rows_needed


def test_a_larger_sample_represents_better() -> None:
    rng = np.random.default_rng(2)
    seen = rng.poisson([0.1, 1.0], (1600, 2)).astype(float)
    small = bootstrap_error(_matrix(seen[:100]), np.ones(100), rng)
    large = bootstrap_error(_matrix(seen), np.ones(1600), rng)
    assert (large < small).all()
    assert large == pytest.approx([1 / np.sqrt(160), 1 / 40], rel=0.3)
    assert rows_needed(large, 1600, accepted=0.2) == 1600
    assert rows_needed(np.array([0.1, 0.2]), 100, accepted=0.05) == 1600


def _matrix(selectivity: np.ndarray) -> OperatorMatrix:
    return OperatorMatrix(("b", "c"), selectivity, np.ones(selectivity.shape))
