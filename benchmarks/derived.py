"""A query over a query, against writing the first one's results as Parquet and reading them as a second query.

Both compute, for every order, the mean of its customer over the last ten seconds. `one` is a query over a query in one
run; `two` is a run that writes Parquet and a run that reads it. Feeds come at a fixed pace; the latency of a feed is
from the moment its files appear to the moment its results are in the sink. CPU is that of the driver, the JVM and all
workers. The variants alternate; each starts with a feed that does not count.

    python -m benchmarks.derived [--rounds 3] [--feeds 12]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import SparkSession

from anabranch.api import QueryHandle, Session
from anabranch.spark.session import local_session

SECOND = 1_000_000
MEANS = (
    "SELECT WINDOW_END() AS at, p.customer AS customer, AVG(p.amount) AS mean "
    "FROM orders [RANGE 10 SECONDS SLIDE 2 SECONDS] AS p GROUP BY p.customer"
)
OVER = (
    "SELECT o.id AS id, m.mean AS mean FROM {means} [RANGE 4 SECONDS] AS m, orders [RANGE 4 SECONDS] AS o "
    "WHERE o.customer = m.customer AND o.amount > 1.5 * m.mean"
)
SCHEMA = "ts timestamp, id long, customer long, amount double"
RESULTS = "at timestamp, customer long, mean double"


def feed(folder: Path, number: int, rows: int) -> None:
    """Adds two seconds of orders as one file, which becomes visible at once."""
    rng = np.random.default_rng(number)
    times = np.sort(rng.integers(0, 2 * SECOND, rows)) + 2 * SECOND * number
    table = pa.table(
        {
            "ts": pa.array(times, pa.timestamp("us", "UTC")),
            "id": pa.array(np.arange(rows) + number * rows),
            "customer": pa.array(rng.integers(0, 500, rows)),
            "amount": pa.array(rng.exponential(50.0, rows)),
        }
    )
    hidden = folder / f".{number:04d}.parquet"
    parquet.write_table(table, hidden)
    hidden.rename(folder / f"{number:04d}.parquet")


def start_one(session: Session, folder: Path) -> list[QueryHandle]:
    over = session.sql(OVER.format(means=f"({MEANS})"))
    writer = over.writeStream.option("checkpointLocation", str(folder / "one")).slots(2)
    return [writer.start(str(folder / "out"))]


def start_two(session: Session, folder: Path, spark: SparkSession) -> list[QueryHandle]:
    (folder / "means").mkdir()
    first = session.sql(MEANS).writeStream.option("checkpointLocation", str(folder / "first")).slots(2)
    handles = [first.start(str(folder / "means"))]
    session.register("means", spark.readStream.schema(RESULTS).parquet(str(folder / "means")), "at", "2 seconds")
    second = session.sql(OVER.format(means="means"))
    writer = second.writeStream.option("checkpointLocation", str(folder / "second")).slots(2)
    return [*handles, writer.start(str(folder / "out"))]


def cpu() -> float:
    """Seconds of CPU of this process and all below it, those that have ended included."""
    me = psutil.Process()
    times = [process.cpu_times() for process in [me, *me.children(recursive=True)] if process.is_running()]
    return float(sum(each.user + each.system for each in times))


def measured(variant: str, spark: SparkSession, feeds: int, rows: int) -> tuple[float, float, int]:
    """The median latency in seconds, the CPU seconds, and the number of results of one round."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "orders").mkdir()
        session = Session(spark)
        orders = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder / "orders"))
        session.register("orders", orders, "ts", "0 seconds")
        handles = start_one(session, folder) if variant == "one" else start_two(session, folder, spark)
        for number in range(3):
            feed(folder / "orders", number, rows)
            for handle in handles:
                handle.processAllAvailable()
        before, latencies = cpu(), []
        for number in range(3, 3 + feeds):
            began = time.perf_counter()
            feed(folder / "orders", number, rows)
            for handle in handles:
                handle.processAllAvailable()
            latencies.append(time.perf_counter() - began)
        spent = cpu() - before
        for handle in handles:
            handle.stop()
        count = parquet.read_table(folder / "out").num_rows
        return statistics.median(latencies), spent, count


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--feeds", type=int, default=12)
    parser.add_argument("--rows", type=int, default=4000)
    arguments = parser.parse_args()
    spark = local_session(2)
    found: dict[str, list[tuple[float, float, int]]] = {"one": [], "two": []}
    for _ in range(arguments.rounds):
        for variant in found:
            found[variant].append(measured(variant, spark, arguments.feeds, arguments.rows))
    spark.stop()
    latency = {name: statistics.median(each[0] for each in rounds) for name, rounds in found.items()}
    spent = {name: statistics.median(each[1] for each in rounds) for name, rounds in found.items()}
    report = {
        "latency": latency,
        "cpu": spent,
        "results": {name: rounds[-1][2] for name, rounds in found.items()},
        "latency one over two": round(latency["one"] / latency["two"], 3),
        "cpu one over two": round(spent["one"] / spent["two"], 3),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
