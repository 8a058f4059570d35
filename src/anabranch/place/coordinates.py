"""A cost space: sites as points whose distances approximate the costs between the sites.

Simulates Vivaldi (Cox, Dabek, Kaashoek, Li and Morris, HotNets 2003): in every iteration each site measures its
distance to one other site and moves to reduce the error, with decreasing step sizes. Relaxation places joins in this
space.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from anabranch.place.topology import Floats, Topology


@dataclass(frozen=True, eq=False)
class CostSpace:
    """A point for every site."""

    positions: Floats
    iterations: int

    @property
    def dimensions(self) -> int:
        return int(self.positions.shape[1])

    @cached_property
    def mean_distance(self) -> float:
        """The mean distance between two different sites."""
        apart = np.linalg.norm(self.positions[:, None] - self.positions[None], axis=2)
        count = len(self.positions)
        return float(apart.sum() / max(1, count * (count - 1)))


def embed(topology: Topology, seed: int, dimensions: int = 3, iterations: int = 4000) -> CostSpace:
    """Returns the coordinates after a number of rounds; all sites move simultaneously in a round."""
    generator = np.random.default_rng(seed)
    count = len(topology.sites)
    distances = topology.distances(np.arange(count))
    positions = generator.normal(size=(count, dimensions)) * (distances.mean() or 1.0) / 2
    for iteration in range(iterations):
        partners = generator.integers(0, count, size=count)
        gaps = positions - positions[partners]
        lengths = np.linalg.norm(gaps, axis=1)
        errors = distances[np.arange(count), partners] - lengths
        directions = gaps / np.maximum(lengths, 1e-9)[:, None]
        step = 0.25 * (1.0 - iteration / iterations) + 0.01
        positions = positions + step * errors[:, None] * directions
    return CostSpace(positions, iterations)
