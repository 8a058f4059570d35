"""Constraints of placement: streams that stay in a region, joins that are bound to sites, prices of links."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from anabranch.cli import main as cli
from anabranch.errors import AnabranchError, TopologyError
from anabranch.place.check import complaints
from anabranch.place.exhaustive import Exhaustive
from anabranch.place.landscape import Landscape
from anabranch.place.replan import beside
from anabranch.place.run import COMPARED, Options, deploy, planner_named
from anabranch.place.spec import load_network, load_queries

NETWORK = """
currency: EUR
sites:
  - {name: west, region: eu}
  - {name: inner, region: eu}
  - middle
  - east
links: [{ends: [west, middle], cost: 1}, {ends: [west, inner], cost: 7}, {ends: [middle, east], cost: 1}]
streams:
  a: {site: west, rate: 5, columns: "k bigint, x bigint, ts timestamp", distinct: {k: 1000}}
  b: {site: east, rate: 5000, columns: "k bigint, y bigint, ts timestamp", distinct: {k: 1000}}
"""
PAIR = "SELECT a.x, b.y FROM a [RANGE 10 SECONDS], b [RANGE 5 SECONDS] WHERE a.k = b.k"


def files(folder: Path, *queries: Mapping[str, object], stays: str = "") -> tuple[Path, Path]:
    (folder / "network.yaml").write_text(NETWORK.replace("a: {site: west,", f"a: {{site: west,{stays}"))
    (folder / "queries.yaml").write_text(json.dumps({"queries": queries}))
    return folder / "network.yaml", folder / "queries.yaml"


def sites_of(folder: Path, planner: str, *queries: Mapping[str, object], stays: str = "") -> list[list[str]]:
    """Returns the sites of the new joins of each query."""
    network_file, queries_file = files(folder, *queries, stays=stays)
    network = load_network(network_file)
    bound = load_queries(queries_file, network)
    chosen = planner_named(planner, network.landscape.topology, Options(max_cs=2, iterations=200))
    run = deploy(chosen, network.landscape, bound)
    assert not [one for query in bound for one in complaints(run.landscape, query)]
    return [[one.site for one in decision.deployment.operators] for decision in run.decisions]


@pytest.mark.parametrize("planner", [*COMPARED])
def test_rows_of_a_stream_stay_in_their_region_and_joins_at_their_sites(tmp_path: Path, planner: str) -> None:
    query = {"name": "q", "sink": "west", "query": PAIR}
    assert sites_of(tmp_path, planner, query) == [["east"]]
    assert sites_of(tmp_path, planner, query, stays=" stays_in: eu,")[0][0] in ("west", "inner")
    assert sites_of(tmp_path, planner, {**query, "joins_at": ["inner"]}) == [["inner"]]
    first = {**query, "name": "first"}
    second = {**query, "name": "second", "joins_at": ["inner"]}
    assert sites_of(tmp_path, planner, first, second) == [["east"], ["inner"]], "the join at east is not used"


@pytest.mark.parametrize("planner", [*COMPARED])
def test_a_query_keeps_its_limit_of_latency(tmp_path: Path, planner: str) -> None:
    """The way over `inner` is cheap and slow; the join at `east` is cheap too, for queries that may wait."""
    links = "[{ends: [west, middle], cost: 9, latency: 10}, {ends: [middle, east], cost: 9, latency: 10}"
    links += ", {ends: [west, inner], cost: 1, latency: 40}, {ends: [inner, east], cost: 1, latency: 40}]"
    network = NETWORK.replace(NETWORK[NETWORK.index("links: ") + 7 : NETWORK.index("\nstreams")], links)
    query = {"name": "q", "sink": "middle", "query": PAIR}

    def placed(*queries: Mapping[str, object]) -> tuple[list[str], float]:
        network_file, queries_file = files(tmp_path, *queries)
        network_file.write_text(network)
        loaded = load_network(network_file)
        chosen = planner_named(planner, loaded.landscape.topology, Options(max_cs=2, iterations=200))
        bound = load_queries(queries_file, loaded)
        run = deploy(chosen, loaded.landscape, bound)
        assert not [one for each in bound for one in complaints(run.landscape, each)]
        assert not run.landscape.slow_queries
        last = bound[-1].name
        return [one.site for one in run.decisions[-1].deployment.operators], run.landscape.latency(last)

    sites, latency = placed(query)
    assert sites == ["east"]
    assert latency == 90
    assert placed({**query, "max_latency": 90}) == (sites, 90)
    sites, latency = placed({**query, "max_latency": 89})
    assert latency == 10
    assert sites == ["middle"]
    # The running join is too slow for a second query.
    sites, latency = placed(query, {**query, "name": "fast", "max_latency": 50})
    assert (sites, latency) == (["middle"], 10)
    for text in (
        PAIR,
        "SELECT a.x FROM a [RANGE 10 SECONDS]",
        PAIR.replace(", b [", " LEFT JOIN b [").replace("WHERE", "ON"),
    ):
        with pytest.raises(AnabranchError, match="fits no placement"):
            placed({**query, "query": text, "max_latency": 5})


def test_queries_move_when_links_become_slow(tmp_path: Path) -> None:
    network_file, queries_file = files(tmp_path, {"name": "q", "sink": "west", "query": PAIR, "max_latency": 4})
    network = load_network(network_file)
    (query,) = load_queries(queries_file, network)
    before = Exhaustive().plan(network.landscape, query).landscape

    def slower(latency: float) -> Landscape:
        link = "[middle, east], cost: 1"
        network_file.write_text(NETWORK.replace(link, f"{link}, latency: {latency}"))
        return replace(before, topology=load_network(network_file).landscape.topology)

    def sites(landscape: Landscape) -> list[str]:
        return [before.topology.sites[one.site].name for one in landscape.operators.values() if one.is_join]

    assert (sites(before), before.latency("q")) == (["east"], 4)
    assert slower(1.5).slow_queries == ("q",)
    moved = beside(slower(1.5), Exhaustive())
    assert (sites(moved), moved.latency("q"), moved.slow_queries) == (["middle"], 2.5, ())
    with pytest.raises(AnabranchError, match="fits no placement"):
        beside(slower(3.5), Exhaustive())


def test_what_contradicts_itself_is_refused(tmp_path: Path) -> None:
    for text in (PAIR, PAIR.replace(", b [", " LEFT JOIN b [").replace("WHERE", "ON")):
        with pytest.raises(TopologyError, match="sink at 'east', where rows of its streams may not be"):
            sites_of(tmp_path, "junction", {"name": "q", "sink": "east", "query": text}, stays=" stays_in: eu,")
    with pytest.raises(AnabranchError, match="the site 'west' of the stream is not in it"):
        sites_of(tmp_path, "junction", {"name": "q", "sink": "west", "query": PAIR}, stays=" stays_in: us,")
    with pytest.raises(TopologyError, match="no site 'north'"):
        sites_of(tmp_path, "junction", {"name": "q", "sink": "west", "joins_at": "north", "query": PAIR})
    pinned = {"name": "q", "sink": "west", "joins_at": "east", "query": PAIR}
    with pytest.raises(AnabranchError, match="fits no placement"):
        sites_of(tmp_path, "junction", pinned, stays=" stays_in: eu,")


def test_prices_of_links_are_summed_to_a_month(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network_file, queries_file = files(tmp_path, {"name": "q", "sink": "west", "joins_at": "west", "query": PAIR})
    assert cli.main(["place", str(network_file), str(queries_file)]) == 0
    # 5,000 rows of 100 bytes a second over two links at 1 EUR per GB.
    assert "EUR 2,592.00 a month" in capsys.readouterr().out
