"""Junction, our own planner: searches all join orders over a few good sites, then moves each join to its best site.

Where the shortest paths from two sources towards the rest of the query meet, a join can reduce two streams to one. Such
*junctions* are few. The planner first finds the best site for the whole query, then for each pair of sources the
cheapest site to join them on the path there. The sites of sources are candidates too, because then a large stream need
not move. It searches all join trees and running streams over the most promising of these sites; then it moves each join
in turn to the best site given its neighbours. The next round searches the current join sites together with untried
sites, until none are left. A round over m sites takes (2K-3)!!·m^(K-1) plans, plus N for each junction and each move;
no hierarchy is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from anabranch.place.landscape import Landscape, SinkQuery
from anabranch.place.planner import Placement, cost_of, decide, joins_of
from anabranch.place.problem import Problem, problem_of
from anabranch.place.search import Found, Mask, Placed, Producer, Take, search
from anabranch.place.top_down import site_of
from anabranch.place.topology import Floats


@dataclass(frozen=True)
class Junction:
    """Searches over a limited number of sites per round."""

    most: int = 5
    name: str = "junction"

    def plan(self, landscape: Landscape, query: SinkQuery) -> Placement:
        return decide(problem_of(landscape, query), self.name, lambda problem: _choose(problem, self.most))


def _choose(problem: Problem, most: int) -> Found | None:
    candidates, considered = _junctions(problem)
    evaluated = considered
    best: Found | None = None
    rest: list[int] = []
    tried: set[int] = set()
    while True:
        fresh = [site for site in candidates if site not in tried]
        sites = list(dict.fromkeys([*rest[: most - min(2, len(fresh))], *fresh]))[:most]
        if tried.issuperset(sites):
            break
        tried |= set(sites)
        found = search(problem.space(problem.units, problem.producers, np.array(sorted(sites)), problem.sink))
        if found is None:
            continue
        considered += found.considered
        evaluated += found.evaluated
        if best is not None and found.cost >= best.cost - 1e-9 * abs(best.cost):
            continue
        moving = _Moving(problem)
        plan = moving.settle(found.plan)
        considered += moving.looked
        evaluated += moving.looked
        best = Found(plan, cost_of(problem, plan), 0, 0)
        rest = [join.site for join in joins_of(plan)]
    return None if best is None else replace(best, considered=considered, evaluated=evaluated)


def _junctions(problem: Problem) -> tuple[list[int], int]:
    """Returns the junction sites, most promising first, and the number of evaluations made to find them."""
    topology = problem.landscape.topology
    count = len(topology.sites)
    sources = _cheapest(problem, [0.0] * count)
    pulls = {mask: problem.bytes[mask] * topology.distances([p.site])[0] for mask, p in sources.items()}
    to_sink = problem.bytes[problem.full] * topology.distances([problem.sink])[0]
    alone = sum((pull for mask, pull in pulls.items() if mask.bit_count() == 1), np.zeros(count))
    centre = int((alone + to_sink).argmin())
    to_centre = topology.distances([centre])[0]
    nearest = _cheapest(problem, to_centre)
    pulls = {mask: p.price + problem.bytes[mask] * topology.distances([p.site])[0] for mask, p in nearest.items()}
    gains: dict[int, float] = {problem.sink: 0.0}
    looked = count
    for mask, producer in nearest.items():
        gain = problem.bytes[mask] * float(to_centre[producer.site])
        gains[producer.site] = max(gain, gains.get(producer.site, 0.0))
    for one, other in combinations(sorted(pulls), 2):
        if one & other:
            continue
        costs = pulls[one] + pulls[other] + problem.bytes[one | other] * to_centre
        best = int(costs.argmin())
        gain = float(pulls[one][centre] + pulls[other][centre] - costs[best])
        gains[best] = max(gain, gains.get(best, 0.0))
        looked += count
    ranked = sorted(gains, key=lambda site: (-gains[site], site))
    return list(dict.fromkeys([centre, *ranked])), looked


def _cheapest(problem: Problem, distances: Sequence[float] | Floats) -> dict[Mask, Producer]:
    """Returns, for each set of relations, the stream that is cheapest to ship over those distances."""
    found: dict[Mask, tuple[float, str, Producer]] = {}
    for producer in problem.producers:
        cost = producer.price + problem.bytes[producer.mask] * float(distances[producer.site])
        entry = (cost, producer.operator, producer)
        if producer.mask not in found or entry[:2] < found[producer.mask][:2]:
            found[producer.mask] = entry
    return {mask: entry[2] for mask, entry in found.items()}


@dataclass
class _Moving:
    """Moves joins one at a time; `looked` counts the compared sites."""

    problem: Problem
    looked: int = 0

    def settle(self, plan: Placed) -> Placed:
        while True:
            moved = self._move(plan, self.problem.sink)
            if moved == plan:
                return plan
            plan = moved

    def _move(self, plan: Placed, end: int) -> Placed:
        """Moves every join, inputs first, to its best site; `end` is the destination of the result."""
        if isinstance(plan, Take):
            return self._nearest(plan, end)
        plan = replace(plan, left=self._move(plan.left, plan.site), right=self._move(plan.right, plan.site))
        open_sites = self.problem.open_sites(plan.split)
        space = self.problem.space((), (), open_sites, end)
        costs = space.carrying(plan.mask, open_sites, [end])[:, 0]
        for child in (plan.left, plan.right):
            costs = costs + space.carrying(child.mask, [site_of(child)], open_sites)[0]
        self.looked += len(open_sites)
        best = int(costs.argmin())
        now = int(np.flatnonzero(open_sites == plan.site)[0])
        if costs[best] < costs[now] * (1 - 1e-12):
            return replace(plan, site=int(open_sites[best]))
        return plan

    def _nearest(self, plan: Take, end: int) -> Take:
        topology = self.problem.landscape.topology
        alike = [p for p in self.problem.producers if p.mask == plan.mask]
        volume = self.problem.bytes[plan.mask]
        self.looked += len(alike)
        best = min(alike, key=lambda p: (p.price + volume * topology.distance(p.site, end), p.operator))
        return Take(best)
