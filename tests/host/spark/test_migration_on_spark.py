"""On Spark, too, plans of running queries change and answers do not: by hand, slot by slot, and through a crash."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from anabranch.api import QueryHandle
from anabranch.errors import MigrationError, PlanError
from anabranch.testing.oracle import describe_difference
from tests.host.spark.stories import Story, cut, feed, register, run, written
from tests.host.spark.test_crash import crash

pytestmark = pytest.mark.spark

JOIN = Story(
    "SELECT a.p AS p0, b.p AS p1, c.p AS p2 FROM s0 [RANGE 10 SECONDS] AS a, s1 [RANGE 6 SECONDS] AS b, "
    "s2 [RANGE 10 SECONDS] AS c WHERE a.x = b.x AND b.y = c.y",
    disorder={"s1": 2},
    rows=100,
)


def test_plans_change_by_hand_and_slots_differ(spark: SparkSession, tmp_path: Path) -> None:
    story, tables = JOIN, JOIN.tables()
    batches = iter(cut(tables, 8))
    query = register(spark, story, tmp_path).sql(story.cql)
    writer = query.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    handle = writer.plan("((a b) c)").slots(2).start(str(tmp_path / "out"))

    def step() -> dict[str, Any]:
        """One more cut of the rows; Spark may see its files one after another and make several batches of it."""
        feed(tmp_path, next(batches))
        handle.processAllAvailable()
        latest: dict[str, Any] = told(handle)[-1]
        return latest

    try:
        step()
        handle.migrate("(a (b c))", "moving-state")
        assert step()["plans"] == ["(a (b c))", "(a (b c))"]
        (changed,) = [batch for batch in told(handle) if any(record["phase"] == "began" for record in batch["records"])]
        assert all(slot["hot"] for slot in changed["slotStatistics"])
        assert [record["phase"] for record in changed["records"]] == ["began", "ended"]
        handle.migrate("(a b c)", "parallel-track", slots=[1])
        latest = step()
        assert latest["plans"] == ["(a (b c))", "(a b c)"]
        assert latest["migrating"] == [1]
        with pytest.raises(MigrationError, match="changing its plan already"):
            handle.migrate("((a b) c)")
        with pytest.raises(PlanError, match="leaves out 'c'"):
            handle.migrate("(a b)")
        while latest["migrating"]:
            latest = step()
        handle.migrate("((c b) a)")
        for remaining in batches:
            feed(tmp_path, remaining)
        handle.processAllAvailable()
        assert str(handle.plan) == "((c b) a)"
    finally:
        handle.stop()
    assert not describe_difference(story.expected(tables), written(tmp_path))
    lines = (tmp_path / "checkpoint" / "anabranch" / "history.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["phase"] for record in records] == ["began", "ended"] * 3
    assert handle.history == records


def told(handle: QueryHandle) -> list[dict[str, Any]]:
    return [progress["adaptive"] for progress in handle.recentProgress if progress["adaptive"] is not None]


@pytest.mark.parametrize(
    ("moment", "batch", "after"),
    [
        ("written", 3, "((a b) c)"),
        pytest.param("in the middle of a step", 4, "(a (b c))", marks=pytest.mark.slow),
        pytest.param("when the rows of a slot are kept", 2, "(a b c)", marks=pytest.mark.slow),
    ],
    ids=["back on the old plan", "on with the new plan", "on with a third plan"],
)
def test_a_driver_killed_amid_a_migration_loses_and_repeats_nothing(
    moment: str, batch: int, after: str, spark: SparkSession, tmp_path: Path
) -> None:
    story = replace(JOIN, switches=[(2, "(a (b c))", "parallel-track")])
    tables = story.tables()
    for rows in cut(tables, 10):
        feed(tmp_path, rows)
    crash(tmp_path, story, moment, batch, "((a b) c)", 2)
    history = tmp_path / "checkpoint" / "anabranch" / "history.jsonl"
    noted = history.read_text().splitlines() if history.exists() else []
    assert [json.loads(line)["phase"] for line in noted] == ["began"] * (batch > 2)
    handle = run(register(spark, story, tmp_path).sql(story.cql), tmp_path, after, 2)
    assert handle.report()["late_rows"] == 0
    assert not describe_difference(story.expected(tables), written(tmp_path))
