"""The optimum: all join trees, all sites, all streams that may be used, in one search (Lemma 1 counts them)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from anabranch.place.landscape import Landscape, SinkQuery
from anabranch.place.planner import Decision, decide, everything
from anabranch.place.problem import problem_of


@dataclass(frozen=True)
class Exhaustive:
    """Every plan at every site; O(2^K·N²) steps, so for networks of up to some thousand sites."""

    name: str = "exhaustive"
    reusing: bool = True

    def plan(self, landscape: Landscape, query: SinkQuery) -> Decision:
        return decide(problem_of(landscape, query, reusing=self.reusing), self.name, everything)


def lemma_1(streams: int, sites: int) -> int:
    """The size of the search space as the paper counts it: K!(K-1)!/2^(K-1) join orders times N^(K-1) placements.

    The paper's orders are sequences of merges. Distinct trees are fewer, (2K-3)!!, and those are what a search counts:

    >>> lemma_1(4, 1), 5 * 3 * 1
    (18, 15)
    """
    orders: int = math.factorial(streams) * math.factorial(streams - 1) // 2 ** (streams - 1)
    placements: int = sites ** (streams - 1)
    return orders * placements


def beta(streams: int, sites: int, max_cs: int, height: int) -> float:
    """The paper's bound on the share of that space that Top-Down and Bottom-Up look at (Theorems 2 and 4)."""
    return float(height * (max_cs / sites) ** (streams - 1))
