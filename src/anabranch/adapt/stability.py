"""How long streams stay as they are: learnt from how long they stayed so before.

A phase lasts from one noticed change of the statistics to the next. While fewer than two phases have ended, nothing is
known of their length, and a change of plan may count on as long again as the phase has lasted: what has lasted for an
hour may be expected to last for another. Then it may count on the half of what is left of a usual phase; once a phase
has lasted longer than usual, again on as long as it has lasted. (Zhu 2006, 26.2, asks that the choice of a plan weighs
the price of reaching it; how long the plan will serve belongs to that.)

All times are event time, so a replay learns what the live run learnt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from anabranch.adapt.knowledge import Knowledge
from anabranch.cost.intra_batch_order import price_in_turns
from anabranch.cost.resources import ResourceModel, Resources
from anabranch.plan.physical import PhysicalPlan

CHANGED = 1.5
"""The factor by which a rate or selectivity differs in another phase."""
REMEMBERED = 8
"""Phases that are remembered."""
ENOUGH = 2
"""Phases that must have ended before their length counts."""
RESTLESS = 0.1
"""Streams are restless while a change of plan may count on less than this share of the horizon."""


@dataclass(frozen=True)
class Phase:
    """A stretch of event time in which the statistics hardly changed."""

    known: Knowledge
    seconds: float


@dataclass(frozen=True)
class Stability:
    """The phases so far; the last one still lasts."""

    phases: tuple[Phase, ...] = field(default=())

    def after(self, seconds: float) -> Stability:
        """One batch later."""
        if not self.phases:
            return self
        last = self.phases[-1]
        return Stability((*self.phases[:-1], Phase(last.known, last.seconds + seconds)))

    def began(self, known: Knowledge, seconds: float) -> Stability:
        """Takes in that the streams no longer are as they were at first, before anything was decided."""
        return self if self.phases else Stability((Phase(known, seconds),))

    def decided(self, known: Knowledge, measured: float) -> Stability:
        """Takes in the statistics of a decision, which were measured over so many seconds."""
        if not self.phases:
            return Stability((Phase(known, measured),))
        last = self.phases[-1]
        if last.known.drift(known) < CHANGED:
            return self
        # The new phase began before it was noticed.
        ended = replace(last, seconds=max(0.0, last.seconds - measured))
        return Stability((*self.phases[:-1], ended, Phase(known, measured))[-REMEMBERED:])

    def horizon(self, most: float) -> float:
        """Seconds for which the streams are expected to stay as they are, at most so many."""
        usual, passed = self.usual, self.lasted
        return min(most, (usual - passed) / 2 if passed < usual else passed)

    @property
    def before(self) -> Knowledge | None:
        """The statistics of the phase before this one, which may come back; None in the first phase."""
        return self.phases[-2].known if len(self.phases) > 1 else None

    @property
    def odds(self) -> float:
        """The chance that the streams turn back: even, until enough phases have ended to know that they do."""
        return 1.0 if len(self.phases) > ENOUGH else 0.5

    @property
    def usual(self) -> float:
        """Seconds of a usual phase; 0 while too few have ended to tell."""
        return median(phase.seconds for phase in self.phases[:-1]) if len(self.phases) > ENOUGH else 0.0

    @property
    def lasted(self) -> float:
        """Seconds that this phase has lasted so far."""
        return self.phases[-1].seconds if self.phases else 0.0

    def mean_costs(
        self, plans: Mapping[str, PhysicalPlan], model_of: Callable[[Knowledge], ResourceModel]
    ) -> dict[str, Resources]:
        """What plans, by name, would have cost on average over the phases."""
        total = sum(phase.seconds for phase in self.phases)
        means = dict.fromkeys(plans, Resources(0.0, 0.0, 0.0))
        for phase in self.phases:
            model, share = model_of(phase.known), phase.seconds / total if total else 0.0
            for name, plan in plans.items():
                cost, so_far = price_in_turns(plan, model), means[name]
                means[name] = Resources(
                    so_far.cpu + share * cost.cpu, so_far.memory + share * cost.memory, so_far.rate + share * cost.rate
                )
        return means

    def is_restless(self, most: float) -> bool:
        """True when the streams are known to change too often for a plan to count on the horizon."""
        return len(self.phases) > ENOUGH and self.horizon(most) < RESTLESS * most
