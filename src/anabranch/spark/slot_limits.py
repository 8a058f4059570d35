"""The CPU and memory that an executor has for a slot, for `limits: auto`.

A slot is a task, so it may use the cores of a task, and its share of the memory that the executor has outside its JVM:
engines and their state are there. Invariant: the figures follow from the settings of the session alone. Limit: on one
machine, where Spark reserves no memory outside the JVM, the share is that of the machine's memory less the heap.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from pyspark.sql import SparkSession

from anabranch.spark.placement import is_on_several_machines

_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_LEAST_OVERHEAD = 384 << 20
"""Spark's default least memory outside the heap of an executor."""


@dataclass(frozen=True)
class SlotLimits:
    """The cores and bytes of a slot."""

    cpu: float
    memory: float


def slot_limits(spark: SparkSession) -> SlotLimits:
    """Returns the cores and bytes that a task of the session may use outside the JVM."""
    per_task = int(_setting(spark, "spark.task.cpus", "1"))
    if is_on_several_machines(spark):
        heap = _bytes(_setting(spark, "spark.executor.memory", "1g"))
        factor = float(_setting(spark, "spark.executor.memoryOverheadFactor", "0.1"))
        reserved = _setting(spark, "spark.executor.memoryOverhead", "")
        outside = _bytes(reserved) if reserved else max(factor * heap, _LEAST_OVERHEAD)
        outside += _bytes(_setting(spark, "spark.executor.pyspark.memory", "0"))
        tasks = max(1, int(_setting(spark, "spark.executor.cores", "1")) // per_task)
        return SlotLimits(float(per_task), outside / tasks)
    tasks = max(1, int(spark.sparkContext.defaultParallelism) // per_task)
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    heap = _bytes(_setting(spark, "spark.driver.memory", "1g"))
    return SlotLimits(min(float(per_task), (os.cpu_count() or 1) / tasks), max(0.0, machine - heap) / tasks)


def _setting(spark: SparkSession, name: str, default: str) -> str:
    return spark.sparkContext.getConf().get(name, default) or default


def _bytes(text: str) -> float:
    """Reads a size of Spark: mebibytes without a unit, as memory settings of Spark have it."""
    amount = text.strip().lower().removesuffix("b").removesuffix("i")
    unit = _UNITS.get(amount[-1:], 1 << 20)
    return float(amount.rstrip("kmgt")) * unit
