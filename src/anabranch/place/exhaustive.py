"""The optimum: searches all join trees, sites and reusable streams together (Lemma 1 counts them)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from anabranch.place.landscape import Landscape, SinkQuery
from anabranch.place.planner import Placement, decide, everything
from anabranch.place.problem import problem_of


@dataclass(frozen=True)
class Exhaustive:
    """Searches every plan at every site in O(2^K·N²) steps; for networks of up to a few thousand sites."""

    name: str = "exhaustive"
    reusing: bool = True

    def plan(self, landscape: Landscape, query: SinkQuery) -> Placement:
        return decide(problem_of(landscape, query, reusing=self.reusing), self.name, everything)


def lemma_1(streams: int, sites: int) -> int:
    """Returns the paper's size of the search space: K!(K-1)!/2^(K-1) join orders times N^(K-1) placements.

    The paper's orders are sequences of merges. A search counts the (2K-3)!! distinct trees, which are fewer:

    >>> lemma_1(4, 1), 5 * 3 * 1
    (18, 15)
    """
    orders: int = math.factorial(streams) * math.factorial(streams - 1) // 2 ** (streams - 1)
    placements: int = sites ** (streams - 1)
    return orders * placements


def beta(streams: int, sites: int, max_cs: int, height: int) -> float:
    """Returns the paper's bound on the fraction of the space that Top-Down and Bottom-Up search (Theorems 2 and 4)."""
    return float(height * (max_cs / sites) ** (streams - 1))
