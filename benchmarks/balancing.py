"""What moves and balancing cost and win: in process, and on two executors that are processes of their own.

Rows are made in memory, so that only the query is measured. CPU time is that of the process, or that the slots report;
the machine may be busy with other work, and figures in wall clock say so by their name.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from anabranch.adapt.balancing import Balance, Mode
from anabranch.balance.loads import skew
from anabranch.cql import compile_query
from anabranch.engine.batch import RelationBatch
from anabranch.engine.ownership import own_cells
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.schema import TIMESTAMP, Schema
from anabranch.plan.partitioning import Partitioning, choose_partitioning
from anabranch.plan.physical import mjoin
from anabranch.plan.query import Query
from anabranch.run.local import LocalHost
from benchmarks.bench import Bench, say
from benchmarks.figures import Bound, Figure, ratio
from benchmarks.job import FailedRun

SECOND = 1_000_000
STREAMS = ("s0", "s1")
COLUMNS = pa.schema([("ts", TIMESTAMP), ("k", pa.int64()), ("p", pa.int64())])
PART = 10
"""A spread move is in about so many parts."""

Rows = dict[str, pa.Table]


def query(window: int) -> Query:
    """Two streams on one key."""
    catalog = Catalog()
    for name in STREAMS:
        catalog.register(StreamDeclaration(name, Schema.from_arrow(COLUMNS), "ts", 0))
    return compile_query(text(window), catalog)


def text(window: int) -> str:
    ranges = f"[RANGE {window} SECONDS]"
    return f"SELECT a.p AS p0, b.p AS p1 FROM s0 {ranges} AS a, s1 {ranges} AS b WHERE a.k = b.k"


def batch(number: int, rows: int, keys: np.ndarray) -> Rows:
    """One second of event time; the keys of the rows are drawn from those that are given."""
    rng = np.random.default_rng([7, number])
    found = {}
    for name in STREAMS:
        times = number * SECOND + np.sort(rng.integers(0, SECOND, rows))
        columns = [pa.array(times).cast(pa.timestamp("us")).cast(TIMESTAMP)]
        columns += [pa.array(rng.choice(keys, rows)), pa.array(np.arange(rows) + number * rows)]
        found[name] = pa.table(columns, schema=COLUMNS)
    return found


def pause(bench: Bench) -> list[Figure]:
    """How much longer the batch of a move takes, for a window of 1 M rows that moves whole, at once and in parts."""
    held = bench.sizes.state_rows
    fill, each = 20, held // 40
    keys = np.arange(held)
    at_once, in_parts, parts = [], [], []
    for _ in range(bench.repeats):
        for most in (None, held // PART):
            with tempfile.TemporaryDirectory() as folder:
                host = LocalHost(query(1000), mjoin(("a", "b")), slots=2, checkpoint=folder)
                for number in range(fill):
                    host.step(batch(number, each, keys))
                usual = median(_timed(host, batch(fill + i, 1000, keys)) for i in range(5))
                # Everything that slot 0 has, half of the window, goes to slot 1; then all of it comes back. Of a move
                # in parts, the batch that counts the rows is one of those that are looked at.
                spent, back = list[float](), list[float]()
                for to, found in ((1, spent), (0, back)):
                    host.move(range(host.partitioning.groups), to, most_rows=most)
                    while not found or host.steering.table.is_changing:
                        found.append(_timed(host, batch(host.batch, 1000, keys)) - usual)
            longest = max(*spent, *back)
            if most is None:
                at_once.append(longest)
            else:
                in_parts.append(longest)
                parts.append(float(len(back)))
            say(f"longest batch of a move: {longest:.3f} s over {usual:.3f} s, {len(back)} parts")
    return [
        Figure(
            f"a move of a window of {held:,} rows: batch longer by, in CPU time",
            "s",
            tuple(at_once),
            Bound("at most", 1.0),
        ),
        Figure("the same in parts of a tenth: longest batch longer by, in CPU time", "s", tuple(in_parts)),
        Figure("the same: parts", "batches", tuple(parts)),
    ]


def balance_cost(bench: Bench) -> list[Figure]:
    """CPU time of a query that is balanced from the start, with `balance: auto` over `manual`.

    Two hosts take turns with every batch, and of the runs the quickest counts for each batch, so that what else the
    machine does falls on neither.
    """
    rows = bench.sizes.growth_rows_per_batch
    keys = np.arange(20_000)
    warm, count, runs = 10, 40, 2 * bench.repeats + 2
    batches = [batch(number, rows, keys) for number in range(count)]
    spent: dict[Mode, list[list[float]]] = {"auto": [], "manual": []}
    driver = []
    for number in range(runs):
        hosts = {mode: LocalHost(query(10), mjoin(("a", "b")), slots=2, balance=Balance(mode)) for mode in spent}
        found: dict[Mode, list[float]] = {mode: [] for mode in spent}
        adapting = 0.0
        for place, each in enumerate(batches):
            if place == warm:
                gc.collect()
                adapting = hosts["auto"].seconds_adapting
            for mode in sorted(hosts, reverse=bool((place + number) % 2)):
                found[mode].append(_timed(hosts[mode], each))
        driver.append(1000 * (hosts["auto"].seconds_adapting - adapting) / (count - warm))
        for mode, each_batch in found.items():
            spent[mode].append(each_batch[warm:])
    least = {mode: float(np.min(several, axis=0).sum()) for mode, several in spent.items()}
    say(f"auto {least['auto']:.3f} s, manual {least['manual']:.3f} s of CPU, the least of {runs} runs for each batch")
    values = [least["auto"] / least["manual"]]
    return [
        ratio("balanced query: CPU time, balance auto over manual", values, Bound("at most", 1.01)),
        Figure(
            "balanced query: driver's part per trigger with balance auto", "ms", tuple(driver), Bound("at most", 10.0)
        ),
    ]


def two_slots(bench: Bench) -> list[Figure]:
    """Rows per second with two slots over one, in process, where slots are nearly all of a batch."""
    rows = 4 * bench.sizes.growth_rows_per_batch
    keys = np.arange(rows // 4)
    batches = [batch(number, rows, keys) for number in range(20)]
    wall, share, cpu = [], [], []
    for number in range(bench.repeats + 1):
        spent = {}
        for slots in (1, 2) if number % 2 else (2, 1):
            host = LocalHost(query(3), mjoin(("a", "b")), slots=slots)
            for each in batches[:6]:
                host.step(each)
            inside, slowest = 0.0, 0.0
            began, cpu_began = time.perf_counter(), time.process_time()
            for each in batches[6:]:
                host.step(each)
                inside += sum(report.cpu for report in host.reports.values())
                slowest += max(report.cpu for report in host.reports.values())
            spent[slots] = time.perf_counter() - began, inside / (time.process_time() - cpu_began), slowest
        if number:
            wall.append(spent[1][0] / spent[2][0])
            share.append(spent[1][1])
            cpu.append(spent[1][2] / spent[2][2])
            say(f"one slot {spent[1][0]:.2f} s, two {spent[2][0]:.2f} s; slots are {share[-1]:.0%} of a batch")
    return [
        ratio("two slots over one: rows/s (wall clock)", wall, Bound("at least", 1.6)),
        ratio("two slots over one: CPU time of the slowest slot", cpu, Bound("at least", 1.6)),
        Figure("one slot: CPU time of the slot over that of the batch", "share", tuple(share), Bound("at least", 0.85)),
    ]


def on_two_executors(bench: Bench) -> list[Figure]:
    """A skewed query on `local-cluster[2,1,1024]`, four fifths of the rows in one slot: balance auto against off."""
    rates, skews, off, shares = [], [], [], []
    rows = 5 * bench.sizes.growth_rows_per_batch
    for number in range(bench.repeats):
        told = {mode: _cluster(mode, rows) for mode in (("off", "auto") if number % 2 else ("auto", "off"))}
        rates.append(told["auto"]["rate"] / told["off"]["rate"])
        skews.append(told["auto"]["skew"])
        off.append(told["off"]["skew"])
        shares.append(told["off"]["share"])
        say(f"skew {told['auto']['skew']:.2f} (off {told['off']['skew']:.2f}), rows/s x{rates[-1]:.2f}")
    return [
        Figure(
            "two executors, skewed: slot CPU max/mean after 10 batches, balance auto",
            "x",
            tuple(skews),
            Bound("at most", 1.2),
        ),
        Figure("the same with balance off", "x", tuple(off)),
        ratio("two executors, skewed: rows/s (wall clock), balance auto over off", rates, Bound("at least", 1.3)),
        Figure("the same: slowest slot over the trigger, balance off", "share", tuple(shares)),
    ]


def _cluster(mode: str, rows: int) -> dict[str, float]:
    root = Path(__file__).parents[1]
    path = os.pathsep.join([str(root / "src"), str(root)])
    environment = {**os.environ, "PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-m", "benchmarks.balancing", mode, str(rows)]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, timeout=1200, check=False)
    if done.returncode:
        raise FailedRun(done.stderr[-2000:])
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return told


def main(mode: str, rows: int) -> None:
    """Runs the skewed query on two executors and prints its rate and its skew."""
    from anabranch.api import Session
    from anabranch.spark.session import open_session

    batches, measured = 24, 8
    table = choose_partitioning(query(5).graph, 2)
    keys = _skewed(table, np.arange(40_000), 0.8)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(batches):
            for name, each in batch(number, rows, keys).items():
                target = Path(folder) / name
                target.mkdir(exist_ok=True)
                pq.write_table(each, target / f"{number:04d}.parquet")
                os.utime(target / f"{number:04d}.parquet", (number, number))
        settings = {"spark.executor.memory": "1g", "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"]}
        spark = open_session("local-cluster[2,1,1024]", settings)
        try:
            session = Session(spark)
            for name in STREAMS:
                reader = spark.readStream.schema("ts timestamp, k bigint, p bigint").option("maxFilesPerTrigger", 1)
                session.register(name, reader.parquet(str(Path(folder) / name)), event_time="ts")
            writer = session.sql(text(5)).writeStream.foreachBatch(
                lambda frame, _: frame.write.format("noop").mode("overwrite").save()
            )
            writer = writer.plan("mjoin").slots(2).balance(mode).trigger(availableNow=True)
            handle = writer.option("checkpointLocation", f"{folder}/checkpoint").start()
            handle.awaitTermination()
            steps = [each for each in handle.recentProgress if each["adaptive"]]
        finally:
            spark.stop()
    last = steps[-measured:]
    spent = sum(each["durationMs"]["triggerExecution"] for each in last) / 1000
    cpu = np.mean([[slot["cpuSeconds"] for slot in each["adaptive"]["slotStatistics"]] for each in last], axis=0)
    slowest = sum(max(sum(slot["seconds"].values()) for slot in each["adaptive"]["slotStatistics"]) for each in last)
    told = {"rate": 2 * rows * measured / spent, "skew": skew(cpu), "share": slowest / spent, "batches": len(steps)}
    print(json.dumps(told))


def _skewed(table: Partitioning, keys: np.ndarray, share: float) -> np.ndarray:
    """Keys of which that share belongs to the groups of slot 0, each as often as any other of its slot."""
    rows = RelationBatch(np.zeros_like(keys), {table.dimensions[0].code: keys}, pa.RecordBatch.from_pydict({}))
    groups = own_cells(table, "a", rows)
    slot = np.array(table.table)[groups]
    first, others = keys[slot == 0], keys[slot != 0]
    count = round(len(first) * (1 - share) / share)
    return np.concatenate([first, others[:count]])


def _timed(host: LocalHost, rows: Rows) -> float:
    """The CPU time of a batch, all slots together."""
    began = time.process_time()
    host.step(rows)
    return time.process_time() - began


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
