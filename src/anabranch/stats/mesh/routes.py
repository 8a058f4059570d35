"""Counts of the routes of a mesh in one step: rows, results, and rows in and out of each operator.

Invariant: counts are exact, and sums over steps or slots are sums of counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class HopStatistics:
    """Counts of one operator on one route; its selectivity there is kept / rows, a fan-out for a probe."""

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
    """The rows of one relation on one route, and their results."""

    relation: str
    route: int
    rows: int = 0
    results: int = 0
    hops: tuple[HopStatistics, ...] = ()
    """In the order in which the operators were first applied."""

    @property
    def seconds(self) -> float:
        return sum(hop.seconds for hop in self.hops)

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
    """Adds up the counts of each route over several steps or slots."""
    merged: dict[tuple[str, int], RouteStatistics] = {}
    for route in several:
        key = (route.relation, route.route)
        merged[key] = merged.get(key, RouteStatistics(*key)).plus(route)
    return tuple(merged.values())
