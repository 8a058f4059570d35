"""Meshes on Spark: one that is given, one that replaces it, and one that is looked for while the query runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from anabranch.errors import PlanError
from anabranch.testing.oracle import describe_difference
from tests.host.spark.stories import Story, cut, feed, register, written

pytestmark = pytest.mark.spark

STAR = Story(
    "SELECT a.p AS p0, b.p AS p1, c.p AS p2 FROM s0 [RANGE 10 SECONDS] AS a, s1 [RANGE 6 SECONDS] AS b, "
    "s2 [RANGE 10 SECONDS] AS c WHERE a.x = b.x AND b.x = c.x",
    rows=100,
)
FIRST = "mesh(a: b>c, c>b by (p <= 50.0 ? 0 : 1); b: a>c; c: a>b)"
SECOND = "mesh(a: c>b; b: a|c; c: b>a, a>b by (x <= 1.0 or null ? 0 : 1))"


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


def test_plan_mesh_learns_while_it_runs(spark: SparkSession, tmp_path: Path) -> None:
    story, tables = STAR, STAR.tables()
    query = register(spark, story, tmp_path).sql(story.cql)
    writer = query.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    handle = writer.plan("mesh").slots(1).start(str(tmp_path / "out"))
    try:
        for batch in cut(tables, 6):
            feed(tmp_path, batch)
            handle.processAllAvailable()
    finally:
        handle.stop()
    assert not describe_difference(story.expected(tables), written(tmp_path))
    lines = (tmp_path / "checkpoint" / "anabranch" / "history.jsonl").read_text().splitlines()
    learnt = [record for line in lines if (record := json.loads(line))["kind"] == "mesh"]
    assert learnt
    assert set(learnt[0]["relations"]) == {"a", "b", "c"}
