"""Networks of sites: their links, reading them, and distances between sites.

The cost of a link is the cost of one byte across it, by default the latency in milliseconds; the total of bytes per
second times cost is then the *network usage* of the paper (section 2.2). Distances are shortest paths by cost, one row
of Dijkstra per site, computed on demand: the rows of 10,000 sites take 0.8 GB. A flow takes one shortest path, always
the same for the same two ends.

Invariant: a topology is connected and its numbers are valid; otherwise its construction fails.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, dijkstra

from anabranch.errors import TopologyError

Floats: TypeAlias = npt.NDArray[np.float64]
Indices: TypeAlias = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Site:
    """A site that can run operators: `cpu` in seconds of work per second, `memory` in bytes."""

    name: str
    cpu: float = math.inf
    memory: float = math.inf


@dataclass(frozen=True)
class Link:
    """A bidirectional connection; `latency` in milliseconds, `bandwidth` in bytes per second."""

    left: str
    right: str
    cost: float
    latency: float
    bandwidth: float = math.inf

    @property
    def ends(self) -> frozenset[str]:
        return frozenset((self.left, self.right))


@dataclass(frozen=True)
class Topology:
    """Connected sites; a site is also identified by its position in `sites`."""

    sites: tuple[Site, ...]
    links: tuple[Link, ...]
    _rows: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.sites:
            raise TopologyError("the network has no site", hint="list at least one under 'sites'")
        if len(self.positions) != len(self.sites):
            twice = next(s.name for i, s in enumerate(self.sites) if self.positions[s.name] != i)
            raise TopologyError(f"site '{twice}' is listed twice", hint="give each site a different name")
        for site in self.sites:
            if not (site.cpu >= 0 and site.memory >= 0):
                raise TopologyError(f"site '{site.name}' has a negative capacity", hint="omit it for no limit")
        for link in self.links:
            for end in (link.left, link.right):
                if end not in self.positions:
                    raise TopologyError(f"link '{link.left}'-'{link.right}' ends at unknown site '{end}'")
            if link.left == link.right:
                raise TopologyError(f"a link leads from site '{link.left}' to itself", hint="leave it out")
            if not (0 <= link.cost < math.inf and 0 <= link.latency < math.inf and link.bandwidth > 0):
                raise TopologyError(
                    f"link '{link.left}'-'{link.right}' has cost {link.cost}, latency {link.latency}, bandwidth "
                    f"{link.bandwidth}",
                    hint="costs and latencies are at least 0 and finite, bandwidths above 0",
                )
        count, parts = connected_components(self._graph, directed=False)
        if count > 1:
            cut_off = self.sites[int(np.argmax(parts != parts[0]))].name
            raise TopologyError(
                f"the network is not connected: site '{cut_off}' cannot be reached from '{self.sites[0].name}'",
                hint="add a link between the two parts",
            )

    @cached_property
    def positions(self) -> dict[str, int]:
        return {site.name: position for position, site in enumerate(self.sites)}

    def position(self, name: str) -> int:
        """Returns the position of a site; raises TopologyError for an unknown name."""
        if name not in self.positions:
            raise TopologyError(f"no site '{name}' in the network", hint="check the name against 'sites'")
        return self.positions[name]

    @cached_property
    def pairs(self) -> dict[tuple[int, int], Link]:
        """The link between two adjacent sites, by their positions; the cheapest if there are several."""
        found: dict[tuple[int, int], Link] = {}
        for link in self.links:
            left, right = sorted((self.positions[link.left], self.positions[link.right]))
            other = found.setdefault((left, right), link)
            if (link.cost, -link.bandwidth) < (other.cost, -other.bandwidth):
                found[left, right] = link
        return found

    @cached_property
    def bandwidths(self) -> Floats:
        """The bandwidth of each of `pairs`, in bytes per second."""
        return np.array([link.bandwidth for link in self.pairs.values()])

    @cached_property
    def _graph(self) -> Any:
        return self._weighted(np.array([link.cost for link in self.pairs.values()]))

    def _weighted(self, weights: Floats) -> Any:
        ends = np.array(list(self.pairs) or np.empty((0, 2)), dtype=np.intp).reshape(-1, 2)
        count = len(self.sites)
        # A sparse matrix would drop a zero, so a free link gets a tiny cost.
        return csr_array((np.maximum(weights, 1e-12), (ends[:, 0], ends[:, 1])), shape=(count, count))

    def distances(self, origins: Sequence[int] | Indices) -> Floats:
        """Returns the costs of the shortest paths from each origin to every site, one row per origin."""
        count = len(self.sites)
        if "matrix" not in self._rows:
            # Pages of an empty matrix use no memory until a row is written.
            self._rows["matrix"] = np.empty((count, count))
            self._rows["known"] = np.zeros(count, dtype=bool)
        matrix: Floats = self._rows["matrix"]
        wanted = np.asarray(origins, dtype=np.intp)
        if not self._rows["known"][wanted].all():
            missing = np.unique(wanted[~self._rows["known"][wanted]])
            matrix[missing] = dijkstra(self._graph, directed=False, indices=missing)
            self._rows["known"][missing] = True
        found: Floats = matrix[wanted]
        return found

    def between(self, origins: Sequence[int] | Indices, ends: Sequence[int] | Indices) -> Floats:
        """Returns the distances from some sites to others."""
        rows: Floats = self.distances(origins)[:, np.asarray(ends, dtype=np.intp)]
        return rows

    def among(self, members: Sequence[int] | Indices) -> Floats:
        """Returns the distances among nearby sites, without searching the rest of the network."""
        wanted = np.asarray(members, dtype=np.intp)
        if "matrix" in self._rows and self._rows["known"][wanted].all():
            return self.between(wanted, wanted)
        # No two sites are farther apart than the path through the first.
        reach = 2.0 * float(self.between(wanted[:1], wanted).max())
        near = dijkstra(self._graph, directed=False, indices=wanted, limit=reach * (1 + 1e-9))
        found: Floats = near[:, wanted]
        return found

    def distance(self, origin: int, end: int) -> float:
        """Returns the cost of the shortest path between two sites."""
        if "matrix" not in self._rows or not self._rows["known"][origin]:
            self.distances([origin])
        return float(self._rows["matrix"][origin, end])

    @cached_property
    def has_limited_sites(self) -> bool:
        """True when some site has a finite capacity."""
        return any(math.isfinite(site.cpu) or math.isfinite(site.memory) for site in self.sites)

    @cached_property
    def has_limited_links(self) -> bool:
        """True when some link has a finite bandwidth."""
        return any(math.isfinite(link.bandwidth) for link in self.links)

    def ways_to(self, end: int) -> tuple[Indices, Indices]:
        """Returns for each site the next site on the path to an end, and the link as a position in `pairs`.

        At the end itself, the next site is the end, and the link is -1.
        """
        known: dict[int, tuple[Indices, Indices]] = self._rows.setdefault("ways", {})
        if end not in known:
            _, before = dijkstra(self._graph, directed=False, indices=end, return_predecessors=True)
            following = before.astype(np.intp)
            following[end] = end
            links = [self._numbers.get((min(a, b), max(a, b)), -1) for a, b in enumerate(following.tolist())]
            known[end] = following, np.array(links, dtype=np.intp)
        return known[end]

    @cached_property
    def _numbers(self) -> dict[tuple[int, int], int]:
        return {pair: number for number, pair in enumerate(self.pairs)}

    def path(self, origin: int, end: int) -> tuple[int, ...]:
        """Returns the sites on the shortest path, both ends included."""
        following, _ = self.ways_to(end)
        route = [origin]
        while route[-1] != end:
            route.append(int(following[route[-1]]))
        return tuple(route)

    def crossed(self, origin: int, end: int) -> tuple[int, ...]:
        """Returns the links on the shortest path, as positions in `pairs`."""
        _, links = self.ways_to(end)
        return tuple(int(links[site]) for site in self.path(origin, end)[:-1])

    def latency(self, origin: int, end: int) -> float:
        """Returns the latency of the shortest path, in milliseconds; that path has the least cost, not latency."""
        return float(self._latencies[list(self.crossed(origin, end))].sum())

    def least_latencies(self, origin: int) -> Floats:
        """Returns the latency from a site to every other by the fastest paths: no placement is faster."""
        known: dict[int, Floats] = self._rows.setdefault("latencies", {})
        if origin not in known:
            graph = self._weighted(self._latencies)
            known[origin] = dijkstra(graph, directed=False, indices=origin)
        return known[origin]

    @cached_property
    def _latencies(self) -> Floats:
        return np.array([link.latency for link in self.pairs.values()])

    def narrowest(self, free: Floats, ends: Sequence[int] | Indices) -> Floats:
        """Returns the free bandwidth of the bottleneck link from every site to each end, one row per end."""
        ways = [self.ways_to(int(end)) for end in ends]
        following = np.stack([sites for sites, _ in ways])
        padded = np.append(free, np.inf)
        room = padded[np.stack([links for _, links in ways])]
        rows = np.arange(len(ways))[:, None]
        # After n rounds `room` covers the first 2^n links, and `following` is where these lead.
        while (following != following[rows, following]).any():
            room = np.minimum(room, room[rows, following])
            following = following[rows, following]
        narrow: Floats = room
        return narrow


def from_dict(entry: Any) -> Topology:
    """Builds a network from its YAML form: `sites` (names, or names with capacities) and `links` (pairs with numbers).

    >>> network = from_dict({"sites": ["a", {"name": "b", "cpu": 2}], "links": [{"ends": ["a", "b"], "latency": 5}]})
    >>> network.distance(0, 1)
    5.0
    """
    if not isinstance(entry, Mapping) or not {"sites", "links"} <= set(entry):
        raise TopologyError("a network needs 'sites' and 'links'")
    for name in ("sites", "links"):
        if not isinstance(entry[name], list | tuple):
            raise TopologyError(f"'{name}' of the network is not a list", hint=f"write '{name}: [...]'")
    sites = [{"name": site} if isinstance(site, str | int) else site for site in entry["sites"]]
    try:
        return Topology(
            tuple(Site(str(s["name"]), float(s.get("cpu", math.inf)), float(s.get("memory", math.inf))) for s in sites),
            tuple(_link(str(one["ends"][0]), str(one["ends"][1]), one) for one in entry["links"]),
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise TopologyError(
            "a site or link of the network is not well-formed",
            detail=f"{type(error).__name__}: {error}",
            hint="a site has a name, optionally cpu and memory; a link has ends: [a, b] and a latency or a cost",
        ) from error


def _link(left: str, right: str, entry: Mapping[str, Any]) -> Link:
    latency = float(entry.get("latency", entry.get("cost", 1.0)))
    return Link(left, right, float(entry.get("cost", latency)), latency, float(entry.get("bandwidth", math.inf)))
