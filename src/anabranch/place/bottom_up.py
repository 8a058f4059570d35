"""Bottom-Up (section 3.3) and the Net Present Cost hybrid (section 3.4): plan from the sink's cluster upwards.

At every level the cluster with the sink joins the relations of the query that it can see (`V_local`), and passes the
result to the next level as one stream. The last level sees everything and delivers to the sink. This prunes join orders
between near and far streams, so its loss is not bounded. NPC joins at a level only if the estimated net present cost of
joining is at most that of waiting; otherwise the next level decides.

The paper does not specify where a local view waits for its partners; here it is sent towards the cluster's coordinator.
A view whose relations share no predicate is not joined early. A relation is local if its source, or a stream that
already covers it, is local.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from anabranch.place.advertisements import known_to
from anabranch.place.hierarchy import Hierarchy
from anabranch.place.landscape import Landscape, SinkQuery
from anabranch.place.planner import Placement, decide
from anabranch.place.problem import Problem, problem_of
from anabranch.place.search import Found, Mask, Placed
from anabranch.place.top_down import Part, descend


@dataclass(frozen=True)
class BottomUp:
    """Joins all relations that a level can see."""

    hierarchy: Hierarchy
    name: str = "bottom-up"

    def plan(self, landscape: Landscape, query: SinkQuery) -> Placement:
        return decide(problem_of(landscape, query), self.name, lambda problem: _climb(problem, self.hierarchy, None))


@dataclass(frozen=True)
class NetPresentCost:
    """Joins at a level only if waiting is not estimated to be cheaper."""

    hierarchy: Hierarchy
    name: str = "npc"
    is_cumulative: bool = False
    """True if p_i counts the whole network visible at level i; False if only the part hidden below it."""

    def plan(self, landscape: Landscape, query: SinkQuery) -> Placement:
        weighing = _Weighing(self.hierarchy, self.is_cumulative)
        return decide(
            problem_of(landscape, query), self.name, lambda problem: _climb(problem, self.hierarchy, weighing)
        )


def _climb(problem: Problem, hierarchy: Hierarchy, weighing: _Weighing | None) -> Found | None:
    made: dict[Mask, Placed] = {}
    considered = evaluated = 0
    for level in range(1, hierarchy.height + 1):
        cluster = hierarchy.cluster_of(level, problem.sink)
        seen = known_to(problem, hierarchy, level, cluster)
        local = _reachable(seen, made)
        if local == problem.full:
            part = Part(_units(seen, made, local), made, problem.sink)
            last = descend(seen, hierarchy, level, cluster, part)
            if last is None:
                return None
            return Found(last.plan, last.cost, considered + last.considered, evaluated + last.evaluated)
        for view in _components(problem, local, made):
            units = _units(seen, made, view)
            if len(units) < 2 and (view.bit_count() == 1 or view in made):
                continue
            # If joining now does not pay even at zero join cost, no search is needed.
            if weighing is not None and not weighing.joining_pays(problem, level, view, 0.0):
                continue
            inner = {mask: plan for mask, plan in made.items() if mask & view}
            found = descend(seen, hierarchy, level, cluster, Part(units, inner, cluster.coordinator))
            if found is None:
                continue
            considered += found.considered
            evaluated += found.evaluated
            if weighing is not None and not weighing.joining_pays(problem, level, view, found.cost):
                continue
            made = {mask: plan for mask, plan in made.items() if not mask & view} | {view: found.plan}
    return None


def _reachable(problem: Problem, made: dict[Mask, Placed]) -> Mask:
    """Returns the largest set of relations supplied by finished parts and disjoint visible streams."""
    start = 0
    for mask in made:
        start |= mask
    reached = {start}
    for piece in sorted({p.mask for p in problem.producers if not p.widened}):
        reached |= {mask | piece for mask in reached if not mask & piece}
    return max(reached, key=lambda mask: (mask.bit_count(), -problem.bytes[mask], -mask))


def _units(problem: Problem, made: dict[Mask, Placed], view: Mask) -> tuple[Mask, ...]:
    """Returns the inputs of a view: finished parts, then the smallest visible streams that cover the rest."""
    units = [mask for mask in made if mask & view]
    rest = view
    for mask in units:
        rest &= ~mask
    offered = sorted({p.mask for p in problem.producers if not p.widened}, key=lambda mask: (mask.bit_count(), mask))
    cover = _exact_cover(rest, offered)
    assert cover is not None
    return (*units, *cover)


def _exact_cover(rest: Mask, pieces: list[Mask]) -> tuple[Mask, ...] | None:
    """Covers the rest with disjoint pieces, small ones first; returns None if that is impossible."""
    if not rest:
        return ()
    for position, piece in enumerate(pieces):
        if piece & rest == piece:
            others = _exact_cover(rest & ~piece, pieces[position + 1 :])
            if others is not None:
                return (piece, *others)
    return None


def _components(problem: Problem, local: Mask, made: dict[Mask, Placed]) -> list[Mask]:
    """Groups the local relations by connecting predicates; a finished part is not divided."""
    graph = problem.query.query.graph
    names = graph.names
    groups: list[Mask] = [mask for mask in made if mask & local]
    groups += [1 << i for i in range(len(names)) if local >> i & 1 and not any(mask >> i & 1 for mask in groups)]
    merged = True
    while merged:
        merged = False
        for one in groups:
            for other in groups:
                if one < other and graph.are_connected(_names(names, one), _names(names, other)):
                    groups = [mask for mask in groups if mask not in (one, other)] + [one | other]
                    merged = True
                    break
            if merged:
                break
    return sorted(groups)


def _names(names: tuple[str, ...], mask: Mask) -> list[str]:
    return [name for index, name in enumerate(names) if mask >> index & 1]


@dataclass(frozen=True)
class _Weighing:
    """The paper's test whether to join at a level or to wait."""

    hierarchy: Hierarchy
    is_cumulative: bool

    def joining_pays(self, problem: Problem, level: int, view: Mask, cost: float) -> bool:
        """Returns True if the cost of waiting, for the volume of the whole query, is at least the net present cost."""
        net_present = cost + self._future(problem, level, _remote_volume(problem, view))
        return self._future(problem, level, problem.bytes[problem.full]) >= net_present

    def _future(self, problem: Problem, level: int, volume: float) -> float:
        """Returns the expected cost of carrying a volume at the levels above: the sum of p_i · λ · d_i."""
        hierarchy = self.hierarchy
        sizes = [
            len(hierarchy.sites_under(i, hierarchy.cluster_of(i, problem.sink)))
            for i in range(level, hierarchy.height + 1)
        ]
        hidden = sizes[-1] - sizes[0]
        if not hidden:
            return 0.0
        if self.is_cumulative:
            shares = [size / sizes[-1] for size in sizes[1:]]
        else:
            shares = [(after - before) / hidden for before, after in pairwise(sizes)]
        widths = hierarchy.widths[level : hierarchy.height]
        return volume * sum(share * width for share, width in zip(shares, widths, strict=True))


def _remote_volume(problem: Problem, view: Mask) -> float:
    """Returns the volume of the remaining relations, joined as far as predicates allow."""
    return sum(problem.bytes[mask] for mask in _components(problem, problem.full & ~view, {}))
