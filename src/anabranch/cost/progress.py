"""Results over time of a plan on a given number of cores, for objectives such as rate@30 and first@1000.

After the start of a query its windows fill, so the work per second of stream time grows until the longest window is
full. A plan that needs more CPU than available falls behind: it takes max(1, need / cores) seconds for each second of
the streams. Plans that keep up emit the same results at the same time; plans that fall behind differ in their progress.
This extends the rate-based model of Viglas and Naughton 2002 from saturated binary joins to saturated plans of any
shape.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import numpy as np
from numpy.typing import NDArray

from anabranch.cost.estimates import EVER
from anabranch.cost.resources import ResourceModel
from anabranch.plan.physical import PhysicalPlan

GRID = 25


@dataclass(frozen=True)
class Progress:
    """Seconds since the start and cumulative results, while the windows fill; afterwards both grow linearly."""

    seconds: NDArray[np.float64]
    results: NDArray[np.float64]
    rate: float
    """Results per second once all windows are full."""

    def results_by(self, t: float) -> float:
        if t <= self.seconds[-1]:
            return float(np.interp(t, self.seconds, self.results))
        return float(self.results[-1] + (t - self.seconds[-1]) * self.rate)

    def time_to(self, results: float) -> float:
        if results <= self.results[-1]:
            return float(np.interp(results, self.results, self.seconds))
        return float(self.seconds[-1] + (results - self.results[-1]) / self.rate) if self.rate else inf


def progress(plan: PhysicalPlan, model: ResourceModel, cores: float) -> Progress:
    """Returns the progress of a plan with explicit orders, from an empty start."""
    longest = model.estimates.longest_window
    # Denser at the start, where results grow polynomially with time.
    moments = longest * np.linspace(0.0, 1.0, GRID) ** 2
    rates, pace = np.zeros(GRID), np.ones(GRID)
    for position, moment in enumerate(moments[1:], start=1):
        price = at(model, float(moment)).price(plan)
        rates[position] = price.rate
        pace[position] = max(1.0, price.cpu / cores)
    steps = np.diff(moments)
    seconds = np.concatenate([[0.0], np.cumsum(steps * (pace[1:] + pace[:-1]) / 2)])
    results = np.concatenate([[0.0], np.cumsum(steps * (rates[1:] + rates[:-1]) / 2)])
    return Progress(seconds, results, float(rates[-1] / pace[-1]))


def at(model: ResourceModel, moment: float) -> ResourceModel:
    """Returns the model some seconds after the start: windows hold at most these seconds, and tables are complete."""
    windows = tuple(window if window >= EVER else min(window, moment) for window in model.estimates.windows)
    return replace(model, estimates=replace(model.estimates, windows=windows))
