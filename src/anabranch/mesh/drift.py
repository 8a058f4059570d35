"""Detects drift: the distribution of rows over routes, or the selectivity of operators, has changed.

A change counts as drift if it is both relevant and statistically significant. The counts come from a running mesh: rows
per route, and rows in and out of each operator on each route. Leaves with the same route are counted together: rows
that move between them take the same route, and the operators of the route show whether they behave differently. An
operator is compared only with itself on the same route, where the same operators precede it. After drift, a new search
starts from the current mesh (`proposal.find_mesh`), and the gate decides whether to change to its result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from anabranch.plan.mesh import Mesh, RelationRoutes
from anabranch.stats.mesh.routes import HopStatistics, RouteStatistics, merge_routes

BASELINE = 3
"""The number of batches that form the baseline of a mesh."""
MOST_MOVED = 0.1
"""The fraction of all rows that may change routes without being drift."""
MOST_CHANGE = 0.3
"""The fraction by which an operator's selectivity may change without being drift."""
CERTAINTY = 4.0
"""The number of standard errors that drift must exceed."""


@dataclass(frozen=True)
class MeshUse:
    """Counts of a mesh over some batches, for the rows of one relation."""

    rows: tuple[float, ...]
    """Rows that the classifier sent to each route."""
    hops: Mapping[tuple[int, str], HopStatistics] = field(default_factory=dict)
    """By route and operator."""


def mesh_use(ways: RelationRoutes, seen: Iterable[RouteStatistics]) -> MeshUse:
    """Sums the counts of steps for the routes of one relation."""
    rows = [0.0] * len(ways.routes)
    hops: dict[tuple[int, str], HopStatistics] = {}
    for route in seen:
        if route.relation == ways.relation:
            rows[route.route] += route.rows
            for hop in route.hops:
                key = (route.route, hop.operator)
                hops[key] = hops.get(key, HopStatistics(hop.operator)).plus(hop)
    return MeshUse(tuple(rows), hops)


def drifted(before: MeshUse, now: MeshUse) -> str | None:
    """Returns the reason why the mesh may no longer fit, or None."""
    return _moved_rows(before.rows, now.rows) or _changed_operator(before, now)


@dataclass(frozen=True)
class RouteTrend:
    """The routes of a running mesh in its first batches and in the latest; a value that each batch replaces."""

    batches: int = 0
    first: tuple[RouteStatistics, ...] = ()
    latest: tuple[RouteStatistics, ...] = ()

    def after(self, routes: Iterable[RouteStatistics]) -> RouteTrend:
        """Returns the trend after a batch."""
        latest = tuple(routes)
        first = merge_routes([*self.first, *latest]) if self.batches < BASELINE else self.first
        return replace(self, batches=self.batches + 1, first=first, latest=latest)

    def drift(self, mesh: Mesh, patience: int = 1) -> str | None:
        """Returns how the latest batch differs from the baseline; None until `patience` baselines have passed."""
        if self.batches <= BASELINE * patience:
            return None
        reasons = (drifted(mesh_use(way, self.first), mesh_use(way, self.latest)) for way in mesh.ways)
        return next((reason for reason in reasons if reason is not None), None)


def _moved_rows(before: tuple[float, ...], now: tuple[float, ...]) -> str | None:
    if len(before) != len(now):
        return f"there are {len(now)} routes, and there were {len(before)}"
    earlier, later = sum(before), sum(now)
    if not earlier or not later:
        return None
    pairs = [(a / earlier, b / later) for a, b in zip(before, now, strict=True)]
    moved = sum(abs(a - b) for a, b in pairs) / 2
    both = [(a * earlier + b * later) / (earlier + later) for a, b in pairs]
    chance = sum(math.sqrt(share * (1 - share) * (1 / earlier + 1 / later)) for share in both) / 2
    if moved <= max(MOST_MOVED, CERTAINTY * chance):
        return None
    route = max(range(len(pairs)), key=lambda place: abs(pairs[place][0] - pairs[place][1]))
    return f"route {route} gets {pairs[route][1]:.0%} of the rows, and got {pairs[route][0]:.0%}"


def _changed_operator(before: MeshUse, now: MeshUse) -> str | None:
    worst, reason = 1 + MOST_CHANGE, None
    for (route, operator), seen in sorted(now.hops.items()):
        known = before.hops.get((route, operator))
        if known is None or not known.rows or not seen.rows:
            continue
        was, is_now = known.kept / known.rows, seen.kept / seen.rows
        # The variance of a match count is about its mean; half a row more avoids a variance of zero.
        chance = math.sqrt((known.kept + 0.5) / known.rows**2 + (seen.kept + 0.5) / seen.rows**2)
        least, most = sorted((was, is_now))
        factor = most / least if least else math.inf
        if factor > worst and most - least > CERTAINTY * chance:
            worst = factor
            reason = f"operator '{operator}' gives {is_now:.3g} rows per row on route {route}, and gave {was:.3g}"
    return reason
