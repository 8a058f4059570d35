"""Planning again: nothing is forgotten, usage never grows, what need not move stays."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.place.check import complaints
from anabranch.place.exhaustive import Exhaustive
from anabranch.place.generate import transit_stub
from anabranch.place.hierarchy import build
from anabranch.place.landscape import Landscape
from anabranch.place.planner import Planner
from anabranch.place.removal import tightened
from anabranch.place.replan import afresh, beside, double_work
from anabranch.place.run import deploy
from anabranch.place.top_down import TopDown
from tests.unit.place import builders


def _deployed(random: Random, planner: type, size: int = 12) -> tuple[Landscape, Planner]:
    topology = transit_stub(size, random.randrange(5))
    sites = [site.name for site in topology.sites]
    start = builders.landscape(topology, {stream: random.choice(sites) for stream in "abcd"}, distinct=40.0)
    queries = [
        builders.join(f"q{number}", "".join(random.sample("abcd", random.randint(2, 4))), random.choice(sites))
        for number in range(5)
    ]
    chosen = Exhaustive() if planner is Exhaustive else TopDown(build(topology, 6))
    return tightened(deploy(chosen, start, queries).landscape), chosen


def _is_whole(landscape: Landscape, queries: set[str]) -> None:
    assert set(landscape.queries) == queries
    assert [wrong for query in landscape.queries.values() for wrong in complaints(landscape, query)] == []
    assert not landscape.overloaded_sites


@given(st.integers(0, 10**6), st.sampled_from([Exhaustive, TopDown]))
@settings(max_examples=25, deadline=None)
def test_after_a_change_of_rates_usage_never_grows(seed: int, planner: type) -> None:
    random = Random(seed)
    before, chosen = _deployed(random, planner)
    fast = random.choice("abcd")
    statistics = before.statistics
    changed = replace(
        statistics,
        streams={
            name: replace(one, rate=10 * one.rate if name == fast else one.rate)
            for name, one in statistics.streams.items()
        },
    )
    running = before.under(changed)
    moved, anew = beside(running, chosen), afresh(running, chosen)
    for found in (moved, anew):
        _is_whole(found, set(before.queries))
    assert moved.cost <= running.cost * (1 + 1e-9)
    assert double_work(running, running) == 0
    assert double_work(running, moved) <= moved.cost * (1 + 1e-9)


@given(st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_joins_leave_a_site_that_has_no_capacity_any_more(seed: int) -> None:
    random = Random(seed)
    before, _ = _deployed(random, Exhaustive)
    busy = sorted({one.site for one in before.operators.values() if one.is_join})
    closed = random.choice(busy)
    sites = tuple(replace(s, cpu=0.0) if at == closed else s for at, s in enumerate(before.topology.sites))
    running = before.under(before.statistics, replace(before.topology, sites=sites))
    assert running.overloaded_sites == (closed,)
    found = beside(running, Exhaustive())
    _is_whole(found, set(before.queries))
    kept = [name for name, one in before.operators.items() if one.is_join and one.site != closed]
    event_sites = {found.operators[name].site for name in kept if name in found.operators}
    assert closed not in event_sites


def test_nothing_moves_if_nothing_changed() -> None:
    topology = builders.line(5)
    start = builders.landscape(topology, {"a": "n0", "b": "n4", "c": "n2"})
    queries = [builders.join("q0", "ab", "n4"), builders.join("q1", "abc", "n2")]
    before = tightened(deploy(Exhaustive(), start, queries).landscape)
    assert double_work(before, beside(before, Exhaustive())) == 0


def test_a_query_whose_delivery_is_read_stays_until_its_readers_move() -> None:
    topology = builders.line(3)
    start = builders.landscape(topology, {"a": "n0", "b": "n0"})
    queries = [builders.join("q0", "ab", "n2"), builders.join("q1", "ab", "n2")]
    before = tightened(deploy(Exhaustive(), start, queries).landscape)
    after = beside(before, Exhaustive())
    _is_whole(after, {"q0", "q1"})
