"""A join with a table of which one key in a hundred changes before every batch, over the join with the table as it was.

Two hosts: the engine in this process, and Spark's micro-batches, where the table is one of the driver. Half of the rows
of the stream ask for keys of the table; the table changes as `ChangeTable` changes it, in place.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from anabranch.api import Session
from anabranch.cql import compile_query
from anabranch.lang.catalog import Catalog, StreamDeclaration, TableDeclaration
from anabranch.lang.schema import Schema
from anabranch.plan.physical import mjoin
from anabranch.run.local import LocalHost
from anabranch.spark.session import local_session
from benchmarks.bench import Bench, say
from benchmarks.figures import Bound, Figure, ratio
from benchmarks.workloads import EPOCH, SECOND

SHARE = 100
"""One key in so many changes before every batch."""
WARM_UP, MEASURED = 3, 10
SLOTS = 2
TEXT = "SELECT s.p AS p, t.v AS v FROM s [RANGE 10 SECONDS] JOIN t ON s.k = t.k"
STREAM = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64()), ("p", pa.int64())])
TABLE = pa.schema([("k", pa.int64()), ("v", pa.float64())])


def in_process(bench: Bench) -> list[Figure]:
    return _compared(bench, "in process", _local)


def on_spark(bench: Bench) -> list[Figure]:
    spark = local_session(2)
    try:
        return _compared(bench, "on Spark", lambda keys, rows, changes: _micro_batches(spark, keys, rows, changes))
    finally:
        spark.stop()


def _compared(bench: Bench, host: str, seconds: Callable[[int, int, bool], list[float]]) -> list[Figure]:
    keys, rows = bench.sizes.rows // 4, bench.sizes.rows // bench.sizes.batches
    spent: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(bench.repeats):
        for changes, several in spent.items():
            several.append(median(seconds(keys, rows, changes)[WARM_UP:]))
        say(f"{host}: fixed {1000 * spent[False][-1]:.0f} ms, changing {1000 * spent[True][-1]:.0f} ms")
    label = f"a table of {keys:,} keys, {host}"
    return [
        ratio(
            f"{label}: a batch with 1 % changed over one with the table fixed",
            [changing / fixed for fixed, changing in zip(*spent.values(), strict=True)],
            Bound("at most", 1.5),
        ),
        Figure(f"{label}: fixed, {rows:,} rows a batch", "ms", tuple(1000 * each for each in spent[False])),
        Figure(f"{label}: 1 % changed before each batch", "ms", tuple(1000 * each for each in spent[True])),
    ]


def _local(keys: int, rows: int, changes: bool) -> list[float]:
    catalog = Catalog()
    catalog.register(StreamDeclaration("s", Schema.from_arrow(STREAM), "ts"))
    catalog.register_table(TableDeclaration("t", Schema.from_arrow(TABLE)))
    query = compile_query(TEXT, catalog)
    versions = _versions(keys)
    host = LocalHost(query, mjoin(query.graph.names), slots=SLOTS, tables={"t": next(versions)})
    spent = []
    for number in range(WARM_UP + MEASURED):
        batch, version = {"s": _batch(number, rows, keys)}, next(versions)
        started = perf_counter()
        if changes and number:
            host.change_table("t", version)
        host.step(batch)
        spent.append(perf_counter() - started)
    return spent


def _micro_batches(spark: Any, keys: int, rows: int, changes: bool) -> list[float]:
    versions = _versions(keys)
    now, number = next(versions), 0
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        source = Path(folder) / "s"
        source.mkdir()
        session = Session(spark)
        session.register("s", spark.readStream.schema("ts timestamp, k bigint, p bigint").parquet(str(source)), "ts")
        session.table("t", lambda: now, version=lambda: number)
        writer = session.sql(TEXT).writeStream.format("parquet").slots(SLOTS)
        handle = writer.option("checkpointLocation", f"{folder}/checkpoint").start(f"{folder}/out")
        try:
            for each in range(WARM_UP + MEASURED):
                if changes and each:
                    now, number = next(versions), each
                parquet.write_table(_batch(each, rows, keys), Path(folder) / "next")
                (Path(folder) / "next").rename(source / f"{each:05}.parquet")
                handle.processAllAvailable()
            told = [each for each in handle.recentProgress if each["numInputRows"]]
        finally:
            handle.stop()
    return [each["durationMs"]["triggerExecution"] / 1000 for each in told]


def _batch(number: int, rows: int, keys: int) -> pa.Table:
    drawn = np.random.default_rng(number)
    times = EPOCH + number * SECOND + np.sort(drawn.integers(0, SECOND, rows))
    columns = [pa.array(times).cast(STREAM.field("ts").type), drawn.integers(0, 2 * keys, rows), np.arange(rows)]
    return pa.table(columns, schema=STREAM)


def _versions(keys: int) -> Iterator[pa.Table]:
    """The table, again and again; each time other keys have other values."""
    drawn = np.random.default_rng(7)
    values = drawn.random(keys)
    while True:
        yield pa.table([np.arange(keys), values.copy()], schema=TABLE)
        values[drawn.integers(0, keys, keys // SHARE)] = drawn.random(keys // SHARE)
