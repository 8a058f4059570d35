"""The console of a query that runs on Spark: live figures, a change of plan from the page, metrics."""

from __future__ import annotations

import json
from pathlib import Path

import httpx2 as httpx
import pytest
from pyspark.sql import SparkSession

from tests.spark.stories import Story, cut, feed, register

pytestmark = pytest.mark.spark

STORY = Story(
    "SELECT a.p AS p0, b.p AS p1, c.p AS p2 FROM s0 [RANGE 10 SECONDS] AS a, s1 [RANGE 6 SECONDS] AS b, "
    "s2 [RANGE 10 SECONDS] AS c WHERE a.x = b.x AND b.x = c.x",
    rows=60,
)


def test_a_session_shows_its_queries_and_changes_a_plan_from_the_page(spark: SparkSession, tmp_path: Path) -> None:
    batches = list(cut(STORY.tables(), 3))
    session = register(spark, STORY, tmp_path)
    writer = session.sql(STORY.cql).writeStream.format("noop").queryName("shown").plan("((a b) c)")
    handle = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        with session.console(token="secret") as console, httpx.Client(base_url=console.url, timeout=60) as client:
            feed(tmp_path, batches[0])
            handle.processAllAvailable()
            run = f"/api/runs/{handle.runId}"
            with client.stream("GET", f"{run}/events") as events:
                news = (json.loads(line[6:]) for line in events.iter_lines() if line.startswith("data: "))
                while not (found := next(news))["samples"]:
                    pass
            assert found["figures"]["plan"] == "((a b) c)"
            assert {each["stream"]: each["lag"] is None for each in found["figures"]["streams"]} == dict.fromkeys(
                ("s0", "s1", "s2"), False
            )
            (started,) = found["records"]
            assert (started["kind"], started["plan"], started["batch"]) == ("start", "((a b) c)", 0)
            assert started["reason"]
            assert found["status"] == "running"
            assert "rows/s" in client.get(f"{run}/plan.svg").text
            wanted = {"plan": "(a (b c))"}
            assert client.post(f"{run}/migrate", json=wanted).status_code == 401
            answer = client.post(f"{run}/migrate", json=wanted, headers={"Authorization": "Bearer secret"})
            assert answer.json() == {"done": "migrate"}
            feed(tmp_path, batches[1])
            handle.processAllAvailable()
            assert str(handle.plan) == "(a (b c))"
            assert 'anabranch_up{run="shown"} 1.0' in client.get("/metrics").text
    finally:
        handle.stop()
