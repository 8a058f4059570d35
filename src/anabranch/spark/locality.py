"""Schedules a slot on the machine with its hot state, on clusters of several machines.

Spark sends the task of a shuffled partition to any free executor. A slot on another machine finds no hot state there
and rebuilds it from the checkpoint, at the cost of a whole window. Therefore the rows of a micro-batch are joined with
a *locality frame* of one row per slot: a task prefers the executor that the driver has chosen for its slot
(`spark.placement`). The locality frame stores nothing on executors, so Spark can still remove an idle executor.

Invariant: Spark's own hash must partition both sides alike; `slot_keys` returns keys whose hash is the slot. Limit: a
session on one machine has no locality frame.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache, partial

from py4j.protocol import Py4JError
from pyspark import InheritableThread
from pyspark.sql import DataFrame, Row, SparkSession

from anabranch.run.hot import forget
from anabranch.spark.internals.plans import located_frame

SLOT, LOCALITY = "_slot", "_locality"
PATIENCE = 30.0
"""Seconds that the end of a query waits for machines to release hot state."""
_MASK = 0xFFFFFFFF
_SEED = 42
"""The seed of Spark's hash partitioning."""


def make_locality(spark: SparkSession, places: Sequence[str]) -> DataFrame:
    """Returns one row per slot in use, partitioned like a batch; each partition prefers the named executor."""
    try:
        return located_frame(spark, LOCALITY, slot_keys(len(places)), places)
    except (Py4JError, TypeError):
        # Fallback for Spark versions with other plan classes: partitions stay where they are first computed.
        keys = ", ".join(str(key) for key in slot_keys(len(places)))
        rows = spark.range(len(places)).selectExpr(f"element_at(array({keys}), CAST(id AS INT) + 1) AS {LOCALITY}")
        return rows.repartition(len(places), LOCALITY).cache()


def forget_at(spark: SparkSession, places: Sequence[str], identity: str) -> None:
    """Removes the hot state of an ended query from the machines of some executors.

    If a machine is gone or busy for long, sweeping removes the state later (see `anabranch.run.hot`).
    """
    context = spark.sparkContext
    group = f"anabranch-forget-{identity}"

    def job() -> None:
        with suppress(Exception):
            context.setJobGroup(group, "giving back hot state", interruptOnCancel=True)
            make_locality(spark, places).foreachPartition(partial(_forget, identity))

    thread = InheritableThread(target=job, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if thread.is_alive():
        context.cancelJobGroup(group)


def _forget(identity: str, rows: Iterable[Row]) -> None:
    forget(identity)


def located(rows: DataFrame, locality: DataFrame) -> DataFrame:
    """Returns a frame with the same rows and partitions, each computed at the preferred location of its slot.

    Every row matches its slot, so the join keeps all rows. As a hash join, it needs no sort.
    """
    return rows.join(locality.hint("shuffle_hash"), rows[SLOT] == locality[LOCALITY], "left_semi")


@cache
def slot_keys(slots: int) -> tuple[int, ...]:
    """Returns for each slot the least key that Spark's hash partitioning sends to the partition of that number."""
    found: dict[int, int] = {}
    key = 0
    while len(found) < slots:
        found.setdefault(_spark_hash(key) % slots, key)
        key += 1
    return tuple(found[slot] for slot in range(slots))


def _spark_hash(value: int) -> int:
    """Returns Spark's 32-bit Murmur 3 hash of an integer, signed."""
    mixed = _rotated(value * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    state = (_rotated(_SEED ^ mixed, 13) * 5 + 0xE6546B64 & _MASK) ^ 4
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    state ^= state >> 16
    return state - (1 << 32) if state >> 31 else state


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _MASK
