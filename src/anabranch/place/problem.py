"""A placement problem: the needs and sizes of a query's subsets, the reusable streams, and the excluded sites.

A site or a reuse is excluded if a single join or flow does not fit there, or if `Bans` exclude it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from anabranch.errors import TopologyError
from anabranch.lang.window import Window
from anabranch.place.grouping import delivered_bytes
from anabranch.place.landscape import SLACK, Landscape, Operator, SinkQuery, view_bytes
from anabranch.place.load import Load, join_load
from anabranch.place.search import Mask, Producer, Space, Split, split_of
from anabranch.place.topology import Floats, Indices
from anabranch.place.view import Need, needs


@dataclass(frozen=True)
class Bans:
    """Joins that may not be put at a site, and running operators that may not be used for a set of relations."""

    joins: frozenset[tuple[Split, int]] = frozenset()
    uses: frozenset[tuple[str, Mask]] = frozenset()


@dataclass(frozen=True)
class Problem:
    """A query to place: the needs and sizes of each subset of its relations, and the reusable streams."""

    landscape: Landscape
    query: SinkQuery
    needs: tuple[Need, ...]
    bytes: tuple[float, ...]
    """By subset; for all relations, the bytes sent to the sink."""
    offered: tuple[Producer, ...]
    sink: int
    bans: Bans = Bans()

    @property
    def units(self) -> tuple[Mask, ...]:
        return tuple(1 << index for index in range(len(self.query.planned.graph.relations)))

    @property
    def full(self) -> Mask:
        return len(self.needs) - 1

    @cached_property
    def producers(self) -> tuple[Producer, ...]:
        return tuple(one for one in self.offered if (one.operator, one.mask) not in self.bans.uses)

    def without_reuse(self) -> Problem:
        """Returns the problem in which base sources are the only running operators that may be used."""
        operators = self.landscape.operators
        return replace(self, offered=tuple(one for one in self.offered if operators[one.operator].is_base))

    @cached_property
    def _is_limited(self) -> bool:
        is_bound = bool(self.query.joins_at) or self.allowed(self.full) is not None
        is_bound |= math.isfinite(self.query.max_latency)
        return is_bound or bool(self.bans.joins) or self.landscape.topology.has_limited_sites

    @cached_property
    def _barred(self) -> dict[Split, npt.NDArray[np.bool_]]:
        """For every join, the sites where it does not fit."""
        if not self._is_limited:
            return {}
        found = {}
        for left in range(1, self.full + 1):
            rest = self.full ^ left
            right = rest
            while right:
                split = split_of(left, right)
                if split not in found:
                    found[split] = self._closed_to(split)
                right = (right - 1) & rest
        return found

    def _closed_to(self, split: Split) -> npt.NDArray[np.bool_]:
        closed = ~self.landscape.sites_for(self.load(split))
        sites = [site.name for site in self.landscape.topology.sites]
        for bound in (self.query.joins_at or None, self.allowed(split[0] | split[1])):
            if bound is not None:
                closed |= np.array([name not in bound for name in sites])
        if math.isfinite(self.query.max_latency):
            for index in self.needs[split[0] | split[1]].relations:
                source = self.landscape.operators[f"@{self.query.planned.graph.relations[index].stream.lower()}"].site
                least = self.landscape.topology.least_latencies
                closed |= least(source) + least(self.sink) > self.query.max_latency * (1 + SLACK)
        closed[[site for banned, site in self.bans.joins if banned == split]] = True
        return closed

    def allowed(self, mask: Mask) -> frozenset[str] | None:
        """Returns the sites where rows of a subset may be; None for all."""
        relations = self.query.planned.graph.relations
        streams = {relations[index].stream.lower() for index in range(len(relations)) if mask >> index & 1}
        bounds = [self.landscape.statistics.stream(name).stays_at for name in streams]
        known = [bound for bound in bounds if bound is not None]
        return frozenset.intersection(*known) if known else None

    def open_sites(self, split: Split) -> Indices:
        """Returns the sites where a join fits."""
        if split in self._barred:
            return np.flatnonzero(~self._barred[split])
        return np.arange(len(self.landscape.topology.sites))

    def load(self, split: Split) -> Load:
        """Returns the load of a join of two subsets."""
        into = split[0] | split[1]
        left, right = ((self.needs[mask].view, self.slots(mask, into)) for mask in split)
        return join_load(left, right, self.needs[into].view, self.landscape.statistics)

    def slots(self, mask: Mask, into: Mask) -> tuple[int, ...]:
        """Returns the slot of a union's view for each slot of a part's view."""
        return tuple(self.needs[into].relations.index(relation) for relation in self.needs[mask].relations)

    @cached_property
    def room(self) -> Callable[[Sequence[int] | Indices], Floats] | None:
        """Returns the free bytes per second from every site to some ends; None if no link has a limit."""
        return self.landscape.room if self.landscape.topology.has_limited_links else None

    def space(
        self,
        units: Sequence[Mask],
        producers: Sequence[Producer],
        sites: Indices,
        destination: int,
        representatives: Indices | None = None,
        splits: frozenset[Split] | None = None,
    ) -> Space:
        """Returns a search space over some sites; a representative can take a join if one of its sites can.

        Links exist only between real sites, so a coarse search ignores them.
        """
        barred = {}
        for split, closed in self._barred.items():
            if representatives is None:
                barred[split] = closed[sites]
            else:
                barred[split] = ~np.isin(sites, representatives[~closed])
        return Space(
            tuple(units),
            tuple(producers),
            sites,
            destination,
            self.bytes,
            self.landscape.topology,
            splits=splits,
            barred=barred,
            room=self.room if representatives is None else None,
        )


def problem_of(landscape: Landscape, query: SinkQuery, relaxing: bool = True, reusing: bool = True) -> Problem:
    """Returns the problem of placing a query; without `relaxing`, running operators are used only unchanged."""
    if query.name in landscape.queries:
        raise TopologyError(f"query '{query.name}' is already deployed", hint="use another name")
    if query.name in landscape.operators:
        raise TopologyError(f"an operator has the name '{query.name}'", hint="give the query another name")
    if query.sink not in landscape.topology.positions:
        raise TopologyError(f"query '{query.name}' has its sink at unknown site '{query.sink}'")
    for relation in query.planned.graph.relations:
        if f"@{relation.stream.lower()}" not in landscape.operators:
            raise TopologyError(
                f"query '{query.name}' reads stream '{relation.stream}', which no site advertises",
                hint="give its site and rate under 'streams' of the network file",
            )
        if type(relation.window) is not Window:
            raise TopologyError(
                f"query '{query.name}' has the window {relation.window} of relation '{relation.name}', which cannot be "
                "placed",
                detail="operators at different sites agree on windows by event time alone",
                hint="give it a [RANGE ...], or run the query at one site with 'anabranch run'",
            )
        if relation.window.range is None and len(query.planned.graph.relations) > 1:
            raise TopologyError(
                f"query '{query.name}' joins relation '{relation.name}' under an unbounded window",
                detail="such a join has no rate to plan with",
                hint="give it a [RANGE ...]",
            )
    needed = needs(query.planned)
    volumes = (
        *(view_bytes(need.view, landscape.statistics) if need.view.slots else 0.0 for need in needed[:-1]),
        delivered_bytes(query.planned, landscape.statistics),
    )
    offered = []
    for mask in range(1, len(needed)):
        wanted = needed[mask].view
        for operator in landscape.offers.get(wanted.signature, ()):
            if operator.is_base or (
                reusing
                and _may_use(query, landscape, operator)
                and operator.view.may_serve(wanted)
                and (relaxing or operator.view.covers(wanted))
            ):
                wider = landscape.relaxed(operator.name, wanted)
                if wider is not None:
                    price = sum(extra * landscape.topology.distance(a, b) for extra, a, b in wider.flows)
                    offered.append(Producer(mask, operator.name, operator.site, price, widened=wider.flows))
    problem = Problem(landscape, query, needed, volumes, tuple(offered), landscape.topology.position(query.sink))
    allowed = problem.allowed(problem.full)
    if allowed is not None and query.sink not in allowed:
        raise TopologyError(
            f"query '{query.name}' has its sink at '{query.sink}', where rows of its streams may not be",
            detail=f"their rows are restricted to {', '.join(sorted(allowed)) or 'no common site'}",
            hint="move the sink into the region, or change 'stays_in' of the streams",
        )
    if query.is_whole and query.joins_at and query.sink not in query.joins_at:
        raise TopologyError(
            f"query '{query.name}' has outer joins or tables, so it runs at its sink '{query.sink}', which is not one "
            "of its 'joins_at'",
            hint=f"add '{query.sink}' to 'joins_at', or leave 'joins_at' out",
        )
    return problem


def _may_use(query: SinkQuery, landscape: Landscape, operator: Operator) -> bool:
    """Returns False for a join at a site where the query's joins may not be, or with too high a latency."""
    topology = landscape.topology
    if math.isfinite(query.max_latency):
        rest = topology.least_latencies(operator.site)[topology.position(query.sink)]
        if landscape.latency(operator.name) + rest > query.max_latency * (1 + SLACK):
            return False
    return not query.joins_at or topology.sites[operator.site].name in query.joins_at
