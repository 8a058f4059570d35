"""A planner of our own: a few good sites, all join orders over them, then every join to its best site.

Where shortest paths from two sources towards the rest of the query meet, a join can shrink two streams into one; such
*junctions* are few. First the best site for the whole query is found, then for each pair of sources the site at which
joining them on the way there costs least. All join trees and all running streams are searched over the best few of
these sites, and at last each join moves, in turn, to the site that is best given its neighbours, until none does. That
takes (2K-3)!!·m^(K-1) plans for m junctions, plus N for each junction looked for and each move, and needs no
hierarchy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from anabranch.place.landscape import Landscape, SinkQuery
from anabranch.place.planner import Decision, Problem, cost_of, decide, joins_of, problem_of
from anabranch.place.search import Found, Mask, Placed, Producer, Take, search
from anabranch.place.top_down import site_of
from anabranch.place.topology import Floats


@dataclass(frozen=True)
class Junction:
    """Searches over at most `most` junctions."""

    most: int = 5
    name: str = "junction"

    def plan(self, landscape: Landscape, query: SinkQuery) -> Decision:
        return decide(problem_of(landscape, query), self.name, lambda problem: _choose(problem, self.most))


def _choose(problem: Problem, most: int) -> Found | None:
    ranked, considered = _junctions(problem)
    evaluated = considered
    best: Found | None = None
    sites = ranked[:most]
    while True:
        found = search(problem.space(problem.units, problem.producers, np.array(sorted(sites)), problem.sink))
        if found is None:
            break
        moving = _Moving(problem)
        plan = moving.settle(found.plan)
        considered += found.considered + moving.looked
        evaluated += found.evaluated + moving.looked
        cost = cost_of(problem, plan)
        if best is not None and cost >= best.cost - 1e-9 * abs(best.cost):
            break
        best = Found(plan, cost, 0, 0)
        # Where joins have settled is better known than where they might; the next round starts from there.
        sites = list(dict.fromkeys([*(join.site for join in joins_of(plan)), *ranked]))[:most]
    return None if best is None else replace(best, considered=considered, evaluated=evaluated)


def _junctions(problem: Problem) -> tuple[list[int], int]:
    """Sites at which something may meet, most promising first, and how many evaluations finding them took."""
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
    gains: dict[int, float] = {}
    looked = count
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
    """For each set of relations the stream that is cheapest to bring over those distances."""
    found: dict[Mask, tuple[float, str, Producer]] = {}
    for producer in problem.producers:
        cost = producer.price + problem.bytes[producer.mask] * float(distances[producer.site])
        entry = (cost, producer.operator, producer)
        if producer.mask not in found or entry[:2] < found[producer.mask][:2]:
            found[producer.mask] = entry
    return {mask: entry[2] for mask, entry in found.items()}


@dataclass
class _Moving:
    """Moves joins one at a time; `looked` counts the sites compared."""

    problem: Problem
    looked: int = 0

    def settle(self, plan: Placed) -> Placed:
        while True:
            moved = self._move(plan, self.problem.sink)
            if moved == plan:
                return plan
            plan = moved

    def _move(self, plan: Placed, end: int) -> Placed:
        """The plan with every join, inputs first, at the site that is best for it; `end` is where the result goes."""
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
