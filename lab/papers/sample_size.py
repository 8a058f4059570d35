"""Estimates how well a sample represents its stream, and how many rows it needs (Nehme et al. 2012, section 4.2)."""

from __future__ import annotations

import numpy as np

from anabranch.lang.arrays import Doubles
from anabranch.stats.mesh.operators import OperatorMatrix


def bootstrap_error(matrix: OperatorMatrix, weights: Doubles, rng: np.random.Generator, rounds: int = 200) -> Doubles:
    """The relative standard error of each operator's mean selectivity: how far another sample would move it.

    Rows are drawn again with replacement; a sample whose worst operator moves by more than is acceptable should be
    larger. An operator that never let a row through has an error of 0.
    """
    rows = matrix.rows
    drawn = rng.multinomial(rows, weights / weights.sum(), size=rounds).astype(np.float64) / rows
    means = drawn @ matrix.selectivity
    centre = means.mean(axis=0)
    errors: Doubles = np.divide(means.std(axis=0), centre, out=np.zeros_like(centre), where=centre > 0)
    return errors


def rows_needed(errors: Doubles, rows: int, accepted: float) -> int:
    """The size of a sample whose worst operator would move by no more than is accepted (errors fall as 1 / √rows)."""
    return max(rows, int(np.ceil(rows * (float(errors.max(initial=0.0)) / accepted) ** 2)))
