"""Learns from one sample of a relation: searches the best mesh and its classifier, and prices any mesh.

Invariant: on the condensed sample, the mesh never costs more than the start of the search or a single route. Limit:
prices on the sample are optimistic; `proposal` checks the gain on held-out rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np

from anabranch.errors import PlanError
from anabranch.lang.arrays import Doubles, Integers
from anabranch.mesh.induce import cut_back, induce
from anabranch.mesh.routes import Order, Router
from anabranch.mesh.search import MeshCosts, Solution, Space, by_route, merge_down, one_subset
from anabranch.mesh.training import Condensed
from anabranch.plan.classifier import Assign, Classifier, by_leaf, leaves, map_leaves
from anabranch.plan.classify import assign_routes
from anabranch.plan.mesh import RelationRoutes, Route
from anabranch.stats.mesh.operators import Needs

Search: TypeAlias = Callable[[Space, Solution, np.random.Generator], Solution]
"""Searches a mesh from a start."""
CURRENT = "current mesh"
"""The name of the running mesh among the mesh candidates."""


def _merge(space: Space, start: Solution, rng: np.random.Generator) -> Solution:
    return merge_down(space, start)


@dataclass(frozen=True)
class SearchSetting:
    """The parameters of a mesh search; the defaults suit a sample of about a thousand rows."""

    size: int = 30
    """The number of condensed rows."""
    search: Search = _merge
    """The search from the route-driven start and, if there is one, from the running mesh."""
    costs: MeshCosts = field(default_factory=MeshCosts)
    least_gain: float = 0.02
    """A mesh must be faster than the single best route by this fraction, on held-out rows."""
    early_out: bool = False
    """True to skip the search if even one route per condensed row would gain too little."""
    existence_probes: bool = False
    """True if routes may begin with existence probes (`mesh.existence_probes`); the published search has none."""


@dataclass(frozen=True)
class MeshCandidate:
    """A priced mesh (seconds per row), and how it compares with the best."""

    name: str
    cost: float
    routes: int
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Priced:
    """A classifier and the orders it assigns, on one sample."""

    tree: Classifier
    orders: tuple[Order, ...]
    cost: float
    """Equation 2 with this tree."""
    shares: Doubles
    """The fraction of the rows on each order."""
    paid: Doubles
    """The operator seconds per row of each order."""


@dataclass(frozen=True, eq=False)
class Learner:
    """A condensed sample, ready for searching."""

    condensed: Condensed
    needs: Needs
    setting: SearchSetting

    @cached_property
    def router(self) -> Router:
        return Router(self.condensed.matrix, self.condensed.rows.shares, self.needs)

    @cached_property
    def space(self) -> Space:
        return Space(self.condensed.rows, self.router, self.setting.costs)

    def search(
        self, rng: np.random.Generator, current: RelationRoutes | None = None
    ) -> tuple[Solution, tuple[MeshCandidate, ...]]:
        """Returns the best mesh found, never worse than its start or a single route, and the mesh candidates."""
        setting, space = self.setting, self.space
        starts = {}
        if current is not None:
            starts["start (partition of the current mesh)"] = space.solution(self._cell_routes(current.classifier))
        # A mesh that suited earlier rows may be far from the best for current rows.
        starts["start (route)"] = by_route(space)
        searched = (setting.search(space, start, rng) for start in starts.values())
        found = min(searched, key=lambda solution: solution.cost)
        named = {"search": found, **starts, "single route": one_subset(space)}
        best = min(named.values(), key=lambda solution: solution.cost)
        considered = [
            MeshCandidate(name, seen.cost, len(seen.routes), "" if seen is best else _above(seen.cost, best.cost))
            for name, seen in named.items()
        ]
        if current is not None:
            running = self.price(current.classifier, tuple(self._order(route) for route in current.routes)).cost
            reason = f"as it runs; {_above(running, best.cost)}"
            considered.append(MeshCandidate(CURRENT, running, len(current.routes), reason))
        return best, tuple(considered)

    def classify(self, solution: Solution) -> Priced:
        """Learns from the sampled rows, each with the route of its cell, and prunes tests that do not pay.

        Routes are numbered by the fraction of the rows on them, the most used first.
        """
        sample, cells = self.condensed.sample, self.condensed.cells
        tree = induce(sample, solution.labels[cells])
        paid = self._paid(solution.routes)[cells] * sample.shares[:, None]
        tree, _ = cut_back(tree, sample, paid, self.setting.costs.test)
        taken = np.bincount(assign_routes(tree, sample.columns, sample.rows), sample.weights, len(solution.routes))
        used = sorted({route for route, _ in leaves(tree)}, key=lambda route: -taken[route])
        tree = map_leaves(tree, lambda leaf: Assign(used.index(leaf.route)))
        return self.price(tree, tuple(solution.routes[route] for route in used))

    def price(self, tree: Classifier, orders: tuple[Order, ...]) -> Priced:
        sample, costs = self.condensed.sample, self.setting.costs
        leaf_of = assign_routes(by_leaf(tree), sample.columns, sample.rows)
        ends = np.array(leaves(tree), dtype=np.int64)
        route_of, tests = ends[leaf_of, 0], ends[leaf_of, 1]
        paid = self._paid(orders)[self.condensed.cells, route_of]
        shares: Doubles = np.bincount(route_of, sample.shares, len(orders)).astype(np.float64)
        spent: Doubles = np.bincount(route_of, sample.shares * paid, len(orders)).astype(np.float64)
        total = float(spent.sum() + costs.test * (sample.shares @ tests)) + costs.route * len(orders)
        return Priced(tree, orders, total, shares, np.divide(spent, shares, out=np.zeros_like(spent), where=shares > 0))

    def route(self, order: Order) -> Route:
        """Returns the order as a plan value."""
        names = self.condensed.matrix.operators
        return Route(tuple(names[operator] for operator in order))

    def _paid(self, orders: tuple[Order, ...]) -> Doubles:
        """Returns cells x orders: the operator seconds of a row of the cell."""
        every = self.router.everything
        return np.stack([self.router.row_costs(order, every) for order in orders], axis=1)

    def _cell_routes(self, tree: Classifier) -> Integers:
        """Returns the route that most of each cell's rows take."""
        sample = self.condensed.sample
        route_of = assign_routes(tree, sample.columns, sample.rows).astype(np.int64)
        table = np.zeros((self.condensed.rows.rows, int(route_of.max(initial=0)) + 1))
        np.add.at(table, (self.condensed.cells, route_of), sample.weights)
        most: Integers = table.argmax(axis=1)
        return most

    def _order(self, route: Route) -> Order:
        operators = self.condensed.matrix.operators
        if sorted(route.operators) != sorted(operators):
            raise PlanError(
                f"route '{route}' does not visit the operators that were measured",
                detail=f"measured were {', '.join(operators)}",
            )
        return tuple(operators.index(name) for name in route.operators)


def _above(cost: float, best: float) -> str:
    return f"{cost / best - 1:+.1%}" if best > 0 else ""
