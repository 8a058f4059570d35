"""When a running set of queries changes its grid: the rates of its streams have changed, and copies cost too much.

Every report has the rows of each relation, so watching is free. The grid that suits the rows of the latest batches is
compared with the one in force. A change must win by the amount of the balance settings and pay back within their
horizon, as a move of groups must; and it takes effect in the same way, as another table.
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
"""Chooses the grid that suits the traffic of relations, over as many slots as there are."""

BETTER = 1.1
"""A grid that sends fewer bytes than another by less than this factor is about as good."""


@dataclass
class GridWatch:
    """The rows of the latest batches by relation."""

    settings: Balance
    choose: ChooseGrid
    _rows: deque[dict[str, int]] = field(default_factory=deque)

    def note(self, reports: SlotReports) -> None:
        """Takes in the rows of a batch."""
        rows: dict[str, int] = {}
        for report in reports.values():
            for name, count in report.rows.items():
                rows[name] = rows.get(name, 0) + count
        self._rows.append(rows)
        while len(self._rows) > self.settings.remember:
            self._rows.popleft()

    def decided(self) -> None:
        """Begins anew."""
        self._rows.clear()

    def propose(self, table: Partitioning, reports: SlotReports) -> GridChange | None:
        """Another grid for the rows of the latest batches; None where that in force is about as good."""
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
        """Why a query should not change its grid by itself; None where the change pays."""
        return self.settings.objection(found.saved, found.bytes)


def matching_share(report: SlotReport) -> float:
    """The share of a slot's work that grows with matches: what its joins did, of all that its engine did."""
    seconds = report.statistics.seconds
    joining = sum(spent for part, spent in seconds.items() if part not in ("append", "insert", "drop"))
    whole = sum(seconds.values())
    return min(1.0, joining / whole) if whole > 0 else 0.5


def _widths(table: Partitioning, reports: SlotReports) -> dict[str, float]:
    """Bytes of a row in the base state of each relation, as it travels."""
    states = {state.state: state for state in merged_statistics(reports.values()).states}
    return {
        name: WIRE_BYTES + (states[name].bytes / states[name].rows if name in states and states[name].rows else 0.0)
        for name in table.relations
    }
