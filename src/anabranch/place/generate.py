"""Seeded transit-stub networks in the style of GT-ITM (Zegura, Calvert and Bhattacharjee, INFOCOM 1996).

One transit domain; every transit node has some stub domains, each connected by one link. The paper's standard network,
four transit nodes with four stubs of eight nodes each, has 4 + 4 * 4 * 8 = 132 nodes (the paper calls it a 128-node
network). Links inside a stub are cheap, and those between transit nodes are expensive; the caller sets the ranges.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from anabranch.errors import TopologyError
from anabranch.place.topology import Link, Site, Topology


@dataclass(frozen=True)
class LinkRanges:
    """Uniform ranges of link costs in milliseconds, and bandwidths in bytes per second."""

    stub: tuple[float, float] = (1.0, 5.0)
    access: tuple[float, float] = (5.0, 15.0)
    transit: tuple[float, float] = (20.0, 50.0)
    stub_bandwidth: float = math.inf
    transit_bandwidth: float = math.inf


USUAL_RANGES = LinkRanges()
UNLIMITED = Site("")


def transit_stub(size: int, seed: int, ranges: LinkRanges = USUAL_RANGES, site: Site = UNLIMITED) -> Topology:
    """Generates a connected network of exactly `size` sites, each with the capacities of the given site.

    There is a transit node for every 33 sites (at least four), with up to four stubs of about eight sites on each.
    """
    if size < 8:
        raise TopologyError(f"a transit-stub network of {size} sites is too small", hint="use at least 8")
    random = Random(seed)
    transits = max(min(4, size // 2), round(size / 33))
    stubs_each = max(1, min(4, (size // transits - 1) // 8))
    names = [f"t{index}" for index in range(transits)]
    links = _domain(names, random, ranges.transit, ranges.transit_bandwidth)
    stubs = transits * stubs_each
    smaller, larger = divmod(size - transits, stubs)
    for stub in range(stubs):
        members = [f"s{stub}.{index}" for index in range(smaller + (stub < larger))]
        links += _domain(members, random, ranges.stub, ranges.stub_bandwidth)
        names += members
        if members:
            gate = random.choice(members)
            links.append(_link(f"t{stub % transits}", gate, random, ranges.access, ranges.stub_bandwidth))
    return Topology(tuple(Site(name, site.cpu, site.memory) for name in names), tuple(links))


def _domain(names: list[str], random: Random, costs: tuple[float, float], bandwidth: float) -> list[Link]:
    """Generates a random tree over the names, plus half as many further links if possible."""
    pairs = {(random.randrange(index), index) for index in range(1, len(names))}
    room = len(names) * (len(names) - 1) // 2
    wanted = min(room, len(pairs) + len(names) // 2)
    while len(pairs) < wanted:
        low, high = sorted(random.sample(range(len(names)), 2))
        pairs.add((low, high))
    return [_link(names[low], names[high], random, costs, bandwidth) for low, high in sorted(pairs)]


def _link(left: str, right: str, random: Random, costs: tuple[float, float], bandwidth: float) -> Link:
    cost = round(random.uniform(*costs), 3)
    return Link(left, right, cost, cost, bandwidth)
