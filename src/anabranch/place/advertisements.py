"""Stream advertisements: the streams that a coordinator knows.

A site advertises its base streams and every view that an operator there produces or a sink there receives (section
3.1.3 of the paper). Coordinators pass the advertisements of their clusters up, so at level l the coordinator of a
cluster knows exactly the streams at the sites that its members represent. `Landscape.offers` has the advertisements of
the whole network; this module restricts them to one cluster.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from anabranch.place.hierarchy import Cluster, Hierarchy
from anabranch.place.problem import Problem


def known_to(problem: Problem, hierarchy: Hierarchy, level: int, cluster: Cluster) -> Problem:
    """Restricts a problem to the streams advertised within a cluster of a level."""
    inside = np.isin(hierarchy.representatives(level), cluster.members)
    return replace(problem, offered=tuple(producer for producer in problem.offered if inside[producer.site]))
