"""The processor time of Spark's tasks, as they measure it themselves.

What Java compiles, collects and plans meanwhile is not in it, nor are Python workers: it is the time of the threads
that run tasks, in nanoseconds. Spark has no public way to ask for it, so its store of what has run is asked.

Limit: a session in this process, with one caller at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from pyspark.sql import SparkSession


def task_seconds(spark: SparkSession, action: Callable[[], object]) -> float:
    """Runs an action; returns the processor seconds of the tasks of its jobs."""
    context, group = spark.sparkContext, f"anabranch-{uuid4().hex}"
    context.setJobGroup(group, "timed")
    try:
        action()
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    java: Any = context._jsc.sc()
    java.listenerBus().waitUntilEmpty()
    tracker, store = context.statusTracker(), java.statusStore()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = {stage for job in jobs if job is not None for stage in job.stageIds}
    return sum(float(store.lastStageAttempt(stage).executorCpuTime()) for stage in stages) / 1e9
