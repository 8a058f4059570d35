"""Latency: from the arrival of the last file that a result needs until the result can be read, p50 and p99.

Files of a quarter second of three streams arrive at a fixed rate and triggers go as fast as they can; one row gives one
result. Results are inner joins of rows in order, so no system has to wait for a watermark. Both sides of a ratio run at
one absolute rate: a share of what Spark's own joins sustain, by the newest result of `sustained`. Ours at the same
shares of what we sustain is measured for comparison.
"""

from __future__ import annotations

from functools import partial

from benchmarks import report
from benchmarks.against import Scenario
from benchmarks.bench import Bench, say
from benchmarks.figures import Bound, Figure, ratio
from benchmarks.job import FailedRun, System
from benchmarks.live import TICK, LiveRun, percentile, run_live
from benchmarks.workloads import SECOND, Form, Workload, steady

SHARES = {"fifth": 0.2, "half": 0.5, "most": 0.9}
TITLES = {"fifth": "a fifth", "half": "half", "most": "nine tenths"}
SUSTAINED: dict[System, str] = {"native": "sustained: native", "ours": "sustained: ours"}


def against_spark(bench: Bench, share: str) -> list[Figure]:
    """Ours and Spark's own joins at a share of the rate that Spark's own sustain."""
    bound = Bound("at most", 0.5) if share == "half" else None
    return _against(bench, share, "native", "Spark's own joins", "parquet", bound)


def against_flink(bench: Bench, share: str) -> list[Figure]:
    """Ours and Flink's interval joins at the same absolute rate, from CSV files."""
    return _against(bench, share, "flink", "Flink's interval joins", "csv", None)


def _against(bench: Bench, share: str, system: System, rival: str, form: Form, bound: Bound | None) -> list[Figure]:
    rate = SHARES[share] * sustainable(bench, "native")
    label = f"latency at {TITLES[share]} of Spark's rate ({rate:,.0f} rows/s)"
    found: dict[System, list[LiveRun]] = {"ours": [], system: []}
    for _ in range(bench.repeats):
        for side, runs in found.items():
            runs.append(_run(bench, side, rate, form))
    p99 = {side: _percentiles(bench, runs, 99) for side, runs in found.items()}
    ratios = [a / b for a, b in zip(p99["ours"], p99[system], strict=True)]
    figures = [ratio(f"{label}: p99 over {rival}", ratios, bound)]
    for side, runs in found.items():
        figures += _figures(bench, f"{label}: {side}", runs)
    return figures


def ours_alone(bench: Bench, share: str) -> list[Figure]:
    """Ours at a share of the rate that we sustain."""
    rate = SHARES[share] * sustainable(bench, "ours")
    label = f"latency at {TITLES[share]} of our rate ({rate:,.0f} rows/s): ours"
    return _figures(bench, label, [_run(bench, "ours", rate, "parquet") for _ in range(bench.repeats)])


def sustainable(bench: Bench, system: System) -> float:
    """Rows a second by the newest result of `sustained`; a quick run takes what every machine can do."""
    if bench.is_quick:
        return 2_000.0
    kept = report.newest().get("sustained")
    for entry in kept["scenarios"]["sustained"] if kept else ():
        if entry["what"] == SUSTAINED[system]:
            return report.figure_of(entry).median
    raise FailedRun("no rate to take a share of; run `python -m benchmarks sustained` first")


def _run(bench: Bench, system: System, rate: float, form: Form) -> LiveRun:
    found = run_live(system, feed(rate, bench.sizes.live_warm_up + bench.sizes.live_seconds, form))
    batches = sorted(found.run.outcome.batch_seconds)
    trigger = f", {len(batches)} triggers, median {batches[len(batches) // 2]:.2f} s" if batches else ""
    counted = found.after(bench.sizes.live_warm_up)
    say(
        f"{rate:,.0f} rows/s {system}: p50 {percentile(counted, 50):.2f} s, p99 {percentile(counted, 99):.2f} s "
        f"over {len(counted):,} results{trigger}"
    )
    return found


def feed(rate: float, seconds: float, form: Form) -> Workload:
    """Three streams at that many rows a second together, a file of each every tick."""
    return steady(round(rate * TICK / SECOND), round(seconds * SECOND / TICK), batch=TICK, form=form)


def _percentiles(bench: Bench, runs: list[LiveRun], which: int) -> list[float]:
    return [percentile(one.after(bench.sizes.live_warm_up), which) for one in runs]


def _figures(bench: Bench, label: str, runs: list[LiveRun]) -> list[Figure]:
    return [Figure(f"{label}, p{which}", "s", tuple(_percentiles(bench, runs, which))) for which in (50, 99)]


SCENARIOS = (
    *(
        Scenario(
            f"latency-{name}",
            f"results at {TITLES[name]} of Spark's rate: p50, p99",
            partial(against_spark, share=name),
        )
        for name in SHARES
    ),
    *(
        Scenario(
            f"latency-own-{name}", f"results at {TITLES[name]} of our rate: p50, p99", partial(ours_alone, share=name)
        )
        for name in SHARES
    ),
    *(
        Scenario(
            f"flink-latency-{name}",
            f"ours and Flink at {TITLES[name]} of Spark's rate (`make bench-flink`)",
            partial(against_flink, share=name),
            only_named=True,
        )
        for name in SHARES
    ),
)
