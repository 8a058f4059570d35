"""The CPU and memory of a join at its site, by the engine's cost model.

A site runs a join of two streams that arrive as whole rows, so each input is a base state there, even if it was joined
elsewhere. `cost.resources` costs it as a query of two relations, with the unit costs of the network's statistics (by
default those of the engine). A row of a derived input is kept until the shortest of its windows has passed, as in the
engine. The model uses the selectivity that gives placement's own estimate of the result rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from anabranch.cost.estimates import SHORTEST_WINDOW, Estimates, ThetaEstimate
from anabranch.cost.resources import ResourceModel
from anabranch.place.statistics import Statistics
from anabranch.place.view import View
from anabranch.plan.physical import JoinNode, Leaf

Side: TypeAlias = tuple[View, tuple[int, ...]]
"""An input of a join, and the slot of the join's view for each slot of the input."""

_JOIN = JoinNode((Leaf("left"), Leaf("right")))


@dataclass(frozen=True)
class Load:
    """CPU in seconds of work per second, and memory in bytes."""

    cpu: float = 0.0
    memory: float = 0.0

    def __add__(self, other: Load) -> Load:
        return Load(self.cpu + other.cpu, self.memory + other.memory)


NOTHING = Load()


@lru_cache(maxsize=1 << 16)
def join_load(left: Side, right: Side, output: View, statistics: Statistics) -> Load:
    """Returns the load of a join of two streams."""
    sides = (left, right)
    rates = [view.rate(statistics) for view, _ in sides]
    windows = [max(view.shortest_range, SHORTEST_WINDOW) for view, _ in sides]
    pairs = math.prod(rates) * sum(windows)
    share = min(1.0, output.rate(statistics) / pairs) if pairs else 0.0
    checked = [p for p in output.predicates if not any(set(p.positions) <= set(slots) for _, slots in sides)]
    keys = [predicate for predicate in checked if predicate.is_equality]
    others = sorted((predicate for predicate in checked if not predicate.is_equality), key=str)
    passing = [output.passing((predicate,), statistics) for predicate in others]
    matching = share / math.prod(passing) if all(passing) else 0.0
    distinct = min(1.0, matching) ** (-1 / len(keys)) if keys and matching else math.inf
    model = ResourceModel(
        Estimates(
            names=("left", "right"),
            rates=tuple(rates),
            windows=tuple(windows),
            row_bytes=tuple(view.width(statistics) for view, _ in sides),
            keys=tuple((distinct, distinct) for _ in keys),
            thetas=tuple(ThetaEstimate(3, one, p.is_band) for p, one in zip(others, passing, strict=True)),
        ),
        statistics.units,
        batch=statistics.batch,
    )
    needed = model.price(_JOIN)
    return Load(needed.cpu, needed.memory)
