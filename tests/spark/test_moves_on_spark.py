"""On Spark, too, partition groups move while a query runs, and answers do not change, through a restart either."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from anabranch.adapt.balancing import Balance
from anabranch.adapt.facts import Interval
from anabranch.api import QueryHandle
from anabranch.errors import MigrationError, PlanError
from tests.spark.stories import Story, cut, feed, register, table, written
from tests.support.loads import given_loads, per_row
from tests.support.oracle import describe_difference

pytestmark = pytest.mark.spark

STAR = Story(
    "SELECT a.p AS p0, b.p AS p1, c.p AS p2 FROM s0 [RANGE 10 SECONDS] AS a, s1 [RANGE 6 SECONDS] AS b, "
    "s2 [RANGE 10 SECONDS] AS c WHERE a.x = b.x AND b.x = c.x",
    disorder={"s1": 2},
    slots=3,
    rows=90,
)
EVEN = Story(
    "SELECT a.p AS p0, b.p AS p1 FROM s0 [RANGE 10 SECONDS] AS a, s1 [RANGE 6 SECONDS] AS b WHERE a.p = b.p - 1000",
    slots=3,
    rows=90,
)
"""No key is frequent: while a heavy key is split, rows go to several slots, and moves cannot be spread."""
CHAIN = Story(
    "SELECT a.p AS p0, b.p AS p1, c.p AS p2 FROM s0 [RANGE 10 SECONDS] AS a, s1 [RANGE 6 SECONDS] AS b, "
    "s2 [RANGE 10 SECONDS] AS c WHERE a.x = b.x AND b.y = c.y",
    slots=4,
    rows=90,
)
BUSY = Story("SELECT a.p AS p0, b.p AS p1 FROM s0 [RANGE 2 SECONDS] AS a, s1 [RANGE 2 SECONDS] AS b WHERE a.x = b.x")
GROUPS = Story(
    "SELECT WINDOW_END() AS at, a.s AS s, COUNT(*) AS n, MAX(b.p) AS p FROM s0 [RANGE 9 SECONDS SLIDE 3 SECONDS] AS a, "
    "s1 [RANGE 6 SECONDS SLIDE 3 SECONDS] AS b WHERE a.x = b.x GROUP BY a.s",
    slots=2,
    rows=60,
)


BY_KEY = Story(
    "SELECT WINDOW_END() AS at, a.x AS k, COUNT(*) AS n, SUM(b.p) AS s, AVG(a.p) AS m "
    "FROM s0 [RANGE 8 SECONDS SLIDE 2 SECONDS] AS a, s1 [RANGE 8 SECONDS SLIDE 2 SECONDS] AS b "
    "WHERE a.x = b.x GROUP BY a.x",
    slots=2,
    rows=120,
)
"""The key of a group decides the slot that finds it, unless the group moves on parallel tracks or the key is split."""


def latest(handle: QueryHandle) -> dict[str, Any]:
    """Our entry for the latest micro-batch."""
    progress = handle.lastProgress
    assert progress is not None
    entry: dict[str, Any] = progress["adaptive"]
    return entry


@pytest.mark.parametrize("story", [STAR, CHAIN, GROUPS], ids=["one key", "a chain", "groups"])
def test_groups_move_by_hand_and_the_table_survives_a_restart(
    spark: SparkSession, tmp_path: Path, story: Story
) -> None:
    tables = story.tables()
    batches = list(cut(tables, 8))
    query = register(spark, story, tmp_path).sql(story.cql)
    writer = query.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer = writer.slots(story.slots)
    handle = writer.start(str(tmp_path / "out"))
    try:
        feed(tmp_path, batches[0])
        handle.processAllAvailable()
        first = latest(handle)["table"]
        handle.move([group for group, slot in enumerate(first) if slot == 0], to=1)
        with pytest.raises(PlanError, match="are to move with the next batch already"):
            handle.move([0], to=0)
        feed(tmp_path, batches[1])
        handle.processAllAvailable()
        moved = latest(handle)
        assert 0 not in moved["table"]
        (record,) = [record for record in moved["records"] if record["kind"] == "move"]
        assert record["by"] == "user"
        for wrong, to in (([10_000], 0), ([0], 99)):
            with pytest.raises(PlanError, match="does not exist"):
                handle.move(wrong, to)
        handle.move([group for group, slot in enumerate(first) if slot == 0], to=0)
        for batch in batches[2:4]:
            feed(tmp_path, batch)
            handle.processAllAvailable()
        handle.move(range(0, len(first), 2), to=story.slots - 1)
        feed(tmp_path, batches[4])
        handle.processAllAvailable()
        last = latest(handle)["table"]
    finally:
        handle.stop()
    with pytest.raises(MigrationError, match="the query has ended"):
        handle.move([0], to=0)
    handle = writer.start(str(tmp_path / "out"))
    try:
        handle.rebalance()
        for batch in batches[5:]:
            feed(tmp_path, batch)
            handle.processAllAvailable()
        # A key that is too much for its slot is split when the slots are evened out, and adds groups.
        assert len(latest(handle)["table"]) >= len(last)
        kinds = [record["kind"] for record in handle.history]
        assert kinds.count("balance") == 1
        assert kinds.count("move") in (3, 4)
    finally:
        handle.stop()
    assert not describe_difference(story.expected(tables), written(tmp_path))


def test_slots_come_and_go_and_groups_move_on_tracks_and_in_parts(spark: SparkSession, tmp_path: Path) -> None:
    tables = EVEN.tables()
    batches = list(cut(tables, 14))
    query = register(spark, EVEN, tmp_path).sql(EVEN.cql)
    writer = query.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer = writer.slots(least=1, most=4).balance("manual")
    handle = writer.start(str(tmp_path / "out"))

    def run(count: int) -> dict[str, Any]:
        for _ in range(count):
            feed(tmp_path, batches.pop(0))
            handle.processAllAvailable()
        return latest(handle)

    try:
        first = run(1)["slotsInUse"]
        assert first == spark.sparkContext.defaultParallelism
        handle.scale(4)
        assert run(2)["slotsInUse"] == 4
        with pytest.raises(PlanError, match="5 slots cannot be used: the query has 4"):
            handle.scale(5)
        groups = [group for group, slot in enumerate(latest(handle)["table"]) if slot == 3]
        handle.move(groups, 0, "parallel-track")
        began = run(1)
        assert [record["phase"] for record in began["records"] if record["kind"] == "move"] == ["began"]
        with pytest.raises(PlanError, match="on their way"):
            handle.move([0], 1)
    finally:
        handle.stop()
    handle = writer.start(str(tmp_path / "out"))
    try:
        run(7)
        assert [record["phase"] for record in handle.history if record["kind"] == "move"] == ["made", "began", "ended"]
        assert latest(handle)["slotStatistics"][3]["groups"] == 0
        handle.move([group for group, slot in enumerate(latest(handle)["table"]) if slot == 1], 2, most_rows=2)
        run(len(batches))
        parts = [record for record in handle.history if record["kind"] == "move"][3:]
        assert len(parts) > 1
        assert parts[0]["left"] > parts[-1]["left"]
    finally:
        handle.stop()
    assert not describe_difference(EVEN.expected(tables), written(tmp_path))


def test_the_number_of_slots_follows_the_load(spark: SparkSession, tmp_path: Path) -> None:
    sizes = [40] * 2 + [220] * 4 + [8] * 5
    batches: list[dict[str, pa.Table]] = []
    for second, size in enumerate(sizes):
        keys = range(size)
        batches.append({name: table([(second, key, 1000 * second + key) for key in keys]) for name in ("s0", "s1")})
    query = register(spark, BUSY, tmp_path).sql(BUSY.cql)
    writer = query.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    # Nothing but the load of all slots together makes it move.
    writer = writer.slots(least=1, most=4)
    writer._run = replace(writer._run, balance=Balance("auto", ratio=1e9, remember=1, cool_down=Interval(batches=1)))
    # 0.4 of a core with two slots; then 2.2 cores; then less than a tenth.
    with given_loads(per_row(0.005)):
        handle = writer.start(str(tmp_path / "out"))
        try:
            used = []
            for batch in batches:
                feed(tmp_path, batch)
                handle.processAllAvailable()
                used.append(latest(handle)["slotsInUse"])
            history = handle.history
        finally:
            handle.stop()
    decided = [record for record in history if record["kind"] == "balance" and record["action"] == "move"]
    assert [record["trigger"].split(" busy")[0] for record in decided] == [
        "an average slot is",
        "with one slot less, each would be",
    ]
    assert max(used) == 4
    assert used[-1] == 1
    whole = {name: pa.concat_tables([batch[name] for batch in batches]) for name in ("s0", "s1")}
    assert not describe_difference(BUSY.expected(whole), written(tmp_path))


def test_a_heavy_key_is_split_by_hand_survives_a_restart_and_is_united(spark: SparkSession, tmp_path: Path) -> None:
    later = "CAST(b.y AS BIGINT) = CAST(c.y AS BIGINT) = 2"
    tables = CHAIN.tables()
    batches = list(cut(tables, 6))
    query = register(spark, CHAIN, tmp_path).sql(CHAIN.cql)
    writer = query.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer = writer.slots(CHAIN.slots).balance({"mode": "manual", "show_keys": True})
    handle = writer.start(str(tmp_path / "out"))
    try:
        feed(tmp_path, batches[0])
        handle.processAllAvailable()
        before = latest(handle)["table"]
        with pytest.raises(PlanError, match="the query has several keys"):
            handle.split(1)
        handle.split(1, over=3, key="a.x")
        feed(tmp_path, batches[1])
        handle.processAllAvailable()
        entry = latest(handle)
        assert len(entry["table"]) > len(before)
        assert [(key["name"], key["slots"]) for key in entry["heavy"]] == [("a.x = b.x = 1", [0, 1, 2])]
        handle.split(2, over=[0, 3], key="c.y")
        feed(tmp_path, batches[2])
        handle.processAllAvailable()
    finally:
        handle.stop()
    handle = writer.start(str(tmp_path / "out"))
    try:
        feed(tmp_path, batches[3])
        handle.processAllAvailable()
        assert len(latest(handle)["heavy"]) == 2
        handle.unite(1, key="b.x")
        for batch in batches[4:]:
            feed(tmp_path, batch)
            handle.processAllAvailable()
        assert [key["name"] for key in latest(handle)["heavy"]] == [later]
        changed = [record for record in handle.history if record["kind"] == "move"]
        assert [record.get("split") for record in changed] == [
            ["a.x = b.x = 1"],
            ["CAST(b.y AS BIGINT) = CAST(c.y AS BIGINT) = 2"],
            None,
        ]
        assert changed[-1]["united"] == ["a.x = b.x = 1"]
    finally:
        handle.stop()
    assert not describe_difference(CHAIN.expected(tables), written(tmp_path))


@pytest.mark.parametrize("change", ["move", "split"])
def test_groups_that_two_slots_find_parts_of_come_out_as_one_row(
    spark: SparkSession, tmp_path: Path, change: str
) -> None:
    tables = BY_KEY.tables()
    query = register(spark, BY_KEY, tmp_path).sql(BY_KEY.cql)
    writer = query.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    handle = writer.slots(BY_KEY.slots).balance("manual").start(str(tmp_path / "out"))
    try:
        for number, batch in enumerate(cut(tables, 12)):
            if number == 4 and change == "move":
                handle.move(range(len(latest(handle)["table"])), 0, "parallel-track")
            if number == 4 and change == "split":
                handle.split(0, over=2)
            feed(tmp_path, batch)
            handle.processAllAvailable()
    finally:
        handle.stop()
    assert not describe_difference(BY_KEY.expected(tables), written(tmp_path))
