"""The program of docs/tutorial.md: three streams whose keys change half-way, and a query that adapts its plan.

python tutorial.py            writes streams/ and out/ into the current folder, and takes about a minute
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SECONDS, WINDOW = 60, 10
PER_SECOND = {"orders": 400, "payments": 2000, "visits": 2000}
FEW, MANY = 100, 2_000_000
"""How many values a key has: of few, each row meets dozens of others; of many, hardly one."""
START = 1_767_225_600_000_000  # 2026-01-01, in microseconds
COLUMNS = {
    "orders": "ts timestamp, order_id bigint, customer bigint",
    "payments": "ts timestamp, order_id bigint, amount double",
    "visits": "ts timestamp, customer bigint, page bigint",
}
QUERY = f"""
    SELECT o.order_id, o.customer, p.amount, v.page
    FROM orders   [RANGE {WINDOW} SECONDS] AS o,
         payments [RANGE {WINDOW} SECONDS] AS p,
         visits   [RANGE {WINDOW} SECONDS] AS v
    WHERE o.order_id = p.order_id AND o.customer = v.customer
"""


def write_streams(folder: Path, seconds: int = SECONDS) -> None:
    """One file of each stream for every second. First orders are rarely paid and customers visit often; half-way it is
    the other way round.
    """
    draw = np.random.default_rng(1)
    for second in range(seconds):
        early = second < seconds // 2
        values = {"order_id": MANY if early else FEW, "customer": FEW if early else MANY}
        for name, rows in PER_SECOND.items():
            times = np.sort(draw.integers(0, 1_000_000, rows)) + START + second * 1_000_000
            columns: dict[str, object] = {"ts": pa.array(times, pa.timestamp("us", "UTC"))}
            for key, several in values.items():
                if key in COLUMNS[name]:
                    columns[key] = draw.integers(0, several, rows)
            if name == "payments":
                columns["amount"] = draw.integers(1, 100, rows).astype(float)
            if name == "visits":
                columns["page"] = draw.integers(0, 50, rows)
            (folder / name).mkdir(parents=True, exist_ok=True)
            file = folder / name / f"{second:04d}.parquet"
            pq.write_table(pa.table(columns), file)
            # Spark reads files in the order of their times, which would be equal for files of one millisecond.
            os.utime(file, (START // 1_000_000 + second,) * 2)


def main(folder: Path) -> None:
    import anabranch

    write_streams(folder / "streams")
    spark = anabranch.local_session(2)
    session = anabranch.Session(spark)
    for name, columns in COLUMNS.items():
        frame = spark.readStream.schema(columns).option("maxFilesPerTrigger", 1).parquet(str(folder / "streams" / name))
        session.register(name, frame, event_time="ts", watermark="0 seconds")

    query = session.sql(QUERY)
    query.explain()
    handle = (
        query.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .slots(1)
        .adapt(every=5)
        .start(str(folder / "out"))
    )
    handle.awaitTermination()

    report = handle.report()
    print(f"{report['rows_in']:,} rows in, {report['rows_out']:,} results, plan at the end: {report['plan']}")
    for record in handle.history:
        if record["kind"] == "migration" and record["phase"] == "began":
            print(f"batch {record['batch']}: {record['from']} -> {record['to']}")
    results = spark.read.parquet(str(folder / "out")).count()
    batch = {name: spark.read.schema(columns).parquet(f"{folder}/streams/{name}") for name, columns in COLUMNS.items()}
    for name, frame in batch.items():
        frame.createOrReplaceTempView(name)
    newest = "greatest(o.ts, p.ts, v.ts)"
    inside = " AND ".join(f"{newest} - {alias}.ts <= INTERVAL {WINDOW} SECONDS" for alias in "opv")
    expected = spark.sql(
        f"SELECT count(*) FROM orders o, payments p, visits v "
        f"WHERE o.order_id = p.order_id AND o.customer = v.customer AND {inside}"
    ).first()
    print(f"Spark's batch join over all rows has {expected[0]:,} rows, the folder {results:,}")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path.cwd())
