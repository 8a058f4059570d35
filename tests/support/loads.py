"""Loads given by a test instead of measured by a host, so that decisions depend only on rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias
from unittest import mock

from anabranch.adapt.facts import BatchFacts
from anabranch.adapt.records import TableRecord
from anabranch.adapt.table import TableSteering
from anabranch.stats.report import SlotReport, SlotReports

SlotCpu: TypeAlias = Callable[[int, int, SlotReport], float]
"""The CPU time of a slot in a batch, from their numbers and the slot's report."""
_MEASURED = TableSteering.after


def per_row(seconds: float) -> SlotCpu:
    """Every row costs the same, in any slot."""
    return lambda batch, slot, report: seconds * sum(report.rows.values())


@contextmanager
def given_loads(cpu: SlotCpu, cores: int | None = None) -> Iterator[None]:
    """Makes all hosts of this process balance by these CPU times, as if a batch came every second.

    `cores` are the tasks that can run at once; as many as there are slots when None. Half of the work is matching.
    """

    def after(
        self: TableSteering, facts: BatchFacts, reports: SlotReports, *, is_busy: bool = False
    ) -> list[TableRecord]:
        facts = replace(facts, period=1.0, cores=cores or self.table.slots)
        given = {
            slot: replace(report, cpu=cpu(facts.batch, slot, report), statistics=replace(report.statistics, seconds={}))
            for slot, report in reports.items()
        }
        return _MEASURED(self, facts, given, is_busy=is_busy)

    with mock.patch.object(TableSteering, "after", after):
        yield
