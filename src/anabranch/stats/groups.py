"""Estimates how many distinct rows remain after merging, and from how many groups rows were drawn.

Of n rows that fall into d groups at random, d (1 - (1 - 1/d)^n) distinct rows remain.

Limit: fewer remain if groups differ much in size, so a number of groups estimated from a few rows is too small for
many.
"""

from __future__ import annotations

from math import expm1, inf, log1p

ROUNDS = 60


def share_left(groups: float, rows: float) -> float:
    """Returns the fraction of rows that remains if rows of one group are merged.

    >>> share_left(1.0, 10.0), share_left(float("inf"), 10.0)
    (0.1, 1.0)
    """
    if rows <= 1:
        return 1.0
    different = groups * -expm1(rows * log1p(-1 / groups)) if 1 < groups < inf else min(groups, rows)
    return min(1.0, different / rows)


def groups_behind(rows: float, different: float) -> float:
    """Returns the number of groups for which `rows` rows leave `different` distinct ones.

    If all rows are distinct, half a row is subtracted: the sample does not prove that rows never agree.

    >>> round(groups_behind(1000.0, 1000 * share_left(50.0, 1000.0)))
    50
    """
    wanted = min(different, rows - 0.5) / rows
    low, high = 1.0, max(1.0, rows) ** 2
    for _ in range(ROUNDS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if share_left(middle, rows) < wanted else (low, middle)
    return high
