"""Several ways through one workload, as the tables and pictures of experiments show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from lab.registry import Cell
from lab.regret_runs import Run

BARS = 0.8
"""The room of the bars of one workload."""


def figures(runs: Mapping[str, Run], ways: Sequence[str]) -> list[Cell]:
    """Work and processor time of each way; a dash for one that was not gone."""
    found: list[Cell] = []
    for way in ways:
        run = runs.get(way)
        found += ["-", "-"] if run is None else [run.work, run.cpu]
    return found


def draw_over_first(axes: Axes, work: Sequence[Mapping[str, float]], ways: Sequence[str]) -> None:
    """Bars of the work of each way over that of the first one, workload by workload."""
    first, *others = ways
    width = BARS / len(others)
    for place, way in enumerate(others):
        places = [number + width * place - (BARS - width) / 2 for number in range(len(work))]
        axes.bar(places, [each[way] / each[first] for each in work], width, label=way)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.legend()
