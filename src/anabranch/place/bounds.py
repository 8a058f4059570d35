"""The paper's bounds for the placement of one query: Lemma 1, Theorems 2 and 4 (search space), Theorem 3 (cost).

Lemma 1 counts the plans of an exhaustive search. The theorems hold for the planners that use a hierarchy of clusters;
the bound on the cost holds for Top-Down only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.place.deployment import Deployment
from anabranch.place.exhaustive import lemma_1
from anabranch.place.guidelines import plans_bound
from anabranch.place.hierarchy import Hierarchy
from anabranch.place.top_down import suboptimality_bound


@dataclass(frozen=True)
class Bounds:
    """The bounds for one query; None where the paper has none."""

    all_plans: int
    """The plans of an exhaustive search (Lemma 1)."""
    most_plans: float | None
    """The maximum number of plans that the planner considers, over all its searches (Theorems 2 and 4)."""
    most_loss: float | None
    """The maximum network usage above the optimum (Theorem 3)."""


def bounds(deployment: Deployment, streams: int, sites: int, hierarchies: Sequence[Hierarchy]) -> Bounds:
    """Returns the bounds of a deployment that was planned on these hierarchies; without any, only Lemma 1."""
    loss = None
    if deployment.planner == "top-down":
        volumes = [flow.bytes for flow in deployment.flows]
        loss = min((suboptimality_bound(one, volumes) for one in hierarchies), default=None)
    plans = max((plans_bound(one, streams) for one in hierarchies), default=None)
    return Bounds(lemma_1(streams, sites), None if plans is None else plans * deployment.searches, loss)
