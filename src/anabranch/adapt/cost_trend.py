"""Cost regression: detects from the cost of a row in each batch that the running plan has become more expensive.

Work is counted and priced at unit costs, so decisions depend on no clock. A batch is expensive if a row costs clearly
more than in any batch of the last decision. Only several consecutive expensive batches count, because one or two may be
over before another plan could help. Limit: while windows fill, rows find more matches with every batch, so costs are
recorded but not compared.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from anabranch.adapt.facts import RATIO, REMEMBERED

SEVERAL = 3
"""Batches that are enough to exclude chance."""


@dataclass(frozen=True)
class CostTrend:
    """The cost of a row in the latest batches, compared with its cost at the last decision on the plan."""

    window: float = 0.0
    """Seconds of event time after which windows are full."""
    passed: float = 0.0
    """Seconds of event time since the start."""
    recent: tuple[float, ...] = ()
    """Seconds of one core per row, in the latest batches."""
    first: float = 0.0
    """The cost of a row in the first batch of the plan over full windows; 0 before."""
    usual: float = 0.0
    """The highest of these at the last decision on the plan; 0 before the first batch."""
    in_a_row: int = 0
    """The number of consecutive expensive batches up to the latest."""
    lasted: float = 0.0
    """Seconds of event time of these batches."""

    def after(self, work: float, rows: int, seconds: float) -> CostTrend:
        """Returns the trend after a batch that took `seconds` of event time."""
        if not rows:
            return self
        now, each = self if self.is_filled else self.restarted(), work / rows
        is_expensive = bool(now.usual) and each > RATIO * now.usual
        return replace(
            now,
            passed=now.passed + seconds,
            recent=(*now.recent, each)[-REMEMBERED:],
            first=now.first or (each if self.is_filled else 0.0),
            usual=now.usual or each,
            in_a_row=now.in_a_row + 1 if is_expensive else 0,
            lasted=now.lasted + seconds if is_expensive else 0.0,
        )

    def judged(self) -> CostTrend:
        """Returns the trend after a decision that kept the plan: the cost of the latest batches becomes usual."""
        return replace(self, usual=max(self.recent, default=0.0), in_a_row=0, lasted=0.0)

    def restarted(self) -> CostTrend:
        """Returns the trend without batches, for another plan."""
        return CostTrend(self.window, self.passed)

    def has_risen(self, patience: int = 1) -> bool:
        """Returns True after several expensive batches in a row, times `patience`."""
        return self.in_a_row >= SEVERAL * patience

    @property
    def is_filled(self) -> bool:
        """True if windows are full."""
        return self.passed >= self.window

    @property
    def is_mixed(self) -> bool:
        """True while windows still hold rows from before the expensive batches."""
        return 0 < self.lasted < self.window

    @property
    def mean(self) -> float:
        """The mean cost of a row in the latest batches; 0 if there are none over full windows."""
        return sum(self.recent) / len(self.recent) if self.recent and self.is_filled else 0.0

    @property
    def factor(self) -> float:
        """The cost of a row of the latest batch divided by the usual cost."""
        return self.recent[-1] / self.usual if self.usual else 1.0
