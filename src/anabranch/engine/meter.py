"""Counts what the operators of one step do, and hands it over as an immutable `StepStatistics`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, TypeAlias

from anabranch.stats.mesh.routes import HopStatistics, RouteStatistics
from anabranch.stats.step import ProbeStatistics, StateStatistics, StepStatistics

Size: TypeAlias = tuple[int, int]
"""Rows and bytes of a state."""


class Meter:
    """The running totals of one step; `finish` starts the next."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.rows_in: dict[str, int] = defaultdict(int)
        self.rows_out = 0
        self._probes: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0] * 5)
        self._tested: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        self._inserted: dict[str, int] = defaultdict(int)
        self._dropped: dict[str, int] = defaultdict(int)
        self._routes: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])
        self._hops: dict[tuple[str, int], dict[str, list[Any]]] = defaultdict(dict)

    def spent(self, kind: str, seconds: float) -> None:
        self.seconds[kind] += seconds

    def probed(self, join: str, origin: str, target: str, probes: int, pairs: int) -> None:
        totals = self._probes[join, origin, target]
        totals[0] += probes
        totals[1] += pairs

    def matched(self, join: str, origin: str, target: str, visited: int, matches: int, kept: int) -> None:
        totals = self._probes[join, origin, target]
        totals[2] += visited
        totals[3] += matches
        totals[4] += kept

    def tested(self, relation: str, rows: int, passed: int) -> None:
        """Rows, or combinations, were tested for the query's own filter of a relation."""
        totals = self._tested[relation]
        totals[0] += rows
        totals[1] += passed

    def inserted(self, state: str, rows: int) -> None:
        self._inserted[state] += rows

    def dropped(self, state: str, rows: int) -> None:
        self._dropped[state] += rows

    def hopped(self, relation: str, route: int, operator: str, rows: int, kept: int, seconds: float) -> None:
        """Rows on one route of a mesh went through an operator."""
        totals = self._hops[relation, route].setdefault(operator, [0, 0, 0.0])
        totals[0] += rows
        totals[1] += kept
        totals[2] += seconds

    def routed(self, relation: str, route: int, rows: int, results: int) -> None:
        """Rows reached the end of one route of a mesh."""
        totals = self._routes[relation, route]
        totals[0] += rows
        totals[1] += results

    def finish(self, sizes: Mapping[str, Size]) -> StepStatistics:
        """The statistics of the step, given rows and bytes of each state as they are now."""
        statistics = StepStatistics(
            rows_in=dict(self.rows_in),
            rows_out=self.rows_out,
            probes=tuple(ProbeStatistics(*names, *totals) for names, totals in self._probes.items()),
            states=tuple(
                StateStatistics(name, rows, size, self._inserted[name], self._dropped[name])
                for name, (rows, size) in sizes.items()
            ),
            seconds=dict(self.seconds),
            routes=tuple(
                RouteStatistics(
                    relation,
                    route,
                    rows,
                    results,
                    tuple(HopStatistics(name, *hop) for name, hop in self._hops[relation, route].items()),
                )
                for (relation, route), (rows, results) in self._routes.items()
            ),
            tested={name: (rows, passed) for name, (rows, passed) in self._tested.items()},
        )
        self.reset()
        return statistics
