"""The handle mirrors Spark's StreamingQuery and adds our statistics under one key."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import anabranch
from anabranch import errors
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.partitioning import Dimension, Partitioning
from anabranch.plan.physical import PhysicalPlan, mjoin
from anabranch.plan.query_set import QuerySet
from anabranch.run.progress import BatchProgress, SlotProgress
from anabranch.spark.handle import QueryHandle
from anabranch.spark.internals.queries import newest_progress
from anabranch.spark.started import ContinuousQueries
from anabranch.stats.mesh.routes import HopStatistics, RouteStatistics
from anabranch.stats.step import StateStatistics, StepStatistics

pytestmark = pytest.mark.spark


class FakeRunner:
    """Does nothing with a batch but what the test asks, and knows ten statistics about each."""

    queries = QuerySet((), JoinGraph(()), "", "")
    is_changing = False
    is_ending = False
    has_answered = False

    def __init__(self, on_batch: Callable[[int], None] = lambda batch: None) -> None:
        self.failure: BaseException | None = None
        self._on_batch = on_batch
        self._ran: set[int] = set()
        self.running: StreamingQuery | None = None

    def migrate(
        self,
        plan: Any,
        strategy: str = "auto",
        slots: Iterable[int] | None = None,
        *,
        box_by_box: bool = False,
        query: str | None = None,
    ) -> None:
        raise AssertionError(plan)

    def share(self, join: str, queries: Iterable[str] | None) -> None:
        raise NotImplementedError

    def unshare(self, queries: Iterable[str] | None) -> None:
        raise NotImplementedError

    def move(self, groups: Iterable[int], to: int, strategy: str, most_rows: int | None) -> None:
        raise NotImplementedError

    def scale(self, slots: int) -> None:
        raise NotImplementedError

    def split(self, value: Any, over: int | Sequence[int] | None, key: str | None) -> None:
        pass

    def unite(self, value: Any, key: str | None) -> None:
        pass

    def finish(self, least: int) -> int:
        raise NotImplementedError

    def rebalance(self) -> None:
        raise AssertionError

    def abort_migration(self, query: str | None = None) -> None:
        raise AssertionError

    def freeze(self, frozen: bool) -> None:
        raise AssertionError(frozen)

    def reconfigure(self, wanted: Mapping[str, Any], query: str | None = None) -> None:
        raise AssertionError(wanted)

    @property
    def is_calling(self) -> bool:
        return False

    def leave(self) -> None: ...

    def newest(self) -> Iterator[tuple[int, Callable[[], str]]]:
        assert self.running is not None
        return newest_progress(self.running)

    def history(self) -> list[dict[str, Any]]:
        return []

    @property
    def plan(self) -> PhysicalPlan:
        return mjoin(("a", "b"))

    def release(self) -> None:
        pass

    @property
    def latest_batch(self) -> int:
        return max(self._ran, default=-1)

    def progress(self, batch_id: int) -> BatchProgress | None:
        if batch_id not in self._ran:
            return None
        routes = tuple(
            RouteStatistics("a", number, rows, 1, (HopStatistics("b", rows, 1, 0.5),))
            for number, rows in ((1, 5), (0, 15))
        )
        state = StateStatistics("a", 10 + batch_id, 100)
        return BatchProgress(
            plan="(a b)",
            plans=(self.plan,),
            migrating=(),
            records=(),
            rows_in={"s0": 2, "s1": 1},
            rows_out=5,
            late_rows={"s0": 1, "s1": 2},
            ahead_rows={},
            watermark=None,
            newest={},
            idle_streams=(),
            seconds={"plan": 0.002, "step": 0.09, "commit": 0.003},
            slots=(
                SlotProgress(0, True, {"probe": 0.001}, 1, 2),
                SlotProgress(1, True, {"probe": 0.002, "open": 0.002}, 2, 3),
            ),
            partitioning=Partitioning((Dimension("k0", frozenset("ab"), 2),), 2, (0, 1)),
            sent={},
            statistics=StepStatistics(rows_out=5, states=(state,), routes=routes),
            queries={},
        )

    def run(self, frame: DataFrame, batch_id: int) -> None:
        try:
            self._on_batch(batch_id)
        except BaseException as error:
            self.failure = error
            raise
        frame.count()
        self._ran.add(batch_id)


Start = Callable[[FakeRunner], QueryHandle]


@pytest.fixture
def start(spark: SparkSession, tmp_path: Path) -> Iterator[Start]:
    """Starts a query over one file of three rows."""
    handles: list[QueryHandle] = []
    spark.range(3).coalesce(1).write.parquet(str(tmp_path / "in"))

    def started(runner: FakeRunner) -> QueryHandle:
        stream = spark.readStream.schema("id bigint").parquet(str(tmp_path / "in"))
        writer = stream.writeStream.foreachBatch(runner.run).queryName("mirrored")
        runner.running = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        handle = QueryHandle(runner.running, runner)
        handles.append(handle)
        return handle

    yield started
    for handle in handles:
        handle.stop()


def test_completion_offers_what_users_call_and_an_old_name_leads_to_the_new_one() -> None:
    handle = object.__new__(QueryHandle)
    assert {"stop", "abortMigration", "awaitMigration"} <= set(dir(handle))
    assert not {"fail", "follow", "leaving", "raise_original", "expect_end"} & set(dir(handle))
    with pytest.raises(AttributeError, match="it is now 'abortMigration'"):
        _ = handle.abort_migration  # type: ignore[attr-defined]
    assert "local_session" in dir(anabranch)
    assert callable(anabranch.local_session)


def test_a_handle_mirrors_a_streaming_query(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    handle = start(FakeRunner())
    handle.processAllAvailable()
    ran = handle.isActive
    assert handle.name == "mirrored"
    assert len({handle.id, handle.runId}) == 2
    assert set(handle.status) == {"message", "isDataAvailable", "isTriggerActive"}
    assert handle.awaitTermination(0.01) is False
    assert handle.exception() is None
    handle.explain()
    assert "(a b)" in capsys.readouterr().out

    batch = next(progress for progress in handle.recentProgress if progress["numInputRows"])
    assert (batch["batchId"], batch["name"], batch["runId"]) == (0, "mirrored", handle.runId)
    assert (batch.batchId, batch.sources) == (batch["batchId"], batch["sources"])
    assert not hasattr(batch, "batchID")
    # Spark's JSON leaves empty entries out; its dictionary has them, and so have its users' programs.
    (sparks, *_) = cast(StreamingQuery, handle._query).recentProgress
    assert batch.keys() == sparks.keys() | {"adaptive"}
    assert batch["adaptive"]["rowsOut"] == 5
    (state,) = batch["stateOperators"]
    assert state["numRowsTotal"] == batch["adaptive"]["stateRows"]
    assert not [name for name in _keys(batch["adaptive"]) if "_" in name], "a key that is not camelCase"
    assert json.loads(batch.json) == json.loads(batch.prettyJson) == batch

    report = handle.report()
    assert (report["rows_in"], report["rows_out"], report["late_rows"]) == (3, 5, 3)
    assert (report["state_rows"], report["state_bytes"], report["plan"]) == (10, 100, "(a b)")
    assert (report["error"], len(report["batches"])) == (None, 1)
    first = report["batches"][0]
    assert first["own_ms"] == 9.0
    assert report["routes"][1] == {
        "relation": "a",
        "route": 1,
        "rows": 5,
        "share": 0.25,
        "results": 1,
        "operators": ["b"],
        "selectivities": [0.2],
        "seconds": 0.5,
    }
    assert first["spark_ms"] == first["duration_ms"] - 9.0
    json.dumps(report)

    handle.stop()
    assert (ran, handle.isActive) == (True, False)
    assert handle.lastProgress == handle.recentProgress[-1]  # nothing adds to them any more
    assert handle.awaitTermination() is None


def test_only_new_triggers_are_read(start: Start, spark: SparkSession, tmp_path: Path) -> None:
    runner = FakeRunner()
    handle = start(runner)
    handle.processAllAvailable()
    for _ in range(2):
        spark.range(3).coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
        handle.processAllAvailable()
    handle.stop()
    known = [each for each in handle.recentProgress if each["adaptive"] is not None]
    assert [each["batchId"] for each in known] == [0, 1, 2]
    for seen in (-1, 0, 1):
        after = [each for each in handle.progressAfter(seen) if each["adaptive"] is not None]
        assert after == known[seen + 1 :]
    # A handle that goes on with another run of Spark has the triggers before, too.
    handle.follow(handle._query, runner)
    assert [each["batchId"] for each in handle.progressAfter(-1) if each["adaptive"]] == [0, 1, 2, 0, 1, 2]
    with mock.patch.object(runner, "running", None):
        assert handle.progressAfter(2) == [], "Spark was asked, though there is nothing new"


def test_an_error_of_ours_comes_out_as_itself(start: Start, spark: SparkSession) -> None:
    def fail(batch: int) -> None:
        raise errors.ExpressionError("integer overflow in 'a.k + 1'")

    handle = start(FakeRunner(fail))
    queries = ContinuousQueries(spark)
    queries.add(handle)
    with pytest.raises(errors.ExpressionError, match="integer overflow") as caught:
        handle.awaitTermination(300)
    assert isinstance(caught.value.__cause__, StreamingQueryException)
    assert handle.exception() is caught.value
    assert handle.report()["error"] == "integer overflow in 'a.k + 1'"
    assert handle.status["message"] == "Terminated with exception: integer overflow in 'a.k + 1'"
    with pytest.raises(errors.ExpressionError):
        handle.processAllAvailable()
    with pytest.raises(errors.ExpressionError):
        queries.awaitAnyTermination(300)
    queries.resetTerminated()
    assert queries.get(handle.id) is None


def test_any_other_error_stays_sparks(start: Start) -> None:
    def fail(batch: int) -> None:
        raise KeyError("somewhere else")

    handle = start(FakeRunner(fail))
    with pytest.raises(StreamingQueryException):
        handle.awaitTermination(300)
    assert isinstance(handle.exception(), StreamingQueryException)


def test_an_idle_trigger_has_no_statistics(start: Start, spark: SparkSession) -> None:
    runner = FakeRunner()
    interval = "spark.sql.streaming.noDataProgressEventInterval"
    usual = spark.conf.get(interval)
    spark.conf.set(interval, "0")
    try:
        handle = start(runner)
    finally:
        spark.conf.set(interval, str(usual))
    for _ in range(2):  # the first idle trigger has ended, and told, when a second one has begun
        handle.processAllAvailable()
    runner._ran.add(1)  # as if batch 1, which an idle trigger is numbered after, had run since
    idle = [progress for progress in handle.recentProgress if "addBatch" not in progress["durationMs"]]
    assert idle
    assert all(progress["adaptive"] is None for progress in idle)


def _keys(value: object) -> set[str]:
    """All keys of a JSON value, but those below which names of the user's stand."""
    if isinstance(value, list):
        return {key for each in value for key in _keys(each)}
    if not isinstance(value, dict):
        return set()
    named = {"rowsIn", "lateRows", "aheadRows", "undatedRows", "sent", "seconds", "tested", "queries"}
    return value.keys() | {key for name, each in value.items() if name not in named for key in _keys(each)}
