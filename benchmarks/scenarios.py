"""The scenarios: each measures both sides in one invocation and returns figures.

In-process scenarios load their engines when they are asked for, because a listing, or a run on Spark alone, needs none.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median

from benchmarks import kafka_scenarios, latency, real_time, user_scenarios
from benchmarks.against import Scenario, against
from benchmarks.bench import Bench, say
from benchmarks.figures import Bound, Figure, ratio
from benchmarks.job import Outcome, Scratch, System, check, execute
from benchmarks.spark_parts import parts
from benchmarks.workloads import Workload, held, left_joins, steady, table_join, w3, w3x, w4, written

SUSTAINED_LIMIT = 2.0
SUSTAINED_FILL = 6
"""Micro-batches of 2 s before windows of 10 s are full and the first compilations are over; they do not count."""
SUSTAINED_MEASURED = 6
FIXED_WARM_UP = 4
WORK = {
    "transfer": {"transfer", "admit"},
    "state": {"open", "insert", "append", "drop"},
    "kernel": {"probe", "check", "project", "group"},
}
"""What kinds of work a slot times, by the part of a step they belong to."""


def spark_w3(bench: Bench) -> list[Figure]:
    return _w3(bench, bench.sizes.batches, 6.0)


def _w3(bench: Bench, batches: int, least: float | None, system: System = "native") -> list[Figure]:
    return against(bench, w3(bench.sizes.rows, batches), f"W3, {batches} micro-batches", least, system)


def spark_w3_small(bench: Bench) -> list[Figure]:
    """A quarter of the rows in half of the micro-batches, where Spark's fixed part weighs more on either side."""
    workload = w3(bench.sizes.rows // 4, bench.sizes.batches // 2)
    return against(bench, workload, "W3, a quarter of the rows", None)


def spark_w3_settings(bench: Bench) -> list[Figure]:
    """Spark's own joins with either state store: which to compare with."""
    workload = w3(bench.sizes.rows, bench.sizes.batches)
    systems: tuple[System, ...] = ("native", "native-rocksdb")
    runs = {system: bench.spark(system, workload, 0) for system in systems}
    figures = []
    for system, one in runs.items():
        figures.append(Figure(f"W3: {system}", "rows/s", (one.rows_per_second,)))
        figures.append(Figure(f"W3: {system}", "CPU s per M rows", (1e6 * one.stream_cpu / workload.rows,)))
    return figures


def spark_w3_few(bench: Bench) -> list[Figure]:
    return _w3(bench, bench.sizes.few_batches, 11.0)


def spark_same_jvm(bench: Bench) -> list[Figure]:
    """W3 when Spark's own joins are given what our driver's JVM is told; few users know that it helps them."""
    counts = (bench.sizes.batches, bench.sizes.few_batches)
    return [figure for batches in counts for figure in _w3(bench, batches, None, "native-our-jvm")]


def spark_w4(bench: Bench) -> list[Figure]:
    return against(bench, w4(bench.sizes.rows, bench.sizes.batches), "W4", 3.0)


def spark_w3x(bench: Bench) -> list[Figure]:
    return against(bench, w3x(bench.sizes.rows, bench.sizes.batches), "W3x", 3.0)


def spark_left(bench: Bench) -> list[Figure]:
    """A left join of three streams."""
    return against(bench, left_joins(bench.sizes.rows, bench.sizes.batches), "left joins", 3.0, only_rows=True)


def spark_table(bench: Bench) -> list[Figure]:
    """A stream and a table, against Spark's stream-static join."""
    return against(bench, table_join(bench.sizes.rows, bench.sizes.batches), "stream and table", 1.0, only_rows=True)


def flink_w3(bench: Bench) -> list[Figure]:
    """W3 as CSV files against Flink's interval joins; Flink has no micro-batches, so it is one run for both."""
    return _against_flink(bench, bench.sizes.batches, 3.5)


def flink_w3_few(bench: Bench) -> list[Figure]:
    return _against_flink(bench, bench.sizes.few_batches, 6.0)


def _against_flink(bench: Bench, batches: int, least: float) -> list[Figure]:
    workload = w3(bench.sizes.rows, batches, form="csv")
    label = f"W3 as CSV, {batches} micro-batches"
    return against(bench, workload, label, least, "flink", most_cpu=1.0, rival="Flink's interval")


def slots(bench: Bench) -> list[Figure]:
    workload = w3(bench.sizes.rows, bench.sizes.batches)
    runs = [
        (bench.spark("ours", workload, i, slots=1), bench.spark("ours", workload, i, slots=2))
        for i in range(bench.repeats)
    ]
    return [
        ratio(
            "W3: rows/s of two slots over one",
            [two.rows_per_second / one.rows_per_second for one, two in runs],
            Bound("at least", 0.95),
        ),
        Figure("W3: one slot", "rows/s", tuple(one.rows_per_second for one, _ in runs)),
        Figure("W3: two slots", "rows/s", tuple(two.rows_per_second for _, two in runs)),
    ]


def sustained(bench: Bench) -> list[Figure]:
    """The highest rate at which every micro-batch, once the windows are full, takes at most 2 s."""
    rates: dict[System, list[float]] = {"native": [], "ours": []}
    for number in range(bench.repeats):
        for system, found in rates.items():
            rows = highest(
                partial(_slowest, bench, system, number),
                bench.sizes.sustained_start[system],
                bench.sizes.sustained_trials,
            )
            found.append(rows / SUSTAINED_LIMIT)
    return [
        ratio(
            "sustained rows/s at micro-batches of 2 s over Spark's own joins",
            [a / b for a, b in zip(rates["ours"], rates["native"], strict=True)],
            Bound("at least", 10.0),
        ),
        Figure("sustained: ours", "rows/s", tuple(rates["ours"])),
        Figure("sustained: native", "rows/s", tuple(rates["native"])),
    ]


def highest(trial: Callable[[int], float], start: int, trials: int, limit: float = SUSTAINED_LIMIT) -> int:
    """The largest size seen to keep the limit, when a trial says how many seconds a size takes.

    Sizes grow or shrink by what the last trial suggests (at most fourfold) until there is one on either side, then
    halve the gap by ratio; within a tenth is near enough. When no trial kept the limit, the smallest size tried is
    scaled by how far it was off.
    """
    kept: int | None = None
    broken: int | None = None
    size, seconds = start, 0.0
    for _ in range(trials):
        seconds = trial(size)
        say(f"{size} rows in a micro-batch: {seconds:.2f} s")
        if seconds <= limit:
            kept = max(size, kept or 0)
        else:
            broken = min(size, broken or size)
        if kept and broken and broken <= 1.1 * kept:
            break
        if kept and broken:
            size = round((kept * broken) ** 0.5)
        else:
            size = max(1, round(size * min(4.0, max(0.25, 0.95 * limit / seconds))))
            size = max(size, round(1.1 * kept)) if kept else size
    if kept is None:
        assert broken is not None
        return min(size, broken)
    return kept


def _slowest(bench: Bench, system: System, number: int, rows: int) -> float:
    workload = steady(rows, SUSTAINED_FILL + SUSTAINED_MEASURED)
    return max(bench.spark(system, workload, number).outcome.batch_seconds[SUSTAINED_FILL:])


def fixed_cost(bench: Bench) -> list[Figure]:
    """A micro-batch of 1,000 rows: beyond a `foreachBatch` over the same sources that only counts, and over a query
    that passes the same rows through Python workers into no sink."""
    workload = steady(1_000, bench.sizes.fixed_batches)
    systems: tuple[System, ...] = ("ours", "count", "pass")
    middles = [
        {system: median(bench.spark(system, workload, i).outcome.batch_seconds[FIXED_WARM_UP:]) for system in systems}
        for i in range(bench.repeats)
    ]
    whole = "a micro-batch of 1,000 rows"
    return [
        ratio(
            f"{whole}: time over a pass-through", [one["ours"] / one["pass"] for one in middles], Bound("at most", 1.2)
        ),
        Figure(
            f"{whole}, beyond Spark's part",
            "s",
            tuple(one["ours"] - one["count"] for one in middles),
            Bound("at most", 0.25),
        ),
        Figure(f"{whole}: ours, whole", "s", tuple(one["ours"] for one in middles)),
        Figure(f"{whole}: counting only", "s", tuple(one["count"] for one in middles)),
        Figure(f"{whole}: shuffle and pass-through", "s", tuple(one["pass"] for one in middles)),
    ]


def sink_delta(bench: Bench) -> list[Figure]:
    """A micro-batch of W3 into a Delta table, over the same into plain Parquet files."""
    workload = w3(bench.sizes.rows // 4, bench.sizes.fixed_batches)
    systems: tuple[System, ...] = ("ours", "ours-delta")
    middles = [
        {system: median(bench.spark(system, workload, i).outcome.batch_seconds[FIXED_WARM_UP:]) for system in systems}
        for i in range(bench.repeats)
    ]
    return [
        ratio(
            "W3: a micro-batch into Delta over one into files",
            [one["ours-delta"] / one["ours"] for one in middles],
            Bound("at most", 1.15),
        ),
        Figure("W3: a micro-batch into files", "s", tuple(one["ours"] for one in middles)),
        Figure("W3: a micro-batch into Delta", "s", tuple(one["ours-delta"] for one in middles)),
    ]


def restart(bench: Bench) -> list[Figure]:
    return _restart(bench, bench.sizes.state_rows, 5.0)


def restart_large(bench: Bench) -> list[Figure]:
    return _restart(bench, bench.sizes.large_state, 10.0)


def _restart(bench: Bench, rows: int, most: float) -> list[Figure]:
    """From the start of the query to its first new micro-batch done, less the same for a query that only counts."""
    workload = held(rows * 11 // 10, 11)
    pairs = [(_restarted("ours", workload), _restarted("count", workload)) for _ in range(bench.repeats)]
    return [
        Figure(
            f"restart with {rows:,} rows of state: first new result, beyond Spark's part",
            "s",
            tuple(ours - count for ours, count in pairs),
            Bound("at most", most),
        ),
        Figure("restart: ours, whole", "s", tuple(ours for ours, _ in pairs)),
        Figure("restart: counting only", "s", tuple(count for _, count in pairs)),
    ]


def _restarted(system: System, workload: Workload) -> float:
    """Runs all micro-batches but the last, then starts again from the checkpoint with the last one there.

    Hot state is taken away in between, as by a restart of the machine.
    """
    source = written(workload)
    with Scratch() as scratch:
        job = scratch.job(system, workload, scratch.disk / "in")
        names = sorted(file.name for file in (source / workload.streams[0].name).iterdir())
        _link(source, job.source, workload, names[:-1])
        execute(job, scratch.disk)
        shutil.rmtree(job.hot, ignore_errors=True)
        _link(source, job.source, workload, names[-1:])
        outcome = execute(job, scratch.disk).outcome
        if system != "count":
            check(job)
        say(f"{workload.name} {system}: first new result {outcome.first_result - outcome.started:.2f} s after start")
        return outcome.first_result - outcome.started


def _link(source: Path, target: Path, workload: Workload, names: list[str]) -> None:
    for stream in workload.streams:
        (target / stream.name).mkdir(parents=True, exist_ok=True)
        for name in names:
            os.link(source / stream.name / name, target / stream.name / name)


def cost_split(bench: Bench) -> list[Figure]:
    """Where the time of a micro-batch of W3 goes: seconds a micro-batch, once warm, averaged over slots.

    Slots run at the same time, so their average is what a micro-batch waits for when they are balanced.
    """
    workload = w3(bench.sizes.rows, bench.sizes.batches)
    splits = [split(bench.spark("ours", workload, i).outcome) for i in range(bench.repeats)]
    kinds = list(dict.fromkeys(kind for found in splits for kind in found))
    return [
        Figure(f"W3, a micro-batch: {kind}", "s", tuple(found.get(kind, 0.0) for found in splits)) for kind in kinds
    ]


def split(outcome: Outcome) -> dict[str, float]:
    """Mean seconds a micro-batch by kind of work; what neither the slots nor the commit account for is Spark's."""
    measured = outcome.progress[len(outcome.progress) // 4 :]
    totals: dict[str, float] = dict.fromkeys([*WORK, "commit", "Spark and waiting"], 0.0)
    for progress in measured:
        ours = progress["adaptive"]
        spent = {"commit": ours["durationMs"]["commit"] / 1000}
        for slot in ours["slotStatistics"]:
            for kind, seconds in slot["seconds"].items():
                work = next((work for work, kinds in WORK.items() if kind in kinds), kind)
                spent[work] = spent.get(work, 0.0) + seconds / len(ours["slotStatistics"])
        spent["Spark and waiting"] = progress["durationMs"]["triggerExecution"] / 1000 - sum(spent.values())
        for work, seconds in spent.items():
            totals[work] += seconds / len(measured)
    return totals


def in_process(name: str) -> Callable[[Bench], list[Figure]]:
    """A scenario of `benchmarks.in_process_scenarios`, loaded when it runs."""
    return lambda bench: getattr(import_module("benchmarks.in_process_scenarios"), name)(bench)


def changing_table(name: str) -> Callable[[Bench], list[Figure]]:
    """A scenario of `benchmarks.changing_table`, loaded when it runs."""
    return lambda bench: getattr(import_module("benchmarks.changing_table"), name)(bench)


def balancing(name: str) -> Callable[[Bench], list[Figure]]:
    """A scenario of `benchmarks.balancing`, loaded when it runs."""
    return lambda bench: getattr(import_module("benchmarks.balancing"), name)(bench)


def sharing(name: str) -> Callable[[Bench], list[Figure]]:
    """A scenario of `benchmarks.sharing`, loaded when it runs."""
    return lambda bench: getattr(import_module("benchmarks.sharing"), name)(bench)


def curve(name: str) -> Callable[[Bench], list[Figure]]:
    """A curve of `benchmarks.curves`, loaded when it runs."""
    return lambda bench: import_module("benchmarks.curves").measure(bench, name)


def more_sql(name: str) -> Callable[[Bench], list[Figure]]:
    """A scenario of `benchmarks.more_sql`, loaded when it runs."""
    return lambda bench: getattr(import_module("benchmarks.more_sql"), name)(bench)


def regret(name: str) -> Callable[[Bench], list[Figure]]:
    """A scenario of `benchmarks.regret`, loaded when it runs."""
    return lambda bench: getattr(import_module("benchmarks.regret"), name)(bench)


SCENARIOS = (
    Scenario("spark-w3", "W3 against Spark's own joins, 40 micro-batches: rows/s, CPU, memory", spark_w3),
    Scenario("spark-w3-10", "the same rows in 10 micro-batches", spark_w3_few),
    Scenario("spark-w3-1m", "a quarter of the rows, 1 M, in 20 micro-batches", spark_w3_small),
    Scenario("spark-w3-settings", "Spark's own joins with either state store", spark_w3_settings),
    Scenario("spark-same-jvm", "W3 with the same JVM options on both sides", spark_same_jvm),
    Scenario("spark-w4", "four-way, one stream ten times as fast", spark_w4),
    Scenario("spark-w3x", "a chain on different keys", spark_w3x),
    Scenario("spark-left", "a left join of three streams against Spark's own", spark_left),
    Scenario("spark-table", "a stream joined with a table against Spark's stream-static join", spark_table),
    Scenario("changing-table", "a table of which 1 % changes before each batch", changing_table("in_process")),
    Scenario("changing-table-spark", "the same in micro-batches on Spark", changing_table("on_spark")),
    Scenario("sustained", "highest input rate with micro-batches of at most 2 s", sustained),
    Scenario("fixed-cost", "our part of a micro-batch of 1,000 rows", fixed_cost),
    Scenario("sink-delta", "a micro-batch into a Delta table over one into plain files", sink_delta),
    Scenario("restart", "first new result after a restart with 1 M rows of state", restart),
    Scenario("restart-10m", "the same with 10 M rows", restart_large),
    Scenario("cost-split", "a micro-batch of W3 split into transfer, state, kernel, commit", cost_split),
    Scenario("spark-parts", "what Spark does for a micro-batch: counts, and the time of each phase", parts),
    Scenario("slots", "rows/s for one and two slots", slots),
    Scenario("inprocess-polars", "our engine in-process against a polars loop", in_process("polars_loop")),
    Scenario("inprocess-batch", "our engine in-process against one batch join", in_process("batch")),
    Scenario("own-function", "a function of one's own against the same expression", in_process("own_function")),
    Scenario("count-windows", "[ROWS n] against a [RANGE] of as many rows: CPU", in_process("count_windows")),
    Scenario("more-sql-top-n", "the first rows of groups against plain groups: CPU", more_sql("top_n")),
    Scenario("more-sql-sessions", "session windows against tumbling windows: CPU", more_sql("sessions")),
    Scenario("more-sql-interval", "a join by an interval against it by windows: CPU, rows", more_sql("interval_join")),
    Scenario("sharing", "eight queries that share a three-way join, in-process: CPU", sharing("common_join")),
    Scenario("sharing-windows", "one join with two windows: the choice to share", sharing("two_windows")),
    Scenario("window-growth", "step time as the window grows tenfold", in_process("window_growth")),
    Scenario("move-pause", "a move of 1 M window rows, at once and in parts", balancing("pause")),
    Scenario("balance-cost", "what balance: auto costs a query that is balanced", balancing("balance_cost")),
    Scenario("two-slots", "two slots over one, in process", balancing("two_slots")),
    Scenario(
        "balance-cluster", "a skewed query on two executors: balance auto over off", balancing("on_two_executors")
    ),
    Scenario("regret", "adapting against the best plan in hindsight, in process: work, CPU", regret("suite")),
    Scenario("regret-spark", "the same for six workloads on Spark, in whole triggers", regret("on_spark")),
    Scenario("large-state", "10 M rows in state: bytes a row, step time", in_process("large_state")),
    Scenario("large-state-50m", "50 M rows in state (20 GB)", in_process("largest_state"), only_named=True),
    Scenario("curve-state", "step time and bytes over rows in state", curve("state")),
    Scenario("curve-batch", "step time and bytes over rows a batch", curve("batch")),
    Scenario("curve-streams", "step time and bytes over the number of streams", curve("streams")),
    Scenario("curve-slots", "step time and bytes over the number of slots", curve("slots")),
    Scenario("curve-queries", "step time and bytes over the number of queries", curve("queries")),
    Scenario("curve-age", "step time and checkpoint over the batches since the start", curve("age")),
    Scenario("curve-spark-batch", "triggers on Spark over rows a micro-batch", curve("spark-batch")),
    Scenario("curve-spark-age", "triggers on Spark over the micro-batches since the start", curve("spark-age")),
    *user_scenarios.SCENARIOS,
    *kafka_scenarios.SCENARIOS,
    *latency.SCENARIOS,
    *real_time.SCENARIOS,
    Scenario("flink-w3", "W3 as CSV against Flink's interval joins (`make bench-flink`)", flink_w3, only_named=True),
    Scenario("flink-w3-10", "the same rows in 10 micro-batches", flink_w3_few, only_named=True),
)
