"""Searches a mesh: the cheapest partition of the condensed rows, with each subset on its own best route.

The cost of a mesh is Equation 2 of the paper: Σ f (c(route) + c(path in the classifier)) + |R| × overhead, in seconds
per row. Here |R| counts distinct routes, not leaves of the classifier: rows of two leaves with the same route are
processed together. Subsets with the same best route are one class for the classifier, and rows that agree in all
attributes are one element, so a tree can always separate the classes. (Nehme et al. 2012, sections 4.3 to 4.7.)

`merge_down` starts with rows on their own best routes and merges two subsets as long as that saves. It prices about ten
meshes where the published searches (`lab/papers/mesh_search`) price hundreds, so a running query can afford it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import numpy as np

from anabranch.lang.arrays import Integers
from anabranch.mesh.induce import ordered_ranks
from anabranch.mesh.kernels import decision_tree
from anabranch.mesh.routes import Order, Router
from anabranch.mesh.training import TrainingSet


@dataclass(frozen=True)
class MeshCosts:
    """The costs of a mesh other than its routes."""

    test: float = 6e-9
    """Seconds for a row to pass one test of the classifier and to be grouped with the rows of its route."""
    route: float = 50e-9
    """Seconds per row for each distinct route."""

    def for_batches(self, rows: int, call: float) -> MeshCosts:
        """Returns the costs for `rows` rows processed together, with a fixed cost of `call` seconds per route."""
        return replace(self, route=call / rows)


@dataclass(frozen=True, eq=False)
class Solution:
    """A partition with its routes."""

    subsets: Integers
    """The subset of each row; subsets are numbered by their first row."""
    labels: Integers
    """The route of each row, a position in `routes`."""
    routes: tuple[Order, ...]
    cost: float
    route_cost: float
    """The cost of the routes alone."""


@dataclass(frozen=True, eq=False)
class Space:
    """Prices partitions of the rows of one training set; caches results."""

    training: TrainingSet
    router: Router
    costs: MeshCosts

    @property
    def size(self) -> int:
        return self.training.rows

    def solution(self, subsets: Integers) -> Solution:
        """Returns the mesh of a partition, independent of the numbering of its subsets."""
        subsets = canonical(subsets)
        key = subsets.tobytes()
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._priced(subsets)
        return found

    def _priced(self, subsets: Integers) -> Solution:
        numbers: dict[Order, int] = {}
        of_subset = []
        route_cost = 0.0
        for subset in range(int(subsets.max()) + 1):
            best = self.router.best(np.flatnonzero(subsets == subset))
            of_subset.append(numbers.setdefault(best.order, len(numbers)))
            route_cost += best.cost
        labels = np.array(of_subset, dtype=np.int64)[subsets]
        cost = route_cost + self.costs.test * self.path(labels) + self.costs.route * len(numbers)
        return Solution(subsets, labels, tuple(numbers), cost, route_cost)

    def path(self, labels: Integers) -> float:
        """Returns the mean number of tests per row in the classifier of these labels."""
        if not self.training.attributes or (labels == labels[0]).all():
            return 0.0
        ranks = ordered_ranks(self.training, labels)
        _, lengths = decision_tree(ranks, labels, self.training.weights, int(labels.max()) + 1)
        return float(self.training.shares @ lengths)

    @cached_property
    def _known(self) -> dict[bytes, Solution]:
        return {}


def canonical(subsets: Integers) -> Integers:
    """Renumbers the subsets of a partition by their first row."""
    _, first, inverse = np.unique(subsets, return_index=True, return_inverse=True)
    places = np.empty(first.size, np.int64)
    places[np.argsort(first)] = np.arange(first.size)
    renumbered: Integers = np.ascontiguousarray(places[inverse.reshape(-1)])
    return renumbered


ALIKE = 0.1
"""Routes are alike for a row if one costs it no more than this fraction above the other."""


def by_route(space: Space) -> Solution:
    """Returns the route-driven start: the rows grouped by the routes that suit them."""
    return space.solution(_grouped_by_route(space))


def _grouped_by_route(space: Space) -> Integers:
    """Groups rows that do nearly as well on one route; the heaviest rows choose theirs first.

    If rows had to share the exact route, those that differ only in its tail, which hardly any row reaches, would be
    separated.
    """
    leaders: dict[Order, int] = {}
    subsets = np.empty(space.size, np.int64)
    for row in np.argsort(-space.training.weights, kind="stable"):
        alone = np.array([row])
        best = space.router.best(alone)
        accepted = best.cost * (1 + ALIKE)
        prices = {order: space.router.price(order, alone) for order in leaders}
        nearest = min(prices, key=prices.__getitem__, default=best.order)
        chosen = nearest if prices.get(nearest, np.inf) <= accepted else best.order
        subsets[row] = leaders.setdefault(chosen, len(leaders))
    return subsets


def one_subset(space: Space) -> Solution:
    """Returns the mesh with a single route."""
    return space.solution(np.zeros(space.size, np.int64))


def merge_down(space: Space, start: Solution) -> Solution:
    """Repeatedly merges the two subsets whose merge saves most, as long as it saves; deterministic.

    Rows on their own best routes have the least operator cost, so a mesh can only save on routes and tests.
    """
    best = start
    while (count := int(best.subsets.max()) + 1) > 1:
        pairs = combinations(range(count), 2)
        merged = [space.solution(np.where(best.subsets == gone, kept, best.subsets)) for kept, gone in pairs]
        least = min(merged, key=lambda solution: solution.cost)
        if least.cost >= best.cost:
            break
        best = least
    return best
