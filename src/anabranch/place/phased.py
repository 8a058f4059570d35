"""The phased competitors: they choose the join order first, by result sizes alone, and the sites afterwards.

*Plan-then-deploy* places the fixed order optimally. *In-network* (Ahmad and Cetintemel, VLDB 2004) places it zone by
zone: joins are assigned to zones one after another, inputs first, each to the zone that is best for it alone; then
every zone places its joins optimally. (The paper says that In-network has no better way to divide a query over the
network; `divides_optimally` gives it Top-Down's, to show the difference.) *Relaxation* (Pietzuch et al., ICDE 2006)
moves joins in a three-dimensional cost space as if their streams were springs until they are at rest, and takes the
nearest site; a running stream replaces a new join if it is within a radius of the join's position.

All three reuse running streams that compute a part of the fixed order. Whether they may also relax the filters of
running operators is a setting, because the paper does not say; the lab shows both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anabranch.place.coordinates import CostSpace
from anabranch.place.hierarchy import Hierarchy
from anabranch.place.landscape import Landscape, SinkQuery
from anabranch.place.planner import Placement, cost_of, decide
from anabranch.place.problem import Problem, problem_of
from anabranch.place.search import Found, JoinAt, Mask, Placed, Producer, Space, Split, Take, search, split_of
from anabranch.place.top_down import Part, descend
from anabranch.place.topology import Floats

RADIUS = 0.25
"""The radius within which Relaxation reuses a running stream, as a fraction of the mean distance between two sites."""


@dataclass(frozen=True)
class Order:
    """A join order fixed before placement: its joins, and the number of orders considered."""

    splits: frozenset[Split]
    considered: int


def order_by_size(problem: Problem) -> Order:
    """Returns the tree with the least total volume of intermediate results, ignoring the network."""
    best: dict[Mask, tuple[float, frozenset[Split]]] = {}
    trees: dict[Mask, int] = {}
    for mask in range(1, problem.full + 1):
        if mask.bit_count() == 1:
            best[mask], trees[mask] = (0.0, frozenset()), 1
            continue
        choices = []
        trees[mask] = 0
        part = (mask - 1) & mask
        while part:
            other = mask ^ part
            if split_of(part, other) == (part, other):
                cost = best[part][0] + best[other][0] + problem.bytes[mask]
                choices.append((cost, (part, other)))
                trees[mask] += trees[part] * trees[other]
            part = (part - 1) & mask
        cost, split = min(choices)
        best[mask] = (cost, best[split[0]][1] | best[split[1]][1] | {split})
    return Order(best[problem.full][1], trees[problem.full])


@dataclass(frozen=True)
class PlanThenDeploy:
    """A fixed order, placed optimally over all sites."""

    name: str = "plan-then-deploy"
    relaxing: bool = True
    reusing: bool = True

    def plan(self, landscape: Landscape, query: SinkQuery) -> Placement:
        def choose(problem: Problem) -> Found | None:
            order = order_by_size(problem)
            sites = np.arange(len(problem.landscape.topology.sites))
            return search(problem.space(problem.units, problem.producers, sites, problem.sink, splits=order.splits))

        return decide(problem_of(landscape, query, self.relaxing, self.reusing), self.name, choose)


@dataclass(frozen=True)
class InNetwork:
    """A fixed order, placed over zones and then within them; the hierarchy is one of `hierarchy.zones`."""

    zones: Hierarchy
    name: str = "in-network"
    relaxing: bool = True
    divides_optimally: bool = False

    def plan(self, landscape: Landscape, query: SinkQuery) -> Placement:
        def choose(problem: Problem) -> Found | None:
            order = order_by_size(problem)
            part = Part(problem.units, {}, problem.sink)
            divide = search if self.divides_optimally else one_by_one
            return descend(problem, self.zones, self.zones.height, self.zones.top, part, order.splits, divide)

        return decide(problem_of(landscape, query, self.relaxing), self.name, choose)


def one_by_one(space: Space) -> Found | None:
    """Places a fixed order, inputs first, each join where shipping its inputs and its result costs least.

    The next site of a result is not known yet, so it is assumed to go directly to the destination. As in `search`,
    `considered` counts the possible placements of the order (the product of the sites of its joins), and the
    comparisons actually made are counted separately.
    """
    assert space.splits is not None
    halves = {left | right: (left, right) for left, right in space.splits}
    whole = 0
    for unit in space.units:
        whole |= unit
    home = space.topology.between([space.destination], space.sites)[0]
    looked = 0

    def best(mask: Mask) -> tuple[float, Placed, int] | None:
        """Returns the cost of a cheap plan without shipping its result, the plan, and the number of candidates."""
        nonlocal looked
        options: list[tuple[float, float, Placed]] = []
        plans = 0
        for producer in (p for p in space.producers if p.mask == mask):
            way = space.bytes[mask] * space.topology.distance(producer.apparent, space.destination)
            options.append((producer.price + way, producer.price, Take(producer)))
            looked += 1
            plans += 1
        parts = [best(half) for half in halves.get(mask, ())] if mask not in space.units else []
        left, right = (parts[0], parts[1]) if parts else (None, None)
        if left is not None and right is not None:
            costs = left[0] + right[0] + np.zeros(len(space.sites))
            for _, plan, _ in (left, right):
                costs += space.bytes[plan.mask] * space.topology.between([_seen_at(plan)], space.sites)[0]
            costs[space.barred.get(halves[mask], np.zeros(len(costs), dtype=bool))] = np.inf
            position = int((costs + space.bytes[mask] * home).argmin())
            looked += len(costs)
            plans += left[2] * right[2] * len(costs)
            cost = float(costs[position])
            if np.isfinite(cost):
                way = space.bytes[mask] * float(home[position])
                options.append((cost + way, cost, JoinAt(left[1], right[1], int(space.sites[position]))))
        if not options:
            return None
        _, cost, plan = min(options, key=lambda option: option[0])
        return cost, plan, plans

    found = best(whole)
    if found is None:
        return None
    way = space.bytes[whole] * space.topology.distance(_seen_at(found[1]), space.destination)
    return Found(found[1], found[0] + way, found[2], looked)


def _seen_at(plan: Placed) -> int:
    return plan.producer.apparent if isinstance(plan, Take) else plan.site


@dataclass(frozen=True)
class Relaxation:
    """A fixed order, placed by relaxation in a cost space."""

    space: CostSpace
    name: str = "relaxation"
    relaxing: bool = True
    reusing: bool = True
    radius: float = RADIUS

    def plan(self, landscape: Landscape, query: SinkQuery) -> Placement:
        problem = problem_of(landscape, query, self.relaxing, self.reusing)
        return decide(problem, self.name, lambda tried: _settle(tried, self.space, self.radius))


def _settle(problem: Problem, space: CostSpace, radius: float) -> Found | None:
    order = order_by_size(problem)
    halves = {left | right: (left, right) for left, right in order.splits}
    sources = {p.mask: p for p in problem.producers if p.mask.bit_count() == 1 and p.operator.startswith("@")}
    if not all(1 << index in sources for index in range(problem.full.bit_count())):
        return None
    where, steps = _relax(problem, space, halves, sources)
    rest = _Resting(problem, space, halves, sources, where, radius * space.mean_distance)
    plan = rest.plan(problem.full)
    if plan is None:
        return None
    return Found(plan, cost_of(problem, plan), order.considered + steps, order.considered + steps)


def _relax(
    problem: Problem, space: CostSpace, halves: dict[Mask, Split], sources: dict[Mask, Producer]
) -> tuple[dict[Mask, Floats], int]:
    """Returns the coordinates of every join at rest; the strength of a spring is the size of its stream."""
    where = {mask: space.positions[producer.site] for mask, producer in sources.items()}
    sink = space.positions[problem.sink]
    middle = np.mean([*where.values(), sink], axis=0)
    parent = {half: mask for mask, split in halves.items() for half in split}
    joins = sorted(halves, key=lambda mask: (mask.bit_count(), mask))
    where |= dict.fromkeys(joins, middle)
    for step in range(1, space.iterations + 1):
        moved = 0.0
        for mask in joins:
            pulls = [(problem.bytes[half], where[half]) for half in halves[mask]]
            pulls.append((problem.bytes[mask], where[parent[mask]] if mask in parent else sink))
            strength = sum(volume for volume, _ in pulls) or 1.0
            target = sum((volume * place for volume, place in pulls), np.zeros(space.dimensions)) / strength
            moved = max(moved, float(np.abs(target - where[mask]).max()))
            where[mask] = target
        if moved < 1e-6:
            return where, step
    return where, space.iterations


@dataclass(frozen=True)
class _Resting:
    """Joins at rest in the cost space, to be moved to sites."""

    problem: Problem
    space: CostSpace
    halves: dict[Mask, Split]
    sources: dict[Mask, Producer]
    where: dict[Mask, Floats]
    radius: float

    def plan(self, mask: Mask) -> Placed | None:
        """Returns the plan at the sites nearest to the joins' coordinates, with running streams within the radius."""
        if mask in self.sources:
            return Take(self.sources[mask])
        positions, place = self.space.positions, self.where[mask]
        near = [
            (float(np.linalg.norm(positions[p.site] - place)), p.price, p.operator, p)
            for p in self.problem.producers
            if p.mask == mask
        ]
        if near and min(near)[0] <= self.radius:
            return Take(min(near)[3])
        open_sites = self.problem.open_sites(self.halves[mask])
        left, right = (self.plan(half) for half in self.halves[mask])
        if not len(open_sites) or left is None or right is None:
            return None
        distances = np.linalg.norm(positions[open_sites] - place, axis=1)
        return JoinAt(left, right, int(open_sites[int(distances.argmin())]))
