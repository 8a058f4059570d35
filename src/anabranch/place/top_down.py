"""Top-Down (section 3.2): plan on the coarsest view of the network, then refine each part where it was put.

At the top every source stands at its representative, and the cheapest tree and assignment to the top cluster's members
is found. The joins that one member got form a view; the member's own cluster plans that view again over its members,
with the streams it can reach, and so on down to sites. Inputs are refined before the views that read them, so a
coordinator knows where they really come from. Theorem 2 bounds the search, Theorem 3 the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from anabranch.place.advertisements import known_to
from anabranch.place.hierarchy import Cluster, Hierarchy
from anabranch.place.landscape import Landscape, SinkQuery
from anabranch.place.planner import Decision, decide
from anabranch.place.problem import Problem, problem_of
from anabranch.place.search import Found, JoinAt, Mask, Placed, Producer, Space, Split, Take, search
from anabranch.place.topology import Indices


@dataclass(frozen=True)
class TopDown:
    """Plans from the top of a hierarchy downwards."""

    hierarchy: Hierarchy
    name: str = "top-down"

    def plan(self, landscape: Landscape, query: SinkQuery) -> Decision:
        def choose(problem: Problem) -> Found | None:
            top = Part(problem.units, {}, problem.sink)
            return descend(problem, self.hierarchy, self.hierarchy.height, self.hierarchy.top, top)

        return decide(problem_of(landscape, query), self.name, choose)


@dataclass(frozen=True)
class Part:
    """A part of a query to be planned: its units, those of them already made (by plan), and where the result goes."""

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
    """The part planned over a cluster's members at a level and refined to sites, or None when no member can take it.

    `splits`, when given, fixes the join order; `choose` assigns the joins to the members of this level.
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
    """The streams a part may use: those of unions of units that nobody has made, and the made ones themselves."""
    made = 0
    for mask in part.made:
        made |= mask
    usable = [producer for producer in problem.producers if not producer.mask & made]
    return usable + [Producer(mask, "", site_of(plan)) for mask, plan in part.made.items()]


def _as_seen(producer: Producer, apparent: Indices, problem: Problem) -> Producer:
    """The stream as a coordinator sees it: where its cluster's members stand, and the price over their distances.

    Old and new flows must be estimated alike, or a running stream would look dear beside a new one on the same way.
    """
    distance = problem.landscape.topology.distance
    price = sum(extra * distance(int(apparent[a]), int(apparent[b])) for extra, a, b in producer.widened)
    return replace(producer, seen_at=int(apparent[producer.site]), price=price)


@dataclass
class _Refining:
    """The walk over a plan whose sites are members of one level, which puts each view into its member's cluster."""

    problem: Problem
    hierarchy: Hierarchy
    level: int
    part: Part
    producers: tuple[Producer, ...]
    splits: frozenset[Split] | None
    considered: int = 0
    evaluated: int = 0

    def refine(self, plan: Placed, towards: int) -> Placed | None:
        """The plan at real sites; `towards` is where its result goes, as far as is known."""
        match plan:
            case Take(producer=producer):
                return self._nearest(producer, towards)
            case JoinAt(site=member):
                return self._view(plan, member, towards)

    def _nearest(self, chosen: Producer, towards: int) -> Placed:
        """Of the streams that looked alike from here, the one that is really cheapest."""
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
    """What the connected joins at one member read."""
    if isinstance(plan, JoinAt) and plan.site == member:
        return [*_inputs(plan.left, member), *_inputs(plan.right, member)]
    return [plan]


def site_of(plan: Placed) -> int:
    """Where a plan's result appears."""
    return plan.producer.site if isinstance(plan, Take) else plan.site


def substitute(plan: Placed, made: Mapping[Mask, Placed]) -> Placed:
    """The plan with the made parts put back in."""
    match plan:
        case Take():
            return made.get(plan.mask, plan) if not plan.producer.operator else plan
        case JoinAt(left=left, right=right, site=site):
            return JoinAt(substitute(left, made), substitute(right, made), site)


def suboptimality_bound(hierarchy: Hierarchy, volumes: Sequence[float]) -> float:
    """Theorem 3: how much more than the optimum a Top-Down plan whose edges carry these volumes may cost."""
    return hierarchy.slack(hierarchy.height) * sum(volumes)
