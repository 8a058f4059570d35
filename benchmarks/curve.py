"""A curve as a value: time and memory over a size, the slopes the design promises, and its picture.

A slope is that of a straight line through the logarithms of the points: 0 when the size costs nothing, 1 when cost is
in proportion. A promise is the most that the slope may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from benchmarks.figures import Bound, Figure

INK, LINE, PROMISE = "#222222", "#1f5fa8", "#b5482a"
STYLE: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "curve", "font.size": 11, "axes.edgecolor": "#888888"}


@dataclass(frozen=True)
class Point:
    """What one size cost: seconds (of what, the curve says) and bytes."""

    size: float
    seconds: float
    bytes: float


@dataclass(frozen=True)
class Promise:
    """What is drawn on the upright axis, the most that its slope may be, and why."""

    what: str
    slope: float
    because: str


@dataclass(frozen=True)
class Curve:
    """A named series of points with what the design promises of them."""

    name: str
    size: str
    time: Promise
    memory: Promise
    fitted_from: float = 0.0
    """Slopes are fitted to sizes from here on; smaller ones are drawn and carry a fixed cost."""


def figures(curve: Curve, runs: Sequence[Sequence[Point]]) -> list[Figure]:
    """The slopes of a curve, one for each run, against their promises."""
    return [
        Figure(
            f"{promise.what} over {curve.size}: slope",
            "",
            tuple(slope(curve, points, of) for points in runs),
            Bound("at most", promise.slope),
        )
        for of, promise in (("seconds", curve.time), ("bytes", curve.memory))
    ]


def slope(curve: Curve, points: Sequence[Point], of: str) -> float:
    """The exponent with which the cost grows, by least squares over the logarithms."""
    fitted = [point for point in points if point.size >= curve.fitted_from]
    sizes, values = ([getattr(point, name) for point in fitted] for name in ("size", of))
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def middle(runs: Sequence[Sequence[Point]]) -> list[Point]:
    """The medians of several runs over the same sizes."""
    return [
        Point(several[0].size, median(each.seconds for each in several), median(each.bytes for each in several))
        for several in zip(*runs, strict=True)
    ]


def record(curve: Curve, points: Sequence[Point]) -> dict[str, Any]:
    """The curve as plain data for the result file."""
    return asdict(curve) | {"points": [asdict(point) for point in points]}


def draw(curve: Curve, points: Sequence[Point], target: Path) -> None:
    """Writes the picture: time on the left, memory on the right, each with the promised slope."""
    with rc_context(STYLE):
        drawing = Drawing(figsize=(9, 3.4), facecolor="white", layout="constrained")
        left, right = drawing.subplots(1, 2)
        _panel(left, curve, points, "seconds", curve.time)
        _panel(right, curve, points, "bytes", curve.memory)
        target.parent.mkdir(parents=True, exist_ok=True)
        drawing.savefig(target, metadata={"Date": None} if target.suffix == ".svg" else None)


def _panel(axes: Axes, curve: Curve, points: Sequence[Point], of: str, promise: Promise) -> None:
    fitted = [point for point in points if point.size >= curve.fitted_from]
    sizes = [point.size for point in points]
    values = [getattr(point, of) for point in points]
    sizes_fitted = np.array([fitted[0].size, fitted[-1].size])
    promised = getattr(fitted[0], of) * (sizes_fitted / fitted[0].size) ** promise.slope
    axes.loglog(sizes, values, "o-", color=LINE, label=f"measured, slope {_rounded(slope(curve, points, of))}")
    axes.loglog(sizes_fitted, promised, "--", color=PROMISE, label=f"promised, at most {promise.slope:g}")
    # A decade at least, so that what is flat looks flat, and room above for the legend.
    low, high = np.log10(min(*values, *promised)), np.log10(max(*values, *promised))
    missing = max(0.0, 1.0 - (high - low)) / 2
    low, high = low - missing - 0.1, high + missing
    axes.set_ylim(10**low, 10 ** (high + 0.35 * (high - low)))
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high - low < 2 else (1.0,)))
    axes.set_xlabel(curve.size, color=INK)
    axes.set_title(promise.what, loc="left", fontsize=11, color=INK)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    if of == "seconds":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: duration(value)))
    else:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: volume(value)))
    if sizes[-1] < 100:
        axes.set_xticks(sizes)
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(which="major", color="#e4e4e4", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left", fontsize=10)


def _rounded(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}"


def short(value: float) -> str:
    """A count with its thousands named.

    >>> [short(value) for value in (3, 3_000, 10_000_000)]
    ['3', '3 k', '10 M']
    """
    for unit, name in ((1e6, " M"), (1e3, " k")):
        if value >= unit:
            return f"{value / unit:g}{name}"
    return f"{value:g}"


def duration(seconds: float) -> str:
    """
    >>> [duration(value) for value in (0.0001, 0.01, 10)]
    ['0.1 ms', '10 ms', '10 s']
    """
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:g} ms"


def volume(count: float) -> str:
    """
    >>> [volume(value) for value in (100, 10_000, 1_000_000, 1e9)]
    ['100 B', '10 kB', '1 MB', '1 GB']
    """
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:g} {name}"
    return f"{count:g} B"
