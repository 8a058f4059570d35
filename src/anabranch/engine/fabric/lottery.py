"""Choosing the next operator where a route leaves the order open: a lottery whose tickets follow what was seen.

For each route the wheel remembers what each operator let through; an operator that lets few rows through is drawn more
often. The draws come from a seed and their count, so an engine that is reopened by another worker goes on with the same
sequence. Any choice gives the same results. (Nehme et al. 2012, section 5.4.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from anabranch.plan.token import Passed, draw, tickets

Place = tuple[str, int, int]
"""Relation, route and operator."""

FADING = 0.9
"""What a new observation leaves of the older ones, so that the wheel follows data that changes."""


class Lottery:
    """The wheels of all uncertain routes of a fabric."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._draws = 0
        self._seen: dict[Place, Passed] = {}

    def choose(self, relation: str, route: int, candidates: tuple[int, ...]) -> int:
        """One of the candidates, by the tickets they have on this route."""
        shares = tickets([self._seen.get((relation, route, number), Passed()) for number in candidates])
        chance = float(np.random.default_rng([self._seed, self._draws]).random())
        self._draws += 1
        return candidates[draw(shares, chance)]

    def learn(self, relation: str, route: int, operator: int, rows: int, kept: int) -> None:
        place = (relation, route, operator)
        before = self._seen.get(place, Passed())
        self._seen[place] = Passed(FADING * before.rows_in, FADING * before.rows_out).plus(rows, kept)

    def forget(self) -> None:
        """Equal tickets again, because the routes have changed."""
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
