"""Hierarchies: their shape, Theorem 1, and sites that come and go."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.errors import TopologyError
from anabranch.place.generate import transit_stub
from anabranch.place.hierarchy import (
    Hierarchy,
    build,
    followed,
    from_names,
    taken_over,
    to_names,
    zones,
)
from anabranch.place.topology import Link, Site, Topology


def with_site(topology: Topology, name: str, beside: str) -> Topology:
    return Topology((*topology.sites, Site(name)), (*topology.links, Link(name, beside, 2.0, 2.0)))


def without_site(topology: Topology, name: str) -> Topology:
    sites = tuple(site for site in topology.sites if site.name != name)
    return Topology(sites, tuple(link for link in topology.links if name not in link.ends))


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
                seen = hierarchy.representatives(level)
                estimate = hierarchy.topology.distance(int(seen[left]), int(seen[right]))
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
    assert list(hierarchy.representatives(1)) == list(range(len(hierarchy.topology.sites)))


@given(st.integers(2, 6), st.integers(0, 5))
@settings(max_examples=10, deadline=None)
def test_sites_may_come_and_go(max_cs: int, seed: int) -> None:
    topology = transit_stub(20, seed)
    hierarchy = build(topology, max_cs)
    for number in range(4):
        topology = with_site(topology, f"new{number}", f"t{number % 4}")
        hierarchy = followed(hierarchy, topology)
        _is_sound(hierarchy)
        _obeys_theorem_1(hierarchy)
    for number in range(4):
        topology = without_site(topology, f"new{number}")
        hierarchy = followed(hierarchy, topology)
        _is_sound(hierarchy)
        _obeys_theorem_1(hierarchy)


def test_a_failed_coordinator_is_replaced_by_a_member_of_its_cluster() -> None:
    names = [f"n{index}" for index in range(9)]
    ring = [Link(a, b, 1.0, 1.0) for a, b in zip(names, [*names[1:], names[0]], strict=True)]
    topology = Topology(tuple(Site(name) for name in names), tuple(ring))
    hierarchy = build(topology, 3)
    failed = hierarchy.levels[0][0]
    after = followed(hierarchy, without_site(topology, names[failed.coordinator]))
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


@given(st.integers(8, 60), st.integers(2, 12), st.integers(0, 3), st.sets(st.integers(0, 59), max_size=20))
@settings(max_examples=20, deadline=None)
def test_backups_take_over_from_coordinators_that_do_not_answer(
    size: int, max_cs: int, seed: int, silent: set[int]
) -> None:
    hierarchy = build(transit_stub(size, seed), max_cs)
    silent = {site for site in silent if site < len(hierarchy.topology.sites)}
    after = taken_over(hierarchy, silent)
    _is_sound(after)
    _obeys_theorem_1(after)
    # Level 1 has the same clusters, and each is represented by a member that answers, if it has one.
    assert [set(c.members) for c in after.levels[0]] == [set(c.members) for c in hierarchy.levels[0]]
    for cluster in after.levels[0]:
        assert cluster.coordinator not in silent or set(cluster.members) <= silent
    for clusters in after.levels:
        for cluster in clusters:
            assert cluster.coordinator not in silent or set(cluster.members) <= silent
    assert taken_over(hierarchy, ()) == hierarchy


def test_the_first_backup_is_the_member_closest_to_all_others() -> None:
    names = [f"n{index}" for index in range(5)]
    line = [Link(a, b, 1.0, 1.0) for a, b in pairwise(names)]
    hierarchy = build(Topology(tuple(Site(name) for name in names), tuple(line)), 8)
    (cluster,) = hierarchy.levels[0]
    assert cluster.coordinator == 2
    assert hierarchy.backups(cluster) == (1, 3, 0, 4)
    assert taken_over(hierarchy, {2, 1}).top.coordinator == 3


@given(st.integers(2, 6), st.integers(0, 5), st.data())
@settings(max_examples=15, deadline=None)
def test_a_hierarchy_follows_a_network_in_which_several_sites_came_and_went(
    max_cs: int, seed: int, data: st.DataObject
) -> None:
    topology = transit_stub(20, seed)
    hierarchy = build(topology, max_cs)
    changed = topology
    leaves = [site.name for site in topology.sites if sum(site.name in link.ends for link in topology.links) == 1]
    for name in data.draw(st.sets(st.sampled_from(leaves), max_size=3) if leaves else st.just(set()), "gone"):
        changed = without_site(changed, name)
    for number in range(data.draw(st.integers(0, 3), "new")):
        changed = with_site(changed, f"new{number}", f"t{number % 4}")
    # The order of a file says nothing.
    order = data.draw(st.permutations(changed.sites), "order")
    changed = Topology(tuple(order), changed.links)
    after = followed(hierarchy, changed)
    _is_sound(after)
    _obeys_theorem_1(after)
    assert from_names(changed, max_cs, to_names(after)) == after
    if {site.name for site in changed.sites} == {site.name for site in topology.sites}:
        kept = {frozenset(m["members"]) for m in to_names(hierarchy)[0]}
        assert {frozenset(m["members"]) for m in to_names(after)[0]} == kept
