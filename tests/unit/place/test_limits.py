"""What sites and links can take: loads are the engine's, every planner keeps to them, and nothing fits by accident."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.cost.units import ENGINE
from anabranch.errors import NoFeasiblePlan, StatisticsError, TopologyError
from anabranch.optimize.problem import resource_model
from anabranch.place.check import complaints
from anabranch.place.exhaustive import Exhaustive
from anabranch.place.generate import transit_stub
from anabranch.place.integer_program import IntegerProgram
from anabranch.place.landscape import Landscape
from anabranch.place.planner import Planner
from anabranch.place.run import COMPARED
from anabranch.place.statistics import from_dict as statistics_from
from anabranch.place.topology import Topology, from_dict
from anabranch.plan.physical import JoinNode, Leaf
from anabranch.stats.view import FixedStatistics
from lab.place_workload import Ranges, Workload, random_workload
from tests.unit.place.builders import all_planners, join, landscape, line, planner_for, query


def test_a_join_of_two_sources_needs_what_the_engines_model_says() -> None:
    start = landscape(line(3), {"a": "n0", "b": "n2"}, rate=50.0, distinct=200.0)
    asked = join("q", "ab", "n1", minutes=2)
    after = Exhaustive().plan(start, asked).landscape
    load = after.load(after.operators["q/1"])
    known = FixedStatistics(
        rates={"a": 50.0, "b": 50.0}, selectivities={"a b": 1 / 200.0}, bytes={"a": 100.0, "b": 100.0}
    )
    model = resource_model(asked.query.graph, known)
    expected = model.price(JoinNode((Leaf("a"), Leaf("b"))))
    assert load.cpu == pytest.approx(expected.cpu)
    assert load.memory == pytest.approx(expected.memory)


def test_a_join_without_an_equality_compares_every_pair() -> None:
    start = landscape(line(3), {"a": "n0", "b": "n2"}, rate=50.0)
    text = "SELECT a.x FROM a [RANGE 1 MINUTE], b [RANGE 1 MINUTE] WHERE "
    loads = []
    for condition in ("a.k = b.k AND a.x < b.x", "a.x < b.x"):
        after = Exhaustive().plan(start, query("q", text + condition, "n1")).landscape
        loads.append(after.load(after.operators["q/1"]))
    keyed, compared = loads
    # 3,000 rows on each side, each of 100 new rows a second passes all of the other's.
    assert compared.cpu > 100 * 3000 * ENGINE.compare > keyed.cpu


def test_costs_are_given_by_the_names_of_a_query_file() -> None:
    slow = {"insert": 1e-3, "delete": 0, "probe": 1e-3, "compare": 0, "match": 0}
    entry = {"streams": {"a": {"site": "n0", "rate": 1}}, "costs": slow, "batch": 10}
    given_costs = statistics_from(entry)
    assert (given_costs.units.insert, given_costs.batch) == (1e-3, 10.0)
    assert statistics_from({"streams": {}}).units == ENGINE
    with pytest.raises(StatisticsError, match=r"unknown entry 'stats\.costs\.inserts'"):
        statistics_from({"streams": {}, "costs": {"inserts": 1}})
    with pytest.raises(TopologyError, match="'batch' is 0"):
        statistics_from({"streams": {}, "batch": 0})


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"selectivities": [0.5]}, "entry 'selectivities' is a list"),
        ({"selectivities": {"a.x < 5": "few"}}, "entry 'selectivities.a.x < 5' is 'few'"),
        ({"batch": "often"}, "entry 'batch' is 'often'"),
        ({"record_bytes": "wide"}, "entry 'record_bytes' is 'wide'"),
        ({"record_bytes": -1}, "'record_bytes' is -1"),
        ({"streams": {"a": {"site": "n", "rate": 1, "row_bytes": math.inf}}}, "entry 'streams.a.row_bytes' is inf"),
        (
            {"streams": {"a": {"site": "n", "rate": 1, "column_bytes": {"k": -8}}}},
            "'streams.a.column_bytes.k' is -8",
        ),
    ],
)
def test_numbers_of_a_network_file_that_are_none_are_named(entry: dict[str, object], message: str) -> None:
    with pytest.raises((StatisticsError, TopologyError), match=message):
        statistics_from({"streams": {}, **entry})


def test_selectivities_may_be_left_empty() -> None:
    assert statistics_from({"streams": {}, "selectivities": None}).selectivities == {}


def _limited(topology: Topology, free: Landscape, share: float) -> Topology:
    """The network with sites and links that hold a share more than the largest load or flow in a free landscape."""
    loads = [free.load(operator) for operator in free.operators.values() if operator.is_join]
    flow = max(taken.bytes for operator in free.operators.values() for taken in operator.inputs)
    cpu, memory = max(load.cpu for load in loads), max(load.memory for load in loads)
    return Topology(
        tuple(replace(site, cpu=share * cpu, memory=share * memory) for site in topology.sites),
        tuple(replace(link, bandwidth=share * flow) for link in topology.links),
    )


def _deployed(planner: Planner, workload: Workload, topology: Topology) -> Landscape:
    current = workload.landscape(topology)
    for asked in workload.queries:
        current = planner.plan(current, asked).landscape
    return current


@given(st.integers(0, 1000), st.floats(1.1, 3.0), st.sampled_from(COMPARED))
@settings(max_examples=14, deadline=None)
def test_every_planner_keeps_within_cpu_memory_and_bandwidth(seed: int, share: float, chosen: str) -> None:
    topology = transit_stub(10, seed)
    workload = random_workload(topology, 3, seed, Ranges(streams=4, fewest=2, most=3))
    tight = _limited(topology, _deployed(Exhaustive(), workload, topology), share)
    choice = planner_for(chosen, tight, 4)
    current = workload.landscape(tight)
    for asked in workload.queries:
        before = dict(current.operators)
        try:
            current = choice.plan(current, asked).landscape
        except NoFeasiblePlan:
            assert dict(current.operators) == before
            continue
        assert _worst(current) <= 1 + 1e-6
    for asked in current.queries.values():
        assert complaints(current, asked) == ()


def _worst(landscape: Landscape) -> float:
    """The largest share of a limit that is asked for, added up here once more."""
    shares = [0.0]
    for position, site in enumerate(landscape.topology.sites):
        loads = [landscape.load(o) for o in landscape.operators.values() if o.site == position]
        shares += [sum(load.cpu for load in loads) / site.cpu, sum(load.memory for load in loads) / site.memory]
    for number, link in enumerate(landscape.topology.pairs.values()):
        flows = [
            taken.bytes
            for operator in landscape.operators.values()
            for taken in operator.inputs
            if number in landscape.topology.crossed(landscape.operators[taken.producer].site, operator.site)
        ]
        shares.append(sum(flows) / link.bandwidth)
    return max(shares)


@given(st.integers(0, 1000), st.floats(1.05, 2.0))
@settings(max_examples=4, deadline=None)
def test_the_optimum_within_the_limits_is_found(seed: int, share: float) -> None:
    topology = transit_stub(8, seed)
    workload = random_workload(topology, 3, seed, Ranges(streams=4, fewest=2, most=3))
    tight = _limited(topology, _deployed(Exhaustive(), workload, topology), share)
    current = workload.landscape(tight)
    for asked in workload.queries:
        try:
            found = Exhaustive().plan(current, asked)
        except NoFeasiblePlan:
            with pytest.raises(NoFeasiblePlan):
                IntegerProgram().plan(current, asked)
            continue
        assert found.deployment.cost <= IntegerProgram().plan(current, asked).deployment.cost * (1 + 1e-6) + 1e-6
        current = found.landscape


def test_a_capacity_that_no_placement_meets_leaves_everything_as_it_was() -> None:
    current = landscape(line(4, memory=10.0), {"a": "n0", "b": "n3"})
    before = dict(current.operators)
    for planner in all_planners(current.topology, 2):
        with pytest.raises(NoFeasiblePlan, match="query 'q' fits no placement"):
            planner.plan(current, join("q", "ab", "n2"))
    assert dict(current.operators) == before


def _ring(bandwidth: float) -> Topology:
    """Sources a and b and the sink s meet at x, or farther away at y; the link from x to the sink may be narrow."""
    near = [{"ends": [end, "x"], "cost": 1, **({"bandwidth": bandwidth} if end == "s" else {})} for end in "abs"]
    return from_dict({"sites": list("abxys"), "links": [*near, *({"ends": [end, "y"], "cost": 2} for end in "abs")]})


@pytest.mark.parametrize("bandwidth", [1e6, 1000.0])
def test_a_narrow_link_is_planned_around(bandwidth: float) -> None:
    # 1,500 bytes a second of results; from x they go over the link to the sink, from y they do not.
    start = landscape(_ring(bandwidth), {"a": "a", "b": "b"}, distinct=1600.0)
    for planner in all_planners(start.topology, 2):
        after = planner.plan(start, join("q", "ab", "s")).landscape
        assert after.overloaded_links == ()
        if planner.name == "exhaustive":
            site = after.topology.sites[after.operators["q/1"].site].name
            assert site == ("x" if bandwidth > 1500 else "y")


def test_a_link_that_every_plan_overloads_is_named_and_the_deployments_so_far_stay() -> None:
    topology = from_dict(
        {
            "sites": ["n0", "n1", "n2"],
            "links": [{"ends": ["n0", "n1"], "cost": 1}, {"ends": ["n1", "n2"], "cost": 1, "bandwidth": 2000.0}],
        }
    )
    # One query's 1,500 bytes a second fit through the link to the sinks, a second query's beside them do not.
    start = landscape(topology, {"a": "n0", "b": "n1", "c": "n0"}, distinct=1600.0)
    current = Exhaustive().plan(start, join("first", "ab", "n2")).landscape
    before = dict(current.operators)
    for planner in [*all_planners(topology, 2), IntegerProgram()]:
        with pytest.raises(NoFeasiblePlan, match="query 'second' fits no placement") as refused:
            planner.plan(current, join("second", "ac", "n2"))
        assert dict(current.operators) == before
        assert complaints(current, join("first", "ab", "n2")) == ()
    assert "bytes a second" in refused.value.detail


def test_flows_that_only_together_overload_a_link_name_it() -> None:
    topology = from_dict(
        {
            "sites": ["n0", "n1", "n2"],
            "links": [{"ends": ["n0", "n1"], "cost": 1}, {"ends": ["n1", "n2"], "cost": 1, "bandwidth": 1200.0}],
        }
    )
    # Both inputs come over the link, 1,000 bytes a second each; so would the 3,000 of the result.
    start = landscape(topology, {"a": "n0", "b": "n1"}, distinct=800.0)
    with pytest.raises(NoFeasiblePlan) as refused:
        Exhaustive().plan(start, join("q", "ab", "n2"))
    assert "link 'n1'-'n2'" in refused.value.detail


@given(st.integers(0, 1000), st.integers(8, 30))
@settings(max_examples=10, deadline=None)
def test_the_narrowest_link_of_every_way_is_found(seed: int, size: int) -> None:
    topology = transit_stub(size, seed)
    free = np.random.default_rng(seed).uniform(0.0, 1.0, len(topology.pairs))
    found = topology.narrowest(free, range(size))
    for end in range(size):
        for origin in range(size):
            assert found[end, origin] == min((free[link] for link in topology.crossed(origin, end)), default=np.inf)
