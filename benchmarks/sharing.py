"""Queries that share joins: CPU of a set over its queries one by one, and over the set without sharing.

In process, so that nothing but reading, keeping and joining rows is counted; on Spark a query of its own adds a
micro-batch of Spark's. All sides take the same tables in the same batches, alternate, and must give equal answers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from anabranch.cql import compile_query
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.schema import Schema
from anabranch.optimize import Choice
from anabranch.plan.mesh import Plan
from anabranch.plan.query import Query
from anabranch.plan.query_set import Plans, QuerySet, together
from anabranch.planning.choosing import decide, first_plan
from anabranch.planning.options import PlanOptions, SetPlanOptions
from anabranch.planning.together import RunChoice, decide_together
from anabranch.run.local import LocalHost
from anabranch.run.results import ResultLayout
from benchmarks.bench import Bench, say
from benchmarks.figures import Bound, Figure, ratio
from benchmarks.job import WrongAnswer

SECOND = 1_000_000
BATCH = 5
"""Seconds of event time in a batch."""
NAMES = ("a", "b", "c")
COLUMNS = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64()), ("v", pa.int64()), ("w", pa.int64())])
FILTERS = ("a.v >= 100", "b.v < 800", "c.v >= 300", "a.w < 900", "b.w >= 200", "c.w < 700", "a.v < 600", "")
WINDOWS = (60, 60, 40, 60, 30, 60, 50, 60)
OUTPUTS = ("a.v, b.w", "a.w, c.v", "b.v, c.w", "a.v, b.v, c.v", "c.w", "a.w, b.w, c.w", "b.v", "a.k, c.v")


@dataclass(frozen=True)
class Size:
    rows: int
    """Rows of each stream in a batch."""
    batches: int
    keys: int

    @property
    def statistics(self) -> dict[str, object]:
        """What a sample would tell of these streams."""
        pairs = [f"{one} {other}" for one, other in (("a", "b"), ("a", "c"), ("b", "c"))]
        return {
            "rates": dict.fromkeys(NAMES, self.rows / BATCH),
            "selectivities": dict.fromkeys(pairs, 1 / self.keys),
        }


def common_join(bench: Bench) -> list[Figure]:
    """Eight queries with one three-way join in common; filters, windows and outputs are their own."""
    size = Size(2_000, 8, 24_000) if bench.is_quick else Size(10_000, 30, 120_000)
    queries = {
        f"q{i}": _query(f"SELECT {_named(OUTPUTS[i])}", dict.fromkeys(NAMES, WINDOWS[i]), FILTERS[i]) for i in range(8)
    }
    sides: dict[str, list[float]] = {"one by one": [], "together": [], "shared": []}
    return _measured(bench, size, queries, sides, "eight queries, one three-way join")


def two_windows(bench: Bench) -> list[Figure]:
    """The same join with windows of 1 and 10 minutes: the choice against the better of sharing and not sharing."""
    size = Size(500, 16, 60_000) if bench.is_quick else Size(2_500, 160, 300_000)
    queries = {
        name: _query("SELECT a.v AS x, b.v AS y, c.v AS z", dict.fromkeys(NAMES, seconds), "")
        for name, seconds in (("minute", 60), ("ten", 600))
    }
    sides: dict[str, list[float]] = {"together": [], "forced": [], "shared": []}
    return _measured(bench, size, queries, sides, "one join, windows of 1 and 10 minutes")


def _named(outputs: str) -> str:
    return ", ".join(f"{output} AS x{i}" for i, output in enumerate(outputs.split(", ")))


def _query(select: str, windows: Mapping[str, int], condition: str) -> Query:
    catalog = Catalog()
    for name in NAMES:
        catalog.register(StreamDeclaration(name, Schema.from_arrow(COLUMNS), "ts"))
    sources = ", ".join(f"{name} [RANGE {seconds} SECONDS]" for name, seconds in windows.items())
    where = " AND ".join(["a.k = b.k", "b.k = c.k", *([condition] if condition else [])])
    return compile_query(f"{select} FROM {sources} WHERE {where}", catalog)


def _measured(
    bench: Bench, size: Size, queries: Mapping[str, Query], sides: dict[str, list[float]], label: str
) -> list[Figure]:
    batches = _batches(size)
    warm_up = _batches(Size(500, 3, size.keys))
    answers: dict[str, dict[str, tuple[int, int]]] = {}
    shared = ""
    for number in range(-1, bench.repeats):
        for side in sides:
            hosts = _hosts(side, queries, size)
            shared = str(hosts[-1].plan) if side == "shared" else shared
            spent, answer = _run(hosts, queries, warm_up if number < 0 else batches)
            if number >= 0:
                sides[side].append(spent)
                if answers.setdefault("first", answer) != answer:
                    raise WrongAnswer(f"'{label}' gave other results with '{side}'")
        if number >= 0:
            say(f"{label}: " + ", ".join(f"{side} {spent[-1]:.2f} s" for side, spent in sides.items()))
    say(f"plans chosen: {shared}")
    results = sum(count for count, _ in answers["first"].values())
    figures = [Figure(f"{label}: {side}", "CPU s", tuple(spent)) for side, spent in sides.items()]
    figures.append(Figure(f"{label}: results", "rows", (float(results),)))
    mine = sides["shared"]
    if "one by one" in sides:
        bounds = {"one by one": 0.25, "together": 0.5}
        return [
            ratio(
                f"{label}: CPU over {'single queries' if side == 'one by one' else 'the set without sharing'}",
                [a / b for a, b in zip(mine, sides[side], strict=True)],
                Bound("at most", bound),
            )
            for side, bound in bounds.items()
        ] + figures
    better = [min(a, b) for a, b in zip(sides["together"], sides["forced"], strict=True)]
    over = [a / b for a, b in zip(mine, better, strict=True)]
    return [ratio(f"{label}: CPU over the better of sharing and not", over, Bound("at most", 1.05)), *figures]


def _hosts(side: str, queries: Mapping[str, Query], size: Size) -> list[LocalHost]:
    plan_options = PlanOptions().with_stats(size.statistics)
    choices = {name: decide(query, plan_options, batch=BATCH) for name, query in queries.items()}
    if side == "one by one":
        return [LocalHost(query, first_plan(choices[name])) for name, query in queries.items()]
    several = together(queries)
    if side == "forced":
        plans: dict[str, Plan] = dict(_all_shared(several, queries, choices))
    else:
        share = SetPlanOptions("auto" if side == "shared" else "off")
        joint = decide_together(several, choices, dict.fromkeys(queries, plan_options), share)
        plans = RunChoice(choices, joint).plans
    return [LocalHost(several, Plans(plans))]


def _all_shared(several: QuerySet, queries: Mapping[str, Query], choices: Mapping[str, Choice]) -> dict[str, Plan]:
    host = LocalHost(several, Plans({name: first_plan(choices[name]) for name in queries}))
    host.share("(a b c)")
    host.step({})
    plan = host.plan
    assert isinstance(plan, Plans)
    return dict(plan.plans)


def _batches(size: Size) -> list[dict[str, pa.Table]]:
    random = np.random.default_rng(7)
    batches = []
    for number in range(size.batches):
        tables = {}
        for name in NAMES:
            start = number * BATCH * SECOND
            times = np.sort(random.integers(start, start + BATCH * SECOND, size.rows))
            tables[name] = pa.table(
                [
                    pa.array(times).cast(pa.timestamp("us", "UTC")),
                    pa.array(random.integers(0, size.keys, size.rows)),
                    pa.array(random.integers(0, 1000, size.rows)),
                    pa.array(random.integers(0, 1000, size.rows)),
                ],
                schema=COLUMNS,
            )
        batches.append(tables)
    return batches


def _run(
    hosts: Sequence[LocalHost], queries: Mapping[str, Query], batches: Sequence[Mapping[str, pa.Table]]
) -> tuple[float, dict[str, tuple[int, int]]]:
    """CPU seconds of all steps, and for each query the number of its results with a sum over all values."""
    found = dict.fromkeys(queries, (0, 0))
    spent = 0.0
    for batch in batches:
        begun = time.process_time()
        results = [host.step(batch) for host in hosts]
        spent += time.process_time() - begun
        if len(hosts) > 1:
            parts = dict(zip(queries, results, strict=True))
        else:
            parts = ResultLayout(hosts[0].queries).split(results[0])
        for name, table in parts.items():
            count, total = found[name]
            sums = sum(int(np.asarray(column).sum()) for column in table.columns) if table.num_rows else 0
            found[name] = count + table.num_rows, total + sums
    return spent, found
