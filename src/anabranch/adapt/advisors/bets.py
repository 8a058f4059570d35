"""To rent or to buy: whether a change pays while the streams stay, and what it costs when they turn.

A change is a bet that the streams stay as they are. If they turn back, what was changed to meets the statistics that it
was not chosen for until that is noticed, and the way back has its price. So the *total* of a bet is its cost until the
streams are expected to change, the ways there and back, and its cost under the statistics from before for as long as a
change goes unnoticed. Nobody knows how long a new phase lasts, so at first it counts for as long as it has lasted
(`stability`). Then a query leaves what it has when staying has cost as much as leaving could; what it loses is at most
about twice what the better of both would have lost, whatever the streams do next.

Plans are weighed so (`weighing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from anabranch.adapt.stability import Stability

EVEN = 1.05
"""Bets whose totals differ by less than this factor are even: then what is best now spares a second change."""


@dataclass(frozen=True)
class Bet:
    """What a choice takes of the scarce resource in a second, now and as the streams were before, and to get there."""

    now: float
    before: float
    way: float = 0.0
    """There and back."""

    def total(self, seconds: float, unnoticed: float) -> float:
        """What it takes while the streams stay for so long and then turn back, which goes unnoticed for some time."""
        return self.now * seconds + self.way + self.before * unnoticed

    def pays_after(self, staying: Bet, unnoticed: float) -> float:
        """Seconds that the streams must stay for the bet to be no loss against staying.

        >>> Bet(1.0, 3.0, 2.0).pays_after(Bet(3.0, 1.0), 4.0)
        5.0
        """
        saved = staying.now - self.now
        lost = self.way + (self.before - staying.before) * unnoticed
        return max(0.0, lost / saved) if saved > 0 else inf


@dataclass(frozen=True)
class Weighed:
    """The best of some bets, and whether staying is better than all of them."""

    place: int
    is_loss: bool
    retry: float | None
    """Seconds of a phase after which another bet would pay."""
    wait: float
    """Seconds that the streams must have stayed for the best bet to pay."""

    def reason(self, stability: Stability, otherwise: str) -> str:
        """Why to stay although the bet passed the gate."""
        return (
            f"would be a loss if the streams changed again soon: they have stayed for {stability.lasted:.3g} s, "
            f"after {self.wait:.3g} s it pays; otherwise: {otherwise}"
        )


def weighed(staying: Bet, bets: Sequence[Bet], stability: Stability, most: float, unnoticed: float) -> Weighed:
    """Weighs bets against staying; the streams may be expected to stay for `most` seconds, and not longer."""
    horizon = stability.horizon(most)
    totals = [bet.total(horizon, unnoticed) for bet in bets]
    least, stay = min(totals), staying.total(horizon, unnoticed)
    limit = max(least, min(EVEN * least, stay))
    even = [place for place, total in enumerate(totals) if total <= limit]
    place = min(even, key=lambda one: bets[one].now)
    is_loss = stay <= least
    kept = staying if is_loss else bets[place]
    later = [each.pays_after(kept, unnoticed) for each in bets if each.now < kept.now]
    # Once phases are known, one that is no longer than others is about to end.
    due = max(min(later, default=inf), 2 * stability.usual)
    lasted = stability.lasted
    retry = None if due == inf else EVEN * due if due > lasted else 2 * lasted
    return Weighed(place, is_loss, retry, bets[place].pays_after(staying, unnoticed))
