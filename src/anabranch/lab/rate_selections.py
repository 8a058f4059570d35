"""Two selections in series, one of them slow: the example that opens Viglas and Naughton 2002 (Figure 1)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from anabranch.engine.evaluate.expression import evaluate_mask
from anabranch.expr import Call, Column, Literal
from anabranch.lab.papers.rate_model import selection_rate
from anabranch.lab.registry import Cell, Experiment, Outcome, Setting, Verdict
from anabranch.lab.virtual_clock import Floats, served

ARRIVALS = 500.0
SELECTIVITY = 0.1
SLOW = 1 / 50
"""Seconds per row of the first selection; the second needs none."""


def run(setting: Setting) -> Outcome:
    seconds = 20 if setting.quick else 100
    rng = np.random.default_rng(setting.seed)
    count = int(ARRIVALS * seconds)
    arrivals = np.arange(count) / ARRIVALS
    values = {"first": rng.random(count), "second": rng.random(count)}
    plans = {"slow first": (("first", SLOW), ("second", 0.0)), "fast first": (("second", 0.0), ("first", SLOW))}
    rows: list[tuple[Cell, ...]] = []
    curves: dict[str, Floats] = {}
    measured: dict[str, float] = {}
    backlog: dict[str, int] = {}
    for name, selections in plans.items():
        predicted, times, alive = ARRIVALS, arrivals, np.arange(count)
        for column, cost in selections:
            predicted = selection_rate(predicted, cost, SELECTIVITY)
            done = served(times, cost)
            passing = _passing(values[column][alive])
            times, alive = done[passing], alive[passing]
        curves[name] = times[times <= seconds]
        measured[name] = curves[name].size / seconds
        waiting = served(arrivals, selections[0][1])
        backlog[name] = int((waiting > seconds).sum())
        rows.append((name, predicted, measured[name], backlog[name]))
    ratio = measured["fast first"] / measured["slow first"]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for name, times in curves.items():
            axes.plot(times, np.arange(1, times.size + 1), label=name)
        axes.set(xlabel="seconds", ylabel="rows put out", title="Two selections in series")
        axes.legend()

    verdict = Verdict(
        "ten times the output rate with the fast selection first, and no backlog",
        f"{ratio:.1f} times ({measured['slow first']:.2f} against {measured['fast first']:.2f} rows/s, predicted 0.5 "
        f"and 5); after {seconds} s {backlog['slow first']} rows wait in the first plan and {backlog['fast first']} "
        "in the second (virtual clock: the slow selection is charged 20 ms a row)",
    )
    return Outcome(("plan", "predicted rows/s", "measured rows/s", "backlog"), tuple(rows), draw, (verdict,))


def _passing(values: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """The engine's own filter: value < selectivity."""
    column = Column("s", "value", pa.float64())
    predicate = Call("less", (column, Literal(SELECTIVITY, pa.float64())), pa.bool_())
    return evaluate_mask(predicate, lambda _: pa.array(values), values.size)


EXPERIMENTS = (Experiment("rate-selections", "Two selections in series (Viglas & Naughton 2002, Figure 1)", run),)
