"""Estimates how many different rows some rows leave when merged, and from how many groups they were drawn.

Rows that fall into one of d groups at random leave d (1 - (1 - 1/d)^n) different ones of n. Where some groups are much
larger than others fewer are left, so that a number of groups worked out from a few rows is too small for many.
"""

from __future__ import annotations

from math import expm1, inf, log1p

ROUNDS = 60


def share_left(groups: float, rows: float) -> float:
    """The share of some rows that is left when those of one group become one.

    >>> share_left(1.0, 10.0), share_left(float("inf"), 10.0)
    (0.1, 1.0)
    """
    if rows <= 1:
        return 1.0
    different = groups * -expm1(rows * log1p(-1 / groups)) if 1 < groups < inf else min(groups, rows)
    return min(1.0, different / rows)


def groups_behind(rows: float, different: float) -> float:
    """The number of groups for which `rows` rows leave `different` different ones.

    Rows without any that agree count as half a row less: they do not prove that none ever will.

    >>> round(groups_behind(1000.0, 1000 * share_left(50.0, 1000.0)))
    50
    """
    wanted = min(different, rows - 0.5) / rows
    low, high = 1.0, max(1.0, rows) ** 2
    for _ in range(ROUNDS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if share_left(middle, rows) < wanted else (low, middle)
    return high
