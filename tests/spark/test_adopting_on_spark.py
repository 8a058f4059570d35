"""A spec goes on from the checkpoint of Spark's own join: no result is lost or comes twice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("drivers of their own")]

COLUMNS = "ts timestamp, k bigint, p bigint, unused string"
JOB = """
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr
spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2).getOrCreate()
def stream(name):
    read = spark.readStream.schema("{columns}").option("maxFilesPerTrigger", 1)
    return read.parquet(name).withWatermark("ts", "2 seconds").alias(name)
near = "b.ts BETWEEN a.ts - INTERVAL 5 SECONDS AND a.ts + INTERVAL 5 SECONDS"
joined = stream("a").join(stream("b"), expr("a.k = b.k AND a.p > 3 AND " + near))
def run(frame, to):
    writer = frame.writeStream.option("path", to).option("checkpointLocation", to + "-checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
run(joined.selectExpr("a.k AS k", "b.p AS q", "a.ts AS ts"), "spark-out")
run(stream("a").dropDuplicates(["k", "ts"]), "distinct")
"""
SPEC = """
streams:
  a: {{format: parquet, path: a, schema: "{columns}", event_time: ts, watermark: 2 seconds}}
  b: {{format: parquet, path: b, schema: "{columns}", event_time: ts, watermark: 2 seconds}}
query: SELECT a.k AS k, b.p AS q{more} FROM a, b
  WHERE a.k = b.k AND a.p > 3 AND b.ts BETWEEN a.ts - INTERVAL 5 SECONDS AND a.ts + INTERVAL 5 SECONDS
sink: {{format: parquet, path: out}}
checkpoint: checkpoint
slots: 2
spark: {{master: "local[2]"}}
"""


def feed(folder: Path, files: range) -> None:
    """Twenty rows of each stream in each file, one in half a second; the key of row n is n % 5."""
    for name in "ab":
        (folder / name).mkdir(exist_ok=True)
        for file in files:
            times = [1_700_000_000_000_000 + file * 10_000_000 + row * 500_000 for row in range(20)]
            rows = {"ts": pa.array(times, pa.timestamp("us", "UTC")), "k": [row % 5 for row in range(20)]}
            path = folder / name / f"{file}.parquet"
            parquet.write_table(pa.table({**rows, "p": list(range(20)), "unused": ["x"] * 20}), path)
            os.utime(path, (1_700_000_000 + file,) * 2)


def command(folder: Path, *words: str, status: int = 0) -> str:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def found(folder: Path) -> Counter[tuple[int, int]]:
    files = [parquet.read_table(file).to_pylist() for file in folder.glob("part-*")]
    return Counter((row["k"], row["q"]) for rows in files for row in rows)


def test_a_join_of_spark_goes_on(tmp_path: Path) -> None:
    feed(tmp_path, range(3))
    (tmp_path / "spec.yaml").write_text(SPEC.format(columns=COLUMNS, more=""))
    (tmp_path / "more.yaml").write_text(SPEC.format(columns=COLUMNS, more=", a.unused AS u"))
    command(tmp_path, "-c", JOB.format(columns=COLUMNS))
    adopt = ("-m", "anabranch", "adopt")
    refused = command(tmp_path, *adopt, "distinct-checkpoint", "spec.yaml", status=2)
    assert "its stateful operators are: dedupe" in refused
    assert "have no column 'unused'" in command(tmp_path, *adopt, "spark-out-checkpoint", "more.yaml", status=2)
    assert not (tmp_path / "checkpoint").exists()
    assert "rows of a" in command(tmp_path, *adopt, "spark-out-checkpoint", "spec.yaml")
    feed(tmp_path, range(3, 5))
    command(tmp_path, "-m", "anabranch", "run", "spec.yaml")
    times = [(20 * file + row, row) for file in range(5) for row in range(20)]
    expected = Counter(
        (a % 5, b) for at, a in times for bt, b in times if a % 5 == b % 5 and a > 3 and abs(at - bt) <= 10
    )
    after = found(tmp_path / "out")
    assert after
    assert found(tmp_path / "spark-out") + after == expected
