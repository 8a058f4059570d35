"""Leaves a query alone that would decide nothing: its batches are put aside for a while, and then taken in together.

Where nothing changes, deciding costs hardly any computing, and yet a tenth of a millisecond: the first touch after a
batch is slow. Taking in several batches at once pays that once. There are three kinds of rests.

- *Silent*: nothing would be decided, whatever a batch brings.
- *Waiting*: nothing would be decided unless the plan becomes dear, or has taken so much that a decision may pay.
  Statistics may change as they like; a batch is put aside if its rows take no more than is usual.
- *Calm*: anything may be decided, but the streams are as they were. What has been calm for so many batches may be
  expected to stay so for as many again, up to twice as many as are measured together. Every count of a batch must be
  as usual, but for chance.

Law: nothing is lost, only later: every batch is taken in, in its order, with what it was priced at. In a rest that is
silent or waiting, no decision comes later than it would have come without; a calm one ends at once when a batch shows a
change. What hides in the noise of every batch is found when the rest ends, from several together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

from anabranch.adapt.calm import Calm, Counts, are_alike, counts
from anabranch.adapt.excess import Priced, priced
from anabranch.adapt.facts import BatchFacts
from anabranch.cost.units import ENGINE, UnitCosts
from anabranch.plan.slots import SlotPlan
from anabranch.stats.report import QueryReport


@dataclass(frozen=True)
class Batch:
    """A batch of one query, with the plans that it ran by."""

    facts: BatchFacts
    reports: Mapping[int, QueryReport]
    plans: tuple[SlotPlan, ...]
    units: UnitCosts = ENGINE

    @cached_property
    def prices(self) -> Mapping[int, Priced]:
        """What each slot did; the loop, the looks and a rest ask for it."""
        return {slot: priced([report.statistics], self.units) for slot, report in self.reports.items()}

    def priced(self, slots: Iterable[int]) -> Priced:
        """What some slots did together."""
        several = [self.prices[slot] for slot in slots]
        return Priced(
            sum(each.work for each in several), sum(each.rows for each in several), sum(each.least for each in several)
        )


@dataclass
class Rest:
    """A rest that a query may take, and the batches put aside in it."""

    left: int = 0
    """Batches that may still be put aside."""
    unseen: int = 0
    """Of these, the first ones, whatever they bring: nothing would be decided in them."""
    bound: float | None = None
    """Seconds of a core for a row, beyond which a batch ends the rest; None where its counts tell."""
    allowed: float = inf
    """Seconds of a core that another plan might not have taken, up to which batches are put aside."""
    usual: Counts = field(default_factory=dict)
    """The counts of a usual batch."""
    aside: list[Batch] = field(default_factory=list)

    def begin(self, calm: Calm, most: int) -> None:
        """Lets a query rest whose loop may be left alone; of batches that could bring news, at most so many."""
        self.unseen, self.left = calm.silent, calm.silent or min(most, calm.waiting or calm.lasted)
        self.bound, self.allowed = (calm.bound, calm.allowed) if calm.waiting else (None, inf)
        self.usual = calm.usual

    def takes(self, batch: Batch) -> bool:
        """Puts a batch aside, if the rest lasts and the batch is as usual."""
        if not self.left or not (self.unseen or self._is_usual(batch)):
            self.left = 0
            return False
        self.left, self.unseen = self.left - 1, max(0, self.unseen - 1)
        self.aside.append(batch)
        return True

    def end(self) -> list[Batch]:
        """The batches that were put aside."""
        self.left = self.unseen = 0
        aside, self.aside = self.aside, []
        return aside

    def _is_usual(self, batch: Batch) -> bool:
        if self.bound is not None:
            work, rows, least = batch.priced(batch.reports)
            self.allowed -= work - least
            return self.allowed > 0 and work <= self.bound * rows
        steps = [report.statistics for report in batch.reports.values()]
        return are_alike(counts(steps, batch.facts.seconds or 0.0), self.usual)
