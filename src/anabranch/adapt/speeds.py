"""Estimates the relative speeds of the machines of slots from their work and its duration.

A slot reports its operations and their wall-clock time. The speed of its machine is the price of the operations, at the
engine's unit costs, divided by that time. So a slower processor and a machine shared with other programs both have a
low speed. Only the ratios of speeds matter, so default unit costs are sufficient.

Limit: speeds that differ by less than `ALIKE` count as equal. A slot without work gets the mean speed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from anabranch.cost.steps import price_of_step
from anabranch.cost.units import ENGINE
from anabranch.stats.report import SlotReport, SlotReports

ALIKE = 1.3
"""All slots count as equally fast if the fastest is less than this many times as fast as the slowest."""


def time_of(report: SlotReport) -> float:
    """Returns the wall-clock seconds that the engine of a slot worked in a step."""
    return sum(report.statistics.seconds.values()) + report.seconds.get("admit", 0.0)


@dataclass
class SpeedWatch:
    """The work of the slots in the latest batches, and its duration."""

    remember: int
    _batches: deque[dict[int, tuple[float, float]]] = field(default_factory=deque)

    def note(self, reports: SlotReports) -> None:
        """Adds a batch; slots that were rebuilt, or that took rows over, do not count in it."""
        self._batches.append(
            {
                slot: (price_of_step(report.statistics, ENGINE), time_of(report))
                for slot, report in reports.items()
                if report.was_hot and not report.taken
            }
        )
        while len(self._batches) > self.remember:
            self._batches.popleft()

    def speeds(self, slots: int) -> tuple[float, ...] | None:
        """Returns the speed of each slot, relative to the fastest; None if all are about equal or none is known."""
        done, took = np.zeros(slots), np.zeros(slots)
        for batch in self._batches:
            for slot, (price, seconds) in batch.items():
                done[slot] += price
                took[slot] += seconds
        known = (done > 0) & (took > 0)
        if not known.any():
            return None
        found = np.divide(done, took, out=np.zeros(slots), where=known)
        if found[known].max() < ALIKE * found[known].min():
            return None
        found[~known] = done[known].sum() / took[known].sum()
        return tuple((found / found.max()).tolist())
