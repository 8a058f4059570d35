"""A driver of a real-time run that dies, or kills one of its slots, at a chosen moment; a process that tests start.

python crash_real_time.py <folder> <master> <who> <phase> <batch> <story as JSON>
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from anabranch.cql import compile_query
from anabranch.plan.mesh import parse_plan
from anabranch.plan.query_set import ALONE, alone, as_plans
from anabranch.plan.slots import SlotRange
from anabranch.run.work import Work
from anabranch.spark.resident.runner import ResidentRunner, start_resident
from anabranch.spark.running import RunOptions
from anabranch.spark.sinks.make import make_sink
from tests.spark.cluster import session
from tests.spark.stories import Story, frames, sink_options
from tests.support.faults import die

SLOTS = 2


def main(folder: Path, master: str, who: str, phase: str, batch: int, story: Story) -> None:
    with session(master, folder, {}) as spark:
        run(spark, folder, who, phase, batch, story)


def run(spark: SparkSession, folder: Path, who: str, phase: str, batch: int, story: Story) -> None:
    query = compile_query(story.cql, story.catalog())
    sink = make_sink(story.sink, sink_options(story.sink, folder), spark=spark, schema=query.schema)
    runner: ResidentRunner | None = None
    killed: list[int] = []

    def announce(reached: str, number: int) -> None:
        if (reached, number) != (phase, batch):
            return
        if who == "driver":
            die()
        assert runner is not None
        if who == "slot" and not killed:
            assert runner.slots is not None
            killed.append(runner.slots.processes[1])
            os.kill(killed[0], signal.SIGKILL)

    plan = parse_plan(f"({' '.join(query.graph.names)})")
    work = Work(alone(query), as_plans(plan), SlotRange.fixed(SLOTS))
    options = RunOptions({}, announce=announce)
    checkpoint = str(folder / "checkpoint")
    running, runner = start_resident(spark, frames(spark, story, folder), work, {ALONE: sink}, checkpoint, options)
    running.processAllAvailable()
    runner.is_ending = True
    runner.leave()
    runner.release()
    assert (who == "slot") == bool(killed)


if __name__ == "__main__":
    place, master_, who_, phase_, batch_, story_ = sys.argv[1:]
    main(Path(place), master_, who_, phase_, int(batch_), Story(**json.loads(story_)))
