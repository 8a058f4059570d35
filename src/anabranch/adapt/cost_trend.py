"""The cost of a row under the running plan, batch by batch: detects that a plan has become more expensive.

Work is counted and priced at unit costs, so no clock decides. A batch is expensive if a row costs more than usual and
more than in any batch by which the plan was judged; only several such batches in a row count, because one or two may be
over before another plan could help. Limit: while windows fill, rows find more with every batch, and costs are only
noted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from anabranch.cost.steps import price_of_step
from anabranch.cost.units import UnitCosts
from anabranch.stats.step import StepStatistics

USUAL = 1.2
"""The factor up to which the cost of a row is usual."""
IN_A_ROW = 3
"""Expensive batches in a row that are no accident."""
REMEMBERED = 8
"""Batches that are measured together."""


class Priced(NamedTuple):
    """The work of slots in a batch, at unit costs."""

    work: float
    """Seconds of a core."""
    rows: int


def priced(step: StepStatistics, units: UnitCosts) -> Priced:
    """Prices what slots did in a batch."""
    return Priced(price_of_step(step, units), sum(step.rows_in.values()))


@dataclass(frozen=True)
class CostTrend:
    """The cost of rows lately, against their cost when the plan was last judged."""

    window: float = 0.0
    """Seconds of event time after which windows are full."""
    passed: float = 0.0
    """Seconds of event time so far."""
    batches: int = 0
    """Batches of the running plan since windows are full."""
    recent: tuple[Priced, ...] = ()
    usual: float = 0.0
    """Seconds of a core for a row when the plan was last judged; 0 before the first batch."""
    most: float = 0.0
    """The most that a row cost in one of the batches by which the plan was judged."""
    in_a_row: int = 0
    """Expensive batches up to the latest."""
    paid: float = 0.0
    """Seconds of a core that these batches cost beyond what is usual."""
    lasted: float = 0.0
    """Seconds of event time of these batches."""

    def after(self, batch: Priced, seconds: float) -> CostTrend:
        """Takes in a batch, and the event time that passed with it."""
        if not batch.rows:
            return self
        now = self if self.is_filled else self.restarted()
        each = batch.work / batch.rows
        now = replace(
            now, passed=now.passed + seconds, batches=now.batches + 1, recent=(*now.recent, batch)[-REMEMBERED:]
        )
        if not now.usual:
            now = replace(now, usual=each, most=each)
        beyond = batch.work - max(USUAL * now.usual, now.most) * batch.rows
        if beyond <= 0:
            return replace(now, in_a_row=0, paid=0.0, lasted=0.0)
        return replace(now, in_a_row=now.in_a_row + 1, paid=now.paid + beyond, lasted=now.lasted + seconds)

    def judged(self) -> CostTrend:
        """Takes the cost of the latest batches as usual: the plan was judged by them, and stays."""
        rows = sum(each.rows for each in self.recent)
        usual = sum(each.work for each in self.recent) / rows if rows else 0.0
        most = max((each.work / each.rows for each in self.recent), default=0.0)
        return replace(self, usual=usual, most=most, in_a_row=0, paid=0.0, lasted=0.0)

    def restarted(self) -> CostTrend:
        """Begins again with the next batch, which runs another plan."""
        return replace(self, batches=0, recent=(), usual=0.0, most=0.0, in_a_row=0, paid=0.0, lasted=0.0)

    def has_risen(self, price: float) -> bool:
        """True once expensive batches in a row have cost more than a search, whose price is in seconds of a core.

        To rent or to buy: waiting has then cost as much as searching does.
        """
        return self.in_a_row >= IN_A_ROW and self.paid > price

    @property
    def is_filled(self) -> bool:
        """True once windows are full."""
        return self.passed >= self.window

    @property
    def is_mixed(self) -> bool:
        """True while windows still hold rows from before those that are expensive."""
        return 0 < self.lasted < self.window

    @property
    def each(self) -> float:
        """Seconds of a core for a row of the latest batches; 0 while not known."""
        rows = sum(each.rows for each in self.recent)
        return sum(each.work for each in self.recent) / rows if rows else 0.0

    @property
    def factor(self) -> float:
        """The cost of a row of the latest batch over the usual cost."""
        latest = self.recent[-1] if self.recent else Priced(0.0, 0)
        return latest.work / latest.rows / self.usual if latest.rows and self.usual else 1.0
