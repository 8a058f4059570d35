"""On Spark, too, plans of running queries change and answers do not: by hand, slot by slot, and through a crash."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from anabranch.adapt.facts import Interval
from anabranch.adapt.gate import Gate
from anabranch.adapt.policy import Periodic
from anabranch.adapt.settings import Settings
from anabranch.api import ContinuousQueryWriter, QueryHandle
from anabranch.errors import MigrationError, PlanError
from tests.spark.stories import Story, cut, feed, register, run, written
from tests.spark.test_crash import crash, own_driver
from tests.support.oracle import describe_difference

pytestmark = pytest.mark.spark

JOIN = Story(
    "SELECT a.p AS p0, b.p AS p1, c.p AS p2 FROM s0 [RANGE 10 SECONDS] AS a, s1 [RANGE 6 SECONDS] AS b, "
    "s2 [RANGE 10 SECONDS] AS c WHERE a.x = b.x AND b.y = c.y",
    disorder={"s1": 2},
    rows=100,
)


GROUPS = Story(
    "SELECT WINDOW_END() AS at, a.s AS s, COUNT(*) AS n, MAX(c.p) AS p FROM s0 [RANGE 9 SECONDS SLIDE 3 SECONDS] AS a, "
    "s1 [RANGE 6 SECONDS SLIDE 3 SECONDS] AS b, s2 [RANGE 6 SECONDS SLIDE 3 SECONDS] AS c "
    "WHERE a.x = b.x AND b.x = c.x GROUP BY a.s",
    rows=80,
)


def test_plans_change_by_hand_and_slots_differ(spark: SparkSession, tmp_path: Path) -> None:
    story, tables = JOIN, JOIN.tables()
    batches = iter(cut(tables, 12))
    query = register(spark, story, tmp_path).sql(story.cql)
    writer = query.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    handle = writer.plan("((a b) c)").slots(2).start(str(tmp_path / "out"))

    def step() -> dict[str, Any]:
        """One more micro-batch, and what it reports."""
        feed(tmp_path, next(batches))
        handle.processAllAvailable()
        latest: dict[str, Any] = told(handle)[-1]
        return latest

    try:
        step()
        assert handle.awaitMigration()
        handle.migrate("(a (b c))", "moving-state")
        assert not handle.awaitMigration(timeout=0)
        assert step()["plans"] == ["(a (b c))", "(a (b c))"]
        (changed,) = [
            batch for batch in told(handle) if any(record.get("phase") == "began" for record in batch["records"])
        ]
        assert all(slot["hot"] for slot in changed["slotStatistics"])
        assert [record["phase"] for record in changed["records"]] == ["began", "ended"]
        handle.migrate("((a b) c)", "parallel-track", slots=[1])
        latest = step()
        assert latest["plans"] == ["(a (b c))", "((a b) c)"]
        assert latest["migrating"] == [1]
        with pytest.raises(MigrationError, match="changing its plan already"):
            handle.migrate("(a b c)")
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
    with pytest.raises(MigrationError, match="the query has ended"):
        handle.migrate("((a b) c)")
    assert not describe_difference(story.expected(tables), written(tmp_path))
    lines = (tmp_path / "checkpoint" / "anabranch" / "history.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    # Slots that come from different plans are told apart.
    phases = [record.get("phase", record["kind"]) for record in records]
    assert phases == ["start", "began", "ended", "began", "ended", "began", "began", "ended", "ended"]
    assert handle.history == records


def test_predicates_are_checked_at_any_join_and_plans_switch_between_places(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The first theta and the late filter of a wander over the plan; a restart moves the filter to Spark and back."""
    story = Story(
        "SELECT a.p AS p0, b.p AS p1, c.p AS p2 FROM s0 [RANGE 10 SECONDS] AS a, s1 [RANGE 6 SECONDS] AS b, "
        "s2 [RANGE 10 SECONDS] AS c WHERE a.x = b.x AND b.y = c.y AND a.p % 5 <= c.p % 3 AND a.s LIKE 'a%'",
        rows=100,
    )
    tables = story.tables()
    *early, middle, last = cut(tables, 10)
    for batch in early:
        feed(tmp_path, batch)

    def writer(late: list[str]) -> ContinuousQueryWriter:
        query = register(spark, story, tmp_path).sql(story.cql, late_filters=late)
        started = query.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        return started.slots(2).trigger(availableNow=True)

    ways = [
        (1, "((a b) c)", "moving-state"),
        (2, "((a b) c #0 #1)", "auto"),
        (3, "((a c) b #0 #1)", "moving-state"),
        (4, "mesh(a: b>c>#1; b: c>a>#0; c: b>a)", "auto"),
        (5, "((a c) b #1)", "moving-state"),
        (6, "((a b) c #1)", "parallel-track"),
    ]
    started = writer(["a"]).plan("((a b) c #1)")
    for at, plan, how in ways:
        started = started.switch(at, plan, how)
    handle = started.start(str(tmp_path / "out"))
    handle.awaitTermination()
    begun = [record["to"] for record in handle.history if record.get("phase") == "began"]
    assert begun == [plan for _, plan, _ in ways]
    feed(tmp_path, middle)
    writer([]).plan("((a b) c)").start(str(tmp_path / "out")).awaitTermination()
    feed(tmp_path, last)
    writer(["a.s LIKE 'a%'"]).plan("(a (b c) #1)").start(str(tmp_path / "out")).awaitTermination()
    assert not describe_difference(story.expected(tables), written(tmp_path))


