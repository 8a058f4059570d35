"""Networks: distances, generators, files, and what bad ones get."""

from __future__ import annotations

import math
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.errors import TopologyError
from anabranch.place.generate import transit_stub
from anabranch.place.topology import Site, from_dict


@given(st.integers(8, 60), st.integers(0, 5))
@settings(max_examples=15, deadline=None)
def test_distances_are_shortest_paths(size: int, seed: int) -> None:
    topology = transit_stub(size, seed)
    graph = nx.Graph()
    for link in topology.links:
        graph.add_edge(link.left, link.right, weight=link.cost)
    expected = dict(nx.all_pairs_dijkstra_path_length(graph))
    names = [site.name for site in topology.sites]
    found = topology.distances(np.arange(size))
    assert np.allclose(found, [[expected[a][b] for b in names] for a in names])
    some = np.arange(0, size, 3)
    assert np.allclose(transit_stub(size, seed).among(some), found[np.ix_(some, some)])
    path = topology.path(0, size - 1)
    steps = [graph.edges[names[a], names[b]]["weight"] for a, b in pairwise(path)]
    assert sum(steps) == pytest.approx(found[0, size - 1])


def test_the_papers_standard_network_has_132_sites() -> None:
    topology = transit_stub(132, 1)
    names = [site.name for site in topology.sites]
    assert sum(name.startswith("t") for name in names) == 4
    stubs = {name.split(".")[0] for name in names if name.startswith("s")}
    assert len(stubs) == 16
    assert all(sum(name.startswith(f"{stub}.") for name in names) == 8 for stub in stubs)


@pytest.mark.parametrize("size", [32, 64, 128, 1000])
def test_generated_networks_have_the_size_asked_for_and_are_seeded(size: int) -> None:
    assert len(transit_stub(size, 3).sites) == size
    assert transit_stub(size, 3) == transit_stub(size, 3)
    assert transit_stub(size, 3) != transit_stub(size, 4)


def test_a_network_survives_yaml() -> None:
    topology = transit_stub(12, 1, site=Site("", cpu=2.0))
    numbers = ("cost", "latency", "bandwidth")
    written = {
        "sites": [{"name": site.name, "cpu": site.cpu} for site in topology.sites],
        "links": [
            {"ends": [link.left, link.right], **{name: float(getattr(link, name)) for name in numbers}}
            for link in topology.links
        ],
    }
    assert from_dict(yaml.safe_load(yaml.safe_dump(written))) == topology


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"sites": ["a", "b"], "links": []}, "not connected: site 'b' cannot be reached from 'a'"),
        ({"sites": ["a", "b"], "links": [{"ends": ["a", "b"], "cost": -1}]}, "link 'a'-'b' has cost -1.0"),
        ({"sites": ["a"], "links": [{"ends": ["a", "z"]}]}, "link 'a'-'z' ends at unknown site 'z'"),
        ({"sites": ["a", "a"], "links": []}, "site 'a' is listed twice"),
        ({"sites": [{"name": "a", "cpu": -2}], "links": []}, "site 'a' has a negative capacity"),
        ({"sites": []}, "needs 'sites' and 'links'"),
        ({"sites": [], "links": []}, "the network has no site"),
        ({"sites": ["a", "b"], "links": [{"cost": 3}]}, "not well-formed"),
        ({"sites": None, "links": []}, "'sites' of the network is not a list"),
        ({"sites": {"a": {"cpu": 1}}, "links": []}, "'sites' of the network is not a list"),
        ({"sites": ["a"], "links": {}}, "'links' of the network is not a list"),
        ({"sites": ["a"], "links": [{"ends": ["a", "a"], "bandwidth": 1}]}, "from site 'a' to itself"),
        ({"sites": ["a", "b"], "links": [{"ends": ["a", "b"], "cost": 1, "latency": math.inf}]}, "latency inf"),
    ],
)
def test_bad_networks_name_what_is_wrong(entry: object, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        from_dict(entry)
