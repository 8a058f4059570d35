"""Sites on an emulated network: the bytes that links carry, and exact answers through cuts, kills and slow links.

Every site is a process in a network namespace of its own; the kernel counts what crosses a link. Without the right to
make namespaces these tests prove nothing, and say so. `SCHEDULES=20` draws as many schedules of faults (half a minute
each); `-o log_cli_level=INFO` shows the figures.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import yaml

from anabranch.place.spec import load_network
from anabranch.sites.client import request
from anabranch.sites.root import Orders, Root
from anabranch.sites.view import plain_status
from examples.sites import bags
from tests.network.namespaces import CONTROL, PORT, Network, NoRights, end

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("drivers of their own")]
EXAMPLE = Path(__file__).parents[2] / "examples" / "sites"
SECRET = {"ANABRANCH_LINKS_SECRET": "of the test"}
_log = logging.getLogger(__name__)
SCHEDULES = int(os.environ.get("SCHEDULES", "2"))


class Airport:
    """The example's sites on the emulated network, with their data and answers."""

    def __init__(self, folder: Path, network: Network, *, joins_at: str | None = None) -> None:
        self.folder, self.network = folder, network
        self.root = Root(str(folder / "root"))
        self.second = 0
        self._chance = Random(3)
        self._sites: dict[str, subprocess.Popen[bytes]] = {}
        document = yaml.safe_load((EXAMPLE / "bags.yaml").read_text())
        for site in document["sites"]:
            if joins_at is not None and site["name"] != joins_at:
                site["cpu"] = 0
        (folder / "network.yaml").write_text(yaml.safe_dump(document))
        (folder / "queries.yaml").write_text((EXAMPLE / "bags-queries.yaml").read_text())
        words = ["-m", "anabranch", "deploy", "network.yaml", "queries.yaml", "--root", "root", "--links", "sites"]
        self._controller = network.start(CONTROL, words, folder / "controller.log", **SECRET)
        self.until("orders are there", lambda: self.root.orders() is not None)
        for site in network.topology.sites:
            self.start(site.name)

    def start(self, site: str) -> None:
        address = f"{self.network.address(site)}:{PORT}"
        words = ["-m", "anabranch", "site", site, "--root", "root", "--store", f"store-{site}", "--listen", address]
        self._sites[site] = self.network.start(site, words, self.folder / f"{site}.log", **SECRET)

    def kill(self, site: str) -> None:
        """Ends a site without warning; its parent process would know, so its lease is free at once."""
        end(self._sites[site], signal.SIGKILL)
        self.root.remove(f"leases/site-{site}.json")

    def feed(self, seconds: int) -> None:
        """Writes the rows of some seconds of event time."""
        for _ in range(seconds):
            bags.write_second(self.folder, self.second, self._chance)
            self.second += 1

    @property
    def orders(self) -> Orders:
        found = self.root.orders()
        assert found is not None
        return found

    @property
    def is_exact(self) -> bool:
        return all(bags.difference(self.folder, query) == 0 for query in bags.QUERIES)

    def until(self, what: str, is_true: object, seconds: float = 300.0) -> None:
        assert callable(is_true)
        limit = time.monotonic() + seconds
        while not is_true():
            logs = [path.read_text()[-600:] for path in self.folder.glob("*.log")]
            assert self._controller.poll() is None, logs
            assert time.monotonic() < limit, f"not within {seconds:g} seconds: {what}; {logs}"
            time.sleep(0.5)

    def close(self) -> None:
        for process in (*self._sites.values(), self._controller):
            if process.poll() is None:
                process.terminate()
        for process in (*self._sites.values(), self._controller):
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                end(process, signal.SIGKILL)


@pytest.fixture
def network() -> Iterator[Network]:
    try:
        with Network(load_network(EXAMPLE / "bags.yaml").landscape.topology) as made:
            yield made
    except NoRights as error:
        pytest.skip(f"nothing was proved: no right to emulate a network here ({error})")


def carried(folder: Path, network: Network, joins_at: str | None) -> tuple[dict[tuple[str, str], int], float]:
    """Runs the example to its end; returns the bytes of each link, and the planned over the measured cost of `status`.

    The plan is that of the network file for the bytes, and afterwards that of what was measured.
    """
    folder.mkdir()
    airport = Airport(folder, network, joins_at=joins_at)
    try:
        airport.feed(5)
        airport.until("the first results are there", lambda: bags.difference(airport.folder, "found") >= 0)
        before = network.bytes()
        for _ in range(30):
            airport.feed(2)
            time.sleep(0.5)
        airport.until("the answers are DuckDB's", lambda: airport.is_exact)
        after = network.bytes()
        said = request(airport.root, "replan")
        status = plain_status(airport.root, airport.orders)
    finally:
        airport.close()
    assert said.startswith("kept"), said
    ratio = status["cost"]["planned"] / status["cost"]["measured"]
    return {link: after[link] - before[link] for link in after}, ratio


def test_planned_placement_costs_less_on_the_wire_than_joins_at_the_sink(tmp_path: Path, network: Network) -> None:
    planned, learnt = carried(tmp_path / "planned", network, None)
    at_sink, learnt_at_sink = carried(tmp_path / "sink", network, "gate")
    ratio = network.cost(planned) / network.cost(at_sink)
    _log.info(f"planned {planned}, at the sink {at_sink}, cost ratio {ratio:.2f}")
    assert ratio <= 0.6
    # The wire has compressed rows, and calls; `status` has values, as the plan.
    flows = json.loads((tmp_path / "planned/root/plan.json").read_text())["flows"]
    expected = 60 * sum(flow["bytes"] * flow["distance"] for flow in flows)
    _log.info(f"cost after learning {expected:,.0f}, on the wire {network.cost(planned):,.0f}")
    assert 0.3 * expected <= network.cost(planned) <= 2 * expected
    _log.info(f"planned over measured cost after learning: {learnt:.2f}, joins at the sink {learnt_at_sink:.2f}")
    assert 0.9 <= learnt <= 1.1
    assert 0.9 <= learnt_at_sink <= 1.1


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_nothing_is_lost_or_repeated_through_cuts_kills_and_slow_links(
    tmp_path: Path, network: Network, seed: int
) -> None:
    chance = Random(seed)
    (tmp_path / "run").mkdir()
    airport = Airport(tmp_path / "run", network)
    links = [(link.left, link.right) for link in network.topology.links]
    sites = [site.name for site in network.topology.sites]
    story = []
    try:
        airport.feed(5)
        airport.until("the first results are there", lambda: bags.difference(airport.folder, "found") >= 0)
        for _ in range(4):
            what, link, site = chance.choice(("cut", "kill", "slow")), chance.choice(links), chance.choice(sites)
            pause = chance.choice((1, 8))
            story.append((what, site if what == "kill" else link, pause))
            match what:
                case "cut":
                    network.cut(*link)
                case "slow":
                    network.limit(*link, "200kbit")
                case "kill":
                    airport.kill(site)
            for _ in range(pause):
                airport.feed(1)
                time.sleep(1)
            match what:
                case "cut":
                    network.heal(*link)
                case "slow":
                    network.unlimit(*link)
                case "kill":
                    airport.start(site)
            airport.feed(2)
        airport.until(f"the answers are DuckDB's after {story}", lambda: airport.is_exact)
    finally:
        _log.info(f"{story}")
        airport.close()
    late = [re.findall(r'"late": ([1-9]\d*)', path.read_text()) for path in (tmp_path / "run/root/status").glob("*")]
    assert not any(late), "no row was late"
