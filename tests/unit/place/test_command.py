"""The `place` command and the files it reads."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from anabranch.cost.units import ENGINE
from anabranch.errors import AnabranchError, SpecError, TopologyError
from anabranch.place import command
from anabranch.place.picture import _offsets
from anabranch.place.run import COMPARED, PLANNERS, Options, deploy, planner_named
from anabranch.place.spec import Network, load_network, load_queries
from anabranch.planning.calibration import save_units

EXAMPLES = Path(__file__).parents[3] / "examples"
NETWORK, QUERIES = EXAMPLES / "network.yaml", EXAMPLES / "airline-queries.yaml"


def _run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser.add_subparsers())
    parsed = parser.parse_args(["place", *arguments])
    status: int = parsed.run(parsed)
    return status


def test_the_example_runs_with_every_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    picture, written = tmp_path / "net.svg", tmp_path / "deployments.json"
    options = ("--max-cs", "4", "--compare", "--picture", str(picture), "--json", str(written))
    assert _run(str(NETWORK), str(QUERIES), *options) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMPARED)
    assert picture.read_text().lstrip().startswith("<?xml")
    assert [one["query"] for one in json.loads(written.read_text())][:2] == ["hall-a-display", "gate-17"]


def test_reuse_against_new_joins_and_the_bounds_are_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    assert _run(str(NETWORK), str(QUERIES), "--planner", "top-down", "--max-cs", "4") == 0
    plans, searches = capsys.readouterr().out.split("search of each query")
    (gate,) = (line for line in plans.splitlines() if "gate-18" in line)
    # The docs tell this case: reuse would cost three times as much.
    assert [cell.strip() for cell in gate.split("│")[-4:-1]] == ["28", "86", "28"]
    assert "Lemma 1" in searches
    (gate,) = (line for line in searches.splitlines() if "gate-18" in line)
    considered, everything, most, _ = (int(cell.replace(",", "")) for cell in gate.split("│")[2:-1])
    # Three streams over twelve sites; two searches over three levels of clusters of four.
    assert (everything, most) == (3 * 12**2, 2 * 3 * 3 * 4**2)
    assert considered <= most
    assert _run(str(NETWORK), str(QUERIES)) == 0
    assert "Theorem" not in capsys.readouterr().out, "the theorems are about planners with clusters"


@pytest.mark.parametrize("name", COMPARED)
def test_every_planner_can_be_asked_for_by_name(name: str) -> None:
    network = load_network(NETWORK)
    queries = load_queries(QUERIES, network)
    run = deploy(planner_named(name, network.landscape.topology, Options(max_cs=4)), network.landscape, queries)
    assert len(run.decisions) == len(queries)
    assert run.landscape.cost == pytest.approx(sum(d.deployment.cost for d in run.decisions))


def test_an_unknown_planner_lists_the_known_ones() -> None:
    topology = load_network(NETWORK).landscape.topology
    with pytest.raises(SpecError, match="unknown planner 'best'") as caught:
        planner_named("best", topology, Options())
    assert all(name in caught.value.hint for name in PLANNERS)


def test_traffic_times_cost_is_the_network_usage() -> None:
    network = load_network(NETWORK)
    queries = load_queries(QUERIES, network)
    landscape = deploy(
        PLANNERS["exhaustive"](network.landscape.topology, Options()), network.landscape, queries
    ).landscape
    costs = [link.cost for link in landscape.topology.pairs.values()]
    assert sum(landscape.traffic * costs) == pytest.approx(landscape.cost)


@pytest.mark.parametrize(
    ("network", "queries", "message"),
    [
        ("sites: [a]\nlinks: []\n", "queries: []", "entry 'streams' is missing"),
        ("sites: [a]\nlinks: []\nstreams: {s: {site: a}}\n", "queries: []", "entry 'streams.s.rate' is missing"),
        (
            "sites: [a]\nlinks: []\nstreams: {s: {site: a, rate: 1}}\n",
            "queries: []",
            "streams.s.columns' is missing",
        ),
        (
            "sites: [a]\nlinks: []\nstreams: {s: {site: a, rate: -1, columns: ts timestamp}}\n",
            "queries: []",
            "s.rate' is -1",
        ),
        ("generate: {seed: 1}\nstreams: {}\n", "queries: []", "entry 'generate.size' is missing"),
        ("sites: [a]\nlinks: []\nstreams: {s: {site: b, rate: 1, columns: ts timestamp}}\n", "queries: []", "site 'b'"),
        ("sites: [a]\nlinks: []\nstreams: {}\n", "{}", "entry 'queries' is missing"),
        ("sites: [a]\nlinks: []\nstreams: {}\n", "query:", "unknown entry 'query'"),
        ("sites: [a]\nlinks: []\nstreams: {}\nselectivity: {}\n", "queries: []", "unknown entry 'selectivity'"),
        ("sites: [{name: a, memroy: 1}]\nlinks: []\nstreams: {}\n", "queries: []", "entry 'sites.0.memroy'"),
        ("sites: [a, b]\nlinks: [{ends: [a, b], lag: 1}]\nstreams: {}\n", "queries: []", "entry 'links.0.lag'"),
        (
            "sites: [a]\nlinks: []\nstreams: {s: {site: a, rate: 1, columns: ts timestamp, watermrk: 1 second}}\n",
            "queries: []",
            "unknown entry 'streams.s.watermrk'",
        ),
        (
            "sites: [a]\nlinks: []\nstreams: {}\n",
            "queries: [{name: q, sink: a, query: SELECT, in: out}]",
            "unknown entry 'queries.0.in'",
        ),
        ("sites: [a]\nlinks: []\nstreams: {}\n", "queries: [{name: q, sink: a}]", "entry 'queries.0.query' is missing"),
        (
            "sites: [a]\nlinks: []\nstreams: {}\n",
            "queries: [{name: q, sink: a, query: 'SELECT t.x FROM t [RANGE 1 MINUTE]'}]",
            r"query 'q' of .* cannot be bound\nstream 't' does not exist",
        ),
        (
            "sites: [a]\nlinks: []\nstreams: {s: {site: a, rate: 1, columns: ts timestamp}}\n",
            "queries: [{name: q, sink: a, query: 'SELECT u.ts FROM (SELECT s.ts FROM s [NOW]) [NOW] AS u'}]",
            "query 'q' of .* cannot be placed: it reads a subquery",
        ),
        ("[", "queries: []", "is not YAML"),
        ("- a", "queries: []", "network.yaml' is a list"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, network: str, queries: str, message: str) -> None:
    (tmp_path / "network.yaml").write_text(network)
    (tmp_path / "queries.yaml").write_text(queries)
    with pytest.raises(AnabranchError, match=message):
        _run(str(tmp_path / "network.yaml"), str(tmp_path / "queries.yaml"), "--planner", "exhaustive")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read"):
        load_network(tmp_path / "none.yaml")


def _generated(folder: Path, wish: str, more: str = "") -> Network:
    path = folder / "network.yaml"
    path.write_text(f"generate: {wish}\nstreams: {{s: {{site: t0, rate: 1, columns: ts timestamp}}}}\n{more}\n")
    return load_network(path)


def test_networks_can_be_generated_with_limits(tmp_path: Path) -> None:
    assert len(_generated(tmp_path, "{size: 20, seed: 3}").landscape.topology.sites) == 20
    limited = _generated(tmp_path, "{size: 20, memory: 1.0e+6, stub_bandwidth: 1000}").landscape.topology
    assert {site.memory for site in limited.sites} == {1e6}
    assert {link.bandwidth for link in limited.links} == {1000.0, math.inf}
    with pytest.raises(TopologyError, match=r"unknown entry 'generate\.bandwidth'"):
        _generated(tmp_path, "{size: 20, bandwidth: 5}")


def test_a_calibration_gives_the_costs_of_a_networks_sites(tmp_path: Path) -> None:
    save_units(replace(ENGINE, probe=0.5), tmp_path / "here.json")
    assert _generated(tmp_path, "{size: 8}", "costs: here.json").landscape.statistics.units.probe == 0.5
    with pytest.raises(SpecError, match=r"calibration file 'there\.json'"):
        _generated(tmp_path, "{size: 8}", "costs: there.json")


def test_names_in_the_picture_keep_out_of_each_others_way() -> None:
    places = np.array([[0.0, 0.0], [0.02, 0.0], [1.0, 1.0]])
    found = _offsets({0: "a long name", 1: "another name", 2: "far away"}, places, [0, 1, 2])
    assert found[0][0] < 0 < found[1][0]
    assert found[2] == (7, 5)
