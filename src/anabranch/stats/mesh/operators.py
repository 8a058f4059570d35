"""Operator matrices: the selectivity and cost of each operator on each sampled row, for a mesh search.

The engine fills such a matrix by running every operator on the sampled rows of one relation; the `mesh` package reads
it. An operator is a filter or a probe that the rows of the relation have to pass, in any order that respects
precedence. Its *selectivity* is rows out per row in (a fraction for a filter, a fan-out for a probe) and its *cost* is
seconds of one core per row in.

Limit: for one row, operators are assumed independent: the matches of a probe do not depend on earlier probes. Between
rows nothing is assumed; meshes exploit these differences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from anabranch.errors import StatisticsError
from anabranch.lang.arrays import Doubles

Needs: TypeAlias = tuple[tuple[frozenset[int], ...], ...]
"""For each operator, alternative sets of operators; all of one set must precede it.

Without sets it has no precedence.
"""


@dataclass(frozen=True, eq=False)
class OperatorMatrix:
    """Rows x operators; `selectivity[t, i]` and `cost[t, i]` are of operator i on row t."""

    operators: tuple[str, ...]
    selectivity: Doubles
    cost: Doubles

    def __post_init__(self) -> None:
        for name in ("selectivity", "cost"):
            values = np.ascontiguousarray(getattr(self, name), dtype=np.float64)
            object.__setattr__(self, name, values)
            if values.ndim != 2 or values.shape[1] != len(self.operators) or values.shape != self.cost.shape:
                raise StatisticsError(f"the {name} of operators has the shape {values.shape}, not rows x operators")
            if not (np.isfinite(values).all() and (values >= 0).all()):
                raise StatisticsError(f"the {name} of an operator is negative or not a number")

    @property
    def rows(self) -> int:
        return int(self.selectivity.shape[0])

    def take(self, rows: NDArray[np.int64]) -> OperatorMatrix:
        return OperatorMatrix(self.operators, self.selectivity[rows], self.cost[rows])

    def averaged(self, groups: NDArray[np.int64], weights: Doubles, size: int) -> OperatorMatrix:
        """Averages the rows of each group by weight; every group has at least one row of positive weight."""
        total = np.bincount(groups, weights, size)[:, None]
        return OperatorMatrix(
            self.operators,
            _summed(groups, weights[:, None] * self.selectivity, size) / total,
            _summed(groups, weights[:, None] * self.cost, size) / total,
        )


def _summed(groups: NDArray[np.int64], values: Doubles, size: int) -> Doubles:
    out = np.zeros((size, values.shape[1]))
    np.add.at(out, groups, values)
    return out


def check_needs(needs: Needs, operators: tuple[str, ...]) -> None:
    """Raises for precedence that no order satisfies, and names an operator that can never be applied."""
    if len(needs) != len(operators):
        raise StatisticsError(f"precedence is given for {len(needs)} operators, and there are {len(operators)}")
    done: set[int] = set()
    while ready := {i for i in range(len(needs)) if i not in done and may_come(needs[i], done)}:
        done |= ready
    if left := sorted(set(range(len(needs))) - done):
        raise StatisticsError(
            f"operator '{operators[left[0]]}' can never come",
            detail="the operators that must precede it depend on it, or do not exist",
            hint="remove the cycle from the precedence, or give an alternative set of operators",
        )


def may_come(needed: tuple[frozenset[int], ...], done: set[int]) -> bool:
    """Returns True if an operator with these alternative sets of predecessors may follow the operators in `done`."""
    return not needed or any(alternative <= done for alternative in needed)
