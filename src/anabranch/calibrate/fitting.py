"""Fits costs to measurements by least squares; no cost is negative."""

from __future__ import annotations

import numpy as np

from anabranch.lang.arrays import Doubles


def nonnegative_fit(counts: Doubles, measured: Doubles) -> Doubles:
    """Returns the non-negative `x` that minimizes `|counts @ x - measured|` (Lawson and Hanson 1974, chapter 23).

    The columns of `counts` must be linearly independent.
    """
    columns = counts.shape[1]
    found, is_free = np.zeros(columns), np.zeros(columns, dtype=bool)
    tolerance = 10 * max(counts.shape) * np.finfo(float).eps * float(np.abs(counts.T).dot(np.abs(measured)).max())
    for _ in range(3 * columns):
        slope = counts.T @ (measured - counts @ found)
        slope[is_free] = -np.inf
        if slope.max(initial=-np.inf) <= tolerance:
            break
        is_free[slope.argmax()] = True
        while True:
            best = np.zeros(columns)
            best[is_free] = np.linalg.lstsq(counts[:, is_free], measured, rcond=None)[0]
            falling = np.flatnonzero(is_free & (best <= 0))
            if not falling.size:
                break
            # Moves towards the best fit until the first cost reaches zero, and removes that cost.
            steps = found[falling] / (found[falling] - best[falling])
            found += steps.min() * (best - found)
            is_free[falling[steps == steps.min()]] = False
            found[~is_free] = 0.0
        found = best
    return found
