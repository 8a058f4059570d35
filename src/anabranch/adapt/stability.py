"""Predicts how long the statistics of streams will last, from the lengths of earlier phases.

A phase lasts from one detected change of the statistics to the next. Until two phases have ended, the current phase is
expected to last as long again as it has lasted. After that, half of the rest of a usual phase counts; once a phase is
longer than usual, its own length counts again. (Zhu 2006, 26.2, requires that the choice of a plan includes the cost of
reaching it; the time that the plan will be used is part of this.)

Invariant: all times are event time, so a replay gives the same predictions.
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
"""A new phase begins if a rate or selectivity has changed by at least this factor."""
REMEMBERED = 8
"""The maximum number of phases that are kept."""
ENOUGH = 2
"""The number of phases that must have ended before their length counts."""
RESTLESS = 0.1
"""Phases are too short if a change of plan can count on less than this fraction of the gate's horizon."""


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

    def began(self, known: Knowledge, seconds: float) -> Stability:
        """Returns the phases with a first one, if the statistics changed before the first decision."""
        return self if self.phases else Stability((Phase(known, seconds),))

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
    def odds(self) -> float:
        """The assumed probability that the previous statistics return: 0.5 until enough phases have ended, then 1."""
        return 1.0 if len(self.phases) > ENOUGH else 0.5

    @property
    def usual(self) -> float:
        """The median length of the ended phases in seconds; 0 if too few have ended."""
        return median(phase.seconds for phase in self.phases[:-1]) if len(self.phases) > ENOUGH else 0.0

    @property
    def lasted(self) -> float:
        """The length of the current phase so far, in seconds."""
        return self.phases[-1].seconds if self.phases else 0.0

    def mean_costs(
        self, plans: Mapping[str, PhysicalPlan], model_of: Callable[[Knowledge], ResourceModel]
    ) -> dict[str, Resources]:
        """Returns the mean cost of each plan over the phases, weighted by their lengths."""
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
        """Returns True if the phases are known to be too short in relation to the gate's horizon."""
        return len(self.phases) > ENOUGH and self.horizon(most) < RESTLESS * most
