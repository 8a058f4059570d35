"""One batch of a query, the batch as the adaptation loop sees it, and the stretch of batches since the last decision.

Law: statistics of slots are added up only if somebody reads them; a batch is priced once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from anabranch.adapt.excess import Priced, priced
from anabranch.adapt.facts import BatchFacts, rows_waiting
from anabranch.cost.units import ENGINE, UnitCosts
from anabranch.plan.physical import PhysicalPlan
from anabranch.plan.slots import SlotPlan
from anabranch.stats.report import QueryReport
from anabranch.stats.step import StepStatistics

REMEMBERED = 64
"""Batches in which a trend is looked for."""


@dataclass(frozen=True)
class Batch:
    """A batch of one query, with the plans that it ran by."""

    facts: BatchFacts
    reports: Mapping[int, QueryReport]
    plans: tuple[SlotPlan, ...]
    units: UnitCosts = ENGINE

    @cached_property
    def prices(self) -> Mapping[int, Priced]:
        """What each slot did; the loop and the looks ask for it."""
        return {slot: priced([report.statistics], self.units) for slot, report in self.reports.items()}

    def priced(self, slots: Iterable[int]) -> Priced:
        """What some slots did together."""
        several = [self.prices[slot] for slot in slots]
        return Priced(sum(each.work for each in several), sum(each.rows for each in several))


@dataclass(frozen=True)
class Observation:
    """One batch as the loop sees it."""

    batch: int
    plan: PhysicalPlan
    read: Callable[[], StepStatistics]
    """Adds up the statistics of the slots; most batches are never asked for them."""
    seconds: float | None
    """Event time that passed with it; None when that is not known, as with the first batch."""
    waiting: int | None = None
    """Rows that waited at the inputs when it began and that it took, as far as a source lets a batch take them all."""
    behind: float | None = None
    """Seconds from its newest event time to the time of day when it was done."""
    is_migrating: bool = False
    """Whether the plan was being changed during any of it."""
    backlog: float | None = None
    """Rows that wait in the sources, as they say; None where none says."""
    price: Callable[[], Priced] | None = None
    """What the slots did, where that is priced for others too."""

    @cached_property
    def step(self) -> StepStatistics:
        return self.read()

    def priced(self, units: UnitCosts) -> Priced:
        """What the slots did, at unit costs."""
        return priced([self.step], units) if self.price is None else self.price()


@dataclass(frozen=True)
class Since:
    """The stretch since the last decision, or since the plan was last being changed."""

    batches: int = 0
    seconds: float = 0.0
    waiting: tuple[float, ...] = ()
    behind: float | None = None
    """How far behind the first batch of the stretch was."""

    def after(self, seen: Observation) -> Since:
        behind = seen.behind if self.behind is None else self.behind
        rows = rows_waiting(seen.waiting, seen.backlog, seen.behind, behind, seen.seconds)
        return Since(
            self.batches + 1,
            self.seconds + (seen.seconds or 0.0),
            (self.waiting if rows is None else (*self.waiting, rows))[-REMEMBERED:],
            behind,
        )
