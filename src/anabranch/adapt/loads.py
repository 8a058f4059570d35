"""The loads of the slots in the latest batches, and whether they are uneven.

The CPU time and the bytes of state of every slot are in every report, so watching costs nothing. Where the speeds of
slots are measured, time by the clock on the wall takes the place of CPU time: a machine that others use as well takes
longer, not more CPU time. The speed of a slot is the price of its operations, at the engine's unit costs, divided by
their wall-clock time; only the ratios of speeds matter.

Invariant: `LoadHistory` is a frozen value, and its questions change nothing. Limit: only a batch in which the slots
counted their rows by cell has the loads of groups (`measured_loads`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from anabranch.adapt.balancing import Balance
from anabranch.adapt.facts import COOLING, REMEMBERED, BatchFacts, Since
from anabranch.balance.grid import GridChange, compare_grids
from anabranch.balance.loads import Loads, SlotLoad, estimate_loads, skew
from anabranch.cost.estimates import WIRE_BYTES
from anabranch.cost.steps import price_of_step
from anabranch.cost.units import ENGINE
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.slots import SlotRange
from anabranch.stats.keys import KeyCounts, merge_keys
from anabranch.stats.report import SlotReport, SlotReports, merged_statistics


@dataclass(frozen=True)
class LoadHistory:
    """The latest batches since the last decision on the table."""

    settings: Balance
    recent: tuple[tuple[BatchFacts, SlotReports], ...] = ()
    since: Since = field(default_factory=Since)
    is_frozen: bool = False
    fruitless: int = 0
    """The number of consecutive decisions that changed nothing."""

    def after(self, facts: BatchFacts, reports: SlotReports) -> LoadHistory:
        """Returns the history after a batch."""
        recent = (*self.recent, (facts, reports))[-self.settings.remember :]
        return replace(self, recent=recent, since=self.since.after(facts, self.settings.cool_down))

    def decided(self, *, kept: bool = False) -> LoadHistory:
        """Returns the history after a decision, which begins the cool-down; `kept` is true if it changed nothing."""
        return replace(self, recent=(), since=COOLING, fruitless=self.fruitless + 1 if kept else 0)

    @property
    def is_free(self) -> bool:
        """True when the query may decide by itself and has waited longer after each decision that changed nothing."""
        waiting = self.settings.cool_down.times(min(REMEMBERED, 1 + self.fruitless))
        return self._has_watched and (not self.fruitless or self.since.has_passed(waiting))

    @property
    def _has_watched(self) -> bool:
        """True when the query may change its slots by itself and has seen enough batches."""
        may_decide = self.settings.mode == "auto" and not self.is_frozen and not self.since.is_cooling
        return may_decide and len(self.recent) >= self.settings.remember

    @property
    def is_long_since(self) -> bool:
        """True when the last decision is as many batches ago as a change has to pay back."""
        return self.is_free and self.since.batches >= self.settings.horizon

    def stands_out(self, available: Sequence[int]) -> str | None:
        """Returns why the slots should be counted and evened out, or None."""
        settings = self.settings
        if not self.is_free or len(available) < 2:
            return None
        spent = self._spent(available).mean(axis=0)
        held = np.array([float(self.recent[-1][1][slot].statistics.state_bytes) for slot in available])
        what = "time" if settings.measures_speeds else "CPU time"
        loads = ((spent, settings.seconds, "takes", what), (held, settings.bytes, "has", "bytes of state"))
        for load, least, verb, name in loads:
            if skew(load) >= settings.ratio and load.max() - load.mean() >= least:
                return f"slot {available[int(load.argmax())]} {verb} {skew(load):.2f} times the average {name}"
        return None

    def other_number(self, available: Sequence[int], limits: SlotRange) -> tuple[int, str] | None:
        """Returns how many slots the load needs, if that is another number than there are, and why."""
        settings, count = self.settings, len(available)
        if settings.mode != "auto" or self.is_frozen or self.since.is_cooling or not self.recent:
            return None
        cores = self.recent[-1][0].cores
        most = limits.most if cores is None else limits.within(cores)
        if count > most:
            return most, f"only {cores} tasks can run at once"
        periods = [facts.period for facts, _ in self.recent if facts.period is not None]
        if not self._has_watched or len(periods) < len(self.recent):
            return None
        busy = float(self._spent(available).sum()) / max(sum(periods), 1e-9)
        # Afterwards a slot is busy for half of the time, which is half-way between the two limits.
        fitting = math.ceil(2 * busy)
        if busy / count > settings.busy and count < most:
            return min(most, max(fitting, count + 1)), f"an average slot is busy for {busy / count:.0%} of the time"
        if count > limits.least and busy / (count - 1) < 1 - settings.busy:
            fewer = max(limits.least, min(fitting, count - 1))
            return fewer, f"with one slot less, each would be busy for {busy / (count - 1):.0%} of the time"
        return None

    def other_grid(
        self, table: Partitioning, choose: Callable[[Mapping[str, float]], Partitioning]
    ) -> GridChange | None:
        """Returns another grid for the rows of the latest batches; None if the current one is about as good.

        `choose` returns the grid that fits the bytes of each relation. A grid that sends no copies is never changed.
        """
        if table.slots == 1 or table.is_partition or not self.recent:
            return None
        reports = self.recent[-1][1]
        every = [report for _, batch in self.recent for report in batch.values()]
        rows = {name: sum(each.rows.get(name, 0) for each in every) / len(self.recent) for name in table.relations}
        if not any(rows.values()):
            return None
        states = {state.state: state for state in merged_statistics(reports.values()).states}
        own = {name: states[name].bytes / states[name].rows for name in states if states[name].rows}
        widths = {name: WIRE_BYTES + own.get(name, 0.0) for name in table.relations}
        proposed = choose({name: count * widths[name] for name, count in rows.items()})
        if proposed.dimensions == table.dimensions:
            return None
        cpu = sum(report.cpu * (1 - matching_share(report)) for report in reports.values())
        held = sum(report.statistics.state_bytes for report in reports.values())
        found = compare_grids(table, proposed, rows, widths, cpu, held)
        return found if found.gain >= self.settings.ratio else None

    # --- measures -----------------------------------------------------------------------------------------------------

    def load_of(self, report: SlotReport) -> float:
        """Returns the load of a slot in a batch: seconds of CPU time, or of wall-clock time if speeds are measured."""
        return time_of(report) if self.settings.measures_speeds else report.cpu

    def speeds(self, slots: int) -> tuple[float, ...] | None:
        """Returns the relative speeds of all slots, as declared or as measured; None where they count as equal."""
        return self.measured_speeds(slots) if self.settings.measures_speeds else self.settings.capacities

    def measured_speeds(self, slots: int) -> tuple[float, ...] | None:
        """Returns the speed of each slot, relative to the fastest; None if all are about equal or none is known.

        Slots that were rebuilt, or that took rows over, do not count in that batch. A slot without work gets the mean.
        """
        done, took = np.zeros(slots), np.zeros(slots)
        for _, reports in self.recent:
            for slot, report in reports.items():
                if report.was_hot and not report.taken:
                    done[slot] += price_of_step(report.statistics, ENGINE)
                    took[slot] += time_of(report)
        known = (done > 0) & (took > 0)
        if not known.any():
            return None
        found = np.divide(done, took, out=np.zeros(slots), where=known)
        if found[known].max() < self.settings.ratio * found[known].min():
            return None
        found[~known] = done[known].sum() / took[known].sum()
        return tuple((found / found.max()).tolist())

    def _spent(self, available: Sequence[int]) -> np.ndarray:
        """Returns the load of each slot in each batch."""
        return np.array([[self.load_of(reports[slot]) for slot in available] for _, reports in self.recent])


@dataclass(frozen=True)
class CountedBatch:
    """A batch in which the slots counted their rows by cell."""

    table: Partitioning
    reports: SlotReports

    @cached_property
    def rows(self) -> dict[str, np.ndarray]:
        """The rows by relation and cell."""
        return _summed([report.cells for report in self.reports.values()])

    @cached_property
    def keys(self) -> dict[str, KeyCounts]:
        """The frequent values of keys, by the code of their dimension."""
        return merge_keys(report.keys or {} for report in self.reports.values())

    def loads(self, load_of: Callable[[SlotReport], float] = lambda report: report.cpu) -> Loads:
        """Returns the loads of slots and groups.

        Rows of groups that have left a slot do not count as its state, because they expire without further cost.
        """
        slots = [
            SlotLoad(load_of(report), report.statistics.state_bytes * (1 - report.left), matching_share(report))
            for _, report in sorted(self.reports.items())
        ]
        held = _summed([report.held for report in self.reports.values()])
        return estimate_loads(self.table, self.rows, slots, held, self.keys)

    def price_of_copies(self, loads: Loads) -> Callable[[Partitioning], float]:
        """Returns a function that prices the copies that a table sends.

        Each copy costs what the slots spent on a row they received, without its matches. The price is 0 if no table of
        this grid copies rows.
        """
        if self.table.is_partition and all(
            each.share == 1 or each.relations >= self.table.relations for each in self.table.dimensions
        ):
            return lambda _: 0.0

        def sent(other: Partitioning) -> float:
            return sum(
                float(count) * len(slots)
                for name, counts in self.rows.items()
                for count, slots in zip(counts, other.slots_of(name), strict=True)
            )

        each = sum(slot.cpu * (1 - slot.matching) for slot in loads.slots) / max(sent(self.table), 1.0)
        return lambda other: each * sent(other)


def matching_share(report: SlotReport) -> float:
    """Returns the share of a slot's work that grows with matches: the time of its joins over that of its engine."""
    seconds = report.statistics.seconds
    joining = sum(spent for part, spent in seconds.items() if part not in ("append", "insert", "drop"))
    whole = sum(seconds.values())
    return min(1.0, joining / whole) if whole > 0 else 0.5


def time_of(report: SlotReport) -> float:
    """Returns the wall-clock seconds that the engine of a slot worked in a step."""
    return sum(report.statistics.seconds.values()) + report.seconds.get("admit", 0.0)


def even_loads(table: Partitioning) -> Loads:
    """Returns loads in which every group costs the same."""
    each = [1.0] * table.groups
    slots = tuple(SlotLoad(float(len(table.groups_of(slot))), 0.0) for slot in range(table.slots))
    return Loads(slots, tuple(each), tuple(each))


def _summed(several: Sequence[Mapping[str, tuple[int, ...]] | None]) -> dict[str, np.ndarray]:
    rows: dict[str, np.ndarray] = {}
    for counts in several:
        for name, cells in (counts or {}).items():
            rows[name] = rows.get(name, 0) + np.array(cells)
    return rows
