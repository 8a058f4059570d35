"""How fast the machines of slots are, from what the slots did and how long it took them.

A slot reports its operations and the time that they took by the clock on the wall. The price of the operations, at the
engine's unit costs, over that time is the speed of its machine: a machine with a slower processor, and one on which
others work too, both take longer for the same operations. Only the proportions of speeds count, so unit costs of an
ordinary machine will do.

Limit: speeds that differ by less than `ALIKE` are taken as equal. A slot that did nothing has the mean speed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from anabranch.cost.steps import price_of_step
from anabranch.cost.units import ENGINE
from anabranch.stats.report import SlotReport, SlotReports

ALIKE = 1.3
"""The fastest slot over the slowest, below which all count as equally fast."""


def time_of(report: SlotReport) -> float:
    """Seconds by the clock on the wall that the engine of a slot worked in a step."""
    return sum(report.statistics.seconds.values()) + report.seconds.get("admit", 0.0)


@dataclass
class SpeedWatch:
    """What the slots did in the latest batches, and how long it took."""

    remember: int
    _batches: deque[dict[int, tuple[float, float]]] = field(default_factory=deque)

    def note(self, reports: SlotReports) -> None:
        """Takes in a batch; slots that were rebuilt, or that took rows over, do not count in it."""
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
        """The speed of each slot, the fastest 1.0; None where they are about equal, or nothing is known."""
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
