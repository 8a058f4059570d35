"""Virtual hierarchies of clusters (section 3.1 of the paper): the planners' coarse view of the network.

Level 1 clusters all sites; each level above clusters the coordinators of the level below, until one cluster is left. No
cluster has more than `max_cs` members. At level l a coordinator *represents* each site, and Theorem 1 bounds the error:
the distance between two sites is at most the distance between their representatives plus twice the sum of the cluster
widths below l. Clusters come from k-means over distances to landmark sites.

Hierarchies change: sites join and leave, and a backup member of the cluster replaces an unresponsive coordinator. Each
change is a function from one hierarchy to the next.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from anabranch.errors import TopologyError
from anabranch.place.topology import Floats, Indices, Topology

LANDMARKS = 48
"""The number of landmark sites; more did not tighten clusters on networks of 10,000 sites."""


@dataclass(frozen=True)
class Cluster:
    """Members at one level, by site position, and the member that represents them one level up."""

    members: tuple[int, ...]
    coordinator: int


@dataclass(frozen=True)
class Hierarchy:
    """Clusters by level, lowest first; the last level has one cluster."""

    topology: Topology
    max_cs: int
    levels: tuple[tuple[Cluster, ...], ...]

    @property
    def height(self) -> int:
        return len(self.levels)

    @property
    def top(self) -> Cluster:
        return self.levels[-1][0]

    @cached_property
    def _representatives(self) -> tuple[Indices, ...]:
        """For every level, the representative of each site."""
        current = np.arange(len(self.topology.sites))
        found = [current]
        for clusters in self.levels[:-1]:
            step = {member: cluster.coordinator for cluster in clusters for member in cluster.members}
            current = np.array([step[int(member)] for member in current], dtype=np.intp)
            found.append(current)
        return tuple(found)

    def representatives(self, level: int) -> Indices:
        """Returns the representative of each site at a level; at level 1 each site represents itself."""
        return self._representatives[level - 1]

    @cached_property
    def _by_member(self) -> tuple[dict[int, Cluster], ...]:
        return tuple(
            {member: cluster for cluster in clusters for member in cluster.members} for clusters in self.levels
        )

    def cluster_of(self, level: int, site: int) -> Cluster:
        """Returns the cluster at a level in which a site is represented."""
        return self._by_member[level - 1][int(self.representatives(level)[site])]

    @cached_property
    def _by_coordinator(self) -> tuple[dict[int, Cluster], ...]:
        return tuple({cluster.coordinator: cluster for cluster in clusters} for clusters in self.levels)

    def below(self, level: int, member: int) -> Cluster:
        """Returns the cluster at the level below that a member of this level coordinates."""
        return self._by_coordinator[level - 2][member]

    def sites_under(self, level: int, cluster: Cluster) -> Indices:
        """Returns all sites that the members of a cluster represent."""
        return np.flatnonzero(np.isin(self.representatives(level), cluster.members))

    @cached_property
    def widths(self) -> tuple[float, ...]:
        """For every level, the largest distance between two members of one cluster: the d_i of the paper."""
        return tuple(
            max(float(self.topology.among(cluster.members).max()) for cluster in clusters) for clusters in self.levels
        )

    def backups(self, cluster: Cluster) -> tuple[int, ...]:
        """Returns the members that replace a failed coordinator, in order: the closest to all others first."""
        total = self.topology.among(cluster.members).sum(axis=1)
        order = [cluster.members[int(at)] for at in np.argsort(total, kind="stable")]
        return tuple(member for member in order if member != cluster.coordinator)

    def slack(self, level: int) -> float:
        """Returns the largest error of an estimate at a level (Theorem 1)."""
        return 2.0 * sum(self.widths[: level - 1])


def build(topology: Topology, max_cs: int, seed: int = 0) -> Hierarchy:
    """Builds the hierarchy of a network with at most `max_cs` members per cluster."""
    if max_cs < 2:
        raise TopologyError(f"max_cs is {max_cs}", hint="use a max_cs of at least 2")
    return _raise_levels(topology, max_cs, _clusters(topology, np.arange(len(topology.sites)), max_cs, seed), seed)


def zones(topology: Topology, count: int, seed: int = 0) -> Hierarchy:
    """Builds two levels: the network in `count` zones of any size, and their coordinators above."""
    everyone = np.arange(len(topology.sites))
    labels = _labels(_located(topology, everyone), min(count, len(everyone)), seed)
    groups = [everyone[labels == label] for label in np.unique(labels)]
    lowest = tuple(Cluster(tuple(int(m) for m in group), _medoid(topology, group)) for group in groups)
    return _raise_levels(topology, max(len(everyone), 2), lowest, seed)


def _joined(hierarchy: Hierarchy, topology: Topology, newcomer: int, seed: int) -> Hierarchy:
    """Adds a site of the topology to the hierarchy.

    The request descends from the top, at each level to the member closest to the new site (section 3.1.2). Only a
    cluster that overflows is split, and only the levels above it are rebuilt.
    """
    distances = topology.distances([newcomer])[0]
    cluster = hierarchy.top
    for level in range(hierarchy.height, 1, -1):
        closest = min(cluster.members, key=lambda member: (distances[member], member))
        cluster = hierarchy.below(level, closest)
    grown = (*cluster.members, newcomer)
    if len(grown) <= hierarchy.max_cs:
        lowest = tuple(Cluster(grown, c.coordinator) if c is cluster else c for c in hierarchy.levels[0])
        return Hierarchy(topology, hierarchy.max_cs, (lowest, *hierarchy.levels[1:]))
    parts = _clusters(topology, np.array(grown), hierarchy.max_cs, seed)
    others = tuple(c for c in hierarchy.levels[0] if c is not cluster)
    return _raise_levels(topology, hierarchy.max_cs, others + parts, seed)


def taken_over(hierarchy: Hierarchy, silent: Collection[int]) -> Hierarchy:
    """Replaces unresponsive coordinators with their first responsive backup; clusters do not change.

    A coordinator may be any member of its cluster, so Theorem 1 still holds. A cluster without any live member keeps
    its coordinator.
    """
    levels: list[tuple[Cluster, ...]] = []
    now: dict[int, int] = {}
    for clusters in hierarchy.levels:
        following: dict[int, int] = {}
        found = []
        for cluster in clusters:
            members = tuple(now.get(member, member) for member in cluster.members)
            changed = Cluster(members, now.get(cluster.coordinator, cluster.coordinator))
            if changed.coordinator in silent:
                living = [member for member in hierarchy.backups(changed) if member not in silent]
                changed = Cluster(members, next(iter(living), changed.coordinator))
            following[cluster.coordinator] = changed.coordinator
            found.append(changed)
        levels.append(tuple(found))
        now = following
    return Hierarchy(hierarchy.topology, hierarchy.max_cs, tuple(levels))


def followed(hierarchy: Hierarchy, topology: Topology, seed: int = 0) -> Hierarchy:
    """Adapts a hierarchy to a changed network: removes sites that are gone and adds new ones.

    Clusters and coordinators without added or removed sites do not change, whatever the new link costs. A coordinator
    that is gone is replaced by the member closest to all others; every member knows the distances in its cluster.
    """
    before = hierarchy.topology.sites
    at = {old: topology.positions.get(site.name) for old, site in enumerate(before)}
    if None in at.values():
        lowest = []
        for cluster in hierarchy.levels[0]:
            members = tuple(new for member in cluster.members if (new := at[member]) is not None)
            kept = at[cluster.coordinator]
            if members:
                lowest.append(Cluster(members, _medoid(topology, members) if kept is None else kept))
        current = _raise_levels(topology, hierarchy.max_cs, tuple(lowest), seed)
    else:
        levels = tuple(tuple(_moved(cluster, at) for cluster in clusters) for clusters in hierarchy.levels)
        current = Hierarchy(topology, hierarchy.max_cs, levels)
    known = {site.name for site in before}
    for newcomer, site in enumerate(topology.sites):
        if site.name not in known:
            current = _joined(current, topology, newcomer, seed)
    return current


def _moved(cluster: Cluster, at: Mapping[int, int | None]) -> Cluster:
    members = tuple(new for member in cluster.members if (new := at[member]) is not None)
    coordinator = at[cluster.coordinator]
    assert coordinator is not None
    return Cluster(members, coordinator)


def to_names(hierarchy: Hierarchy) -> list[list[dict[str, Any]]]:
    """Returns the clusters by level, with site names, in file form."""
    sites = hierarchy.topology.sites
    return [
        [
            {
                "members": [sites[member].name for member in cluster.members],
                "coordinator": sites[cluster.coordinator].name,
                "backups": [sites[member].name for member in hierarchy.backups(cluster)],
            }
            for cluster in clusters
        ]
        for clusters in hierarchy.levels
    ]


def from_names(topology: Topology, max_cs: int, levels: Sequence[Sequence[Mapping[str, Any]]]) -> Hierarchy:
    """Returns the hierarchy that `to_names` wrote."""
    return Hierarchy(
        topology,
        max_cs,
        tuple(
            tuple(
                Cluster(
                    tuple(topology.position(name) for name in cluster["members"]),
                    topology.position(cluster["coordinator"]),
                )
                for cluster in clusters
            )
            for clusters in levels
        ),
    )


def _raise_levels(topology: Topology, max_cs: int, lowest: tuple[Cluster, ...], seed: int) -> Hierarchy:
    levels = [lowest]
    while len(levels[-1]) > 1:
        coordinators = np.array(sorted(cluster.coordinator for cluster in levels[-1]))
        levels.append(_clusters(topology, coordinators, max_cs, seed))
    return Hierarchy(topology, max_cs, tuple(levels))


def _clusters(topology: Topology, members: Indices, max_cs: int, seed: int) -> tuple[Cluster, ...]:
    """Clusters nearby members into groups of at most `max_cs`; divides larger groups again."""
    if len(members) <= max_cs:
        return (Cluster(tuple(int(m) for m in members), _medoid(topology, members)),)
    where = _located(topology, members)
    count = min(-(-len(members) // max_cs), len(np.unique(where, axis=0)))
    if count < 2:
        halves = np.array_split(members, -(-len(members) // max_cs))
        return tuple(c for half in halves for c in _clusters(topology, half, max_cs, seed))
    labels = _labels(where, count, seed)
    groups = [members[labels == label] for label in range(count)]
    return tuple(c for group in groups if len(group) for c in _clusters(topology, group, max_cs, seed))


def _labels(where: Floats, count: int, seed: int) -> Indices:
    # For a few dozen points, threads on all cores would mostly wait.
    with threadpool_limits(1):
        found: Indices = KMeans(n_clusters=count, n_init=3, random_state=seed).fit_predict(where)
    return found


def _located(topology: Topology, members: Indices) -> Floats:
    """Locates every member by its distances to landmarks, each the member farthest from the previous ones."""
    if len(members) <= LANDMARKS:
        return topology.between(members, members)
    columns = [topology.between(members[:1], members)[0]]
    while len(columns) < LANDMARKS:
        farthest = int(np.argmax(np.min(columns, axis=0)))
        columns.append(topology.between(members[farthest : farthest + 1], members)[0])
    return np.stack(columns, axis=1)


def _medoid(topology: Topology, members: Sequence[int] | Indices) -> int:
    return int(np.asarray(members)[int(np.argmin(topology.among(members).sum(axis=1)))])
