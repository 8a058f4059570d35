"""Two selections in series, one of them slow: the example that opens Viglas and Naughton 2002 (Figure 1).

The paper's slow selection handles a tenth of the rows that arrive. Here the slow selection is a regular expression, the
fast one a comparison, and both orders run over the same rows with the engine's own filters. CPU time is measured; the
rate model predicts the output of each order from the measured cost of each selection alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import process_time
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from anabranch.engine.evaluate.expression import evaluate_mask
from anabranch.lang.expr import Call, Column, Literal
from lab.papers.rate_model import selection_rate
from lab.registry import Cell, Experiment, Outcome, Setting, Verdict

SELECTIVITY = 0.1
PAPER_RATIO = 10.0
"""The paper's ratio of the two output rates; also the arrivals over what the slow selection can handle."""
TEXT = 100
"""Digits that the slow selection reads in each row."""
REPEATS = 7
CLOSE = 0.4
"""How near measured rates must be to the prediction, which gives each selection a processor of its own. Here one
processor runs both selections and copies the rows between them."""

Selection: TypeAlias = Callable[[pa.Table], pa.Table]


@dataclass(frozen=True)
class Series:
    """One order of the two selections: the predicted rate, the rows put out, and the seconds that they took."""

    predicted: float
    rows: int
    seconds: float

    @property
    def rate(self) -> float:
        """Rows put out per second."""
        return self.rows / self.seconds


def measure(setting: Setting) -> dict[str, Series]:
    """Both orders over the same rows."""
    count = 10_000 if setting.quick else 100_000
    rows = _rows(np.random.default_rng(setting.seed), count)
    slow, fast = _selection("text", _last_digit_is_zero), _selection("value", _is_small)
    costs = {each: _seconds(rows, each) / count for each in (slow, fast)}
    arrivals = PAPER_RATIO / costs[slow]
    found = {}
    for name, order in {"slow first": (slow, fast), "fast first": (fast, slow)}.items():
        predicted = arrivals
        for selection in order:
            predicted = selection_rate(predicted, costs[selection], SELECTIVITY)
        first, second = order
        seconds = max(_seconds(rows, first, second), count / arrivals)
        found[name] = Series(predicted, second(first(rows)).num_rows, seconds)
    return found


def present(found: Mapping[str, Series]) -> Outcome:
    slow, fast = found["slow first"], found["fast first"]
    ratio = fast.rate / slow.rate

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.bar(list(found), [one.rate for one in found.values()])
        axes.set(ylabel="rows put out per second", title="Two selections in series")

    verdict = Verdict(
        "ten times the output rate with the fast selection first",
        f"{ratio:.1f} times ({slow.rate:,.0f} against {fast.rate:,.0f} rows/s, predicted {slow.predicted:,.0f} and "
        f"{fast.predicted:,.0f})",
        {
            "ten times, within 40 %": abs(ratio / PAPER_RATIO - 1) <= CLOSE,
            "rates within 40 % of the prediction": all(
                abs(one.rate / one.predicted - 1) <= CLOSE for one in found.values()
            ),
        },
    )
    rows: list[tuple[Cell, ...]] = [(name, one.predicted, one.rate) for name, one in found.items()]
    return Outcome(("plan", "predicted rows/s", "measured rows/s"), tuple(rows), draw, (verdict,))


def _rows(rng: np.random.Generator, count: int) -> pa.Table:
    """Returns rows of which each selection passes a tenth, independently."""
    digits = rng.integers(ord("0"), ord("9") + 1, (count, TEXT), dtype=np.uint8)
    texts = pa.array(digits.view(f"S{TEXT}").ravel()).cast(pa.string())
    return pa.table({"text": texts, "value": rng.random(count)})


def _is_small(column: Column) -> Call:
    return Call("less", (column, Literal(SELECTIVITY, pa.float64())), pa.bool_())


def _last_digit_is_zero(column: Column) -> Call:
    pattern, group = Literal("^[0-9]*([0-9])$", pa.string()), Literal(1, pa.int32())
    digit = Call("regexp_extract", (column, pattern, group), pa.string())
    return Call("equal", (digit, Literal("0", pa.string())), pa.bool_())


def _selection(name: str, predicate: Callable[[Column], Call]) -> Selection:
    """Returns the engine's filter by a predicate on a column."""

    def select(rows: pa.Table) -> pa.Table:
        values = rows[name].combine_chunks()
        mask = evaluate_mask(predicate(Column("s", name, values.type)), lambda _: values, rows.num_rows)
        return rows.filter(pa.array(mask))

    return select


def _seconds(rows: pa.Table, *selections: Selection) -> float:
    """Returns the least CPU time of some runs of the selections, one after another."""
    times = []
    for _ in range(REPEATS):
        begun = process_time()
        passing = rows
        for selection in selections:
            passing = selection(passing)
        times.append(process_time() - begun)
    return min(times)


EXPERIMENTS = (
    Experiment("rate-selections", "Two selections in series (Viglas & Naughton 2002, Figure 1)", measure, present),
)
