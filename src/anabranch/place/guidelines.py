"""Recommended cluster sizes: the paper's two guidelines (section 4.2.2), from its bounds.

*Bottom-Up*: the largest clusters whose search space (Theorem 4) is acceptable; larger ones hide less of the network.
*Top-Down*, and NPC with it: the smallest clusters whose hierarchy is accurate enough (Theorem 3); smaller ones search
less. Both compare powers of two, and the whole network as one cluster.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.place.exhaustive import lemma_1
from anabranch.place.hierarchy import Hierarchy, build
from anabranch.place.topology import Topology

MOST_PLANS = 1_000_000
"""The maximum number of plans considered for a query, by the bound."""
MOST_ERROR = 1.0
"""The largest distance error in the top cluster's view, in units of the mean distance between two sites."""
SMALLEST = 4


def sizes(topology: Topology) -> list[int]:
    """Returns the candidate cluster sizes, ascending."""
    count = max(2, len(topology.sites))
    found = [size for power in range(2, count.bit_length()) if SMALLEST <= (size := 1 << power) < count]
    return [*found, count]


def for_bottom_up(topology: Topology, streams: int, most_plans: float = MOST_PLANS, seed: int = 0) -> int:
    """Returns the largest max_cs within a number of plans for a query over some streams; else the smallest."""
    return max(
        (size for size in sizes(topology) if plans_bound(build(topology, size, seed), streams) <= most_plans),
        default=sizes(topology)[0],
    )


def for_top_down(topology: Topology, most_error: float = MOST_ERROR, seed: int = 0) -> int:
    """Returns the smallest max_cs within an error; one cluster for the whole network has no error."""
    return next(size for size in sizes(topology) if relative_error(build(topology, size, seed)) <= most_error)


def plans_bound(hierarchy: Hierarchy, streams: int) -> float:
    """Returns the maximum number of plans that either planner considers for a query (Theorems 2 and 4)."""
    return float(hierarchy.height * lemma_1(streams, hierarchy.max_cs))


def relative_error(hierarchy: Hierarchy) -> float:
    """Returns the error of Theorem 3 for one byte on one edge, in units of the mean distance between two sites."""
    mean = mean_distance(hierarchy.topology)
    return hierarchy.slack(hierarchy.height) / mean if mean else 0.0


def mean_distance(topology: Topology, most: int = 256) -> float:
    """Returns the mean distance between two sites; in a large network, of an even selection of sites."""
    count = len(topology.sites)
    chosen: Sequence[int] = range(0, count, -(-count // most))
    between = topology.between(chosen, chosen)
    pairs = len(chosen) * (len(chosen) - 1)
    return float(between.sum()) / pairs if pairs else 0.0


def recommended(planner: str, topology: Topology, streams: int, seed: int = 0) -> int:
    """Returns the max_cs of a planner's guideline, for queries over at most `streams` streams."""
    if planner == "bottom-up":
        return for_bottom_up(topology, max(2, streams), seed=seed)
    return for_top_down(topology, seed=seed)
