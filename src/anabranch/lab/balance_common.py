"""A query over several servers on a virtual clock: what the slots of the engine did is charged to a server each.

Rows go through the engine's own slots in process. Each slot stands on a server that works through its batches in order,
as the machines of Zhu 2006, Chapter 23, did: a part of a batch that arrives at a is done at max(a, the part before is
done) + cost. The cost is that of the operations that the slot reported, at the unit costs of the engine times a
slowdown: the engine is much faster than the paper's machines, so without one nothing would ever wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anabranch import cql
from anabranch.calibrate.file import calibrated
from anabranch.calibrate.measure import stream
from anabranch.catalog import Catalog
from anabranch.cost.units import UnitCosts, unit_costs
from anabranch.host.local import LocalHost
from anabranch.plan.query import Query
from anabranch.schema import TIMESTAMP
from anabranch.stats.step import StepStatistics

Floats = NDArray[np.float64]


def engine_units() -> UnitCosts:
    """The unit costs of the engine: calibrated on this machine, or the built-in ones."""
    return unit_costs(calibrated())[0]


def charged(step: StepStatistics, units: UnitCosts) -> float:
    """Seconds of one core for what a slot did in a step."""
    cost = sum(step.rows_in.values()) * (units.insert + units.delete + units.link)
    for state in step.states:
        if state.state not in step.rows_in:
            cost += state.inserted * (units.insert + units.insert_joined + units.delete + units.link)
    for probe in step.probes:
        cost += probe.probes * units.probe + probe.visited * units.compare
        cost += probe.matches * (units.match + 2 * units.match_relation)
    return cost + step.rows_out * units.emit


@dataclass
class Servers:
    """The servers of the slots of a host."""

    host: LocalHost
    slowdown: float
    units: UnitCosts

    def __post_init__(self) -> None:
        slots = self.host.partitioning.slots
        self.free = np.zeros(slots)
        self.work = np.zeros(slots)
        """Seconds that each server has worked."""
        self.finished: list[tuple[float, int]] = []
        """When results left, and how many."""
        self.state_rows = 0

    def step(self, arrived: float, tables: Mapping[str, pa.Table], extra: Mapping[int, float] | None = None) -> Floats:
        """Takes a batch; returns what it cost each server. `extra` are seconds that servers need beside it."""
        self.host.step(tables)
        costs = np.zeros(len(self.free))
        for slot, report in self.host.reports.items():
            costs[slot] = charged(report.statistics, self.units) * self.slowdown + (extra or {}).get(slot, 0.0)
            self.free[slot] = max(self.free[slot], arrived) + costs[slot]
            if report.statistics.rows_out:
                self.finished.append((float(self.free[slot]), report.statistics.rows_out))
        self.work += costs
        self.state_rows = self.host.statistics.state_rows
        return costs

    def results_until(self, second: float) -> int:
        """Results that had left by then."""
        return sum(count for at, count in self.finished if at <= second)

    @property
    def skew(self) -> float:
        return float(self.work.max() / self.work.mean()) if self.work.any() else 1.0


def keyed_query(names: str, window: float) -> Query:
    """A join of streams by one key."""
    catalog = Catalog()
    for name in names:
        catalog.register(stream(name, ("k", "v")))
    sources = ", ".join(f"{name} [RANGE {round(1000 * window)} MILLISECONDS]" for name in names)
    columns = ", ".join(f"{name}.v AS {name}" for name in names)
    where = " AND ".join(f"{names[0]}.k = {name}.k" for name in names[1:])
    return cql.compile_query(f"SELECT {columns} FROM {sources} WHERE {where}", catalog)


def rows_of(rng: np.random.Generator, start: float, seconds: float, rate: float, keys: Floats) -> pa.Table:
    """Poisson rows of one stream in a stretch of time; `keys` are the probabilities of the keys."""
    count = int(rng.poisson(rate * seconds))
    times = np.sort(rng.uniform(start, start + seconds, count))
    instants = pa.array((1e6 * times).astype(np.int64)).cast(pa.timestamp("us")).cast(TIMESTAMP)
    chosen = rng.choice(len(keys), count, p=keys) if count else np.zeros(0, np.int64)
    return pa.table(
        {"ts": instants, "k": pa.array(chosen.astype(np.int64)), "v": pa.array(rng.integers(0, 1 << 40, count))}
    )


def batches(
    rng: np.random.Generator, seconds: float, length: float, rates: Mapping[str, float], keys: Floats
) -> Iterator[tuple[float, dict[str, pa.Table]]]:
    """Batches of a length, each with the time at which its last row is there."""
    for number in range(round(seconds / length)):
        start = number * length
        yield start + length, {name: rows_of(rng, start, length, rate, keys) for name, rate in rates.items()}
