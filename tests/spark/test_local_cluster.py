"""Queries on two executors that are processes of their own; this file is also the program that the tests start."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from anabranch.adapt.balancing import Balance
from anabranch.api import QueryHandle
from anabranch.spark.runner import SparkRunner
from tests.spark.cluster import die_amid_steps, session, slow_down, told_by, until
from tests.spark.stories import Story, cut, feed, put, register, run, table, without_nan, written
from tests.support.loads import given_loads, per_row
from tests.support.oracle import describe_difference
from tests.support.s3_server import s3_server

STORY = Story(
    "SELECT a.p AS p0, b.p AS p1, c.p AS p2 FROM s0 [RANGE 10 SECONDS] AS a, s1 [RANGE 6 SECONDS] AS b, "
    "s2 [RANGE 10 SECONDS] AS c WHERE a.x = b.x AND b.y = c.y",
    disorder={"s1": 2},
    rows=100,
)
ONE_KEY = replace(STORY, cql=STORY.cql.replace("b.y = c.y", "b.x = c.x"))
PLAIN = Story("SELECT a.p AS p0, b.p AS p1 FROM s0 [RANGE 3 SECONDS] AS a, s1 [RANGE 3 SECONDS] AS b WHERE a.x = b.x")

BATCHES = 6

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("drivers of their own")]


def test_the_answer_is_exact_on_two_executors(tmp_path: Path) -> None:
    tables = STORY.tables()
    for batch in cut(tables, BATCHES):
        feed(tmp_path, batch)
    told = told_by(__file__, "staying", str(tmp_path))
    assert len(told["tasks"]) == 2
    assert all(count > 0 for count in told["tasks"].values())
    # Slots wake up where their state is, so after the first batch nothing is rebuilt.
    assert told["hot"] == [[False, False], *([True, True] for _ in range(BATCHES - 1))]
    # And nothing of it stays there when the query has ended.
    assert told["left"] == []
    assert not describe_difference(STORY.expected(tables), written(tmp_path))


def test_executors_that_die_amid_moves_change_no_answer(tmp_path: Path) -> None:
    told = told_by(__file__, "dying", str(tmp_path))
    # Each of them died once, and the batch was not lost.
    assert told["deaths"] == ["10", "2", "5"]
    assert told["moves"] == ["user", "user", "user"]
    assert not describe_difference(ONE_KEY.expected(ONE_KEY.tables()), written(tmp_path))


def test_the_load_follows_the_speed_of_the_executors(tmp_path: Path) -> None:
    told = told_by(__file__, "uneven", str(tmp_path))
    # One decision, and the slot on the slow executor has about a third of the rows.
    assert told["speeds"] == [[1.0, 0.333]]
    fast, slow = told["rows"]
    assert fast > 1.7 * slow
    assert not describe_difference(PLAIN.expected(plain()), written(tmp_path))


def test_a_heavy_key_is_split_over_two_executors(tmp_path: Path) -> None:
    told = told_by(__file__, "splitting", str(tmp_path))
    assert told["heavy"] == [["a.x = b.x = 7", [0, 1]]]
    assert len(set(told["executors"])) == 2
    # Half of the rows have one key, and one of the streams goes to both slots for it.
    assert told["skew"] < 1.3 < told["skew at first"]
    assert not describe_difference(PLAIN.expected(plain(heavy=7)), written(tmp_path))


@pytest.mark.parametrize("form", ["parquet", "json"])
def test_four_slots_on_four_executors_fetch_each_byte_once(form: str, tmp_path: Path) -> None:
    """The server counts the bytes that it delivers to all processes."""
    story = replace(STORY, form=form, rows=4_000, cql=STORY.cql.replace("b.y = c.y", "b.y = c.y AND a.p < b.p - 1900"))
    tables = without_nan(story.tables())
    with s3_server() as store:
        for batch in cut(tables, 2):
            put(store, tmp_path, batch, form)
        written_bytes = sum(store.sizes(f"{tmp_path.name}/"))
        told = told_by(__file__, "reading", str(tmp_path), store.endpoint, form)
        assert told["reads_files"]
        assert store.counts()["bytes"] <= 1.1 * written_bytes
    assert told["rows"] == sum(map(len, tables.values()))


def plain(heavy: int | None = None) -> dict[str, pa.Table]:
    """Two streams in order; no key is frequent, or half of the rows have that one."""
    keys = [heavy if heavy is not None and row % 2 else row % 97 for row in range(1200)]
    rows = [(row / 40, key, row) for row, key in enumerate(keys)]
    return {name: table(rows) for name in ("s0", "s1")}


def staying(folder: Path) -> dict[str, Any]:
    import pyspark

    with _session(folder) as spark:
        handle = run(register(spark, STORY, folder).sql(STORY.cql), folder, "((a b) c)", 2)
        steps = [progress["adaptive"]["slotStatistics"] for progress in handle.recentProgress if progress["adaptive"]]
        listed = spark._jsparkSession.sparkContext().statusStore().executorList(True)
        executors = [listed.apply(i) for i in range(listed.size())]
        tasks = {e.id(): e.completedTasks() for e in executors if e.id() != "driver"}
        work = Path(pyspark.__file__).parent / "work" / str(spark.sparkContext.applicationId)
        assert len([*work.glob("*/hot/anabranch-*")]) == 2
        left = [str(folder) for folder in work.glob("*/hot/anabranch-*/*")]
        return {"tasks": tasks, "hot": [[slot["hot"] for slot in step] for step in steps], "left": left}


def dying(folder: Path) -> dict[str, Any]:
    """Half of the groups move; the executor of the receiver dies meanwhile, or that of the sender."""
    from anabranch.spark.placement import live_executors

    die_amid_steps({2: 1, 5: 0, 10: 0}, folder / "deaths")
    with _session(folder) as spark:
        until(lambda: len(live_executors(spark)) == 2)
        handle = _start(register(spark, ONE_KEY, folder).sql(ONE_KEY.cql).writeStream.slots(2), folder)
        strategies = {2: "moving-state", 5: "parallel-track", 10: "moving-state"}
        for number, batch in enumerate(cut(ONE_KEY.tables(), 12)):
            if number in strategies:
                until(lambda: len(live_executors(spark)) == 2)
                table = _latest(handle)["table"]
                sender = 1 if number == 10 else 0
                groups = [group for group, slot in enumerate(table) if slot == sender][::2]
                handle.move(groups, 1 - sender, strategies[number])
            feed(folder, batch)
            handle.processAllAvailable()
        moves = [record["by"] for record in handle.history if record["kind"] == "move" and record["phase"] != "ended"]
        handle.stop()
    return {"deaths": sorted(mark.name for mark in (folder / "deaths").iterdir()), "moves": moves}


def uneven(folder: Path) -> dict[str, Any]:
    """One of two executors takes three times as long for the same work."""
    slow_down(1, 3.0)
    settings = Balance("auto", measures_speeds=True, seconds=0.0, remember=3)
    with _session(folder) as spark:
        handle = _fed(spark, PLAIN, settings, plain(), folder)
        slots = _latest(handle)["slotStatistics"]
        decided = [record for record in handle.history if record["kind"] == "balance" and record["action"] == "move"]
        handle.stop()
    return {"rows": [slot["rowsIn"] for slot in slots], "speeds": [record["speeds"] for record in decided]}


def splitting(folder: Path) -> dict[str, Any]:
    """The loads of slots are given by their rows; the query splits the key by itself."""
    settings = Balance("auto", show_keys=True, seconds=0.0, remember=3)
    with _session(folder) as spark, given_loads(per_row(0.001)):
        handle = _fed(spark, PLAIN, settings, plain(heavy=7), folder)
        entries = [each["adaptive"] for each in handle.recentProgress if each["adaptive"]]
        handle.stop()
    last = entries[-1]
    rows = [[slot["rowsIn"] for slot in entry["slotStatistics"]] for entry in (entries[0], last)]
    skews = [max(each) / (sum(each) / len(each)) for each in rows]
    return {
        "heavy": [[key["name"], key["slots"]] for key in last["heavy"]],
        "executors": [slot["executor"] for slot in last["slotStatistics"]],
        "skew at first": skews[0],
        "skew": skews[1],
    }


def _fed(spark: SparkSession, story: Story, balance: Balance, tables: dict[str, pa.Table], folder: Path) -> QueryHandle:
    """A query on two executors that has had all rows in twelve batches."""
    from anabranch.spark.placement import live_executors

    until(lambda: len(live_executors(spark)) == 2)
    writer = register(spark, story, folder).sql(story.cql).writeStream.slots(2)
    writer._run = replace(writer._run, balance=balance)
    handle = _start(writer, folder)
    for batch in cut(tables, 12):
        feed(folder, batch)
        handle.processAllAvailable()
    return handle


def reading(folder: Path, store: str, form: str) -> dict[str, Any]:
    story = replace(STORY, form=form, store=store)
    with session("local-cluster[4,1,1024]", folder, {"spark.executor.memory": "1g"}) as spark:
        handle = run(register(spark, story, folder).sql(story.cql), folder, slots=4)
        runner = handle._runner
        assert isinstance(runner, SparkRunner)
        return {"rows": handle.report()["rows_in"], "reads_files": runner.reads_files}


def _session(folder: Path) -> AbstractContextManager[SparkSession]:
    return session("local-cluster[2,1,1024]", folder, {"spark.executor.memory": "1g"})


def _start(writer: Any, folder: Path) -> QueryHandle:
    handle: QueryHandle = (
        writer.format("parquet").option("checkpointLocation", str(folder / "checkpoint")).start(str(folder / "out"))
    )
    return handle


def _latest(handle: QueryHandle) -> dict[str, Any]:
    progress = handle.lastProgress
    assert progress is not None
    entry: dict[str, Any] = progress["adaptive"]
    return entry


if __name__ == "__main__":
    programs = {"staying": staying, "dying": dying, "uneven": uneven, "splitting": splitting, "reading": reading}
    program: Callable[..., dict[str, Any]] = programs[sys.argv[1]]  # type: ignore[assignment]
    print(json.dumps(program(Path(sys.argv[2]), *sys.argv[3:])))  # noqa: T201
