"""Computes the loads of slots and groups from the reports of one batch, and the price of the copies that a table sends.

Limit: the slots must have counted their rows by cell in this batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from anabranch.adapt.grid import matching_share
from anabranch.balance.loads import Loads, SlotLoad, estimate_loads
from anabranch.plan.partitioning import Partitioning
from anabranch.stats.keys import KeyCounts, merge_keys
from anabranch.stats.report import SlotReport, SlotReports


def measured_loads(
    table: Partitioning, reports: SlotReports, load_of: Callable[[SlotReport], float] = lambda report: report.cpu
) -> Loads:
    """Returns the loads of slots and groups in one batch in which the slots counted their rows by cell.

    Rows of groups that have left a slot do not count as its state, because they expire without further cost.
    """
    slots = [
        SlotLoad(load_of(report), report.statistics.state_bytes * (1 - report.left), matching_share(report))
        for _, report in sorted(reports.items())
    ]
    held = _summed([report.held for report in reports.values()])
    return estimate_loads(table, rows_by_cell(reports), slots, held, frequent_keys(reports))


def rows_by_cell(reports: SlotReports) -> dict[str, np.ndarray]:
    """Returns the rows of a counted batch by relation and cell."""
    return _summed([report.cells for report in reports.values()])


def frequent_keys(reports: SlotReports) -> dict[str, KeyCounts]:
    """Returns the frequent values of keys in a counted batch, by the code of their dimension."""
    return merge_keys(report.keys or {} for report in reports.values())


def _summed(several: Sequence[Mapping[str, tuple[int, ...]] | None]) -> dict[str, np.ndarray]:
    rows: dict[str, np.ndarray] = {}
    for counts in several:
        for name, cells in (counts or {}).items():
            rows[name] = rows.get(name, 0) + np.array(cells)
    return rows


def price_of_copies(table: Partitioning, loads: Loads, reports: SlotReports) -> Callable[[Partitioning], float]:
    """Returns a function that prices the copies that a table sends.

    Each copy costs what the slots spent on a row they received, without its matches. The price is 0 if no table of this
    grid copies rows.
    """
    cells = rows_by_cell(reports)

    def sent(other: Partitioning) -> float:
        return sum(
            float(count) * len(slots)
            for name, counts in cells.items()
            for count, slots in zip(counts, other.slots_of(name), strict=True)
        )

    if table.is_partition and _is_one_to_one(table):
        return lambda _: 0.0
    spent = sum(slot.cpu * (1 - slot.matching) for slot in loads.slots)
    each = spent / max(sent(table), 1.0)
    return lambda other: each * sent(other)


def _is_one_to_one(table: Partitioning) -> bool:
    """Returns True if every relation has a coordinate on every axis, so that no table copies rows."""
    return all(d.share == 1 or d.relations >= table.relations for d in table.dimensions)


def even_loads(table: Partitioning) -> Loads:
    """Returns loads in which every group costs the same."""
    each = [1.0] * table.groups
    slots = tuple(SlotLoad(float(len(table.groups_of(slot))), 0.0) for slot in range(table.slots))
    return Loads(slots, tuple(each), tuple(each))
