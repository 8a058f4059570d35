"""The executors of a running query: the assignment of slots, and executors that joined or were lost.

Before every batch the driver lists Spark's executors. When one is lost, a query with automatic balancing spreads the
groups of its slots over the others, so that no single slot must be rebuilt in full. When one joins, groups move back.
Without automatic balancing, a slot is rebuilt from the checkpoint on its new executor.

Limit: a session on one machine has no executors to choose from, so this module does nothing there.
"""

from __future__ import annotations

from contextlib import suppress

from pyspark.sql import DataFrame, SparkSession

from anabranch.adapt.table import TableSteering
from anabranch.plan.partitioning import Partitioning
from anabranch.spark.locality import forget_at, make_locality
from anabranch.spark.placement import Executor, live_executors, place


class Places:
    """The executor of each slot in use."""

    def __init__(self, steering: TableSteering) -> None:
        self._steering = steering
        self._executors: tuple[Executor, ...] = ()
        self._at: dict[int, str] = {}
        self._locality: tuple[dict[int, str], DataFrame] | None = None

    def executor(self, slot: int) -> str | None:
        """Returns the executor of a slot; None on one machine and for an unused slot."""
        return self._at.get(slot)

    def meet(self, spark: SparkSession) -> None:
        """Detects executors that joined or were lost since the last batch."""
        before, self._executors = self._executors, live_executors(spark)
        if not before or before == self._executors:
            return
        alive = {each.id for each in self._executors}
        lost = [slot for slot, at in self._at.items() if at not in alive]
        joined = sorted(alive - {each.id for each in before})
        if lost and not joined:
            gone = sorted({self._at[slot] for slot in lost})
            self._steering.lose(lost, f"executor {', '.join(gone)} was lost")
        elif joined and not lost:
            self._steering.regain(f"executor {', '.join(joined)} joined")

    def locality(self, spark: SparkSession, table: Partitioning) -> DataFrame | None:
        """Returns the locality hint that keeps the slots of a table at their state; None on one machine."""
        if not self._executors:
            return None
        self._at = place(table.working, self._executors, self._at, packed=_is_allocated_dynamically(spark))
        if self._locality is None or self._locality[0] != self._at:
            locations = {each.id: each.location for each in self._executors}
            locality = make_locality(spark, [locations[self._at[slot]] for slot in table.working])
            self._locality = dict(self._at), locality
        return self._locality[1]

    def cores(self, spark: SparkSession) -> int | None:
        """Returns the number of concurrent tasks; None if Spark starts executors on demand."""
        if not self._executors:
            return int(spark.sparkContext.defaultParallelism)
        return None if _is_allocated_dynamically(spark) else sum(each.cores for each in self._executors)

    def forget(self, identity: str) -> None:
        """Removes the hot state of the ended query from all executors, because slots may have been on any of them."""
        if self._locality is not None:
            with suppress(Exception):  # Spark may already have ended
                spark = self._locality[1].sparkSession
                forget_at(spark, [each.location for each in live_executors(spark)], identity)


def _is_allocated_dynamically(spark: SparkSession) -> bool:
    return str(spark.conf.get("spark.dynamicAllocation.enabled", "false")).lower() == "true"
