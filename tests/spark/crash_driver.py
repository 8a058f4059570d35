"""A driver that runs a story and is killed at a chosen moment; the crash tests start it as a child process.

    python crash_driver.py <folder> <moment> <batch> <plan> <slots> <story as JSON>

A moment is a phase that the runner announces (`begin`, `written`, `diverted`, `committed`, `collected`) or one of
`MOMENTS`, which lie between them: inside the sink, inside the commit, inside the collection, and inside the step of a
worker.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import SparkSession

from anabranch.adapt.rules import ChangeRules, Switch
from anabranch.adapt.schedule import ScheduledMove
from anabranch.cql import compile_query
from anabranch.plan.mesh import parse_plan
from anabranch.plan.query_set import ALONE, alone, as_plans
from anabranch.plan.slots import SlotRange
from anabranch.planning.choosing import decide, proposal
from anabranch.planning.options import PlanOptions
from anabranch.run.work import Work
from anabranch.spark import worker
from anabranch.spark.runner import SparkRunner, start_query
from anabranch.spark.running import RunOptions
from anabranch.spark.session import local_session
from anabranch.spark.sinks.lake import LakeSink
from anabranch.spark.sinks.make import make_sink
from anabranch.spark.sinks.worker_files import WorkerFileSink
from anabranch.stats.report import SlotReport
from tests.spark.stories import Story, frames, sink_options
from tests.support.faults import MortalFiles, die, die_at

PHASES = ("begin", "written", "diverted", "committed", "collected")


def main(folder: Path, moment: str, batch: int, plan: str, slots: int, story: Story) -> None:
    spark = local_session(2, **{"spark.sql.warehouse.dir": str(folder / "warehouse")})
    start(spark, folder, moment, batch, plan, slots, story).awaitTermination()


def start(spark: SparkSession, folder: Path, moment: str, batch: int, plan: str, slots: int, story: Story) -> Any:
    query = compile_query(story.cql, story.catalog())
    sink = make_sink(story.sink, sink_options(story.sink, folder), spark=spark, schema=query.schema)
    assert isinstance(sink, WorkerFileSink | LakeSink)
    runner: SparkRunner | None = None

    def announce(phase: str, number: int) -> None:
        if number != batch:
            return
        if phase == moment:
            die()
        if moment in MOMENTS and (phase == "begin") == (moment not in AFTER_WRITING) and phase in ("begin", "written"):
            assert runner is not None
            MOMENTS[moment](runner, sink)

    if moment in IN_WORKER:
        IN_WORKER[moment](batch)
    rules = ChangeRules(switches=tuple(Switch(at, parse_plan(plan), how) for at, plan, how in story.switches))
    plans = as_plans(proposal(decide(query, PlanOptions(plan))).plan)
    moves = tuple(ScheduledMove(at, to, count, 0, how) for at, to, count, how in story.moves)
    work = Work(alone(query), plans, SlotRange.fixed(slots), {ALONE: rules}, moves=moves)
    options = RunOptions({"availableNow": True}, announce=announce)
    streams, checkpoint = frames(spark, story, folder), str(folder / "checkpoint")
    running, runner = start_query(spark, streams, work, {ALONE: sink}, checkpoint, options)
    return running


# --- in the driver: set up when the batch begins, or when its results are written -------------------------------------


BatchSink: TypeAlias = WorkerFileSink | LakeSink


def _die_publishing(sink: BatchSink, *, after: bool) -> None:
    if isinstance(sink, LakeSink):
        die_at(sink.table, "commit", after=after)
    else:
        die_at(sink.folder, "publish", after=after)


def _before_publish(runner: SparkRunner, sink: BatchSink) -> None:
    _die_publishing(sink, after=False)


def _amid_publish(runner: SparkRunner, sink: BatchSink) -> None:
    sink.folder._files = MortalFiles()
    die_at(sink.folder._files, "move", after=True)


def _after_publish(runner: SparkRunner, sink: BatchSink) -> None:
    _die_publishing(sink, after=True)


def _before_rename(runner: SparkRunner, sink: BatchSink) -> None:
    runner.store.files = MortalFiles()
    die_at(runner.store.files, "move", after=False)


def _amid_collection(runner: SparkRunner, sink: BatchSink) -> None:
    runner.store.files = MortalFiles()
    die_at(runner.store.files, "delete_file", after=True)


MOMENTS: Mapping[str, Callable[[SparkRunner, BatchSink], None]] = {
    "before the files are published": _before_publish,
    "when one file is published": _amid_publish,
    "when all files are published": _after_publish,
    "before the manifest is renamed": _before_rename,
    "when one old file is collected": _amid_collection,
}
AFTER_WRITING = frozenset({"before the manifest is renamed", "when one old file is collected"})


# --- in a worker: what the step function calls is replaced, and travels to the workers with it ------------------------


def _amid_step(batch: int, kill: Callable[[], None]) -> None:
    real = getattr(worker, "advance")  # noqa: B009

    def advance(engine: Any, task: Any, slot: int, *rest: Any) -> Generator[pa.RecordBatch, None, SlotReport]:
        step = real(engine, task, slot, *rest)
        if task.batch == batch and slot == 0:
            next(step, None)
            kill()
        report: SlotReport = yield from step
        return report

    setattr(worker, "advance", advance)  # noqa: B010


def _after_rows(batch: int, kill: Callable[[], None]) -> None:
    real = getattr(worker, "advance")  # noqa: B009

    def advance(engine: Any, task: Any, slot: int, *rest: Any) -> Generator[pa.RecordBatch, None, SlotReport]:
        report: SlotReport = yield from real(engine, task, slot, *rest)
        if task.batch == batch and slot == 0:
            kill()
        return report

    setattr(worker, "advance", advance)  # noqa: B010


def _the_driver() -> Callable[[], None]:
    group = os.getpgrp()
    return lambda: os.killpg(group, signal.SIGKILL)


def _the_worker() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


IN_WORKER: Mapping[str, Callable[[int], None]] = {
    "in the middle of a step": lambda batch: _amid_step(batch, _the_driver()),
    "in the middle of a step, the worker alone": lambda batch: _amid_step(batch, _the_worker),
    "when the rows of a slot are kept": lambda batch: _after_rows(batch, _the_driver()),
}


if __name__ == "__main__":
    place, moment_, batch_, plan_, slots_, story_ = sys.argv[1:]
    main(Path(place), moment_, int(batch_), plan_, int(slots_), Story(**json.loads(story_)))
