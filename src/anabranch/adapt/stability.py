"""Predicts how long the statistics of streams will last, from the lengths of earlier phases.

A phase lasts from one detected change of the statistics to the next. Until two phases have ended, the current phase is
expected to last as long again as it has lasted. After that, half of the rest of a usual phase counts; once a phase is
longer than usual, its own length counts again. This is the rent-or-buy rule: a query leaves its plan once staying has
cost as much as leaving could, so it loses at most about twice what the better choice in hindsight would.

Invariant: all times are event time, so a replay gives the same predictions.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from statistics import median

from anabranch.adapt.facts import REMEMBERED
from anabranch.adapt.knowledge import CHANGED, Knowledge


@dataclass(frozen=True)
class Phase:
    """A stretch of event time in which the statistics hardly changed."""

    known: Knowledge
    seconds: float


@dataclass(frozen=True)
class Stability:
    """The phases so far; the last one has not ended."""

    phases: tuple[Phase, ...] = field(default=())

    def after(self, seconds: float) -> Stability:
        """Returns the phases after a batch of `seconds` of event time."""
        if not self.phases:
            return self
        last = self.phases[-1]
        return Stability((*self.phases[:-1], Phase(last.known, last.seconds + seconds)))

    def decided(self, known: Knowledge, measured: float) -> Stability:
        """Returns the phases after a decision with these statistics, which were measured over `measured` seconds."""
        if not self.phases:
            return Stability((Phase(known, measured),))
        last = self.phases[-1]
        if last.known.drift(known) < CHANGED:
            return self
        # The new phase began before it was detected.
        ended = replace(last, seconds=max(0.0, last.seconds - measured))
        return Stability((*self.phases[:-1], ended, Phase(known, measured))[-REMEMBERED:])

    def horizon(self, most: float) -> float:
        """Returns the seconds for which the statistics are expected to last, at most `most`."""
        usual, passed = self.usual, self.lasted
        return min(most, (usual - passed) / 2 if passed < usual else passed)

    @property
    def before(self) -> Knowledge | None:
        """The statistics of the previous phase, which may return; None in the first phase."""
        return self.phases[-2].known if len(self.phases) > 1 else None

    @property
    def usual(self) -> float:
        """The median length of the ended phases in seconds; 0 until two have ended."""
        return median(phase.seconds for phase in self.phases[:-1]) if len(self.phases) > 2 else 0.0

    @property
    def lasted(self) -> float:
        """The length of the current phase so far, in seconds."""
        return self.phases[-1].seconds if self.phases else 0.0
