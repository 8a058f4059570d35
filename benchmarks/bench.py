"""What scenarios share: sizes, the number of runs, and finished runs, so that no run is made twice.

Runs of the systems under comparison alternate, so that a slow spell of the machine meets both.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

from benchmarks.job import Run, System, run
from benchmarks.workloads import Workload


@dataclass(frozen=True)
class Sizes:
    """How large the workloads are."""

    rows: int
    batches: int
    few_batches: int
    sustained_start: dict[System, int]
    sustained_trials: int
    fixed_batches: int
    state_rows: int
    growth_rows_per_batch: int
    growth_fill: int
    large_state: int
    """Rows in state at most; a tenth of them for comparison."""
    user_rows: int
    user_batches: int
    user_few_batches: int
    live_seconds: float
    """How long a live feed is measured, after its warm-up: windows fill and code is compiled."""
    live_warm_up: float


FULL = Sizes(
    rows=4_000_000,
    batches=40,
    few_batches=10,
    sustained_start={"native": 24_000, "ours": 1_000_000},
    sustained_trials=5,
    fixed_batches=24,
    state_rows=1_000_000,
    growth_rows_per_batch=30_000,
    growth_fill=100,
    large_state=10_000_000,
    user_rows=1_000_000,
    user_batches=20,
    user_few_batches=5,
    live_seconds=120.0,
    live_warm_up=30.0,
)
QUICK = Sizes(
    rows=60_000,
    batches=4,
    few_batches=2,
    sustained_start={"native": 20_000, "ours": 20_000},
    sustained_trials=1,
    fixed_batches=8,
    state_rows=30_000,
    growth_rows_per_batch=3_000,
    growth_fill=30,
    large_state=200_000,
    user_rows=40_000,
    user_batches=4,
    user_few_batches=2,
    live_seconds=5.0,
    live_warm_up=5.0,
)


@dataclass
class Bench:
    """One invocation: its sizes and every finished Spark run, by what was run and the run's number."""

    sizes: Sizes
    repeats: int
    is_quick: bool
    finished: dict[tuple[System, Workload, int, int], Run] = field(default_factory=dict)
    curves: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Measured curves by name, as plain data."""

    def spark(self, system: System, workload: Workload, number: int, *, slots: int = 2) -> Run:
        """The run of that number, made now unless another scenario has made it."""
        key = (system, workload, number, slots)
        if key not in self.finished:
            self.finished[key] = run(system, workload, slots=slots)
            summary = self.finished[key].summary
            say(f"{workload.name} {system}: {summary['stream_seconds']} s, {summary['rows_per_second']} rows/s")
        return self.finished[key]


def say(line: str) -> None:
    print(f"  {line}", file=sys.stderr, flush=True)
