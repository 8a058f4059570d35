"""Operators without Spark: files that are read once and in order, what needs Spark, silent streams, a deployment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from anabranch.errors import CatalogError, SiteError
from anabranch.lang.ddl import parse_schema
from anabranch.run.links.feed import Inlet
from anabranch.sites import tally as tally_module
from anabranch.sites.deployment import Deployment
from anabranch.sites.local import LinkSource, Offsets
from anabranch.sites.local_files import FileSource, ParquetResults, why_spark
from anabranch.sites.operators import DELIVERY, GATE, JOIN
from anabranch.sites.root import Orders
from anabranch.sites.site import Site, runs_light
from anabranch.sites.tally import Tally
from anabranch.sites.waiting import GateProgress, ticks
from anabranch.sites.wanted import Wanted
from anabranch.spec.model import SinkSpec, StreamSpec
from examples.sites import bags, show
from tests.spark.deployed import Deployed, join_of
from tests.unit.sites.test_deployments import PAIR, program_of

SCHEMA = parse_schema("k bigint, x string, ts timestamp")
STREAM = StreamSpec("a", "json", "data", None, SCHEMA, None, "ts", options=(("maxFilesPerTrigger", "3"),))


def nothing() -> tuple[Inlet, ...]:
    return ()


def source_of(folder: Path, stream: StreamSpec = STREAM) -> FileSource:
    control = LinkSource("gate", str(folder / "links"), nothing)
    return FileSource(replace(stream, path=str(folder / "data")), "a", str(folder / "work"), control)


def write(folder: Path, number: int, text: str | None = None) -> None:
    path = folder / "data" / f"{99 - number:02d}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"k": number, "ts": "2024-01-01T00:00:00Z", "y": 0}) if text is None else text)
    os.utime(path, (number, number))


def keys(source: FileSource, start: Any, end: Any) -> list[int]:
    tables, _ = source.batch(start, end)
    return [] if not tables else tables["a"].column("k").to_pylist()


def test_files_are_read_once_by_their_times_also_after_a_restart(tmp_path: Path) -> None:
    assert source_of(tmp_path).latest(None, 64) == source_of(tmp_path).nothing
    taken, offset, source = [], None, source_of(tmp_path)
    for number in range(120):
        write(tmp_path, number)
        end = source.latest(offset, 64)
        again = source_of(tmp_path)
        assert keys(again, offset, end) == keys(source, offset, end)
        taken += keys(again, offset, end)
        offset, source = end, again
    assert taken == [*range(120)]
    assert len(os.listdir(tmp_path / "work/anabranch/files")) < 120, "chunks of the list are merged"
    for number in range(120, 127):
        write(tmp_path, number)
    end = source.latest(offset, 64)
    assert keys(source, offset, end) == [120, 121, 122], "maxFilesPerTrigger"
    assert source.latest(end, 64)["files"] == 126
    assert source.batch(None, {**end, "files": 1})[0]["a"].column("x").to_pylist() == [None]


@pytest.mark.parametrize("text", ['{"k": "one", "ts": null}', '{"k": 1'])
def test_a_file_that_does_not_fit_its_stream_is_named(tmp_path: Path, text: str) -> None:
    write(tmp_path, 1, text)
    source = source_of(tmp_path)
    with pytest.raises(CatalogError, match=r"98\.json' does not plainly have the columns"):
        source.batch(None, source.latest(None, 64))
    parquet.write_table(pa.table({"k": ["one"]}), tmp_path / "data" / "98.json")
    source = source_of(tmp_path, replace(STREAM, format="parquet"))
    with pytest.raises(CatalogError, match="does not plainly have the columns of its stream"):
        source.batch(None, source.latest(None, 64))


def test_a_repeated_batch_replaces_its_file(tmp_path: Path) -> None:
    for times in (1, 2):
        results = ParquetResults(str(tmp_path / "out"), {}, "0123456789")
        results(0, pa.table({"k": [1] * times}))
        results(1, pa.table({"k": pa.array([], pa.int64())}))
    assert parquet.read_table(tmp_path / "out").num_rows == 2
    assert len([*(tmp_path / "out").glob("*")]) == 1


def test_an_operator_that_ran_on_spark_continues_with_its_log(tmp_path: Path) -> None:
    log = tmp_path / "spark" / "offsets"
    log.mkdir(parents=True)
    (log / "4").write_text('v1\n{"batchWatermarkMs":0}\n{"in0": {"a--b.in0.1": {"at": 7, "start": 0}}}')
    offsets = Offsets(str(tmp_path))
    assert offsets.read(4) == {"in0": {"a--b.in0.1": {"at": 7, "start": 0}}}
    assert offsets.read(5) is None
    for batch in range(5, 9):
        offsets.log(batch, {"in0": {}})
    assert sorted(offsets.names("offsets")) == ["000000006.json", "000000007.json", "000000008.json"]


def test_operators_run_where_their_site_and_their_files_allow(tmp_path: Path) -> None:
    program = program_of(tmp_path, ("q", "west", PAIR))
    by_kind = {spec.kind: spec for spec in program.operators.values()}
    gate = next(spec for spec in program.operators.values() if spec.kind == GATE and spec.serves == "a")
    sources = {name: replace(STREAM, name=name) for name in "ab"}
    orders = Orders(Wanted(), sources, {"q": SinkSpec("parquet", "out")})
    checkpoint = str(tmp_path / "work")

    def decided(orders: Orders) -> list[bool]:
        return [runs_light(spec, orders, checkpoint) for spec in (gate, by_kind[JOIN], by_kind[DELIVERY])]

    assert decided(orders) == [True, False, True]
    assert decided(replace(orders, runners={"west": "light", "east": "light"})) == [True, True, True]
    assert decided(replace(orders, runners={"west": "spark", "east": "spark"})) == [False, False, False]
    for stream, why in (
        (replace(STREAM, format="kafka"), "has the format 'kafka'"),
        (replace(STREAM, path="s3://bucket/a"), "is not in a local folder"),
        (replace(STREAM, path="data/*.json"), "is not in a local folder"),
        (replace(STREAM, options=(("multiLine", "true"),)), "has the option 'multiLine'"),
        (replace(STREAM, schema=parse_schema("k binary, ts timestamp")), "a column of a type"),
    ):
        other = replace(orders, sources={"a": stream, "b": STREAM})
        assert why in str(why_spark(gate, other))
        assert decided(other)[0] is False
        with pytest.raises(SiteError, match="needs Spark, and site 'west' has 'runner: light'"):
            runs_light(gate, replace(other, runners={"west": "light"}), checkpoint)
    for sink, why in (
        (SinkSpec("csv", "out"), "the sink is 'csv'"),
        (SinkSpec("parquet", "out", partition_by=("x",)), "with partitions"),
        (SinkSpec("parquet", "out", options=(("mergeSchema", "true"),)), "has the option 'mergeSchema'"),
        (SinkSpec("parquet", "out", options=(("compression", "odd"),)), "not a compression"),
    ):
        assert why in str(why_spark(by_kind[DELIVERY], replace(orders, sinks={"q": sink})))
    (tmp_path / "work" / "spark").mkdir(parents=True)
    assert decided(orders) == [False, False, False], "they began on Spark"
    with pytest.raises(SiteError, match="needs Spark"):
        runs_light(gate, replace(orders, runners={"west": "light"}), checkpoint)
    assert runs_light(by_kind[JOIN], replace(orders, runners={"west": "light"}), checkpoint)
    (tmp_path / "work" / "anabranch" / "offsets").mkdir(parents=True)
    assert decided(orders) == [True, True, True], "they began here"


SECOND = 1_000_000


def gate(newest: int | None, silence: int, timeout: int | None = 30, watermark: int | None = None) -> GateProgress:
    reached = watermark if watermark is not None or newest is None else newest - 2
    return GateProgress(
        None if reached is None else reached * SECOND,
        None if newest is None else newest * SECOND,
        silence * SECOND,
        None if timeout is None else timeout * SECOND,
        2 * SECOND,
    )


def test_a_silent_gate_follows_the_others_and_then_the_clock() -> None:
    assert ticks({"a": gate(100, 0), "b": gate(50, 29)}) == {}
    assert ticks({"a": gate(100, 0), "b": gate(50, 30)}) == {"b": 100 * SECOND}
    assert ticks({"a": gate(100, 0), "b": gate(None, 30)}) == {"b": 100 * SECOND}
    assert ticks({"a": gate(100, 0), "b": gate(50, 99, timeout=None), "c": gate(40, 30)}) == {"c": 50 * SECOND}
    assert ticks({"a": gate(None, 0), "b": gate(50, 30)}) == {}, "nobody knows how far 'a' is"
    # All are silent: the clock moves, less the timeout, in quarters of it.
    assert ticks({"a": gate(100, 30), "b": gate(90, 40)}) == {"b": 100 * SECOND}
    assert ticks({"a": gate(100, 40), "b": gate(90, 50)}) == {"a": 110 * SECOND, "b": 110 * SECOND}
    assert ticks({"a": gate(100, 40, watermark=105)}) == {}, "not a quarter of 30 seconds yet"
    assert ticks({"a": gate(100, 48, watermark=105)}) == {"a": 118 * SECOND}
    assert ticks({"a": gate(None, 40)}) == {}


def light_network(**more: str) -> dict[str, object]:
    def stream(site: str, rate: float, columns: str, key: str, name: str) -> dict[str, object]:
        source = {"format": "json", "path": f"data/{name}", "options": {"maxFilesPerTrigger": 4}}
        columns = f"{columns}, ts timestamp"
        return {"site": site, "rate": rate, "columns": columns, "distinct": {key: 20}, "source": source, **more}

    return {
        "sites": [{"name": name, "runner": "light"} for name in ("west", "middle", "east")],
        "links": [{"ends": ["west", "middle"], "latency": 5}, {"ends": ["middle", "east"], "latency": 5}],
        "streams": {
            "flights": stream("west", 5, "num bigint, gate string", "num", "flights"),
            "checkins": stream("middle", 10, "flight bigint, status string", "flight", "checkins"),
            "baggage": stream("east", 10, "flight bigint, area string", "flight", "baggage"),
        },
    }


DISPLAY = (
    "SELECT fl.num, fl.gate, ci.status FROM flights [RANGE 3 SECONDS] AS fl, checkins [RANGE 2 SECONDS] AS ci "
    "WHERE fl.num = ci.flight"
)


def test_sites_without_spark_deploy_change_and_finish_while_all_streams_are_silent(tmp_path: Path) -> None:
    """Over TCP; a query with a longer window joins, its join replaces the running one, and no row arrives meanwhile."""
    deployed = Deployed(tmp_path, None, light_network(idle_timeout="1 second"), {"display": ("east", DISPLAY)})
    wide = DISPLAY.replace("RANGE 3", "RANGE 5")
    deployed.write("wide.yaml", {"wide": ("east", wide)})
    deployed._chance = Random(5)
    deployed.feed(20)
    deployed.begin(deployed.root.place_at_sites)
    for site in ("west", "middle", "east"):
        deployed.start_site(site)
    try:
        deployed.await_answer("display", join_of("num, gate, status", {"flights": 3, "checkins": 2}))
        assert {one["runner"] for one in deployed.status()["operators"].values()} == {"light"}
        assert deployed.ask("add", file=str(tmp_path / "wide.yaml")) == "adding wide"
        deployed.await_("the change is through", deployed.is_settled)
        deployed.second += 3600  # the streams are back, an hour later
        deployed.feed(20)
        deployed.await_answer("display", join_of("num, gate, status", {"flights": 3, "checkins": 2}))
        joined = deployed.status()["queries"]["wide"]
        since = joined["complete_from"], joined["rows_from"]
        deployed.await_answer("wide", join_of("num, gate, status", {"flights": 5, "checkins": 2}, since=since))
        assert deployed.late() == 0
    finally:
        deployed.end()
    assert not deployed.root.names("leases")
    assert show.results(tmp_path, "display")


UNSEEN = (
    "SELECT bg.flight, ar.hall, ci.status FROM baggage [RANGE 2 SECONDS] AS bg JOIN areas AS ar ON bg.area = ar.area "
    "LEFT JOIN checkins [RANGE 2 SECONDS] AS ci ON bg.flight = ci.flight AND ci.status <> 'status-1'"
)


def test_an_outer_join_with_a_table_runs_at_its_sink(tmp_path: Path) -> None:
    """Also one that joins later: it has the answer over the rows since. Sites keep their checkpoints."""
    areas = {"columns": "area string, hall bigint", "source": {"format": "parquet", "path": "data/areas.parquet"}}
    network = {**light_network(idle_timeout="1 second"), "tables": {"areas": areas}}
    (tmp_path / "data").mkdir()
    rows = pa.table({"area": [f"area-{number}" for number in range(3)], "hall": [7, 8, 8]})
    parquet.write_table(rows, tmp_path / "data" / "areas.parquet")
    deployed = Deployed(tmp_path, None, network, {"unseen": ("middle", UNSEEN)})
    deployed.write("later.yaml", {"later": ("east", UNSEEN)})
    deployed.feed(10)
    deployed.begin(deployed.root.place_at_sites)

    def wanted(since: int = 0) -> str:
        checked = f"SELECT * FROM checkins WHERE micros >= {since} AND status <> 'status-1'"
        return (
            f"SELECT bg.flight, ar.hall, ci.status FROM (SELECT * FROM baggage WHERE micros >= {since}) AS bg "
            f"JOIN '{tmp_path}/data/areas.parquet' AS ar ON bg.area = ar.area LEFT JOIN ({checked}) AS ci "
            "ON bg.flight = ci.flight AND abs(bg.micros - ci.micros) <= 2000000"
        )

    for site in ("west", "middle", "east"):
        deployed.start_site(site, str(tmp_path / f"own-{site}"))
    try:
        deployed.await_answer("unseen", wanted())
        assert not (tmp_path / "root" / "work").exists(), "sites keep their checkpoints"
        # A site that was ended continues with its own folder only.
        deployed.end_site("middle")
        with pytest.raises(SiteError, match=r"keeps its checkpoints in '.*own-middle', not in the root"):
            Site(deployed.root, "middle", deployed._session).run()
        (tmp_path / "own-middle").rename(tmp_path / "elsewhere")
        deployed.start_site("middle", str(tmp_path / "own-middle"))
        deployed.await_("the loss is named", lambda: "is not in" in str(deployed.errors()))
        deployed.end_site("middle")
        (tmp_path / "elsewhere").rename(tmp_path / "own-middle")
        deployed.start_site("middle", str(tmp_path / "own-middle"))
        deployed.await_("all sites are back", lambda: not deployed.errors())
        assert {(one["kind"], one["runner"]) for one in deployed.status()["operators"].values()} == {
            (GATE, "light"),
            (DELIVERY, "light"),
        }
        assert deployed.ask("add", file=str(tmp_path / "later.yaml")) == "adding later"
        deployed.await_("the change is through", deployed.is_settled)
        deployed.second += 3600
        deployed.feed(10)
        since = deployed.status()["queries"]["later"]["complete_from"]
        deployed.await_answer("later", wanted(since))
        deployed.await_answer("unseen", wanted())
        assert deployed.late() == 0
    finally:
        deployed.end()


def test_ticks_do_not_end_a_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 100.0
    monkeypatch.setattr(tally_module, "now", lambda: clock)
    tally = Tally()
    tally.add(5, 0, 1, 3)
    clock = 200.0
    tally.add(0, 0, 7, 9)
    assert (tally.heard, tally.newest, tally.rows, tally.rate) == (100.0, 3, 0, 0.0)
    tally.add(5, 1, 1_000_001, 12)
    assert (tally.heard, tally.newest, tally.late, tally.rate) == (200.0, 12, 1, 5.0)


def test_a_deployment_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "network.yaml").write_text("sites: [a, a]\nlinks: []\nstreams: {}")
    (tmp_path / "queries.yaml").write_text("queries: []")
    with pytest.raises(SiteError, match="the deployment did not start") as refused:
        Deployment.start(tmp_path / "network.yaml", tmp_path / "queries.yaml", tmp_path / "root")
    assert "site 'a' is listed twice" in " ".join(refused.value.detail.split())
    with pytest.raises(SiteError, match="nothing is deployed"):
        _ = Deployment(tmp_path / "other").status


@pytest.mark.slow
def test_the_example_of_bags_runs_as_its_page_says(tmp_path: Path) -> None:
    words = [sys.executable, str(Path(bags.__file__)), "--folder", str(tmp_path / "bags")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("as DuckDB has it") == 2
    assert "at desks" in done.stdout
    assert "left: first-flights; problems: none" in done.stdout
