"""What a plan takes beyond what it took when it was last looked at: the reason to look that is worth its price.

To rent or to buy: a look has a price, and so has waiting. While a row costs what it did, only the statistics tell that
another plan may have become better, and nothing is lost by taking time over them. Once rows cost more, the excess is
paid with every batch; when it adds up to the price of a look, looking cannot cost much more than waiting has.

Law: work is counted and priced at unit costs; no clock decides. A batch is dear if its rows take more than is usual and
more than those of any batch by which the plan was judged. One or two dear batches are no reason, because they may be
over before another plan could help: what adds up are batches in a row. While windows fill, rows find more with every
batch, and what they take is only noted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from anabranch.cost.steps import price_of_step
from anabranch.cost.units import UnitCosts
from anabranch.stats.step import StepStatistics

ALIKE = 1.2
"""The factor up to which what a row takes is usual."""
IN_A_ROW = 3
"""Dear batches that are no accident."""
REMEMBERED = 8
"""Batches by which a plan is judged."""


class Priced(NamedTuple):
    """What slots did in a batch, at unit costs."""

    work: float
    """Seconds of a core."""
    rows: int


def priced(steps: Iterable[StepStatistics], units: UnitCosts) -> Priced:
    """The price of what slots did in a batch."""
    several = list(steps)
    return Priced(
        sum(price_of_step(step, units) for step in several),
        sum(sum(step.rows_in.values()) for step in several),
    )


class Excess:
    """What the rows of some slots take, against what they took."""

    def __init__(self, filling: float = 0.0) -> None:
        """For so many seconds of event time windows fill."""
        self.taken = 0.0
        """Seconds of a core that all batches took."""
        self._filling = self._window = filling
        self._lately: deque[tuple[float, int]] = deque(maxlen=REMEMBERED)
        """Seconds of a core and rows of the latest batches."""
        self._usual = self._dearest = 0.0
        """Seconds of a core for a row, when the plan was last judged; 0 until the first batch."""
        self._latest = 0.0
        self._paid, self._in_a_row, self._lasted = 0.0, 0, 0.0

    def note(self, priced: Priced, seconds: float) -> None:
        """Takes in what slots did in a batch, and the event time that passed with it."""
        work, rows = priced
        if not rows:
            return
        if self._filling > 0:
            self.begin()
        self._filling -= seconds
        self.taken += work
        self._latest = work / rows
        self._lately.append((work, rows))
        if not self._usual:
            self._usual = self._dearest = self._latest
        beyond = work - self.bound * rows
        if beyond > 0:
            self._paid, self._in_a_row, self._lasted = self._paid + beyond, self._in_a_row + 1, self._lasted + seconds
        else:
            self._paid, self._in_a_row, self._lasted = 0.0, 0, 0.0

    def judged(self) -> None:
        """Takes what the latest batches took as usual: by them the plan was judged, and stays."""
        work, rows = sum(work for work, _ in self._lately), sum(rows for _, rows in self._lately)
        self._usual = work / rows if rows else 0.0
        self._dearest = max((work / rows for work, rows in self._lately), default=0.0)
        self._paid, self._in_a_row, self._lasted = 0.0, 0, 0.0

    def begin(self) -> None:
        """Begins anew with the next batch, which runs by another plan."""
        self._lately.clear()
        self.judged()

    @property
    def bound(self) -> float:
        """Seconds of a core for a row, beyond which a batch is dear."""
        return max(ALIKE * self._usual, self._dearest)

    @property
    def paid(self) -> float:
        """Seconds of a core that dear batches in a row took beyond what is usual."""
        return self._paid if self._in_a_row >= IN_A_ROW else 0.0

    @property
    def is_mixed(self) -> bool:
        """Whether windows still hold rows from before those that are dear: then what is dear may pass by itself."""
        return 0 < self._lasted < self._window

    @property
    def factor(self) -> float:
        """How many times what is usual a row of the latest batch took."""
        return self._latest / self._usual if self._usual else 1.0
