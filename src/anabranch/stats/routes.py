"""What the routes of a mesh did in one step: their rows and results, and what each operator on the way let through."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class HopStatistics:
    """One operator on one route; its selectivity there is kept / rows, a fan-out for a probe."""

    operator: str
    rows: int = 0
    kept: int = 0
    seconds: float = 0.0

    def plus(self, other: HopStatistics) -> HopStatistics:
        return HopStatistics(
            self.operator, self.rows + other.rows, self.kept + other.kept, self.seconds + other.seconds
        )


@dataclass(frozen=True)
class RouteStatistics:
    """The rows of one relation that took one route, and the results that they became."""

    relation: str
    route: int
    rows: int = 0
    results: int = 0
    hops: tuple[HopStatistics, ...] = ()
    """In the order in which the operators were first taken."""

    @property
    def seconds(self) -> float:
        return sum(hop.seconds for hop in self.hops)

    @property
    def left(self) -> tuple[float, ...]:
        """Combinations behind each operator for every row that took the route."""
        return tuple(hop.kept / self.rows if self.rows else 0.0 for hop in self.hops)

    def plus(self, other: RouteStatistics) -> RouteStatistics:
        hops = {hop.operator: hop for hop in self.hops}
        for hop in other.hops:
            hops[hop.operator] = hops.get(hop.operator, HopStatistics(hop.operator)).plus(hop)
        return RouteStatistics(
            self.relation, self.route, self.rows + other.rows, self.results + other.results, tuple(hops.values())
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RouteStatistics:
        return cls(**{**value, "hops": tuple(HopStatistics(**hop) for hop in value["hops"])})


def merge_routes(several: Iterable[RouteStatistics]) -> tuple[RouteStatistics, ...]:
    """The same routes of several steps or slots, added together."""
    merged: dict[tuple[str, int], RouteStatistics] = {}
    for route in several:
        key = (route.relation, route.route)
        merged[key] = merged.get(key, RouteStatistics(*key)).plus(route)
    return tuple(merged.values())
