"""Payback: whether a change saves more than it costs before the statistics of the streams change again.

A change is a bet that the statistics stay as they are. If they revert, the new plan runs under statistics that it was
not chosen for until the reversal is detected, and changing back costs another migration. So the *total* of a bet is its
cost until the statistics are expected to change, plus both migrations, plus its cost under the previous statistics
while the reversal is undetected. `weighing` compares plans by these totals.

The length of a new phase is unknown, so at first a change may count on as much time as the phase has lasted
(`stability`). This is the rent-or-buy rule: a query leaves its plan once staying has cost as much as leaving could. Its
loss is at most about twice that of the better choice in hindsight, whatever the streams do next.

Limit: the only reversal that is priced is that to the statistics of the previous phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from anabranch.adapt.stability import Stability

EVEN = 1.05
"""Bets whose totals differ by less than this factor are equal; the one that is cheapest now then wins."""


@dataclass(frozen=True)
class Bet:
    """The cost of one choice in the scarce resource: per second now, per second under the previous statistics, and once
    for the migration.
    """

    now: float
    before: float
    way: float = 0.0
    """The cost of the migration and of the one back."""

    def total(self, seconds: float, unnoticed: float) -> float:
        """Returns the cost if the statistics last for `seconds` and their reversal is undetected for `unnoticed`."""
        return self.now * seconds + self.way + self.before * unnoticed

    def pays_after(self, staying: Bet, unnoticed: float) -> float:
        """Returns the seconds for which the statistics must last so that the bet costs no more than staying.

        >>> Bet(1.0, 3.0, 2.0).pays_after(Bet(3.0, 1.0), 4.0)
        5.0
        """
        saved = staying.now - self.now
        lost = self.way + (self.before - staying.before) * unnoticed
        return max(0.0, lost / saved) if saved > 0 else inf


@dataclass(frozen=True)
class Weighed:
    """The best of several bets, and whether staying is better than all of them."""

    place: int
    is_loss: bool
    retry: float | None
    """Length of the phase, in seconds, at which another bet would pay; None if there is no such bet."""
    wait: float
    """Seconds for which the statistics must have lasted for the best bet to pay."""

    def reason(self, stability: Stability, otherwise: str) -> str:
        """Returns the reason to stay although the bet passed the gate."""
        return (
            f"would not pay back if the streams changed again soon: the phase has lasted {stability.lasted:.3g} s, "
            f"and the change pays after {self.wait:.3g} s; otherwise: {otherwise}"
        )


def weighed(staying: Bet, bets: Sequence[Bet], stability: Stability, most: float, unnoticed: float) -> Weighed:
    """Compares bets with staying; the statistics are expected to last for at most `most` seconds."""
    horizon = stability.horizon(most)
    totals = [bet.total(horizon, unnoticed) for bet in bets]
    least, stay = min(totals), staying.total(horizon, unnoticed)
    limit = max(least, min(EVEN * least, stay))
    even = [place for place, total in enumerate(totals) if total <= limit]
    place = min(even, key=lambda one: bets[one].now)
    is_loss = stay <= least
    kept = staying if is_loss else bets[place]
    later = [each.pays_after(kept, unnoticed) for each in bets if each.now < kept.now]
    # Once the usual length of a phase is known, a bet is not reconsidered before twice that length.
    due = max(min(later, default=inf), 2 * stability.usual)
    lasted = stability.lasted
    retry = None if due == inf else EVEN * due if due > lasted else 2 * lasted
    return Weighed(place, is_loss, retry, bets[place].pays_after(staying, unnoticed))
