"""Cost regression: detects from the cost of a row in each batch that the running plan has become more expensive.

Work is counted and priced at unit costs, so decisions depend on no clock. A batch is expensive if a row costs more than
usual and more than in any batch of the last decision. Only several consecutive expensive batches count, because one or
two may be over before another plan could help. Limit: while windows fill, rows find more matches with every batch, so
costs are recorded but not compared.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from anabranch.cost.steps import price_of_step
from anabranch.cost.units import UnitCosts
from anabranch.stats.step import StepStatistics

USUAL = 1.2
"""A row is expensive if it costs more than this multiple of the usual cost."""
IN_A_ROW = 3
"""The minimum number of consecutive expensive batches that count as a regression."""
REMEMBERED = 8
"""The number of batches that are measured together."""


class Priced(NamedTuple):
    """The work of slots in a batch, at unit costs."""

    work: float
    """Seconds of one core."""

    rows: int


def priced(step: StepStatistics, units: UnitCosts) -> Priced:
    """Returns the price of the work of slots in a batch."""
    return Priced(price_of_step(step, units), sum(step.rows_in.values()))


@dataclass(frozen=True)
class CostTrend:
    """The cost of a row in the latest batches, compared with its cost at the last decision on the plan."""

    window: float = 0.0
    """Seconds of event time after which windows are full."""
    passed: float = 0.0
    """Seconds of event time since the start."""
    batches: int = 0
    """Batches of the running plan over full windows."""
    recent: tuple[Priced, ...] = ()
    usual: float = 0.0
    """Seconds of one core per row at the last decision on the plan; 0 before the first batch."""
    most: float = 0.0
    """The highest cost of a row in any batch of the last decision."""
    in_a_row: int = 0
    """The number of consecutive expensive batches up to the latest."""
    paid: float = 0.0
    """Seconds of one core that these batches cost beyond the threshold."""
    lasted: float = 0.0
    """Seconds of event time of these batches."""

    def after(self, batch: Priced, seconds: float) -> CostTrend:
        """Returns the trend after a batch that took `seconds` of event time."""
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
        """Returns the trend after a decision that kept the plan: the cost of the latest batches becomes usual."""
        rows = sum(each.rows for each in self.recent)
        usual = sum(each.work for each in self.recent) / rows if rows else 0.0
        most = max((each.work / each.rows for each in self.recent), default=0.0)
        return replace(self, usual=usual, most=most, in_a_row=0, paid=0.0, lasted=0.0)

    def restarted(self) -> CostTrend:
        """Returns the trend without batches, for another plan."""
        return replace(self, batches=0, recent=(), usual=0.0, most=0.0, in_a_row=0, paid=0.0, lasted=0.0)

    def has_risen(self, price: float) -> bool:
        """Returns True once the consecutive expensive batches have cost more than a search.

        `price` is that of the search, in seconds of one core. Waiting has then cost as much as the search would have.
        """
        return self.in_a_row >= IN_A_ROW and self.paid > price

    @property
    def is_filled(self) -> bool:
        """True if windows are full."""
        return self.passed >= self.window

    @property
    def is_mixed(self) -> bool:
        """True while windows still hold rows from before the expensive batches."""
        return 0 < self.lasted < self.window

    @property
    def each(self) -> float:
        """Seconds of one core per row in the latest batches; 0 if unknown."""
        rows = sum(each.rows for each in self.recent)
        return sum(each.work for each in self.recent) / rows if rows else 0.0

    @property
    def factor(self) -> float:
        """The cost of a row of the latest batch divided by the usual cost."""
        latest = self.recent[-1] if self.recent else Priced(0.0, 0)
        return latest.work / latest.rows / self.usual if latest.rows and self.usual else 1.0
