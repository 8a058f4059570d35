"""Leaves a calm query alone: its batches are put aside for a while, and then taken in together.

Where nothing changes, deciding costs hardly any computing, and yet a tenth of a millisecond: the first touch after a
batch is slow. Taking in several batches at once pays that once. So the longer the streams have been
calm, the more batches are put aside, up to twice as many as are measured together.

Law: nothing is lost, only later: every batch is taken in, in its order. A batch is put aside only if its totals are
what they were. Rows and matches are most of what a plan costs, so a change that makes the plan dear ends the rest at
once; one that hides in the totals is found when the rest ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from anabranch.adapt.calm import Calm, is_near
from anabranch.adapt.facts import BatchFacts
from anabranch.plan.slots import SlotPlan
from anabranch.stats.report import QueryReport

CALM = 4
"""For so many calm batches, one more is put aside."""


@dataclass(frozen=True)
class Batch:
    """A batch of one query, with the plans that it ran by."""

    facts: BatchFacts
    reports: Mapping[int, QueryReport]
    plans: tuple[SlotPlan, ...]


@dataclass
class Rest:
    """A rest that a query may take, and the batches put aside in it."""

    left: int = 0
    """Batches that may still be put aside."""
    unseen: int = 0
    """Of these, the first ones, whatever they bring: nothing would be decided in them."""
    rows: float = 0.0
    """Per second of event time."""
    matches: float = 0.0
    """Per row."""
    aside: list[Batch] = field(default_factory=list)

    def begin(self, calm: Calm, most: int) -> None:
        """Lets a query rest whose loop may be left alone; of batches that could bring news, at most so many."""
        self.unseen, self.left = calm.silent, calm.silent or min(most, max(calm.waiting, calm.lasted // CALM))
        if self.left and not self.unseen:
            usual = calm.usual
            seconds = next((seconds for name, (_, seconds) in usual.items() if isinstance(name, str)), 0.0)
            rows = sum(count for name, (count, _) in usual.items() if isinstance(name, str))
            matches = sum(count for name, (count, _) in usual.items() if not isinstance(name, str))
            self.rows, self.matches = (rows / seconds, matches / rows) if seconds and rows else (0.0, 0.0)

    def takes(self, batch: Batch) -> bool:
        """Puts a batch aside, if the rest lasts and its totals are as usual."""
        if not self.left or not (self.unseen or self._is_usual(batch)):
            self.left = 0
            return False
        self.left, self.unseen = self.left - 1, max(0, self.unseen - 1)
        self.aside.append(batch)
        return True

    def end(self) -> Iterable[Batch]:
        """The batches that were put aside."""
        self.left = self.unseen = 0
        aside, self.aside = self.aside, []
        return aside

    def _is_usual(self, batch: Batch) -> bool:
        rows = matches = 0
        for report in batch.reports.values():
            for count in report.statistics.rows_in.values():
                rows += count
            for probe in report.statistics.probes:
                matches += probe.matches
        seconds = batch.facts.seconds or 0.0
        return is_near(rows, self.rows * seconds) and is_near(matches, self.matches * rows)
