"""Meshes on Spark: one that is given, one that replaces it, and one that is looked for while the query runs."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pyspark.sql import SparkSession

from anabranch.adapt.rules import ChangeRules
from anabranch.cql import compile_query
from anabranch.errors import PlanError
from anabranch.lang.schema import TIMESTAMP
from anabranch.plan.mesh import Mesh
from anabranch.run.stream_sample import sample_streams
from anabranch.spark.sample import FrameSample
from anabranch.spec.file import load
from anabranch.spec.launch import prepare
from anabranch.stats.mesh.learnt import LearntMesh
from tests.spark.stories import Story, cut, feed, register, table, written
from tests.support.oracle import describe_difference

pytestmark = pytest.mark.spark

STAR = Story(
    "SELECT a.p AS p0, b.p AS p1, c.p AS p2 FROM s0 [RANGE 10 SECONDS] AS a, s1 [RANGE 6 SECONDS] AS b, "
    "s2 [RANGE 10 SECONDS] AS c WHERE a.x = b.x AND b.x = c.x",
    rows=100,
)
LACKING = Story(
    "SELECT a.p AS p0, b.p AS p1, c.p AS p2, d.p AS p3 FROM s0 [RANGE 10 MILLISECONDS] AS a, "
    "s1 [RANGE 10 MILLISECONDS] AS b, s2 [RANGE 10 MILLISECONDS] AS c, s3 [RANGE 10 MILLISECONDS] AS d "
    "WHERE a.x = b.x AND b.x = c.x AND c.x = d.x"
)
TOGETHER = 2_000
FIRST = "mesh(a: b>c, c>b by (p <= 50.0 ? 0 : 1); b: a>c; c: a>b)"
ROWS = 4_000
SCHEMA = "ts timestamp, k bigint, kind bigint"
SECOND = "mesh(a: c>b; b: a>c; c: b>a, a>b by (x <= 1.0 or null ? 0 : 1))"


def test_a_mesh_runs_and_is_replaced_without_moving_state(spark: SparkSession, tmp_path: Path) -> None:
    story, tables = STAR, STAR.tables()
    query = register(spark, story, tmp_path).sql(story.cql)
    writer = query.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(PlanError, match="does not probe every other relation once"):
        writer.plan("mesh(a: b; b: a>c; c: a>b)").start(str(tmp_path / "out"))
    handle = writer.plan(FIRST).slots(2).start(str(tmp_path / "out"))
    try:
        for number, batch in enumerate(cut(tables, 4)):
            feed(tmp_path, batch)
            handle.processAllAvailable()
            if number == 1:
                handle.migrate(SECOND)
        assert str(handle.plan) == SECOND
        progress = [seen["adaptive"] for seen in handle.recentProgress if seen["adaptive"]]
    finally:
        handle.stop()
    assert not describe_difference(story.expected(tables), written(tmp_path))
    assert all(slot["hot"] for slot in progress[-1]["slotStatistics"])
    assert {route["relation"] for route in progress[-1]["statistics"]["routes"]} == {"a", "b", "c"}


def test_plan_mesh_learns_while_it_runs(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.planning.choosing.ChangeRules", partial(ChangeRules, waits=True))
    story, tables = STAR, STAR.tables()
    query = register(spark, story, tmp_path).sql(story.cql)
    writer = query.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    handle = writer.plan("mesh").slots(1).start(str(tmp_path / "out"))
    try:
        for batch in cut(tables, 10):
            feed(tmp_path, batch)
            handle.processAllAvailable()
    finally:
        handle.stop()
    assert not describe_difference(story.expected(tables), written(tmp_path))
    lines = (tmp_path / "checkpoint" / "anabranch" / "history.jsonl").read_text().splitlines()
    decided = [record for line in lines if (record := json.loads(line))["kind"] == "decision"]
    assert decided[0]["origin"] == "search"
    assert decided[0]["trigger"] == "batch 7 has passed"
    assert set(decided[0]["mesh"]["relations"]) == {"a", "b", "c"}


def lacking(number: int, number_of_batch: int, rng: np.random.Generator) -> pa.Table:
    """Rows of a stream in ten milliseconds. Of four kinds of keys, each stream lacks one, but for a key that all have.

    The streams are fast, so that a change is worth what the gate asks for.
    """
    kind = rng.integers(0, 4, TOGETHER)
    keys = rng.integers(0, 80, TOGETHER) + 100 * kind
    keys[kind == number] += 10_000 * (number + 1)
    keys[::400] = 999
    times = (number_of_batch + np.sort(rng.random(TOGETHER))) / 100
    rows = zip(times.tolist(), keys.tolist(), range(TOGETHER), strict=True)
    return table([(round(at, 6), key, TOGETHER * number_of_batch + place) for at, key, place in rows])


def test_a_mesh_that_is_learnt_while_the_query_runs_is_taken_and_changes_no_answer(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Costs are measured in the workers here, but rows that meet six others or none decide whatever the clock says."""
    monkeypatch.setattr("anabranch.planning.choosing.ChangeRules", partial(ChangeRules, waits=True))
    rng = np.random.default_rng(1)
    tables = {f"s{number}": [lacking(number, second, rng) for second in range(11)] for number in range(4)}
    query = register(spark, LACKING, tmp_path).sql(LACKING.cql)
    writer = query.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    handle = writer.plan("mesh").slots(1).start(str(tmp_path / "out"))
    try:
        for second in range(11):
            feed(tmp_path, {name: several[second] for name, several in tables.items()})
            handle.processAllAvailable()
        plan, progress = handle.plan, [seen["adaptive"] for seen in handle.recentProgress if seen["adaptive"]]
    finally:
        handle.stop()
    assert isinstance(plan, Mesh)
    assert LearntMesh(plan, {}).is_mesh
    whole = {name: pa.concat_tables(several) for name, several in tables.items()}
    assert not describe_difference(LACKING.expected(whole), written(tmp_path))
    # The batch before it was taken, and the last one: more rows, fewer combinations.
    taken = next(place for place, seen in enumerate(progress) if "mesh" in seen["plan"])
    made = [sum(probe["matches"] for probe in seen["statistics"]["probes"]) for seen in progress]
    assert made[-1] < made[taken - 1] / 2


