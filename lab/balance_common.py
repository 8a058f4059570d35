"""A query over several servers on a virtual clock: what the slots of the engine did is charged to a server each.

Rows go through the engine's own slots in process. Each slot stands on a server that works through its batches in order,
as the machines of Zhu 2006, Chapter 23, did: a part of a batch that arrives at a is done at max(a, the part before is
done) + cost. The cost is that of the operations that the slot reported, at the unit costs of the engine times a
slowdown: the engine is much faster than the paper's machines, so without one nothing would ever wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anabranch import cql
from anabranch.calibrate.engine_costs import stream
from anabranch.cost.steps import price_of_step
from anabranch.cost.units import UnitCosts, unit_costs
from anabranch.lang.catalog import Catalog
from anabranch.lang.schema import TIMESTAMP
from anabranch.plan.query import Query
from anabranch.planning.calibration import calibrated
from anabranch.run.local import LocalHost
from anabranch.stats.report import SlotReports
from anabranch.stats.step import StepStatistics

Floats = NDArray[np.float64]
Rates: TypeAlias = Callable[[float], Mapping[str, float]]
"""Rows per second of each stream, from a second on."""


def engine_units() -> UnitCosts:
    """The unit costs of the engine: calibrated on this machine, or the built-in ones."""
    return unit_costs(calibrated())[0]


def charged(step: StepStatistics, units: UnitCosts) -> float:
    """Seconds of one core for what a slot did in a step; batches are small here, so calls do not count."""
    return price_of_step(step, replace(units, call=0.0))


def filled(before: StepStatistics | None, step: StepStatistics, units: UnitCosts) -> float:
    """Seconds of one core for rows that a slot did not take in itself: taken over with groups, or computed for a plan.

    They are the rows by which states are larger than what entered and left them explains.
    """
    had = {} if before is None else {state.state: state.rows for state in before.states}
    cost = 0.0
    for state in step.states:
        rows = max(0, state.rows + state.dropped - state.inserted - had.get(state.state, 0))
        cost += rows * (units.insert + units.delete + units.link)
        if state.state not in step.rows_in:
            cost += rows * (units.probe + units.compare + units.match + 2 * units.match_relation + units.insert_joined)
    return cost


@dataclass
class Servers:
    """The servers of the slots of a host.

    Each works through its own queue, as the machines of the paper did; `together`, they wait for the slowest one after
    every batch, as the tasks of a micro-batch do.
    """

    host: LocalHost
    slowdown: float
    units: UnitCosts
    together: bool = False

    def __post_init__(self) -> None:
        slots = self.host.partitioning.slots
        self.free = np.zeros(slots)
        self.filled = np.zeros(slots)
        """When each server had taken over what it was to take over with the latest batch."""
        self.work = np.zeros(slots)
        """Seconds that each server has worked."""
        self.finished: list[tuple[float, int]] = []
        """When results left, and how many."""
        self.taken: list[tuple[float, float, int]] = []
        """Parts of batches: when they were there, when a server was through with them, and their rows."""
        self.state_rows = 0
        self._held: dict[int, tuple[float, float]] = {}
        self._before: SlotReports = {}

    def begins(self, arrived: float) -> Floats:
        """When each server begins with a batch that arrives then."""
        ready = np.full_like(self.free, self.free.max()) if self.together else self.free
        return np.maximum(ready, arrived)

    def hold(self, slot: int, until: float, share: float) -> None:
        """Lets a share of a server's results wait until then: those of groups that still have to come to it."""
        self._held[slot] = until, share

    def step(self, arrived: float, tables: Mapping[str, pa.Table]) -> Floats:
        """Takes a batch; returns what it cost each server."""
        self.host.step(tables)
        costs, begins = np.zeros(len(self.free)), self.begins(arrived)
        for slot, report in self.host.reports.items():
            step, before = report.statistics, self._before.get(slot)
            taking = filled(None if before is None else before.statistics, step, self.units) * self.slowdown
            costs[slot] = charged(step, self.units) * self.slowdown + taking
            until, share = self._held.get(slot, (0.0, 0.0))
            self.filled[slot] = max(begins[slot], until) + taking
            self.free[slot] = begins[slot] + costs[slot]
            self.taken.append((arrived, float(self.free[slot]), sum(step.rows_in.values())))
            waiting = round(share * step.rows_out) if until > self.free[slot] else 0
            self.finished += [(float(self.free[slot]), step.rows_out - waiting), (until, waiting)]
        self.work += costs
        self.state_rows = self.host.statistics.state_rows
        self._before = self.host.reports
        return costs

    def results_until(self, second: float) -> int:
        """Results that had left by then."""
        return sum(count for at, count in self.finished if at <= second)

    def waiting(self, second: float) -> int:
        """Rows that were there by then and that no server was through with."""
        return sum(rows for arrived, done, rows in self.taken if arrived <= second < done)

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
    rng: np.random.Generator, seconds: float, length: float, rates: Rates, keys: Floats
) -> Iterator[tuple[float, dict[str, pa.Table]]]:
    """Batches of a length, each with the time at which its last row is there."""
    for number in range(round(seconds / length)):
        start = number * length
        yield start + length, {name: rows_of(rng, start, length, rate, keys) for name, rate in rates(start).items()}
