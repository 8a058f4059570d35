"""Finds the best route for a subset of rows: the order of operators, and its cost.

The cost of an order on a subset is summed row by row: each row pays for an operator as many times as it has offspring
after the preceding operators, Σ w c_i Π σ_j. Averages would hide that operators drop the same rows. Up to twelve
operators the order is exact: the offspring depend only on the set of operators passed, so dynamic programming over sets
(Selinger et al. 1979) finds the least sum under any precedence. Beyond that, the operator with the best rank (1 - σ) /
c on the remaining rows comes next, together with the operators that must precede it (the conditional greedy of Babu et
al. 2004, with the modules of Ibaraki and Kameda 1984). If rows are alike and there is no precedence, that is rank
ordering, which is optimal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from anabranch.lang.arrays import Doubles, Integers
from anabranch.mesh.kernels import best_order, surviving
from anabranch.stats.mesh.operators import Needs, OperatorMatrix, check_needs

Order: TypeAlias = tuple[int, ...]
"""Positions of all operators, in the order of application."""

MOST_EXACT = 12
"""The number of operators above which orders are not exact; 2^n sets are examined."""


@dataclass(frozen=True)
class Ordered:
    """An order, and its seconds per row of the whole training set."""

    order: Order
    cost: float


@dataclass(frozen=True, eq=False)
class Router:
    """Orders operators for subsets of the rows of one matrix; caches results."""

    matrix: OperatorMatrix
    shares: Doubles
    """The weight of each row; the weights sum to one."""
    needs: Needs

    def __post_init__(self) -> None:
        check_needs(self.needs, self.matrix.operators)

    @property
    def everything(self) -> Integers:
        return np.arange(self.matrix.rows)

    def best(self, rows: Integers) -> Ordered:
        """Returns a cheapest order for these rows, ascending row numbers."""
        key = rows.tobytes()
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._exact(rows) if len(self.needs) <= MOST_EXACT else self._greedy(rows)
        return found

    def best_by(self, shares: Doubles) -> Ordered:
        """Returns a cheapest order for all rows under these weights."""
        if len(self.needs) > MOST_EXACT:
            return replace(self, shares=shares).best(self.everything)
        order, cost = best_order(self._surviving * shares[:, None], self.matrix.cost, self.everything, self._allowed)
        return Ordered(tuple(int(operator) for operator in order), float(cost))

    def price(self, order: Order, rows: Integers) -> float:
        """Returns the cost of these rows under the order."""
        return float(self.shares[rows] @ self.row_costs(order, rows))

    def row_costs(self, order: Order, rows: Integers) -> Doubles:
        """Returns the seconds of one row of each kind under the order."""
        return row_costs(self.matrix, order, rows)

    @cached_property
    def _known(self) -> dict[bytes, Ordered]:
        return {}

    @cached_property
    def _surviving(self) -> Doubles:
        """Rows x sets of operators: offspring of each row after the set."""
        return surviving(self.matrix.selectivity)

    @cached_property
    def _left(self) -> Doubles:
        """The same, weighted."""
        weighted: Doubles = self._surviving * self.shares[:, None]
        return weighted

    @cached_property
    def _allowed(self) -> NDArray[np.bool_]:
        sets = np.arange(1 << len(self.needs))
        allowed = np.zeros((sets.size, len(self.needs)), np.bool_)
        for operator, needed in enumerate(self.needs):
            for alternative in needed or (frozenset(),):
                mask = sum(1 << other for other in alternative)
                allowed[:, operator] |= (sets & mask) == mask
        return allowed

    def _exact(self, rows: Integers) -> Ordered:
        order, cost = best_order(self._left, self.matrix.cost, rows, self._allowed)
        return Ordered(tuple(int(operator) for operator in order), float(cost))

    def _greedy(self, rows: Integers) -> Ordered:
        left = self.shares[rows].copy()
        order: list[int] = []
        while len(order) < len(self.needs):
            ranks = [(self._rank(module, rows, left), module) for module in self._modules(order)]
            module = max(ranks, key=lambda ranked: ranked[0])[1]
            for operator in module:
                left *= self.matrix.selectivity[rows, operator]
            order += module
        return Ordered(tuple(order), self.price(tuple(order), rows))

    def _modules(self, order: list[int]) -> list[list[int]]:
        """Returns each remaining operator after the fewest others that must precede it."""
        done = set(order)
        waiting = [operator for operator in range(len(self.needs)) if operator not in done]
        ways: dict[int, list[int]] = {}
        while waiting:
            reached = {}
            for operator in waiting:
                options = [
                    list(dict.fromkeys(step for other in sorted(needed - done) for step in ways[other]))
                    for needed in self.needs[operator] or (frozenset(),)
                    if needed - done <= ways.keys()
                ]
                if options:
                    reached[operator] = [*min(options, key=len), operator]
            ways |= reached
            waiting = [operator for operator in waiting if operator not in ways]
        return list(ways.values())

    def _rank(self, module: list[int], rows: Integers, left: Doubles) -> float:
        """Returns the rank (1 - T) / C of a module on the remaining rows."""
        cost, after = 0.0, left
        for operator in module:
            cost += float(after @ self.matrix.cost[rows, operator])
            after = after * self.matrix.selectivity[rows, operator]
        gain = float(left.sum() - after.sum())
        return gain / cost if cost > 0 else np.inf * np.sign(gain or 1.0)


def row_costs(matrix: OperatorMatrix, order: Order, rows: Integers) -> Doubles:
    """Returns the seconds of one of each of these rows under the order."""
    chosen = np.ix_(rows, np.array(order, dtype=np.int64))
    selectivity, cost = matrix.selectivity[chosen], matrix.cost[chosen]
    before = np.ones_like(selectivity)
    np.cumprod(selectivity[:, :-1], axis=1, out=before[:, 1:])
    costs: Doubles = (before * cost).sum(axis=1)
    return costs
