"""Counts the work of the operators in one step and returns it as an immutable `StepStatistics`.

Costs and selectivities of predicates are kept across steps: predicates that are checked together are ordered by their
measured ranks (`plan.cost_rank`). So timings affect the order of checks, never their outcome.

Limit: times are measured on a running machine, so they vary between runs; counts do not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, TypeAlias

from anabranch.plan.cost_rank import assumed_cost, assumed_share, by_rank, rank
from anabranch.plan.join_graph import Theta
from anabranch.stats.mesh.routes import HopStatistics, RouteStatistics
from anabranch.stats.step import CheckStatistics, ProbeStatistics, StateStatistics, StepStatistics

Size: TypeAlias = tuple[int, int]
"""Rows and bytes of a state."""


LEARNT_ROWS = 1 << 20
"""The number of checked rows after which the counts are halved, so that ranks follow the streams."""
ASSUMED_ROWS = 1_000
"""The weight, in checked rows, of the assumed cost and selectivity of a predicate."""


class CheckRanks:
    """The measured statistics of a query's predicates, and the orders derived from them."""

    def __init__(self) -> None:
        self._known: dict[str, CheckStatistics] = {}
        # Keyed by identity: hashing an expression takes longer than checking a block.
        self._texts: dict[int, tuple[Theta, str]] = {}
        self._orders: dict[int, tuple[tuple[Theta, ...], tuple[Theta, ...]]] = {}

    def text(self, theta: Theta) -> str:
        """The text of a predicate."""
        found = self._texts.get(id(theta))
        if found is None:
            found = self._texts[id(theta)] = theta, str(theta)
        return found[1]

    def in_order(self, thetas: tuple[Theta, ...]) -> tuple[Theta, ...]:
        """Sorts the predicates by rank, as far as guards allow."""
        found = self._orders.get(id(thetas))
        if found is None:
            predicates = [theta.predicate for theta in thetas]
            places = by_rank(predicates, [self._rank(theta) for theta in thetas])
            found = self._orders[id(thetas)] = thetas, tuple(thetas[place] for place in places)
        return found[1]

    def learn(self, checks: tuple[CheckStatistics, ...]) -> None:
        """Adds the counts of a step."""
        for check in checks:
            known = self._known.get(check.predicate, CheckStatistics(check.predicate))
            rows, passed, seconds = known.rows + check.rows, known.passed + check.passed, known.seconds + check.seconds
            if rows > LEARNT_ROWS:
                rows, passed, seconds = rows // 2, passed // 2, seconds / 2
            self._known[check.predicate] = CheckStatistics(check.predicate, rows, passed, seconds)
        if checks:
            self._orders.clear()

    def _rank(self, theta: Theta) -> float:
        known = self._known.get(self.text(theta), CheckStatistics(""))
        rows = known.rows + ASSUMED_ROWS
        cost = (known.seconds + ASSUMED_ROWS * assumed_cost(theta.predicate)) / rows
        return rank(cost, (known.passed + ASSUMED_ROWS * assumed_share(theta.predicate)) / rows)


class Meter:
    """The running totals of one step; `finish` starts the next."""

    def __init__(self) -> None:
        self._ranks = CheckRanks()
        self.reset()

    def reset(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.rows_in: dict[str, int] = defaultdict(int)
        self.rows_out = 0
        self._probes: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0] * 5)
        self._tested: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        self._checks: dict[str, list[Any]] = defaultdict(lambda: [0, 0, 0.0])
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
        """Counts rows or combinations tested against the query's own filter of a relation."""
        totals = self._tested[relation]
        totals[0] += rows
        totals[1] += passed

    def in_order(self, thetas: tuple[Theta, ...]) -> tuple[Theta, ...]:
        """Returns the predicates in the order in which to check them."""
        return self._ranks.in_order(thetas) if len(thetas) > 1 else thetas

    def checked(self, theta: Theta, rows: int, passed: int, seconds: float) -> None:
        """Counts combinations that a predicate was checked on."""
        totals = self._checks[self._ranks.text(theta)]
        totals[0] += rows
        totals[1] += passed
        totals[2] += seconds

    def inserted(self, state: str, rows: int) -> None:
        self._inserted[state] += rows

    def dropped(self, state: str, rows: int) -> None:
        self._dropped[state] += rows

    def hopped(self, relation: str, route: int, operator: str, rows: int, kept: int, seconds: float) -> None:
        """Counts rows that passed through an operator on one route of a mesh."""
        totals = self._hops[relation, route].setdefault(operator, [0, 0, 0.0])
        totals[0] += rows
        totals[1] += kept
        totals[2] += seconds

    def routed(self, relation: str, route: int, rows: int, results: int) -> None:
        """Counts rows that reached the end of one route of a mesh."""
        totals = self._routes[relation, route]
        totals[0] += rows
        totals[1] += results

    def finish(self, sizes: Mapping[str, Size]) -> StepStatistics:
        """Returns the statistics of the step, given the current rows and bytes of each state."""
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
            checks=tuple(CheckStatistics(text, *totals) for text, totals in self._checks.items()),
        )
        self._ranks.learn(statistics.checks)
        self.reset()
        return statistics