def told(handle: QueryHandle) -> list[dict[str, Any]]:
    return [progress["adaptive"] for progress in handle.recentProgress if progress["adaptive"] is not None]


def test_a_schedule_a_listener_and_a_loop_that_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    story = GROUPS
    tables = story.tables()
    *early, last = cut(tables, 7)
    for batch in early:
        feed(tmp_path, batch)
    heard: list[Mapping[str, Any]] = []

    def deaf(record: Mapping[str, Any]) -> None:
        raise ValueError(record)

    def writer() -> ContinuousQueryWriter:
        query = register(spark, story, tmp_path).sql(story.cql)
        started = query.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        once = Interval(batches=1)
        often = Settings(Periodic(once), Gate(cool_down=once), freeze=True, remember=1)
        return started.slots(2).trigger(availableNow=True)._set(adapt=often)

    started = writer().switch(1, "(a (b c))", "parallel-track").switch(4, "((c a) b)", "moving-state")
    with pytest.warns(UserWarning, match="a listener failed on (start|migration|decision): ValueError"):
        started.onChange(heard.append).onChange(deaf).start(str(tmp_path / "out")).awaitTermination()
    assert {record["kind"] for record in heard} == {"start", "decision", "migration"}
    assert [record["to"] for record in heard if record.get("phase") == "began"] == ["(a (b c))", "((c a) b)"]
    assert all(record["action"] == "keep" for record in heard if record["kind"] == "decision")
    feed(tmp_path, last)
    handle = writer().start(str(tmp_path / "out"))
    handle.awaitTermination()
    assert str(handle.plan) == "((c a) b)"
    assert not describe_difference(story.expected(tables), written(tmp_path))


def test_auto_merges_rows_before_they_join_where_many_are_alike(spark: SparkSession, tmp_path: Path) -> None:
    story, tables = GROUPS, GROUPS.tables()
    for batch in cut(tables, 3):
        feed(tmp_path, batch)
    writer = register(spark, story, tmp_path).sql(story.cql).writeStream.format("parquet").slots(2)
    alike = {"rates": dict.fromkeys("abc", 5000), "selectivities": {"a b": 0.1, "b c": 0.1, "a c": 0.1}}
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).stats(alike)
    handle = writer.start(str(tmp_path / "out"))
    handle.awaitTermination()
    assert "[" in str(handle.plan)
    assert not describe_difference(story.expected(tables), written(tmp_path))


@own_driver
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
    phases = [record["phase"] for line in noted if (record := json.loads(line))["kind"] != "start"]
    assert phases == ["began"] * (batch > 2)
    handle = run(register(spark, story, tmp_path).sql(story.cql), tmp_path, after, 2)
    assert handle.report()["late_rows"] == 0
    assert not describe_difference(story.expected(tables), written(tmp_path))
