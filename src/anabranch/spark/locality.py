"""Keeps a slot on the machine that has its hot state, where a cluster has several machines.

Spark sends the task of a shuffled partition to any free executor. A slot on another machine finds no hot state there
and rebuilds it from the checkpoint, which costs the window. So the rows of a micro-batch are joined with a frame of one
row per slot, the anchor: a task prefers the executor that the driver has chosen for its slot (`spark.placement`).
The anchor keeps nothing on executors, so it does not stop Spark from removing an idle one.

Both sides must be partitioned alike, by Spark's own hash; `slot_keys` gives numbers whose hash is the slot. A session
on one machine needs no anchor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from py4j.protocol import Py4JError
from pyspark import InheritableThread
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from anabranch.run.hot import forget

SLOT, ANCHOR = "_slot", "_anchor"
PATIENCE = 30.0
"""Seconds that the end of a query waits for machines to give hot state back."""
_MASK = 0xFFFFFFFF
_SEED = 42
"""The seed with which Spark partitions by hash."""


def make_anchor(spark: SparkSession, places: Sequence[str]) -> DataFrame:
    """One row per slot in use, partitioned as the rows of a batch are; each part prefers the executor that is named."""
    try:
        return _located(spark, slot_keys(len(places)), places)
    except (Py4JError, TypeError):
        # A Spark whose plans are built otherwise. Its parts stay where they are first made.
        keys = ", ".join(str(key) for key in slot_keys(len(places)))
        rows = spark.range(len(places)).selectExpr(f"element_at(array({keys}), CAST(id AS INT) + 1) AS {ANCHOR}")
        return rows.repartition(len(places), ANCHOR).cache()


def _located(spark: SparkSession, keys: Sequence[int], places: Sequence[str]) -> DataFrame:
    """A frame over an RDD with preferred locations, which says that it is partitioned by the hash of its keys.

    PySpark has no way to such a frame, so its logical plan is built in the JVM.
    """
    context = spark.sparkContext
    jvm, java, gateway = context._jvm, context._jsc, context._gateway
    assert jvm is not None
    assert java is not None
    assert gateway is not None

    def sequence(values: Iterable[Any]) -> Any:
        several = jvm.java.util.ArrayList()
        for value in values:
            several.add(value)
        return jvm.scala.jdk.javaapi.CollectionConverters.asScala(several).toSeq()

    def row(key: int) -> Any:
        values = gateway.new_array(jvm.java.lang.Object, 1)
        values[0] = key
        return jvm.org.apache.spark.sql.catalyst.expressions.GenericInternalRow(values)

    parts = sequence(jvm.scala.Tuple2(row(key), sequence([at])) for key, at in zip(keys, places, strict=True))
    any_type = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("java.lang.Object"))
    rdd = java.sc().makeRDD(parts, any_type)
    session = spark._jsparkSession
    key = spark.range(1).select(f.lit(0).alias(ANCHOR))._jdf.queryExecution().analyzed().output()
    hashed = jvm.org.apache.spark.sql.catalyst.plans.physical.HashPartitioning(key, len(keys))
    none = jvm.scala.Option.empty()
    arguments = [key, rdd, hashed, sequence([]), False, none, session, none, none]
    plans = jvm.org.apache.spark.sql.execution
    try:
        plan = plans.LogicalRDD(*arguments, False)
    except Py4JError:  # Spark before 4.3
        plan = plans.LogicalRDD(*arguments)
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session, plan), spark)


def forget_at(spark: SparkSession, places: Sequence[str], identity: str) -> None:
    """Removes the hot state of a query that has ended from the machines of some executors.

    A machine may be gone, or busy for long: then sweeping removes the state later (see `anabranch.run.hot`).
    """
    context = spark.sparkContext
    group = f"anabranch-forget-{identity}"

    def job() -> None:
        with suppress(Exception):
            context.setJobGroup(group, "giving back hot state", interruptOnCancel=True)
            make_anchor(spark, places).foreachPartition(partial(_forget, identity))

    thread = InheritableThread(target=job, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if thread.is_alive():
        context.cancelJobGroup(group)


def _forget(identity: str, rows: Iterable[Row]) -> None:
    forget(identity)


def anchored(rows: DataFrame, anchor: DataFrame) -> DataFrame:
    """A frame with the rows and partitions of another, each computed where its part of the anchor is.

    Every row finds its slot, so the join keeps them all. As a hash join it sorts nothing.
    """
    return rows.join(anchor.hint("shuffle_hash"), rows[SLOT] == anchor[ANCHOR], "left_semi")


def slot_keys(slots: int) -> tuple[int, ...]:
    """For each slot the least number that Spark's hash partitioning sends to the partition of that number."""
    found: dict[int, int] = {}
    key = 0
    while len(found) < slots:
        found.setdefault(_spark_hash(key) % slots, key)
        key += 1
    return tuple(found[slot] for slot in range(slots))


def _spark_hash(value: int) -> int:
    """The 32-bit Murmur 3 hash of an integer, signed, as Spark computes it."""
    mixed = _rotated(value * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    state = (_rotated(_SEED ^ mixed, 13) * 5 + 0xE6546B64 & _MASK) ^ 4
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    state ^= state >> 16
    return state - (1 << 32) if state >> 31 else state


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _MASK
