"""Proposes another grid for a running set of queries if the rates of its streams have changed and copies cost too much.

The grid that fits the rows of the latest batches is compared with the current one. Every report counts the rows of each
relation, so no extra measurement is needed. As for a move of groups, a change must save the amount in the balance
settings and pay back within their horizon, and it takes effect as a new table. Limit: a grid that sends no copies is
never changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from anabranch.adapt.balancing import Balance
from anabranch.balance.grid import GridChange, compare_grids
from anabranch.cost.estimates import WIRE_BYTES
from anabranch.plan.partitioning import Partitioning
from anabranch.stats.report import SlotReport, SlotReports, merged_statistics

ChooseGrid: TypeAlias = Callable[[Mapping[str, float]], Partitioning]
"""Returns the grid that fits the traffic of relations, over all slots."""

BETTER = 1.1
"""The minimum factor by which a proposed grid must reduce the bytes sent."""


@dataclass
class GridWatch:
    """The rows of the latest batches by relation."""

    settings: Balance
    choose: ChooseGrid
    _rows: deque[dict[str, int]] = field(default_factory=deque)

    def note(self, reports: SlotReports) -> None:
        """Adds the rows of a batch."""
        rows: dict[str, int] = {}
        for report in reports.values():
            for name, count in report.rows.items():
                rows[name] = rows.get(name, 0) + count
        self._rows.append(rows)
        while len(self._rows) > self.settings.remember:
            self._rows.popleft()

    def decided(self) -> None:
        """Forgets all batches, after a decision."""
        self._rows.clear()

    def propose(self, table: Partitioning, reports: SlotReports) -> GridChange | None:
        """Returns another grid for the rows of the latest batches; None if the current one is about as good."""
        if table.slots == 1 or table.is_partition or not self._rows:
            return None
        rows = {name: sum(each.get(name, 0) for each in self._rows) / len(self._rows) for name in table.relations}
        if not any(rows.values()):
            return None
        widths = _widths(table, reports)
        proposed = self.choose({name: count * widths[name] for name, count in rows.items()})
        if proposed.dimensions == table.dimensions:
            return None
        cpu = sum(report.cpu * (1 - matching_share(report)) for report in reports.values())
        held = sum(report.statistics.state_bytes for report in reports.values())
        found = compare_grids(table, proposed, rows, widths, cpu, held)
        return found if found.gain >= BETTER else None

    def objection(self, found: GridChange) -> str | None:
        """Returns why a change of the grid does not pay; None if it does."""
        return self.settings.objection(found.saved, found.bytes)


def matching_share(report: SlotReport) -> float:
    """Returns the share of a slot's work that grows with matches: the time of its joins over that of its engine."""
    seconds = report.statistics.seconds
    joining = sum(spent for part, spent in seconds.items() if part not in ("append", "insert", "drop"))
    whole = sum(seconds.values())
    return min(1.0, joining / whole) if whole > 0 else 0.5


def _widths(table: Partitioning, reports: SlotReports) -> dict[str, float]:
    """Returns the bytes of a row of each relation as it is sent, estimated from its base state."""
    states = {state.state: state for state in merged_statistics(reports.values()).states}
    return {
        name: WIRE_BYTES + (states[name].bytes / states[name].rows if name in states and states[name].rows else 0.0)
        for name in table.relations
    }
