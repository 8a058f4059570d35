"""Assigns slots to executors: a table in the driver, updated when executors join or leave.

A slot has its hot state on one executor; running it elsewhere requires a rebuild from the checkpoint. So a slot keeps
its executor while that is alive and has no more than its share of slots. The share of an executor is proportional to
its cores. A new executor gets slots from the fullest ones; slots of a lost executor go to those with the most free
capacity.

Under dynamic allocation, Spark removes idle executors. Slots are then packed onto as few executors as have cores for
them. So an unneeded executor loses its slots in an ordinary batch, and Spark removes it after that.

Limit: all slots count equally, whatever their load.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from anabranch.spark.internals.driver import executors


@dataclass(frozen=True)
class Executor:
    """A process of the cluster that runs tasks."""

    id: str
    host: str
    cores: int

    @property
    def location(self) -> str:
        """The name of the process in Spark's scheduler."""
        return f"executor_{self.host}_{self.id}"


def is_on_several_machines(spark: SparkSession) -> bool:
    master = spark.sparkContext.master or ""
    return master != "local" and not master.startswith("local[")


def live_executors(spark: SparkSession) -> tuple[Executor, ...]:
    """Returns the live executors; none on one machine."""
    if not is_on_several_machines(spark):
        return ()
    several = [Executor(id, _host(address), cores) for id, address, cores in executors(spark) if id != "driver"]
    # An executor registered without cores is still starting.
    return tuple(sorted((each for each in several if each.cores > 0), key=lambda each: (len(each.id), each.id)))


def _host(address: str) -> str:
    """Returns the host of an address, which has no port while an executor is starting."""
    host, colon, port = address.rpartition(":")
    return host if colon and port.isdecimal() else address


def place(
    slots: Sequence[int], executors: Sequence[Executor], before: Mapping[int, str], *, packed: bool = False
) -> dict[int, str]:
    """Returns the executor of each slot; moves as few slots as possible."""
    if not executors:
        return {}
    cores = {each.id: each.cores for each in (_packed(slots, executors, before) if packed else executors)}
    placed = {slot: before[slot] for slot in slots if before.get(slot) in cores}
    counts = Counter(dict.fromkeys(cores, 0))
    counts.update(placed.values())
    order = {each: position for position, each in enumerate(cores)}
    for slot in slots:
        if slot not in placed:
            placed[slot] = min(cores, key=lambda each: ((counts[each] + 1) / cores[each], order[each]))
            counts[placed[slot]] += 1
    while True:
        fullest = max(cores, key=lambda each: (counts[each] / cores[each], order[each]))
        emptiest = min(cores, key=lambda each: ((counts[each] + 1) / cores[each], order[each]))
        if counts[fullest] / cores[fullest] <= (counts[emptiest] + 1) / cores[emptiest]:
            return placed
        moving = max(slot for slot, at in placed.items() if at == fullest)
        placed[moving] = emptiest
        counts[fullest] -= 1
        counts[emptiest] += 1


def _packed(slots: Sequence[int], executors: Sequence[Executor], before: Mapping[int, str]) -> list[Executor]:
    """Returns the fewest executors with a core for every slot; those that already have slots come first."""
    had = Counter(before.get(slot, "") for slot in slots)
    chosen: list[Executor] = []
    room = 0
    for each in sorted(executors, key=lambda each: -had[each.id]):
        if room >= len(slots):
            break
        chosen.append(each)
        room += each.cores
    return chosen
