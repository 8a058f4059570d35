"""Re-planning: forced moves, moves that pay, moves that do not."""

from __future__ import annotations

import pytest

from anabranch.errors import TopologyError
from anabranch.place.check import complaints
from anabranch.place.exhaustive import Exhaustive
from anabranch.place.generate import transit_stub
from anabranch.place.landscape import Landscape
from anabranch.place.run import deploy
from anabranch.place.topology import Link, Topology, from_dict
from lab.papers.replanning import replan
from lab.place_workload import Ranges, random_workload
from tests.unit.place.builders import join, landscape


def _two_junctions() -> Topology:
    """Sources a and b and the sink s meet at x, and a bit farther away at y."""
    near = [{"ends": [end, "x"], "cost": 1} for end in "abs"]
    far = [{"ends": [end, "y"], "cost": 2} for end in "abs"]
    return from_dict({"sites": list("abxys"), "links": [*near, *far]})


def _deployed(topology: Topology) -> Landscape:
    # A result of 1,500 bytes a second from two inputs of 1,000 each: the join belongs in the middle, at x.
    start = landscape(topology, {"a": "a", "b": "b"}, distinct=1600.0)
    return Exhaustive().plan(start, join("q", "ab", "s")).landscape


def _join_site(landscape: Landscape) -> str:
    site = next(operator.site for operator in landscape.operators.values() if operator.is_join)
    return landscape.topology.sites[site].name


def test_nothing_moves_when_nothing_changes() -> None:
    before = _deployed(_two_junctions())
    assert _join_site(before) == "x"
    after = replan(before, _two_junctions(), Exhaustive(), horizon=3600.0)
    assert after.landscape.cost == pytest.approx(before.cost)
    assert [(move.moving, move.is_taken) for move in after.moves] == [(0.0, False)]


@pytest.mark.parametrize(("horizon", "place"), [(1000.0, "y"), (10.0, "x")])
def test_a_join_moves_only_if_the_horizon_pays_for_its_state(horizon: float, place: str) -> None:
    # Moving saves 2,500 a second; a minute of both inputs, 120,000 bytes, has to go three units far.
    before = _deployed(_two_junctions())
    changed = _two_junctions().with_link(Link("s", "x", 100.0, 100.0))
    after = replan(before, changed, Exhaustive(), horizon)
    assert after.moves[0].moving == pytest.approx(360_000.0)
    assert _join_site(after.landscape) == place
    assert complaints(after.landscape, join("q", "ab", "s")) == ()


def test_a_site_that_leaves_forces_its_queries_to_move() -> None:
    before = _deployed(_two_junctions())
    after = replan(before, _two_junctions().without_site("x"), Exhaustive(), horizon=1e-9)
    assert [move.forced for move in after.moves] == [True]
    assert _join_site(after.landscape) == "y"
    assert complaints(after.landscape, join("q", "ab", "s")) == ()


def test_shared_operators_survive_replanning() -> None:
    topology = transit_stub(30, 3)
    workload = random_workload(topology, 8, 3, Ranges(streams=5, most=4))
    before = deploy(Exhaustive(), workload.landscape(topology), workload.queries).landscape
    first = topology.links[0]
    changed = topology.with_link(Link(first.left, first.right, 10 * first.cost, 10 * first.cost))
    after = replan(before, changed, Exhaustive(), horizon=1e6).landscape
    for query in workload.queries:
        assert complaints(after, query) == ()


def test_a_lost_sink_or_source_is_named() -> None:
    topology = from_dict(
        {
            "sites": ["a", "b", "c", "d"],
            "links": [{"ends": ["a", "b"]}, {"ends": ["b", "c"]}, {"ends": ["c", "d"]}],
        }
    )
    before = Exhaustive().plan(landscape(topology, {"a": "a", "b": "b"}), join("q", "ab", "d")).landscape
    with pytest.raises(TopologyError, match="query 'q' has lost its sink 'd'"):
        replan(before, topology.without_site("d"), Exhaustive(), 60.0)
    with pytest.raises(TopologyError, match="the source of stream 'a' has left with site 'a'"):
        replan(before, topology.without_site("a"), Exhaustive(), 60.0)
