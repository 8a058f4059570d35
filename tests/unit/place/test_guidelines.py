"""The two guidelines for max_cs follow from the paper's bounds."""

from __future__ import annotations

import pytest

from anabranch.place.generate import transit_stub
from anabranch.place.guidelines import for_bottom_up, for_top_down, plans_bound, relative_error, sizes
from anabranch.place.hierarchy import build
from tests.unit.place import builders


def test_sizes_are_powers_of_two_and_the_whole_network() -> None:
    assert sizes(transit_stub(40, 1))[:-1] == [4, 8, 16, 32]
    assert sizes(builders.line(3)) == [3]
    assert sizes(builders.line(1)) == [2]


@pytest.mark.parametrize("most", [1, 10_000, 10**6, 10**12])
def test_bottom_up_gets_the_largest_clusters_whose_search_is_acceptable(most: int) -> None:
    topology = transit_stub(60, 1)
    chosen = for_bottom_up(topology, 4, most)
    affordable = [size for size in sizes(topology) if plans_bound(build(topology, size), 4) <= most]
    assert chosen == (max(affordable) if affordable else 4)


@pytest.mark.parametrize("most", [0.0, 0.5, 1.0, 100.0])
def test_top_down_gets_the_smallest_clusters_that_are_accurate_enough(most: float) -> None:
    topology = transit_stub(60, 1)
    chosen = for_top_down(topology, most)
    assert relative_error(build(topology, chosen)) <= most
    assert all(relative_error(build(topology, size)) > most for size in sizes(topology) if size < chosen)


def test_one_cluster_has_no_error() -> None:
    topology = transit_stub(60, 1)
    assert relative_error(build(topology, len(topology.sites))) == 0
    assert for_top_down(topology, 0.0) == len(topology.sites)
