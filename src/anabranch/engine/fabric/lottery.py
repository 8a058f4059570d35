"""Draws the next operator of an open route step: a lottery whose tickets follow the observed selectivities.

The lottery counts the rows that each operator passes on each route, and draws operators that pass few rows more often.
Draws depend only on a seed and their count, so an engine that another worker reopens continues the sequence. Invariant:
every choice gives the same results. (Nehme et al. 2012, section 5.4.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Place = tuple[str, int, int]
"""Relation, route and operator."""

FADING = 0.9
"""The weight that older observations keep after a new one, so that the lottery follows changing data."""
CAUTION = 100.0
"""The number of rows that every operator is assumed to have passed before any are observed."""
LEAST_PASSING = 0.02
"""The minimum selectivity in the computation of tickets, so that every operator of a group is drawn sometimes."""


@dataclass(frozen=True)
class Passed:
    """Rows that entered and left one operator, for the rows of one route."""

    rows_in: float = 0.0
    rows_out: float = 0.0

    def plus(self, rows_in: float, rows_out: float) -> Passed:
        return Passed(self.rows_in + rows_in, self.rows_out + rows_out)

    @property
    def selectivity(self) -> float:
        """Rows out per row in, biased towards 1 while few rows were observed."""
        return (self.rows_out + CAUTION) / (self.rows_in + CAUTION)


class Lottery:
    """The tickets of all open route steps of a fabric."""

    def __init__(self) -> None:
        self._draws = 0
        self._seen: dict[Place, Passed] = {}

    def choose(self, relation: str, route: int, candidates: tuple[int, ...]) -> int:
        """Draws one of the candidates, by their tickets on this route."""
        shares = tickets([self._seen.get((relation, route, number), Passed()) for number in candidates])
        chance = float(np.random.default_rng([0, self._draws]).random())
        self._draws += 1
        return candidates[draw(shares, chance)]

    def learn(self, relation: str, route: int, operator: int, rows: int, kept: int) -> None:
        place = (relation, route, operator)
        before = self._seen.get(place, Passed())
        self._seen[place] = Passed(FADING * before.rows_in, FADING * before.rows_out).plus(rows, kept)

    def forget(self) -> None:
        """Resets to equal tickets, because the routes have changed."""
        self._seen = {}

    def layout(self) -> dict[str, Any]:
        seen = [[*place, passed.rows_in, passed.rows_out] for place, passed in self._seen.items()]
        return {"draws": self._draws, "seen": seen}

    def reopen(self, layout: Mapping[str, Any]) -> None:
        self._draws = layout["draws"]
        self._seen = {
            (relation, route, operator): Passed(rows_in, rows_out)
            for relation, route, operator, rows_in, rows_out in layout["seen"]
        }


def tickets(seen: Sequence[Passed]) -> tuple[float, ...]:
    """Each operator's share of the lottery: equal at first, then inverse to its selectivity on the subset.

    >>> tickets([Passed(), Passed()])
    (0.5, 0.5)
    """
    shares = [1 / max(passed.selectivity, LEAST_PASSING) for passed in seen]
    total = sum(shares)
    return tuple(share / total for share in shares)


def draw(shares: Sequence[float], chance: float) -> int:
    """Returns the position whose interval of the cumulative shares contains the chance, a number in [0, 1)."""
    reached = 0.0
    for position, share in enumerate(shares):
        reached += share
        if chance < reached:
            return position
    return len(shares) - 1
