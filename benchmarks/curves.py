"""Cost as it grows: one curve for each size that a user may let grow, against what the design promises.

In process, times are the processor time of a step by all its threads, so that what else the machine does weighs
little; on Spark they are whole triggers. Every curve changes one size and keeps new rows and matches a step as they
are, except for the one over the rows of a batch.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import pyarrow as pa

from anabranch.cql import compile_query
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.schema import Schema
from anabranch.plan.physical import mjoin
from anabranch.plan.query import Query
from anabranch.plan.query_set import Plans, together
from anabranch.run.local import LocalHost
from benchmarks.bench import Bench, say
from benchmarks.columns import Uniform
from benchmarks.curve import Curve, Point, Promise, draw, figures, middle, record
from benchmarks.figures import Figure
from benchmarks.job import ROOT
from benchmarks.workloads import SECOND, Stream, Workload, domain_for_rate, star, steady, tables, w3

PICTURES = ROOT / "docs" / "images"
MEASURED = 20
"""Steps with full windows whose median counts."""
FILL = 10
WARM_UP = w3(3_000, 3)
Batch = Mapping[str, pa.Table]


@dataclass(frozen=True)
class Grown:
    """A curve, and how its points are measured."""

    curve: Curve
    points: Callable[[Bench], Iterator[Point]]

    def measure(self, bench: Bench) -> list[Figure]:
        """The slopes of the curve; a full run also renews its picture."""
        for _ in _steps(_host(WARM_UP, 2), tables(WARM_UP)):
            pass
        runs: list[list[Point]] = []
        for _ in range(bench.repeats):
            found = []
            for point in self.points(bench):
                say(f"{self.curve.name}: {point.size:,.0f}: {1000 * point.seconds:.2f} ms, {point.bytes / 1e6:.2f} MB")
                found.append(point)
            runs.append(found)
        bench.curves[self.curve.name] = record(self.curve, middle(runs))
        if not bench.is_quick:
            draw(self.curve, middle(runs), PICTURES / f"curve-{self.curve.name}.svg")
        return figures(self.curve, runs)


def over_state(bench: Bench) -> Iterator[Point]:
    rows = bench.sizes.growth_rows_per_batch
    for fill in (1, 3, 10, 30) if bench.is_quick else (1, 3, 10, 30, 100, 300):
        workload = steady(rows, fill + MEASURED, batch=SECOND, window=fill * SECOND)
        yield _last_steps(_host(workload, 2), workload, size=rows * fill)


def over_batch(bench: Bench) -> Iterator[Point]:
    for rows in (1_000, 3_000, 9_000) if bench.is_quick else (300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000):
        workload = steady(rows, FILL + MEASURED, batch=SECOND, window=FILL * SECOND)
        yield _last_steps(_host(workload, 2), workload, size=rows)


def over_streams(bench: Bench) -> Iterator[Point]:
    """As many rows a batch by fewer or more streams; one result for ten rows."""
    rows = bench.sizes.growth_rows_per_batch
    for count in (2, 3, 4) if bench.is_quick else (2, 3, 4, 6, 8, 12):
        workload = _streams(count, rows, FILL + MEASURED)
        yield _last_steps(_host(workload, 2), workload, size=count)


def over_slots(bench: Bench) -> Iterator[Point]:
    workload = steady(2 * bench.sizes.growth_rows_per_batch, FILL + MEASURED, batch=SECOND, window=FILL * SECOND)
    for slots in (1, 2, 4) if bench.is_quick else (1, 2, 4, 8, 16, 32):
        yield _last_steps(_host(workload, slots), workload, size=slots)


def over_queries(bench: Bench) -> Iterator[Point]:
    """Queries with the same streams, windows and equalities, each with a filter and a plan of its own."""
    workload = steady(bench.sizes.growth_rows_per_batch, FILL + MEASURED, batch=SECOND, window=FILL * SECOND)
    for count in (1, 2, 4) if bench.is_quick else (1, 2, 4, 8, 16):
        queries = {f"q{i}": _query(f"{workload.cql} AND r0.p >= {i}", workload) for i in range(count)}
        several = together(queries)
        plans = Plans({name: mjoin(query.graph.names) for name, query in queries.items()})
        yield _last_steps(LocalHost(several, plans, slots=2), workload, size=count)


def over_age(bench: Bench) -> Iterator[Point]:
    """A query with a checkpoint that gets older, in one run; the median step of the second half, and the bytes of
    its checkpoint. A checkpoint grows and is tidied in turn, so its largest of the second half counts."""
    ages = (10, 30, 60) if bench.is_quick else (30, 100, 300, 1_000, 3_000)
    workload = steady(1_000, ages[-1], batch=SECOND, window=FILL * SECOND)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        seconds, held = list[float](), list[float]()
        for spent in _steps(_host(workload, 2, folder), tables(workload)):
            seconds.append(spent)
            held.append(_bytes_below(Path(folder)))
            if (age := len(seconds)) in ages:
                yield Point(age, median(seconds[age // 2 :]), max(held[age // 2 :]))


def over_batch_on_spark(bench: Bench) -> Iterator[Point]:
    for rows in (300, 3_000) if bench.is_quick else (1_000, 10_000, 100_000, 400_000):
        workload = steady(rows, 12 if bench.is_quick else 20)
        run = bench.spark("ours", workload, 0)
        yield Point(rows, median(run.outcome.batch_seconds[-8:]), run.cost.peak.total)


def over_age_on_spark(bench: Bench) -> Iterator[Point]:
    """Triggers of a query on Spark that gets older, in one run; the median and the peak of the second half of each
    age."""
    ages = (6, 12) if bench.is_quick else (20, 50, 100, 200, 400)
    run = bench.spark("ours", steady(1_000, ages[-1]), 0)
    ends = run.outcome.batch_ends
    for age in ages:
        peak = run.cost.peak_between(ends[age // 2], ends[age - 1])
        yield Point(age, median(run.outcome.batch_seconds[age // 2 : age]), peak)


def _last_steps(host: LocalHost, workload: Workload, size: float) -> Point:
    seconds = list(_steps(host, tables(workload)))
    return Point(size, median(seconds[-MEASURED:]), host.statistics.state_bytes)


def _steps(host: LocalHost, batches: Iterable[Batch]) -> Iterator[float]:
    for batch in batches:
        began = time.process_time()
        host.step(batch)
        yield time.process_time() - began


def _host(workload: Workload, slots: int, checkpoint: str | None = None) -> LocalHost:
    query = _query(workload.cql, workload)
    return LocalHost(query, mjoin(query.graph.names), slots=slots, checkpoint=checkpoint)


def _query(text: str, workload: Workload) -> Query:
    """The query over the streams of a workload; a row of each tells its columns."""
    single = replace(workload, streams=tuple(replace(stream, rows=1) for stream in workload.streams), batches=1)
    catalog = Catalog()
    for name, table in next(tables(single)).items():
        catalog.register(StreamDeclaration(name, Schema.from_arrow(table.schema), "ts"))
    return compile_query(text, catalog)


def _streams(count: int, rows: int, batches: int) -> Workload:
    each = rows // count * batches
    window, span = FILL * SECOND, batches * SECOND
    streams = tuple(Stream(f"s{i}", each, (Uniform("k"),)) for i in range(count))
    domain = domain_for_rate((each,) * count, window, span, 0.1)
    return Workload(f"streams{count}", streams, star(count), window, span, batches, domain)


def _bytes_below(folder: Path) -> float:
    return float(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))


NEW_ROWS = "a step costs its new rows and their matches, not the window"
CURVES = (
    Grown(
        Curve(
            "state",
            "rows in state",
            Promise("CPU time of a step", 0.1, NEW_ROWS),
            Promise("bytes in state", 1.05, "state is the rows of the windows"),
        ),
        over_state,
    ),
    Grown(
        Curve(
            "batch",
            "rows a batch",
            Promise("CPU time of a step", 1.05, "a fixed cost, then in proportion to new rows"),
            Promise("bytes in state", 1.05, "state is the rows of the windows"),
            fitted_from=3_000,
        ),
        over_batch,
    ),
    Grown(
        Curve(
            "streams",
            "streams",
            Promise("CPU time of a step", 1.0, "a new row asks each other stream at most once for each match"),
            Promise("bytes in state", 0.1, "every row is kept once, whatever the number of streams"),
        ),
        over_streams,
    ),
    Grown(
        Curve(
            "slots",
            "slots",
            Promise("CPU time of a step", 0.25, "rows with one key go to one slot; a slot has a small fixed cost"),
            Promise("bytes in state", 0.1, "a row is in one slot"),
        ),
        over_slots,
    ),
    Grown(
        Curve(
            "queries",
            "queries",
            Promise("CPU time of a step", 1.0, "queries share reading, state and indexes"),
            Promise("bytes in state", 0.1, "queries with equal windows share their state"),
        ),
        over_queries,
    ),
    Grown(
        Curve(
            "age",
            "batches since the start",
            Promise("CPU time of a step, with checkpoint", 0.05, "what has left the windows is forgotten"),
            Promise("bytes of the checkpoint", 0.05, "what has left the windows is removed"),
        ),
        over_age,
    ),
    Grown(
        Curve(
            "spark-batch",
            "rows a micro-batch",
            Promise("time of a trigger on Spark", 1.0, "Spark's fixed cost, then in proportion to new rows"),
            Promise("memory at peak, all processes", 1.0, "the JVM's heap, then the rows of the windows"),
        ),
        over_batch_on_spark,
    ),
    Grown(
        Curve(
            "spark-age",
            "micro-batches since the start",
            Promise("time of a trigger on Spark", 0.05, "logs of Spark's and of ours are tidied"),
            Promise("memory, all processes", 0.1, "nothing is kept of a batch that is done"),
        ),
        over_age_on_spark,
    ),
)


def measure(bench: Bench, name: str) -> list[Figure]:
    """The curve of that name."""
    return next(grown for grown in CURVES if grown.curve.name == name).measure(bench)
