"""Top-Down (section 3.2): plans on the coarsest view of the network, then refines each part within its cluster.

At the top every source is at its representative, and the planner finds the cheapest tree and assignment to the top
cluster's members. The joins assigned to one member form a view; the member's own cluster plans that view again over its
members, with the streams that it can reach, and so on down to sites. Inputs are refined before the views that read
them, so a coordinator knows their real sites. Theorem 2 bounds the search, Theorem 3 the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from anabranch.place.advertisements import known_to
from anabranch.place.hierarchy import Cluster, Hierarchy
from anabranch.place.landscape import Landscape, SinkQuery
from anabranch.place.planner import Placement, decide
from anabranch.place.problem import Problem, problem_of
from anabranch.place.search import Found, JoinAt, Mask, Placed, Producer, Space, Split, Take, search
from anabranch.place.topology import Indices


@dataclass(frozen=True)
class TopDown:
    """Plans from the top of a hierarchy downwards."""

    hierarchy: Hierarchy
    name: str = "top-down"

    def plan(self, landscape: Landscape, query: SinkQuery) -> Placement:
        def choose(problem: Problem) -> Found | None:
            top = Part(problem.units, {}, problem.sink)
            return descend(problem, self.hierarchy, self.hierarchy.height, self.hierarchy.top, top)

        return decide(problem_of(landscape, query), self.name, choose)


@dataclass(frozen=True)
class Part:
    """A part of a query to plan: its units, those already planned, and the destination of the result."""

    units: tuple[Mask, ...]
    made: Mapping[Mask, Placed]
    destination: int


def descend(
    problem: Problem,
    hierarchy: Hierarchy,
    level: int,
    cluster: Cluster,
    part: Part,
    splits: frozenset[Split] | None = None,
    choose: Callable[[Space], Found | None] = search,
) -> Found | None:
    """Plans a part over a cluster's members and refines it to sites; returns None if no member can take it.

    `splits`, if given, fixes the join order; `choose` assigns the joins to the members of this level.
    """
    seen = hierarchy.representatives(level)
    inside = np.isin(seen, cluster.members)
    apparent = np.where(inside, seen, np.arange(len(seen)))
    producers = [_as_seen(producer, apparent, problem) for producer in _usable(problem, part)]
    sites = np.array(cluster.members)
    found = choose(problem.space(part.units, producers, sites, part.destination, seen, splits))
    if found is None:
        return None
    if level == 1:
        return replace(found, plan=substitute(found.plan, part.made))
    refining = _Refining(problem, hierarchy, level, part, tuple(producers), splits)
    plan = refining.refine(found.plan, part.destination)
    if plan is None:
        return None
    return Found(plan, found.cost, found.considered + refining.considered, found.evaluated + refining.evaluated)


def _usable(problem: Problem, part: Part) -> list[Producer]:
    """Returns the streams that a part may use: those of unions of unplanned units, and the planned units."""
    made = 0
    for mask in part.made:
        made |= mask
    usable = [producer for producer in problem.producers if not producer.mask & made]
    return usable + [Producer(mask, "", site_of(plan)) for mask, plan in part.made.items()]


def _as_seen(producer: Producer, apparent: Indices, problem: Problem) -> Producer:
    """Returns a stream as a coordinator sees it: at its representative, with the cost by representatives' distances.

    Old and new flows must be estimated in the same way, or a running stream would look expensive beside a new one.
    """
    distance = problem.landscape.topology.distance
    price = sum(extra * distance(int(apparent[a]), int(apparent[b])) for extra, a, b in producer.widened)
    return replace(producer, seen_at=int(apparent[producer.site]), price=price)


@dataclass
class _Refining:
    """Traverses a plan whose sites are members of one level and refines each view in its member's cluster."""

    problem: Problem
    hierarchy: Hierarchy
    level: int
    part: Part
    producers: tuple[Producer, ...]
    splits: frozenset[Split] | None
    considered: int = 0
    evaluated: int = 0

    def refine(self, plan: Placed, towards: int) -> Placed | None:
        """Returns the plan at real sites; `towards` is the known destination of its result."""
        match plan:
            case Take(producer=producer):
                return self._nearest(producer, towards)
            case JoinAt(site=member):
                return self._view(plan, member, towards)

    def _nearest(self, chosen: Producer, towards: int) -> Placed:
        """Returns the cheapest, at real sites, of the streams that were indistinguishable at this level."""
        if chosen.mask in self.part.made:
            return self.part.made[chosen.mask]
        alike = {p.operator for p in self.producers if p.mask == chosen.mask and p.apparent == chosen.apparent}
        offered = [p for p in self.problem.producers if p.mask == chosen.mask and p.operator in alike]
        volume = self.problem.bytes[chosen.mask]
        topology = self.problem.landscape.topology
        return Take(min(offered, key=lambda p: (p.price + volume * topology.distance(p.site, towards), p.operator)))

    def _view(self, root: JoinAt, member: int, towards: int) -> Placed | None:
        below = self.hierarchy.below(self.level, member)
        local: list[Mask] = []
        made: dict[Mask, Placed] = {}
        for input_plan in _inputs(root, member):
            at_home = isinstance(input_plan, Take) and input_plan.producer.seen_at == member
            if at_home and input_plan.mask not in self.part.made:
                local.append(input_plan.mask)
                continue
            refined = self.refine(input_plan, member)
            if refined is None:
                return None
            made[input_plan.mask] = refined
        part = Part((*local, *made), made, towards)
        known = known_to(self.problem, self.hierarchy, self.level - 1, below)
        found = descend(known, self.hierarchy, self.level - 1, below, part, self.splits)
        if found is None:
            return None
        self.considered += found.considered
        self.evaluated += found.evaluated
        return found.plan


def _inputs(plan: Placed, member: int) -> list[Placed]:
    """Returns the inputs of the connected joins at one member."""
    if isinstance(plan, JoinAt) and plan.site == member:
        return [*_inputs(plan.left, member), *_inputs(plan.right, member)]
    return [plan]


def site_of(plan: Placed) -> int:
    """Returns the site of a plan's result."""
    return plan.producer.site if isinstance(plan, Take) else plan.site


def substitute(plan: Placed, made: Mapping[Mask, Placed]) -> Placed:
    """Replaces the placeholders of planned parts by their plans."""
    match plan:
        case Take():
            return made.get(plan.mask, plan) if not plan.producer.operator else plan
        case JoinAt(left=left, right=right, site=site):
            return JoinAt(substitute(left, made), substitute(right, made), site)


def suboptimality_bound(hierarchy: Hierarchy, volumes: Sequence[float]) -> float:
    """Returns Theorem 3's bound on the extra cost of a Top-Down plan whose edges carry these volumes."""
    return hierarchy.slack(hierarchy.height) * sum(volumes)
