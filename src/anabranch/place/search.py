"""The search that all planners share: the best of all join trees and placements over some candidate sites.

Under network usage a plan's cost is a sum over its edges, and the cost of a sub-join depends only on its relations and
the site of its result. So dynamic programming over (relations, site) pairs finds the cheapest plan without enumerating
plans. (The paper does not use this substructure. It is lost only if sites have capacities, or if one query relaxes one
operator twice; `planner` handles both.) With k units and m sites it takes O(3^k·m + 2^k·m²) steps. `considered` counts
the plans covered, summed by the same loops that compare them; `evaluated` counts the comparisons actually made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from anabranch.place.topology import Floats, Indices, Topology

Mask: TypeAlias = int
Split: TypeAlias = tuple[Mask, Mask]
"""A join by the relations of its two inputs; the input with the lowest relation is first."""


@dataclass(frozen=True)
class Producer:
    """An existing stream: the relations it joins, its site (or apparent site), and the cost of using it."""

    mask: Mask
    operator: str
    site: int
    price: float = 0.0
    seen_at: int = -1
    """Its site in a coarse view of the network; by default its own."""
    widened: tuple[tuple[float, int, int], ...] = ()
    """The flows that grow if it is used: bytes per second, origin, end."""

    @property
    def apparent(self) -> int:
        return self.site if self.seen_at < 0 else self.seen_at


@dataclass(frozen=True)
class Take:
    """A leaf of a plan: an existing stream."""

    producer: Producer

    @property
    def mask(self) -> Mask:
        return self.producer.mask


@dataclass(frozen=True)
class JoinAt:
    """A new join of two plans at a site."""

    left: Placed
    right: Placed
    site: int

    @property
    def mask(self) -> Mask:
        return self.left.mask | self.right.mask

    @property
    def split(self) -> Split:
        return split_of(self.left.mask, self.right.mask)


Placed: TypeAlias = Take | JoinAt


@dataclass(frozen=True)
class Found:
    """The cheapest plan of a search, its estimated cost, and the size of the search."""

    plan: Placed
    cost: float
    considered: int
    evaluated: int


@dataclass(frozen=True)
class Space:
    """A search space.

    `units` are the disjoint sets of relations to join; `splits`, if given, are the only joins allowed (a fixed join
    order); `barred` are excluded sites of joins; `room`, if given, is the free bandwidth from every site to some ends.
    """

    units: tuple[Mask, ...]
    producers: tuple[Producer, ...]
    sites: Indices
    destination: int
    bytes: Sequence[float]
    topology: Topology
    splits: frozenset[Split] | None = None
    barred: Mapping[Split, npt.NDArray[np.bool_]] = field(default_factory=dict)
    room: Callable[[Sequence[int] | Indices], Floats] | None = None

    def carrying(self, mask: Mask, origins: Sequence[int] | Indices, ends: Sequence[int] | Indices) -> Floats:
        """Returns the cost of shipping a set of relations from origins to ends; infinite if bandwidth is too low."""
        costs: Floats = self.bytes[mask] * self.topology.between(origins, ends)
        if self.room is not None:
            costs[self.bytes[mask] > self.room(ends)[:, np.asarray(origins, dtype=np.intp)].T] = np.inf
        return costs


def split_of(left: Mask, right: Mask) -> Split:
    return (left, right) if left & -left < right & -right else (right, left)


def search(space: Space) -> Found | None:
    """Returns the cheapest plan that joins all units and delivers to the destination; None if every plan is barred."""
    return _Table(space).best()


class _Table:
    """For every union of units: the cost of producing it at each site, and of shipping it to each site."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._count = len(space.sites)
        self.evaluated = 0
        masks = _unions(space.units)
        self._full = masks[-1]
        self._producers: dict[Mask, list[Producer]] = {mask: [] for mask in masks}
        for producer in space.producers:
            if producer.mask in self._producers and math.isfinite(producer.price):
                self._producers[producer.mask].append(producer)
        self._made: dict[Mask, Floats] = {}
        self._made_by: dict[Mask, npt.NDArray[np.intp]] = {}
        self._brought: dict[Mask, Floats] = {}
        self._splits: dict[Mask, tuple[Split, ...]] = {}
        self._plans: dict[Mask, int] = {}
        for mask in masks:
            self._fill(mask)

    def _fill(self, mask: Mask) -> None:
        space = self._space
        several = self._producers[mask]
        plans = len(several)
        self._splits[mask] = tuple(
            split for split in _splits(mask, self._plans) if space.splits is None or split in space.splits
        )
        made = np.full((max(1, len(self._splits[mask])), self._count), np.inf)
        for row, split in enumerate(self._splits[mask]):
            made[row] = self._brought[split[0]] + self._brought[split[1]]
            allowed = self._count
            if split in space.barred:
                made[row][space.barred[split]] = np.inf
                allowed -= int(space.barred[split].sum())
            plans += self._plans[split[0]] * self._plans[split[1]] * allowed
            self.evaluated += allowed
        self._made_by[mask] = made.argmin(axis=0)
        self._made[mask] = made.min(axis=0)
        self._plans[mask] = plans
        if mask == self._full:
            return
        brought = np.full(self._count, np.inf)
        if self._splits[mask]:
            brought = (self._made[mask][:, None] + space.carrying(mask, space.sites, space.sites)).min(axis=0)
            self.evaluated += self._count**2
        if several:
            prices = np.array([producer.price for producer in several])
            ways = space.carrying(mask, [producer.apparent for producer in several], space.sites)
            brought = np.minimum(brought, (prices[:, None] + ways).min(axis=0))
            self.evaluated += self._count * len(several)
        self._brought[mask] = brought

    def best(self) -> Found | None:
        space = self._space
        cost, plan = self._bring(self._full, space.destination)
        if plan is None:
            return None
        return Found(plan, cost, self._plans[self._full], self.evaluated + self._count)

    def _bring(self, mask: Mask, end: int) -> tuple[float, Placed | None]:
        """Returns the cheapest way to obtain a union at an end; None if there is none."""
        space = self._space
        costs = self._made[mask] + space.carrying(mask, space.sites, [end])[:, 0]
        position = int(costs.argmin())
        cost = float(costs[position])
        taken: Producer | None = None
        several = self._producers[mask]
        ways = space.carrying(mask, [producer.apparent for producer in several], [end])[:, 0]
        for producer, way in zip(several, ways, strict=True):
            reach = producer.price + float(way)
            # On a tie, up to rounding, the existing stream is used, because it needs no operator.
            if reach < math.inf and reach <= cost + 1e-9 * abs(cost):
                cost, taken = reach, producer
        if taken is not None:
            return cost, Take(taken)
        if cost == math.inf:
            return cost, None
        site = int(space.sites[position])
        left, right = (self._bring(part, site)[1] for part in self._splits[mask][int(self._made_by[mask][position])])
        assert left is not None
        assert right is not None
        return cost, JoinAt(left, right, site)


def _unions(units: Sequence[Mask]) -> list[Mask]:
    """Returns every union of units, parts before wholes; the last is the union of all."""
    found = [0]
    for unit in units:
        found += [mask | unit for mask in found]
    return sorted(found[1:], key=lambda mask: (mask.bit_count(), mask))


def _splits(mask: Mask, known: Iterable[Mask]) -> list[Split]:
    """Returns the ways to split a union into two; `known` holds all smaller unions."""
    parts = set(known)
    lowest = mask & -mask
    return [
        (part, mask ^ part)
        for part in sorted(parts)
        if part & lowest and part & mask == part and part != mask and mask ^ part in parts
    ]


def all_splits(plan: Placed | None) -> frozenset[Split]:
    """Returns the joins of a plan, by their inputs."""
    match plan:
        case Take() | None:
            return frozenset()
        case JoinAt(left=left, right=right):
            return all_splits(left) | all_splits(right) | {plan.split}
