"""The Spark job of the resident slots: a barrier stage, so that all of its tasks run at once, and start again together.

Limit: a slot occupies a core for as long as the query runs, and Spark runs no barrier stage under dynamic allocation.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from pyspark import BarrierTaskContext, InheritableThread
from pyspark.sql import SparkSession

from anabranch.errors import HostError
from anabranch.spark.placement import is_on_several_machines, live_executors
from anabranch.spark.resident.slot import Address, serve

_PATIENCE = 30.0
"""Seconds for the executors of a cluster to join."""
_LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class SparkJob:
    """The job of a run."""

    spark: SparkSession
    slots: int
    title: str
    group: str

    def run(self, address: Address, number: int) -> None:
        """Runs the tasks until they end; raises Spark's error if they fail too often."""
        failures: list[BaseException] = []

        def work() -> None:
            context = self.spark.sparkContext
            context.setJobGroup(self.group, f"resident slots of {self.title}", interruptOnCancel=True)
            numbers = context.parallelize(range(self.slots), self.slots)
            try:
                numbers.barrier().mapPartitions(partial(_serve, address, number)).collect()
            except BaseException as error:
                failures.append(error)

        # The thread of a job has the job group, which a thread of the user must not get.
        thread = InheritableThread(target=work, name="anabranch-spark-job", daemon=True)
        thread.start()
        thread.join()
        if failures:
            raise failures[0]

    def cancel(self) -> None:
        self.spark.sparkContext.cancelJobGroup(self.group)


def _serve(address: Address, number: int, rows: Iterable[int]) -> Iterator[int]:
    context = BarrierTaskContext.get()
    # Spark numbers task attempts across the context, so a later attempt at the stage has larger numbers.
    attempts = map(int, context.allGather(str(context.taskAttemptId())))
    serve(address, context.partitionId(), (number, max(attempts)))
    return iter(())


def refuse_few_cores(spark: SparkSession, slots: int) -> None:
    """Refuses a run if its slots leave no core free, or if Spark would never start it."""
    if str(spark.conf.get("spark.dynamicAllocation.enabled", "false")).lower() == "true":
        raise HostError(
            "the Spark session has dynamic allocation on, and resident slots need a fixed number of executors",
            hint="start the session with spark.dynamicAllocation.enabled=false, or run in micro-batches",
        )
    end = time.monotonic() + (_PATIENCE if is_on_several_machines(spark) else 0.0)
    while (most := most_slots(spark)) < slots and time.monotonic() < end:
        time.sleep(_LOOK_SECONDS)
    if slots > most:
        fewer = f"slots({most}) or " if most else ""
        raise HostError(
            f"{slots} resident slots need {slots + 1} cores, and the session has {most + 1}",
            detail="each slot occupies a core for as long as the query runs, and Spark needs one for its other jobs",
            hint=f"use {fewer}a master with more cores, such as local[{slots + 1}]",
        )


def most_slots(spark: SparkSession) -> int:
    """Returns the number of slots that leave one core of the session free."""
    context = spark.sparkContext
    cores = sum(each.cores for each in live_executors(spark)) or int(context.defaultParallelism)
    return max(0, cores // int(context.getConf().get("spark.task.cpus", "1")) - 1)
