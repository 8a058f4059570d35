"""Real-time mode beside micro-batch mode, in one invocation: small batches, throughput and latency.

Both modes run the same query with two slots. The session of a real-time run has one core more, because resident slots
occupy theirs. Throughput counts from the start of the query, so that the start of resident slots is in it.
"""

from __future__ import annotations

from statistics import median

from benchmarks.against import Scenario
from benchmarks.bench import Bench, say
from benchmarks.figures import Bound, Figure, ratio
from benchmarks.job import Run, System
from benchmarks.latency import feed
from benchmarks.live import LiveRun, percentile, run_live
from benchmarks.workloads import steady, w3

MODES: tuple[System, System] = ("ours-real-time", "ours")
WARM_UP = 8
"""Batches of 1,000 rows that do not count."""
RATE = 7_600.0
"""Rows a second of the latency scenario: about two fifths of what Spark's own joins sustained on two cores."""


def small_batches(bench: Bench) -> list[Figure]:
    """A batch of 1,000 rows from three sources, from its beginning to its end."""
    workload, whole = steady(1_000, 4 * bench.sizes.fixed_batches), "a batch of 1,000 rows"
    found: dict[System, list[tuple[float, ...]]] = {mode: [] for mode in MODES}
    for number in range(bench.repeats):
        for mode in MODES:
            found[mode].append(bench.spark(mode, workload, number).outcome.batch_seconds[WARM_UP:])
    middles = {mode: [median(each) for each in several] for mode, several in found.items()}
    slowest = [sorted(each)[int(0.99 * len(each))] for each in found["ours-real-time"]]
    ratios = [a / b for a, b in zip(middles["ours-real-time"], middles["ours"], strict=True)]
    return [
        ratio(f"{whole}: real-time over micro-batches", ratios),
        Figure(f"{whole}: real-time, p50", "s", tuple(middles["ours-real-time"]), Bound("at most", 0.02)),
        Figure(f"{whole}: real-time, p99", "s", tuple(slowest)),
        Figure(f"{whole}: micro-batches, p50", "s", tuple(middles["ours"])),
    ]


def throughput(bench: Bench) -> list[Figure]:
    """W3 in 40 batches."""
    workload = w3(bench.sizes.rows, bench.sizes.batches)
    runs = {mode: [bench.spark(mode, workload, number) for number in range(bench.repeats)] for mode in MODES}
    rates = {mode: [_rows_per_second(each) for each in several] for mode, several in runs.items()}
    ratios = [a / b for a, b in zip(rates["ours-real-time"], rates["ours"], strict=True)]
    label = f"W3, {bench.sizes.batches} batches"
    return [
        ratio(f"{label}: rows/s over micro-batches", ratios, Bound("at least", 2.5)),
        *(Figure(f"{label}, from the start: {mode}", "rows/s", tuple(each)) for mode, each in rates.items()),
        *(
            Figure(f"{label}, from the first batch: {mode}", "rows/s", tuple(each.rows_per_second for each in several))
            for mode, several in runs.items()
        ),
    ]


def _rows_per_second(found: Run) -> float:
    return found.job.workload.rows / (found.outcome.last_result - found.outcome.started)


def latency(bench: Bench) -> list[Figure]:
    """From the arrival of the last file that a result needs until the result can be read."""
    workload = feed(RATE, bench.sizes.live_warm_up + bench.sizes.live_seconds, "parquet")
    found: dict[System, list[LiveRun]] = {mode: [] for mode in MODES}
    for _ in range(bench.repeats):
        for mode in MODES:
            found[mode].append(run_live(mode, workload))
            say(f"{mode}: {len(found[mode][-1].run.outcome.progress)} batches")
    bounds = {50: Bound("at most", 0.04), 99: Bound("at most", 0.12)}
    return [
        Figure(
            f"latency at {RATE:,.0f} rows/s: {mode}, p{which}",
            "s",
            tuple(percentile(one.after(bench.sizes.live_warm_up), which) for one in several),
            bounds[which] if mode == "ours-real-time" else None,
        )
        for mode, several in found.items()
        for which in (50, 99)
    ]


SCENARIOS = (
    Scenario("real-time-batch", "a batch of 1,000 rows in real-time mode and in micro-batches", small_batches),
    Scenario("real-time-w3", "W3 in 40 batches in real-time mode and in micro-batches", throughput),
    Scenario("real-time-latency", "results at 7,600 rows/s in real-time mode and in micro-batches", latency),
)
