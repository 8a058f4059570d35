"""Two selections in series, one of them slow: the example that opens Viglas and Naughton 2002 (Figure 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from anabranch.engine.evaluate.expression import evaluate_mask
from anabranch.lang.expr import Call, Column, Literal
from lab.papers.rate_model import selection_rate
from lab.registry import Cell, Experiment, Outcome, Setting, Verdict
from lab.virtual_clock import Floats, served

ARRIVALS = 500.0
SELECTIVITY = 0.1
SLOW = 1 / 50
"""Seconds per row of the first selection; the second needs none."""
PAPER_RATIO = 10.0


@dataclass(frozen=True)
class Series:
    """One order of the two selections: the predicted rate, the moments of the rows put out, and the rows that wait."""

    predicted: float
    times: Floats
    seconds: float
    backlog: int

    @property
    def rate(self) -> float:
        """Rows put out per second."""
        return self.times.size / self.seconds


def measure(setting: Setting) -> dict[str, Series]:
    """Both orders over the same rows."""
    seconds = 20 if setting.quick else 100
    rng = np.random.default_rng(setting.seed)
    count = int(ARRIVALS * seconds)
    arrivals = np.arange(count) / ARRIVALS
    values = {"first": rng.random(count), "second": rng.random(count)}
    plans = {"slow first": (("first", SLOW), ("second", 0.0)), "fast first": (("second", 0.0), ("first", SLOW))}
    found = {}
    for name, selections in plans.items():
        predicted, times, alive = ARRIVALS, arrivals, np.arange(count)
        backlog = 0
        for column, cost in selections:
            predicted = selection_rate(predicted, cost, SELECTIVITY)
            done = served(times, cost)
            # Rows that have reached this selection and not left it when the clock stops.
            backlog += int(((times <= seconds) & (done > seconds)).sum())
            passing = _passing(values[column][alive])
            times, alive = done[passing], alive[passing]
        found[name] = Series(predicted, times[times <= seconds], seconds, backlog)
    return found


def present(found: Mapping[str, Series]) -> Outcome:
    slow, fast = found["slow first"], found["fast first"]
    ratio = fast.rate / slow.rate

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for name, one in found.items():
            axes.plot(one.times, np.arange(1, one.times.size + 1), label=name)
        axes.set(xlabel="seconds", ylabel="rows put out", title="Two selections in series")
        axes.legend()

    verdict = Verdict(
        "ten times the output rate with the fast selection first, and no backlog",
        f"{ratio:.1f} times ({slow.rate:.2f} against {fast.rate:.2f} rows/s, predicted {slow.predicted:g} and "
        f"{fast.predicted:g}); after {fast.seconds:g} s {slow.backlog} rows wait with the slow selection first and "
        f"{fast.backlog} with the fast one first (virtual clock: the slow selection is charged 20 ms a row)",
        {
            "ten times, within a fifth": abs(ratio / PAPER_RATIO - 1) <= 0.2,
            "rates within a fifth of the prediction": all(
                abs(one.rate / one.predicted - 1) <= 0.2 for one in found.values()
            ),
            "no backlog, at most 1 % of all rows": fast.backlog <= 0.01 * ARRIVALS * fast.seconds,
        },
    )
    rows: list[tuple[Cell, ...]] = [(name, one.predicted, one.rate, one.backlog) for name, one in found.items()]
    return Outcome(("plan", "predicted rows/s", "measured rows/s", "backlog"), tuple(rows), draw, (verdict,))


def _passing(values: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Applies the engine's own filter: value < selectivity."""
    column = Column("s", "value", pa.float64())
    predicate = Call("less", (column, Literal(SELECTIVITY, pa.float64())), pa.bool_())
    return evaluate_mask(predicate, lambda _: pa.array(values), values.size)


EXPERIMENTS = (
    Experiment("rate-selections", "Two selections in series (Viglas & Naughton 2002, Figure 1)", measure, present),
)
