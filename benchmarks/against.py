"""A named measurement, and the comparison that most of them make: a workload through us and through a rival."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.bench import Bench
from benchmarks.figures import Bound, Figure, ratio
from benchmarks.job import Run, System
from benchmarks.workloads import Workload


@dataclass(frozen=True)
class Scenario:
    """A named measurement."""

    name: str
    purpose: str
    measure: Callable[[Bench], list[Figure]]
    only_named: bool = False
    """Whether it is left out unless it is named, because it needs what a clone does not have."""


def against(
    bench: Bench,
    workload: Workload,
    label: str,
    least: float | None,
    system: System = "native",
    *,
    ours: System = "ours",
    most_cpu: float = 0.25,
    only_rows: bool = False,
    rival: str = "Spark's own",
) -> list[Figure]:
    """Rows a second, CPU and memory against a rival's joins; without a least ratio nothing is to be reached.

    With `only_rows` nothing is to be reached in CPU and memory.
    """
    pairs = [_pair(bench, workload, ours, system, number) for number in range(bench.repeats)]
    million = workload.rows / 1e6
    bounds: list[Bound | None] = [None, None, None]
    if least is not None:
        bounds = [Bound("at least", least), Bound("at most", most_cpu), Bound("at most", 1.0)]
    if only_rows:
        bounds[1:] = [None, None]
    figures = [
        ratio(
            f"{label}: rows/s over {rival} joins ({system})",
            [one.rows_per_second / other.rows_per_second for one, other in pairs],
            bounds[0],
        ),
        ratio(
            f"{label}: CPU seconds over {rival} ({system})",
            [one.stream_cpu / other.stream_cpu for one, other in pairs],
            bounds[1],
        ),
        ratio(
            f"{label}: peak memory over {rival} ({system})",
            [one.cost.peak.total / other.cost.peak.total for one, other in pairs],
            bounds[2],
        ),
    ]
    sides: list[tuple[str, list[Run]]] = [(ours, [a for a, _ in pairs]), (system, [b for _, b in pairs])]
    for name, runs in sides:
        figures += [
            Figure(f"{label}: {name}", "rows/s", tuple(one.rows_per_second for one in runs)),
            Figure(f"{label}: {name}", "CPU s per M rows", tuple(one.stream_cpu / million for one in runs)),
            Figure(f"{label}: {name}", "MB at peak", tuple(one.cost.peak.total / 2**20 for one in runs)),
        ]
    return figures


def _pair(bench: Bench, workload: Workload, ours: System, rival: System, number: int) -> tuple[Run, Run]:
    """Our run and the rival's of that number; which is first alternates."""
    sides: tuple[System, System] = (ours, rival)
    runs = {side: bench.spark(side, workload, number) for side in sides[:: -1 if number % 2 else 1]}
    return runs[ours], runs[rival]
