"""A query that is stopped in the middle of a batch: nothing fails, and the batch ends or is done again."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from anabranch.adapt.rules import NO_RULES
from anabranch.cql import compile_query
from anabranch.errors import SinkError
from anabranch.plan.query_set import ALONE, alone, as_plans
from anabranch.plan.slots import SlotRange
from anabranch.planning.choosing import decide, proposal
from anabranch.planning.options import PlanOptions
from anabranch.run.work import Work
from anabranch.spark.failure import is_interrupt
from anabranch.spark.handle import QueryHandle
from anabranch.spark.runner import SparkRunner, start_query
from anabranch.spark.running import RunOptions
from anabranch.spark.sinks.worker_files import ParquetFiles, WorkerFileSink
from anabranch.telemetry.logs import LOG, fields_of
from tests.spark.stories import Story, cut, feed, frames, written
from tests.support.oracle import describe_difference

pytestmark = pytest.mark.spark

STORY = Story("SELECT a.p AS p, b.p AS q FROM s0 [RANGE 6 SECONDS] AS a, s1 [RANGE 6 SECONDS] AS b WHERE a.x = b.x")
AtBatch = Callable[["Stoppable"], None]


class Events(logging.Handler):
    """The names of events, and the fields of the last one of each name."""

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[str, dict[str, object]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.last[record.getMessage()] = dict(fields_of(record))


class Stoppable:
    """A running query that does what a test asks when its first batch has begun."""

    def __init__(self, spark: SparkSession, folder: Path, at_batch: AtBatch = lambda run: None) -> None:
        self.has_begun, self._is_started = Event(), Event()
        self._at_batch = at_batch
        query = compile_query(STORY.cql, STORY.catalog())
        plans = as_plans(proposal(decide(query, PlanOptions("tree"))).plan)
        work = Work(alone(query), plans, SlotRange.fixed(2), {ALONE: NO_RULES})
        options = RunOptions({"processingTime": "0 seconds"}, announce=self._announced)
        sink = WorkerFileSink(str(folder / "out"), ParquetFiles("snappy"))
        self.spark: StreamingQuery
        self.runner: SparkRunner
        self.spark, self.runner = start_query(
            spark, frames(spark, STORY, folder), work, {ALONE: sink}, str(folder / "checkpoint"), options
        )
        self.handle = QueryHandle(self.spark, self.runner)
        self._is_started.set()

    def _announced(self, phase: str, batch: int) -> None:
        if phase == "begin" and not self.has_begun.is_set():
            self._is_started.wait()
            self.has_begun.set()
            self._at_batch(self)


def hold_until_the_end_is_asked_for(run: Stoppable) -> None:
    while not run.runner.is_ending:
        time.sleep(0.005)


def hold_until_spark_stops(run: Stoppable) -> None:
    while run.spark.isActive:
        time.sleep(0.005)


@pytest.fixture
def events() -> Iterator[Events]:
    handler, level = Events(), LOG.level
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    yield handler
    LOG.setLevel(level)
    LOG.removeHandler(handler)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for batch in cut(STORY.tables(), 3):
        feed(tmp_path, batch)
    return tmp_path


def check(run: Stoppable, events: Events, spark: SparkSession, folder: Path) -> None:
    """Nothing failed, the end was told, and a restart gives the rest of the answer."""
    assert "failed" not in events.last
    assert events.last["ended"]["failed"] is False
    assert (run.handle.isActive, run.handle.exception(), run.runner.failure) == (False, None, None)
    again = Stoppable(spark, folder)
    again.handle.processAllAvailable()
    again.handle.stop()
    assert "failed" not in events.last
    assert not describe_difference(STORY.expected(STORY.tables()), written(folder))


def test_the_batch_at_hand_ends_before_the_query(spark: SparkSession, folder: Path, events: Events) -> None:
    run = Stoppable(spark, folder, hold_until_the_end_is_asked_for)
    run.has_begun.wait()
    run.handle.stop()
    assert run.runner.manifest is not None
    assert run.runner.manifest.batch == events.last["ended"]["batch"] == 0
    assert [batch["batch"] for batch in run.handle.report()["batches"]] == [0]
    check(run, events, spark, folder)


def test_a_batch_that_spark_begins_meanwhile_is_left_to_the_restart(
    spark: SparkSession, folder: Path, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Stoppable(spark, folder, hold_until_the_end_is_asked_for)
    run.has_begun.wait()
    waits, await_end = Event(), run.runner._await_end

    def noted() -> None:
        waits.set()
        await_end()

    def stop_when_it_waits() -> None:
        waits.wait()
        StreamingQuery.stop(run.spark)

    monkeypatch.setattr(run.runner, "_await_end", noted)
    monkeypatch.setattr(run.spark, "stop", stop_when_it_waits)
    run.handle.stop()
    check(run, events, spark, folder)


def test_a_batch_that_spark_interrupts_has_not_failed(spark: SparkSession, folder: Path, events: Events) -> None:
    """Whoever stops Spark's own query does not wait for the batch."""
    run = Stoppable(spark, folder, hold_until_spark_stops)
    run.has_begun.wait()
    run.spark.stop()
    run.handle.stop()
    assert run.runner.manifest is None
    check(run, events, spark, folder)


def test_control_c_while_one_waits_ends_the_query_after_its_batch(
    spark: SparkSession, folder: Path, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark's own handler would cancel the job of the batch."""
    before = signal.getsignal(signal.SIGINT)
    run = Stoppable(spark, folder, hold_until_the_end_is_asked_for)
    run.has_begun.wait()

    def interrupted(timeout: float | None = None) -> bool | None:
        signal.raise_signal(signal.SIGINT)
        return False

    monkeypatch.setattr(run.spark, "awaitTermination", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.handle.awaitTermination()
    assert signal.getsignal(signal.SIGINT) == before
    assert events.last["ended"]["batch"] == 0
    check(run, events, spark, folder)


def test_what_is_an_interrupt_and_what_is_not() -> None:
    interrupt = RuntimeError("py4j: An error occurred\n: java.lang.InterruptedException")
    wrapped = SinkError("sink 'parquet' failed on batch 3", detail="…", hint="…")
    wrapped.__cause__ = interrupt
    assert is_interrupt(interrupt)
    assert is_interrupt(wrapped)
    assert is_interrupt(RuntimeError("Job 3 cancelled part of cancelled job group 5f6"))
    assert not is_interrupt(RuntimeError("java.io.IOException: no space left"))
