"""The scenarios of queries beyond the plain grouped query and join: top-N, session windows, joins by intervals.

Invariant: each is measured against the plain form of it, over the same rows, in the same process; a wrong number of
results is an error. Limit: in process, so the fixed cost of a micro-batch on Spark, equal on both sides, is left out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from anabranch.cql import compile_query
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.schema import Schema
from anabranch.plan.physical import mjoin
from anabranch.run.local import LocalHost
from benchmarks.bench import Bench, say
from benchmarks.figures import Bound, Figure, ratio
from benchmarks.job import WrongAnswer
from benchmarks.workloads import EPOCH, SECOND

WINDOW = 10 * SECOND
KEYS = (1_000, 100_000)
Batches = Sequence[Mapping[str, pa.Table]]


@dataclass(frozen=True)
class Spent:
    """CPU seconds of a run, the most rows in state, and the number of results."""

    seconds: float
    state: int
    results: int


def top_n(bench: Bench) -> list[Figure]:
    """The three highest rows of each key and window, over a count and a maximum for each."""
    figures = []
    for keys in KEYS:
        batches = _streams(bench, ("t",), keys)
        plain = "SELECT t.k, COUNT(*) AS n, MAX(t.v) AS best FROM t [TUMBLE 10 SECONDS] AS t GROUP BY t.k"
        top = """
            SELECT t.k, t.v, t.p, ROW_NUMBER() OVER (PARTITION BY t.k ORDER BY t.v DESC) AS place
            FROM t [TUMBLE 10 SECONDS] AS t QUALIFY place <= 3"""
        figures.append(_over(bench, f"top-3 over a plain grouped query, {keys:,} keys: CPU", top, plain, batches))
    return figures


def sessions(bench: Bench) -> list[Figure]:
    """A count and a maximum for each session of a key, over those for each window."""
    plain = "SELECT t.k, COUNT(*) AS n, MAX(t.v) AS best FROM t [TUMBLE 10 SECONDS] AS t GROUP BY t.k"
    figures = []
    for keys in KEYS:
        batches = _streams(bench, ("t",), keys)
        gap = _gap(batches, keys)
        text = f"SELECT t.k, COUNT(*) AS n, MAX(t.v) AS best FROM t [SESSION {gap} MICROSECONDS] AS t GROUP BY t.k"
        figures.append(_over(bench, f"sessions over a plain grouped query, {keys:,} keys: CPU", text, plain, batches))
    return figures


def interval_join(bench: Bench) -> list[Figure]:
    """A join bounded by a condition on event times, over the same join by windows."""
    batches = _streams(bench, ("a", "b"), 100_000, share=1)
    join = "SELECT a.p AS p, b.p AS q FROM a{window} JOIN b{window} ON a.k = b.k"
    by_windows = join.format(window=" [RANGE 10 SECONDS]")
    condition = "b.ts BETWEEN a.ts - INTERVAL 10 SECONDS AND a.ts + INTERVAL 10 SECONDS"
    by_interval = f"{join.format(window='')} AND {condition}"
    return _over_both(bench, "interval join over the join by windows", by_interval, by_windows, batches)


def _over(bench: Bench, what: str, text: str, plain: str, batches: Batches) -> Figure:
    pairs = _pairs(bench, what, text, plain, batches)
    return ratio(what, [a.seconds / b.seconds for a, b in pairs], Bound("at most", 1.5))


def _over_both(bench: Bench, what: str, text: str, plain: str, batches: Batches) -> list[Figure]:
    pairs = _pairs(bench, what, text, plain, batches)
    if any(a.results != b.results for a, b in pairs):
        raise WrongAnswer(f"{what}: {pairs[0][0].results:,} and {pairs[0][1].results:,} results")
    return [
        ratio(f"{what}: CPU", [a.seconds / b.seconds for a, b in pairs], Bound("at most", 1.0)),
        ratio(f"{what}: most rows in state", [a.state / b.state for a, b in pairs], Bound("at most", 1.0)),
    ]


def _pairs(bench: Bench, what: str, text: str, plain: str, batches: Batches) -> list[tuple[Spent, Spent]]:
    """Runs both queries in alternating order; the first run of each is not counted."""
    pairs = []
    for run in range(bench.repeats + 1):
        spent = {}
        for each in sorted((text, plain), reverse=bool(run % 2)):
            spent[each] = _spent(each, batches)
        if run:
            pairs.append((spent[text], spent[plain]))
            a, b = pairs[-1]
            say(f"{what}: {a.seconds:.2f} and {b.seconds:.2f} s; {a.results:,} and {b.results:,} results")
    return pairs


def _spent(text: str, batches: Batches) -> Spent:
    catalog = Catalog()
    for name, table in batches[0].items():
        catalog.register(StreamDeclaration(name, Schema.from_arrow(table.schema), "ts"))
    query = compile_query(text, catalog)
    running = LocalHost(query, mjoin(query.graph.names))
    results = state = 0
    started = time.process_time()
    for batch in batches:
        results += running.step(batch).num_rows
        state = max(state, running.statistics.state_rows)
    return Spent(time.process_time() - started, state, results)


def _streams(bench: Bench, names: tuple[str, ...], keys: int, share: int = 4) -> Batches:
    """Streams of equal rates with uniform keys; each batch spans a window."""
    rows, batches = bench.sizes.rows // share, bench.sizes.batches // 2
    generator = np.random.default_rng(7)
    own = rows // batches // len(names)

    def table(batch: int) -> pa.Table:
        begin = EPOCH + batch * WINDOW
        times = np.sort(generator.integers(begin, begin + WINDOW, own))
        return pa.table(
            {
                "ts": pa.array(times).cast(pa.timestamp("us", "UTC")),
                "k": generator.integers(0, keys, own),
                "v": generator.random(own),
                "p": np.arange(batch * own, (batch + 1) * own),
            }
        )

    return [{name: table(batch) for name in names} for batch in range(batches)]


def _gap(batches: Batches, keys: int) -> int:
    """Returns a gap, in microseconds, by which there are about as many sessions as groups of windows."""
    rows = int(batches[0]["t"].num_rows)
    groups = keys * (1 - math.exp(-rows / keys))
    return max(1, round(WINDOW * keys / rows * math.log(rows / groups)))
