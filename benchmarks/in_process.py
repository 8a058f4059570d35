"""In-process runs: our engine without a JVM, and what it is compared with, over tables that are already in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import duckdb
import polars as pl
import pyarrow as pa

from anabranch.cql import compile_query
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.schema import Schema
from anabranch.plan.physical import mjoin
from anabranch.run.local import LocalHost
from benchmarks import polars_join
from benchmarks.answer import Digest, batch_sql, digest_of, expected
from benchmarks.job import WrongAnswer
from benchmarks.polars_join import Form
from benchmarks.workloads import Workload, tables


@dataclass(frozen=True)
class Steps:
    """Seconds of each step of a checked run."""

    seconds: tuple[float, ...]

    @property
    def total(self) -> float:
        return sum(self.seconds)


def host(workload: Workload) -> LocalHost:
    """A host for the workload's query as one n-way join; two slots, because its rivals use both cores too."""
    catalog = Catalog()
    batch = next(tables(workload))
    for name, table in batch.items():
        catalog.register(StreamDeclaration(name, Schema.from_arrow(table.schema), "ts"))
    query = compile_query(workload.cql, catalog)
    return LocalHost(query, mjoin(query.graph.names), slots=2)


def ours(workload: Workload) -> Steps:
    """Every micro-batch of the workload through our engine."""
    running = host(workload)
    return _checked("ours", workload, [partial(running.step, batch) for batch in tables(workload)])


@dataclass(frozen=True)
class HeldState:
    """Full windows: rows and bytes in state, bytes of the same rows as Arrow columns, seconds of a step."""

    rows: int
    bytes: int
    raw: float
    step: float


def held_state(workload: Workload, measured: int) -> HeldState:
    """The state of a workload once its windows are full, and the median of its last steps."""
    running, seconds, raw = host(workload), list[float](), 0.0
    for batch in tables(workload):
        begun = time.perf_counter()
        running.step(batch)
        seconds.append(time.perf_counter() - begun)
        raw = sum(table.nbytes for table in batch.values()) / sum(len(table) for table in batch.values())
    found = running.statistics
    return HeldState(found.state_rows, found.state_bytes, raw * found.state_rows, median(seconds[-measured:]))


def polars_loop(workload: Workload, form: Form) -> Steps:
    """Every micro-batch through a plain loop that re-joins the windows."""
    held = polars_join.no_rows()

    def step(new: polars_join.Frames) -> pa.Table:
        nonlocal held
        results = form(workload, held, new)
        held = polars_join.advance(workload, held, new)
        return results.to_arrow()

    batches = [polars_join.frames(batch) for batch in tables(workload)]
    return _checked("polars", workload, [partial(step, batch) for batch in batches])


def polars_batch(workload: Workload) -> Steps:
    """The whole workload at once in polars."""
    batches = [polars_join.frames(batch) for batch in tables(workload)]
    streams = [pl.concat([batch[i] for batch in batches], rechunk=True) for i in range(len(workload.streams))]
    return _checked("polars", workload, [lambda: polars_join.batch_join(workload, streams).to_arrow()])


def duckdb_batch(workload: Workload) -> Steps:
    """The whole workload at once in DuckDB, from its own tables."""
    batches = list(tables(workload))
    with duckdb.connect() as connection:
        for name in batches[0]:
            connection.register("incoming", pa.concat_tables([batch[name] for batch in batches]))
            connection.execute(f"CREATE TABLE {name} AS SELECT * FROM incoming")
        text = batch_sql(workload, [stream.name for stream in workload.streams])
        return _checked("duckdb", workload, [lambda: connection.sql(text).to_arrow_table()])


def _checked(system: str, workload: Workload, steps: Sequence[Callable[[], pa.Table]]) -> Steps:
    """Runs the steps in order, timing each; what they gave together must be the batch answer."""
    seconds: list[float] = []
    count, sums = 0, [0] * len(workload.outputs)
    for step in steps:
        begun = time.perf_counter()
        results = step()
        seconds.append(time.perf_counter() - begun)
        digest = digest_of(results)
        count += digest.count
        sums = [a + b for a, b in zip(sums, digest.sums, strict=True)]
    got, wanted = Digest(count, tuple(sums)), expected(workload)
    if got != wanted:
        raise WrongAnswer(f"'{system}' on '{workload.name}' gave {got}, not {wanted}")
    return Steps(tuple(seconds))