def test_large_streams_are_sampled_by_values_of_the_key_that_they_share(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch.run.stream_sample.MOST_ROWS", 500)
    rng, query = np.random.default_rng(1), compile_query(LACKING.cql, LACKING.catalog())
    tables = {f"s{number}": lacking(number, 0, rng) for number in range(4)}
    for name, rows in tables.items():
        pq.write_table(rows, tmp_path / f"{name}.parquet")
    frames = {name: FrameSample(spark.read.parquet(str(tmp_path / f"{name}.parquet"))) for name in tables}
    (sample,) = sample_streams([query], frames)
    assert sample.kin is not None
    assert sample.kin.share == pytest.approx(500 / TOGETHER)
    code = sample.kin.key.name
    drawn = {key for batch in sample.kin.rows.values() for key in batch.codes[code].tolist()}
    assert 30 < len(drawn) < 200
    for relation in query.graph.relations:
        kept = sample.kin.rows[relation.name].codes[code].tolist()
        every = tables[relation.stream].column("x").to_pylist()
        # All rows of a value that was drawn are there, and the other sample has some rows of any value.
        assert sorted(kept) == sorted(key for key in every if key in drawn)
        assert not set(sample.rows[relation.name].codes[code].tolist()) <= drawn


@pytest.mark.usefixtures("counted_costs")
def test_a_mesh_is_learnt_from_a_sample_and_explained(spark: SparkSession, tmp_path: Path) -> None:
    """Orders of two kinds: one finds no payment and the other no shipment, so each should look there first."""
    rng, streams = np.random.default_rng(1), {}
    for name in ("orders", "payments", "shipments", "reviews"):
        kind = rng.integers(0, 2, ROWS)
        keys = rng.integers(0, 500, ROWS) + 1_000 * kind
        keys[kind == {"payments": 0, "shipments": 1}.get(name, 2)] += 10_000 * (2 + len(name))
        times = pa.array(np.sort(rng.integers(0, 30_000_000, ROWS))).cast(pa.timestamp("us"))
        table = pa.table({"ts": times.cast(TIMESTAMP), "k": keys, "kind": kind})
        (tmp_path / name).mkdir()
        pq.write_table(table, tmp_path / name / "0.parquet")
        streams[name] = {"format": "parquet", "path": name, "schema": SCHEMA, "event_time": "ts"}
    windows = ", ".join(f"{name} [RANGE 20 SECONDS]" for name in streams)
    joined = " AND ".join(f"orders.k = {name}.k" for name in list(streams)[1:])
    document = {
        "streams": streams,
        "query": f"SELECT orders.k AS k, orders.kind AS kind FROM {windows} WHERE {joined}",
        "sink": {"format": "parquet", "path": "out"},
        "checkpoint": "checkpoint",
        "slots": 1,
        "trigger": "available_now",
        "plan": "mesh",
    }
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(document))
    writer = prepare(load(tmp_path / "spec.yaml"), spark)
    text = writer.explanation()
    assert "mesh taken: requested" in text
    assert "over the best single routes, by the sample" in text
    assert "route 0: any " in text
    assert "existence probes of payments gain +" in text
    handle = writer.start()
    handle.awaitTermination()
    routes = handle.recentProgress[0]["adaptive"]["statistics"]["routes"]
    assert any(hop["operator"].endswith("?") for route in routes for hop in route["hops"])
    assert handle.report()["rows_in"] == 4 * ROWS
