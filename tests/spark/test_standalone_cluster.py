"""Workers of a real cluster join and die while a query runs on it; this file is also the program that the tests start.

The cluster is Spark's own standalone one on the loopback address: a master and up to three workers with one core each.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from anabranch.adapt.balancing import Balance
from anabranch.adapt.facts import Interval
from tests.spark.cluster import session, standalone, told_by, until, wait_amid_steps
from tests.spark.stories import Story, cut, feed, register, table, written
from tests.support.oracle import describe_difference

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("drivers of their own")]

STORY = Story(
    "SELECT a.p AS p0, b.p AS p1, c.p AS p2 FROM s0 [RANGE 10 SECONDS] AS a, s1 [RANGE 6 SECONDS] AS b, "
    "s2 [RANGE 10 SECONDS] AS c WHERE a.x = b.x AND b.x = c.x",
    disorder={"s1": 2},
    rows=150,
)
BATCHES = 12
BUSY = Story("SELECT a.p AS p0, b.p AS p1 FROM s0 [RANGE 3 SECONDS] AS a, s1 [RANGE 3 SECONDS] AS b WHERE a.x = b.x")
ALLOCATION = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "1",
    "spark.dynamicAllocation.initialExecutors": "1",
    "spark.dynamicAllocation.maxExecutors": "3",
    # Long enough that a busy machine does not make an executor idle between two batches.
    "spark.dynamicAllocation.executorIdleTimeout": "30s",
    "spark.dynamicAllocation.shuffleTracking.timeout": "30s",
}


def test_executors_join_and_die_and_the_answer_is_exact(tmp_path: Path) -> None:
    told = told_by(__file__, "joining", str(tmp_path))
    assert not describe_difference(STORY.expected(STORY.tables()), written(tmp_path))
    # With two executors, one of them has two of the three slots; the one that joins gets one of these.
    assert sorted(told["two"]) == ["0", "0", "1"] or sorted(told["two"]) == ["0", "1", "1"]
    assert sorted(set(told["three"])) == ["0", "1", "2"]
    # A slot stays where it is: nothing is rebuilt while nobody comes or goes.
    assert told["hot"]
    # When an executor dies, its groups spread over the other slots; its own has none until one joins.
    assert told["lost"] == ["executor 2 was lost"]
    assert 0 in told["groups after"]


def test_executors_come_with_load_and_are_drained_before_they_leave(tmp_path: Path) -> None:
    told = told_by(__file__, "allocating", str(tmp_path))
    assert told["first"] == [1, 1]
    # More load, more slots, more executors; those that joined got work.
    assert told["busy"] == [3, 3]
    # Less load: one slot has all groups, and only then Spark takes executors away; none is lost with its groups.
    assert told["idle"] == [1, 1]
    assert told["triggers"][-2:] == ["an average slot is", "with one slot less, each would be"]
    assert told["lost"] == []
    assert told["drained"] == 1
    whole = {name: pa.concat_tables([busy(*each)[name] for each in told["batches"]]) for name in ("s0", "s1")}
    assert not describe_difference(BUSY.expected(whole), written(tmp_path))


def joining(folder: Path) -> dict[str, Any]:
    from anabranch.spark.placement import live_executors

    with standalone(folder, 2) as cluster, session(cluster.url, folder, {"spark.executor.memory": "512m"}) as spark:
        until(lambda: len(live_executors(spark)) == 2)
        query = register(spark, STORY, folder).sql(STORY.cql)
        writer = query.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
        # Nothing but executors that come and go makes it move.
        writer = writer.slots(3)
        writer._run = replace(writer._run, balance=Balance("auto", ratio=1e9))
        handle = writer.start(str(folder / "out"))
        batches = iter(cut(STORY.tables(), BATCHES))

        def step(count: int) -> list[dict[str, Any]]:
            for _ in range(count):
                feed(folder, next(batches))
                handle.processAllAvailable()
            progress = handle.lastProgress
            assert progress is not None
            slots: list[dict[str, Any]] = progress["adaptive"]["slotStatistics"]
            return slots

        step(1)
        two = step(2)
        cluster.join()
        until(lambda: len(live_executors(spark)) == 3)
        step(1)
        three = step(2)
        cluster.kill_last()
        until(lambda: len(live_executors(spark)) == 2)
        after = step(1)
        step(BATCHES - 7)
        lost = [record["by"] for record in handle.history if record["kind"] == "move"]
        handle.stop()
        return {
            "two": [slot["executor"] for slot in two],
            "three": [slot["executor"] for slot in three],
            "hot": all(slot["hot"] for slot in [*two, *three]),
            "lost": lost,
            "groups after": [slot["groups"] for slot in after],
        }


def busy(second: int, size: int) -> dict[str, pa.Table]:
    """A batch of a second in which no key is frequent."""
    rows = [(float(second), key, 1000 * second + key) for key in range(size)]
    return {name: table(rows) for name in ("s0", "s1")}


def allocating(folder: Path) -> dict[str, Any]:
    """The load is given, so that only Spark's allocation is left to time; steps wait for the executors they ask for."""
    from anabranch.spark.placement import live_executors
    from tests.support.loads import given_loads, per_row

    closed = folder / "closed"
    wait_amid_steps(closed)
    spark_settings = {**ALLOCATION, "spark.executor.memory": "512m", "spark.executor.cores": "1"}
    with (
        standalone(folder, 3) as cluster,
        session(cluster.url, folder, spark_settings) as spark,
        given_loads(per_row(0.005)),
    ):
        query = register(spark, BUSY, folder).sql(BUSY.cql)
        writer = query.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
        # Nothing but the load of all slots together makes it move.
        settings = Balance("auto", ratio=1e9, remember=1, cool_down=Interval(batches=1))
        writer = writer.slots(least=1, most=3)
        writer._run = replace(writer._run, balance=settings)
        handle = writer.start(str(folder / "out"))
        batches: list[tuple[int, int]] = []

        def add(size: int) -> None:
            batches.append((len(batches), size))
            feed(folder, busy(*batches[-1]))

        def step(size: int) -> tuple[int, list[dict[str, Any]]]:
            add(size)
            handle.processAllAvailable()
            progress = handle.lastProgress
            assert progress is not None
            slots: list[dict[str, Any]] = [slot for slot in progress["adaptive"]["slotStatistics"] if slot["groups"]]
            return progress["adaptive"]["slotsInUse"], slots

        def seen(slots: list[dict[str, Any]]) -> list[int]:
            return [len(slots), len({slot["executor"] for slot in slots})]

        def scaled(size: int, slots: int) -> None:
            for _ in range(12):
                if step(size)[0] == slots:
                    return
            raise TimeoutError(f"the query did not come to {slots} slots")

        scaled(20, 1)
        first = seen(step(20)[1])
        scaled(220, 3)
        closed.touch()
        add(220)
        until(lambda: len(live_executors(spark)) == 3)
        closed.unlink()
        handle.processAllAvailable()
        step(220)
        at_work = seen(step(220)[1])
        scaled(4, 1)
        drained = {slot["executor"] for slot in step(4)[1]}
        # The tasks that read the sources run anywhere, so no executor is idle before the stream rests.
        until(lambda: len(live_executors(spark)) == 1)
        _, last = step(4)
        records = handle.history
        handle.stop()
        return {
            "first": first,
            "busy": at_work,
            "idle": seen(last),
            "triggers": [
                record["trigger"].split(" busy")[0]
                for record in records
                if record["kind"] == "balance" and record["action"] == "move"
            ],
            "lost": [record["by"] for record in records if record["kind"] == "move" and "lost" in record["by"]],
            "drained": len(drained),
            "batches": batches,
        }


if __name__ == "__main__":
    print(json.dumps({"joining": joining, "allocating": allocating}[sys.argv[1]](Path(sys.argv[2]))))  # noqa: T201
