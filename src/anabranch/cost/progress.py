"""Results over time of a plan on a given number of cores, for objectives such as rate@30 and first@1000.

After the start of a query its windows fill, so the work per second of stream time grows until the longest window is
full. A plan that needs more CPU than available falls behind: it takes max(1, need / cores) seconds for each second of
the streams. The results of a batch come when the whole batch is processed. Plans that keep up emit the same results at
almost the same time; plans that fall behind differ in their progress. This extends the rate-based model of Viglas and
Naughton 2002 from saturated binary joins to saturated plans of any shape.

The moments at which a plan is priced lie below the time in question, however long the windows are. Between two moments
rates and costs follow a power of time, which is exact while no window is full.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, log

import numpy as np
from numpy.typing import NDArray

from anabranch.cost.estimates import EVER
from anabranch.cost.resources import ResourceModel
from anabranch.plan.physical import PhysicalPlan

GRID = 25
DECADES = 3
"""The moments span this many powers of ten below the time in question; earlier results are too few to matter."""


AHEAD = 1.01


@dataclass(frozen=True)
class Progress:
    """Seconds since the start and cumulative results, up to some moment; afterwards both grow linearly."""

    seconds: NDArray[np.float64]
    results: NDArray[np.float64]
    rate: float
    """Results per second after the last moment."""

    def results_by(self, t: float) -> float:
        if t <= self.seconds[-1]:
            return _between(t, self.seconds, self.results)
        return float(self.results[-1] + (t - self.seconds[-1]) * self.rate)

    def time_to(self, results: float) -> float:
        if results <= self.results[-1]:
            return _between(results, self.results, self.seconds)
        return float(self.seconds[-1] + (results - self.results[-1]) / self.rate) if self.rate else inf


def crossing(one: Progress, other: Progress) -> tuple[float | None, float | None]:
    """Returns the second until which one plan is ahead of the other, and the second from which it is ahead permanently.

    Plans whose results differ by less than 1 % are even.
    """
    seconds = np.union1d(one.seconds, other.seconds)
    lead = np.array([one.results_by(second) - AHEAD * other.results_by(second) for second in seconds.tolist()])
    is_ahead = np.flatnonzero(lead > 0)
    until = float(seconds[is_ahead[-1]]) if len(is_ahead) and is_ahead[-1] < len(lead) - 1 else None
    end, gained = float(seconds[-1]), one.rate - other.rate
    if (len(is_ahead) and is_ahead[-1] == len(lead) - 1) or gained <= (AHEAD - 1) * other.rate:
        return until, None
    return until, end + (other.results_by(end) - one.results_by(end)) / gained


def progress(plan: PhysicalPlan, model: ResourceModel, cores: float, until: float = inf) -> Progress:
    """Returns the progress of a plan with explicit orders, from an empty start.

    `until` is the time in question, in seconds of the streams. If the windows are full before, the progress is linear
    from then on.
    """
    moments = _moments(model, until)
    need = _needs(plan, model, moments) / cores
    if (late := _first_above_one(moments, need)) is not None:
        # The moment at which the plan begins to fall behind.
        moments = np.unique(np.append(moments, late))
        need = _needs(plan, model, moments) / cores
    rates = np.array([at(model, float(moment)).base.rate for moment in moments])
    pace = np.maximum(1.0, need)
    seconds = _integral(moments, pace) + model.batch * np.minimum(1.0, need)
    return Progress(seconds, _integral(moments, rates), float(rates[-1] / pace[-1]))


def stream_time_to(model: ResourceModel, results: float) -> float:
    """Returns the seconds of the streams after which they have that many results, whatever the plan."""
    longest = model.estimates.longest_window
    moments = longest * np.geomspace(1e-6, 1.0, 60)
    rates = np.array([at(model, float(moment)).base.rate for moment in moments])
    return Progress(moments, _integral(moments, rates), float(rates[-1])).time_to(results)


def at(model: ResourceModel, moment: float) -> ResourceModel:
    """Returns the model some seconds after the start: windows hold at most these seconds, and tables are complete."""
    windows = tuple(window if window >= EVER else min(window, moment) for window in model.estimates.windows)
    return replace(model, estimates=replace(model.estimates, windows=windows), age=moment)


def _moments(model: ResourceModel, until: float) -> NDArray[np.float64]:
    """Returns the moments at which a plan is priced: denser at the start, and whenever a window is full."""
    estimates = model.estimates
    end = min(until, estimates.longest_window)
    full = [window for window in estimates.windows if end * 10**-DECADES < window < end]
    return np.unique(np.concatenate([end * np.geomspace(10.0**-DECADES, 1.0, GRID), full]))


def _needs(plan: PhysicalPlan, model: ResourceModel, moments: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array([at(model, float(moment)).price(plan).cpu for moment in moments])


def _first_above_one(moments: NDArray[np.float64], need: NDArray[np.float64]) -> float | None:
    """Returns the moment at which the need passes 1; None if it is above or below at all moments."""
    place = int(np.argmax(need > 1))
    if place == 0:
        return None
    low, high = moments[place - 1], moments[place]
    power = _power(low, high, need[place - 1], need[place])
    return float(low * need[place - 1] ** (-1 / power))


def _integral(moments: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the integral from 0 to each moment of values that follow a power of time between two moments."""
    powers = [_power(moments[i], moments[i + 1], values[i], values[i + 1]) for i in range(moments.size - 1)]
    first = values[0] * moments[0] / (1 + (powers[0] if powers else 0.0))
    steps = [(values[i + 1] * moments[i + 1] - values[i] * moments[i]) / (1 + power) for i, power in enumerate(powers)]
    return np.concatenate([[first], first + np.cumsum(steps)])


def _between(x: float, xs: NDArray[np.float64], ys: NDArray[np.float64]) -> float:
    """Interpolates two rising sequences by a power; before the first point they are proportional."""
    place = int(np.searchsorted(xs, x))
    if place == 0 or ys[place - 1] <= 0:
        return float(ys[place] * x / xs[place]) if xs[place] > 0 else 0.0
    low, high = xs[place - 1], xs[place]
    return float(ys[place - 1] * (x / low) ** _power(low, high, ys[place - 1], ys[place]))


def _power(low: float, high: float, at_low: float, at_high: float) -> float:
    """Returns the power of x that two points follow; 0 if there is none."""
    return log(at_high / at_low) / log(high / low) if at_low > 0 and at_high > 0 and low < high else 0.0
