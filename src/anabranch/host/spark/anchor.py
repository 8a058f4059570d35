"""Keeps a slot on the machine that has its hot state, where a cluster has several machines.

Spark sends the task of a shuffled partition to any free executor. A slot on another machine finds no hot state there
and rebuilds it from the checkpoint, which costs the window. So the rows of a micro-batch are joined with a small cached
frame of one row per slot, the anchor: a task prefers the executor that holds its part of the anchor. When that executor
is lost, Spark makes the part again elsewhere, and the slot follows it.

Both sides must be partitioned alike, by Spark's own hash; `slot_keys` gives numbers whose hash is the slot. A session
on one machine needs no anchor.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from pyspark import InheritableThread
from pyspark.sql import DataFrame, Row, SparkSession

from anabranch.host.hot import forget

SLOT, ANCHOR = "_slot", "_anchor"
PATIENCE = 30.0
"""Seconds that the end of a query waits for machines to give hot state back."""
_MASK = 0xFFFFFFFF
_SEED = 42
"""The seed with which Spark partitions by hash."""


def is_on_several_machines(spark: SparkSession) -> bool:
    master = spark.sparkContext.master or ""
    return master != "local" and not master.startswith("local[")


def make_anchor(spark: SparkSession, slots: int) -> DataFrame:
    """One row per slot, partitioned as the rows of a batch are, and kept where it was first made."""
    keys = ", ".join(str(key) for key in slot_keys(slots))
    rows = spark.range(slots).selectExpr(f"element_at(array({keys}), CAST(id AS INT) + 1) AS {ANCHOR}")
    return rows.repartition(slots, ANCHOR).cache()


def forget_at_slots(anchor: DataFrame, identity: str) -> None:
    """Removes the hot state of a query that has ended from the machines that hold parts of its anchor.

    A machine may be gone, or busy for long: then sweeping removes the state later (see `anabranch.host.hot`).
    """
    context = anchor.sparkSession.sparkContext
    group = f"anabranch-forget-{identity}"

    def job() -> None:
        with suppress(Exception):
            context.setJobGroup(group, "giving back hot state", interruptOnCancel=True)
            anchor.foreachPartition(partial(_forget, identity))

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
