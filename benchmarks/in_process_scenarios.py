"""The scenarios that need no Spark.

Every engine is run once on a small workload first, so that neither side pays for its first compilation.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import median

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.cql import compile_query
from anabranch.functions import own_function as own
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.schema import Schema
from anabranch.plan.physical import mjoin
from anabranch.plan.query import Query
from anabranch.run.local import LocalHost
from benchmarks import in_process
from benchmarks.bench import Bench, say
from benchmarks.figures import Bound, Figure, ratio
from benchmarks.job import WrongAnswer
from benchmarks.polars_join import FORMS
from benchmarks.workloads import SECOND, Workload, steady, tables, w3

LONGER = 30
REJOINS_WHOLE_WINDOWS = "whole"
"""The form of the loop that the figure to reach speaks of; the other is measured beside it."""
WARM_UP = w3(3_000, 3)
GROWTH_MEASURED = 20
PARTS = 128
"""Parts of a count window that is partitioned."""
LARGE_FILL, LARGE_MEASURED = 100, 20


def polars_loop(bench: Bench) -> list[Figure]:
    """W3 in 40 micro-batches, and with windows 30 times longer and as many results."""
    sizes = bench.sizes
    return [
        *_against_loop(bench, w3(sizes.rows, sizes.batches), "W3", 1.0),
        *_against_loop(
            bench, w3(sizes.rows, sizes.batches, window=LONGER * 10 * SECOND), f"W3 with windows {LONGER}x longer", 0.2
        ),
    ]


def _against_loop(bench: Bench, workload: Workload, label: str, most: float) -> list[Figure]:
    in_process.ours(WARM_UP)
    for form in FORMS.values():
        in_process.polars_loop(WARM_UP, form)
    ours: list[float] = []
    loops: dict[str, list[float]] = {name: [] for name in FORMS}
    for _ in range(bench.repeats):
        ours.append(in_process.ours(workload).total)
        for name, form in FORMS.items():
            loops[name].append(in_process.polars_loop(workload, form).total)
        say(
            f"{label}: ours {ours[-1]:.2f} s, "
            + ", ".join(f"{name} {spent[-1]:.2f} s" for name, spent in loops.items())
        )
    figures = [
        ratio(
            f"{label}, in-process: time over a polars loop ({name} form)",
            [a / b for a, b in zip(ours, loop, strict=True)],
            Bound("at most", most) if name == REJOINS_WHOLE_WINDOWS else None,
        )
        for name, loop in loops.items()
    ]
    figures.append(Figure(f"{label}, in-process: ours", "rows/s", tuple(workload.rows / spent for spent in ours)))
    return figures + [
        Figure(f"{label}: polars loop ({name} form)", "rows/s", tuple(workload.rows / spent for spent in loop))
        for name, loop in loops.items()
    ]


def batch(bench: Bench) -> list[Figure]:
    """Our 40 steps against the same join computed once, when everything is known beforehand."""
    workload = w3(bench.sizes.rows, bench.sizes.batches)
    sides = (in_process.ours, in_process.duckdb_batch, in_process.polars_batch)
    for side in sides:
        side(WARM_UP)
    runs = [[side(workload).total for side in sides] for _ in range(bench.repeats)]
    ours, duckdb, polars = ([run[i] for run in runs] for i in range(len(sides)))
    return [
        ratio(
            "W3, in-process: time over DuckDB's one batch",
            [a / b for a, b in zip(ours, duckdb, strict=True)],
            Bound("at most", 0.4),
        ),
        ratio(
            "W3, in-process: time over polars' one batch",
            [a / b for a, b in zip(ours, polars, strict=True)],
            Bound("at most", 0.8),
        ),
        Figure("W3: DuckDB, one batch", "rows/s", tuple(workload.rows / spent for spent in duckdb)),
        Figure("W3: polars, one batch", "rows/s", tuple(workload.rows / spent for spent in polars)),
    ]


def window_growth(bench: Bench) -> list[Figure]:
    """Step time once the windows are full, at windows of W and 10 W, with equal new rows and equally many matches."""
    fill, rows = bench.sizes.growth_fill, bench.sizes.growth_rows_per_batch
    short, long = (
        steady(rows, fill + GROWTH_MEASURED, batch=SECOND, window=window * SECOND) for window in (fill // 10, fill)
    )
    in_process.ours(WARM_UP)
    pairs = [(_step(short, fill), _step(long, fill)) for _ in range(bench.repeats)]
    return [
        ratio("step time when the window grows tenfold", [b / a for a, b in pairs], Bound("at most", 1.3)),
        Figure(f"step of {rows:,} rows, short window", "ms", tuple(1000 * a for a, _ in pairs)),
        Figure(f"step of {rows:,} rows, long window", "ms", tuple(1000 * b for _, b in pairs)),
    ]


def _step(workload: Workload, fill: int) -> float:
    return median(in_process.ours(workload).seconds[fill:])


def own_function(bench: Bench) -> list[Figure]:
    """W3 with two conditions and an output by an expression, and by an equal function of one's own."""
    workload = w3(bench.sizes.rows // 4, bench.sizes.batches)
    sides = {
        "built in": _with_expression(workload, "({a} * 0.5 + {b})"),
        "own": _with_expression(workload, "mix({a}, {b})"),
    }
    pairs: list[tuple[float, float]] = []
    answers: set[int] = set()
    for run in range(bench.repeats + 1):
        spent = {}
        # In alternating order, and the first run of each is not counted.
        for name in sorted(sides, reverse=bool(run % 2)):
            running = LocalHost(sides[name], mjoin(sides[name].graph.names))
            batches = list(tables(workload))
            started = time.process_time()
            answers.add(sum(running.step(batch).num_rows for batch in batches))
            spent[name] = time.process_time() - started
        if run:
            pairs.append((spent["own"], spent["built in"]))
            say(f"own function {spent['own']:.2f} s, built in {spent['built in']:.2f} s")
    if len(answers) != 1:
        raise WrongAnswer(f"the two queries gave {answers} results")
    return [
        ratio(
            "CPU of an own vectorised function over the same expression",
            [a / b for a, b in pairs],
            Bound("at most", 1.1),
        )
    ]


def count_windows(bench: Bench) -> list[Figure]:
    """W3 with windows of 10 s, and with windows of as many rows, of all rows and of each of many parts."""
    workload = w3(bench.sizes.rows // 4, bench.sizes.batches)
    rows = [round(stream.rows * workload.window / workload.span) for stream in workload.streams]
    windows = {
        "range": ["[RANGE 10 SECONDS]" for _ in rows],
        "rows": [f"[ROWS {n}]" for n in rows],
        "parts": [f"[PARTITION BY g ROWS {max(1, n // PARTS)}]" for n in rows],
    }
    batches = [
        {name: table.append_column("g", _parts(table)) for name, table in batch.items()} for batch in tables(workload)
    ]
    queries = {name: _with_windows(workload, several, batches[0]) for name, several in windows.items()}
    spent: dict[str, list[float]] = {name: [] for name in queries}
    results: dict[str, int] = {}
    for run in range(bench.repeats + 1):
        # In alternating order, and the first run of each is not counted.
        for name in sorted(queries, reverse=bool(run % 2)):
            running = LocalHost(queries[name], mjoin(queries[name].graph.names))
            started = time.process_time()
            results[name] = sum(running.step(batch).num_rows for batch in batches)
            if run:
                spent[name].append(time.process_time() - started)
        if run:
            say(", ".join(f"{name} {several[-1]:.2f} s, {results[name]:,} results" for name, several in spent.items()))
    return [
        ratio(
            f"CPU of [{title}] over a [RANGE] of as many rows",
            [a / b for a, b in zip(spent[name], spent["range"], strict=True)],
            Bound("at most", 1.5) if name == "rows" else None,
        )
        for name, title in (("rows", "ROWS n"), ("parts", "PARTITION BY g ROWS n"))
    ]


def _parts(table: pa.Table) -> pa.Array:
    return pc.bit_wise_and(pc.multiply(table.column("k").cast(pa.int64()), 7919), PARTS - 1)


def _with_windows(workload: Workload, windows: list[str], batch: Mapping[str, pa.Table]) -> Query:
    catalog = Catalog()
    for name, table in batch.items():
        catalog.register(StreamDeclaration(name, Schema.from_arrow(table.schema), "ts"))
    text = workload.cql
    for number, window in enumerate(windows):
        text = text.replace(f"s{number} [RANGE 10 SECONDS]", f"s{number} {window}")
    return compile_query(text, catalog)


def _with_expression(workload: Workload, expression: str) -> Query:
    catalog = Catalog()
    for name, table in next(tables(workload)).items():
        catalog.register(StreamDeclaration(name, Schema.from_arrow(table.schema), "ts"))
    mix = own(
        "mix", lambda a, b: pc.add(pc.multiply(a, 0.5), b), "double", takes=["double", "double"], never_fails=True
    )
    catalog.define(mix)
    one, other = expression.format(a="r0.p", b="r1.p"), expression.format(a="r1.p", b="r2.p")
    text = workload.cql.replace("SELECT ", f"SELECT {one} AS v, ", 1)
    return compile_query(f"{text} AND {one} > 1.0 AND {other} > 1.0", catalog)


def large_state(bench: Bench) -> list[Figure]:
    return _large_state(bench, bench.sizes.large_state)


def largest_state(bench: Bench) -> list[Figure]:
    return _large_state(bench, 5 * bench.sizes.large_state)


def _large_state(bench: Bench, held: int) -> list[Figure]:
    """Step time and bytes a row with many rows in state, against a tenth of them; as many new rows and matches."""
    rows = held // LARGE_FILL
    small, large = (
        steady(rows, fill + LARGE_MEASURED, batch=SECOND, window=fill * SECOND)
        for fill in (LARGE_FILL // 10, LARGE_FILL)
    )
    in_process.ours(WARM_UP)
    pairs = [
        tuple(in_process.held_state(workload, LARGE_MEASURED) for workload in (small, large))
        for _ in range(bench.repeats)
    ]
    label = f"{held:,} rows in state"
    return [
        ratio(f"{label}: step time over that with a tenth", [b.step / a.step for a, b in pairs], Bound("at most", 1.3)),
        ratio(
            f"{label}: bytes over those of the raw columns", [b.bytes / b.raw for _, b in pairs], Bound("at most", 2.0)
        ),
        Figure(f"{label}: bytes a row", "bytes", tuple(b.bytes / b.rows for _, b in pairs)),
        Figure(f"{label}: step of {rows:,} rows", "ms", tuple(1000 * b.step for _, b in pairs)),
    ]
