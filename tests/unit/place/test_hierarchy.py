"""Hierarchies: their shape, Theorem 1, and sites that come and go."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.errors import TopologyError
from anabranch.place.generate import transit_stub
from anabranch.place.hierarchy import Hierarchy, build, join, leave, zones
from anabranch.place.topology import Link, Site, Topology


def _is_sound(hierarchy: Hierarchy) -> None:
    members = sorted(m for cluster in hierarchy.levels[0] for m in cluster.members)
    assert members == list(range(len(hierarchy.topology.sites)))
    for lower, upper in zip(hierarchy.levels, hierarchy.levels[1:], strict=False):
        assert sorted(c.coordinator for c in lower) == sorted(m for c in upper for m in c.members)
    assert len(hierarchy.levels[-1]) == 1
    for clusters in hierarchy.levels:
        for cluster in clusters:
            assert cluster.coordinator in cluster.members
            assert len(cluster.members) <= hierarchy.max_cs


def _obeys_theorem_1(hierarchy: Hierarchy) -> None:
    count = len(hierarchy.topology.sites)
    for level in range(1, hierarchy.height + 1):
        for left in range(0, count, 3):
            for right in range(0, count, 5):
                actual = hierarchy.topology.distance(left, right)
                estimate = hierarchy.estimate(level, left, right)
                assert actual <= estimate + hierarchy.slack(level) + 1e-9


@given(st.integers(8, 90), st.integers(2, 20), st.integers(0, 3))
@settings(max_examples=20, deadline=None)
def test_theorem_1_bounds_every_estimate(size: int, max_cs: int, seed: int) -> None:
    hierarchy = build(transit_stub(size, seed), max_cs)
    _is_sound(hierarchy)
    _obeys_theorem_1(hierarchy)


def test_level_one_sees_the_network_as_it_is() -> None:
    hierarchy = build(transit_stub(40, 1), 8)
    assert hierarchy.slack(1) == 0
    assert hierarchy.estimate(1, 3, 30) == hierarchy.topology.distance(3, 30)


@given(st.integers(2, 6), st.integers(0, 5))
@settings(max_examples=10, deadline=None)
def test_sites_may_come_and_go(max_cs: int, seed: int) -> None:
    topology = transit_stub(20, seed)
    hierarchy = build(topology, max_cs)
    for number in range(4):
        topology = topology.with_site(Site(f"new{number}"), [Link(f"new{number}", f"t{number % 4}", 2.0, 2.0)])
        hierarchy = join(hierarchy, topology)
        _is_sound(hierarchy)
        _obeys_theorem_1(hierarchy)
    for number in range(4):
        gone = topology.position(f"new{number}")
        topology = topology.without_site(f"new{number}")
        hierarchy = leave(hierarchy, topology, gone)
        _is_sound(hierarchy)
        _obeys_theorem_1(hierarchy)


def test_a_failed_coordinator_is_replaced_by_a_member_of_its_cluster() -> None:
    names = [f"n{index}" for index in range(9)]
    ring = [Link(a, b, 1.0, 1.0) for a, b in zip(names, [*names[1:], names[0]], strict=True)]
    topology = Topology(tuple(Site(name) for name in names), tuple(ring))
    hierarchy = build(topology, 3)
    failed = hierarchy.levels[0][0]
    after = leave(hierarchy, topology.without_site(names[failed.coordinator]), failed.coordinator)
    _is_sound(after)
    kept = {m - (m > failed.coordinator) for m in failed.members if m != failed.coordinator}
    assert [c for c in after.levels[0] if set(c.members) == kept]


def test_zones_are_as_many_as_asked_for() -> None:
    hierarchy = zones(transit_stub(64, 1), 5)
    assert len(hierarchy.levels[0]) == 5
    _is_sound(hierarchy)


def test_clusters_of_one_are_refused() -> None:
    with pytest.raises(TopologyError, match="max_cs is 1"):
        build(transit_stub(8, 1), 1)
