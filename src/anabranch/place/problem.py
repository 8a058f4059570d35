"""A query to be placed, as a planner sees it: what its subsets need and weigh, what there is to use, what is closed.

Sites and uses are closed where a join or a flow alone does not fit, and where `Bans` say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from anabranch.errors import TopologyError
from anabranch.place.landscape import Landscape, SinkQuery, view_bytes
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
    """A query to be placed: what each subset of its relations needs and weighs, and the streams there are to use."""

    landscape: Landscape
    query: SinkQuery
    needs: tuple[Need, ...]
    bytes: tuple[float, ...]
    offered: tuple[Producer, ...]
    sink: int
    bans: Bans = Bans()

    @property
    def units(self) -> tuple[Mask, ...]:
        return tuple(1 << index for index in range(len(self.query.query.graph.relations)))

    @property
    def full(self) -> Mask:
        return len(self.needs) - 1

    @cached_property
    def producers(self) -> tuple[Producer, ...]:
        return tuple(one for one in self.offered if (one.operator, one.mask) not in self.bans.uses)

    @cached_property
    def _is_limited(self) -> bool:
        return bool(self.bans.joins) or self.landscape.topology.has_limited_sites

    @cached_property
    def _barred(self) -> dict[Split, npt.NDArray[np.bool_]]:
        """For every join, the sites that cannot take it."""
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
        closed[[site for banned, site in self.bans.joins if banned == split]] = True
        return closed

    def open_sites(self, split: Split) -> Indices:
        """The sites that can take a join."""
        if split in self._barred:
            return np.flatnonzero(~self._barred[split])
        return np.arange(len(self.landscape.topology.sites))

    def load(self, split: Split) -> Load:
        """What the join of two subsets needs of its site."""
        into = split[0] | split[1]
        left, right = ((self.needs[mask].view, self.slots(mask, into)) for mask in split)
        return join_load(left, right, self.needs[into].view, self.landscape.statistics)

    def slots(self, mask: Mask, into: Mask) -> tuple[int, ...]:
        """The slots of a union's view that those of a part's view become."""
        return tuple(self.needs[into].relations.index(relation) for relation in self.needs[mask].relations)

    @cached_property
    def room(self) -> Callable[[Sequence[int] | Indices], Floats] | None:
        """What still fits on the way from every site to some ends; None when no link has a limit."""
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
        """A search over some sites; where a site stands for several, it can take a join if one of them can.

        Links are known only between real sites, so a coarse search does not look at them.
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
    """The problem of placing a query; without `relaxing`, running operators are used only as they are."""
    if query.name in landscape.queries:
        raise TopologyError(f"query '{query.name}' is already deployed", hint="give the new one another name")
    if query.sink not in landscape.topology.positions:
        raise TopologyError(f"query '{query.name}' has its sink at unknown site '{query.sink}'")
    for relation in query.query.graph.relations:
        if f"@{relation.stream.lower()}" not in landscape.operators:
            raise TopologyError(
                f"query '{query.name}' reads stream '{relation.stream}', which no site advertises",
                hint="give its site and rate under 'streams' of the network file",
            )
        if relation.window.range is None and len(query.query.graph.relations) > 1:
            raise TopologyError(
                f"query '{query.name}' joins relation '{relation.name}' under an unbounded window",
                detail="such a join has no rate to plan with",
                hint="give it a [RANGE ...]",
            )
    needed = needs(query.query)
    volumes = tuple(view_bytes(need.view, landscape.statistics) if need.view.slots else 0.0 for need in needed)
    offered = []
    for mask in range(1, len(needed)):
        wanted = needed[mask].view
        for operator in landscape.offers.get(wanted.signature, ()):
            if operator.is_base or (reusing and (relaxing or operator.view.covers(wanted))):
                wider = landscape.relaxed(operator.name, wanted)
                if wider is not None:
                    price = sum(extra * landscape.topology.distance(a, b) for extra, a, b in wider.flows)
                    offered.append(Producer(mask, operator.name, operator.site, price, widened=wider.flows))
    return Problem(landscape, query, needed, volumes, tuple(offered), landscape.topology.position(query.sink))
