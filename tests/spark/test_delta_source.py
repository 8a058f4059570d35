"""Delta tables as streams of a spec: the batch answer, restarts in the middle of a version, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from anabranch.errors import CatalogError
from anabranch.spark.stored_files import OFF
from anabranch.spec.file import parse
from anabranch.spec.launch import start

deltalake = pytest.importorskip("deltalake", reason="the extra 'delta' is not installed")
pytestmark = pytest.mark.spark
SPEC = """
streams:
  a: {{format: delta, path: "{folder}/a", event_time: ts, watermark: 40 seconds, max_ahead: 1000 days{options}}}
  b: {{format: delta, path: "{folder}/b", schema: "ts timestamp, k bigint, v bigint", event_time: ts,
      watermark: 10 seconds, max_ahead: 1000 days, where: v % 7 <> 3}}
query: >
  SELECT a.v AS av, a.place, b.v AS bv FROM a [RANGE 20 SECONDS] AS a, b [RANGE 10 SECONDS] AS b WHERE a.k = b.k
sink: {{format: parquet, path: "{folder}/out"}}
checkpoint: "{folder}/checkpoint"
slots: 2
"""
ANSWER = """
SELECT a.v AS av, a.place, b.v AS bv FROM a, b WHERE a.k = b.k AND b.v % 7 <> 3
AND greatest(a.ts, b.ts) - a.ts <= INTERVAL 20 SECONDS AND greatest(a.ts, b.ts) - b.ts <= INTERVAL 10 SECONDS
"""


def rows(first: int, count: int, keys: int = 5) -> pa.Table:
    numbers = range(first, first + count)
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    return pa.table(
        {
            "ts": pa.array([begin + timedelta(seconds=n) for n in numbers], pa.timestamp("us", "UTC")),
            "k": [n % keys for n in numbers],
            "v": list(numbers),
            "place": ["left" if n % 3 else "right" for n in numbers],
        }
    )


def write(folder: Path, name: str, table: pa.Table, **options: Any) -> None:
    deltalake.write_deltalake(str(folder / name), table, mode="append", **options)


def run(spark: SparkSession, folder: Path, options: str = "") -> Any:
    handle = start(parse(SPEC.format(folder=folder, options=options), folder=folder), spark)
    handle.awaitTermination()
    return handle


def check(folder: Path) -> None:
    connection = duckdb.connect()
    for name in "ab":
        table = deltalake.DeltaTable(str(folder / name)).to_pyarrow_table()
        connection.register(name, table)
    connection.execute(f"CREATE TABLE found AS FROM read_parquet('{folder}/out/*.parquet')")
    for one, other in (("found", f"({ANSWER})"), (f"({ANSWER})", "found")):
        assert connection.execute(f"FROM {one} EXCEPT ALL FROM {other}").fetchall() == []
    assert len(connection.execute("FROM found").fetchall()) > 20


def test_tables_that_grow_give_the_batch_answer(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "a", rows(0, 30), partition_by=["place"])
    write(tmp_path, "b", rows(0, 30))
    handle = run(spark, tmp_path)
    assert handle.report()["rows_in"] == 30 + 26  # those that the filter passes
    for first in (30, 60):
        write(tmp_path, "a", rows(first, 30))
        write(tmp_path, "b", rows(first, 30))
    deltalake.DeltaTable(str(tmp_path / "b")).optimize.compact()
    handle = run(spark, tmp_path, ", options: {maxFilesPerTrigger: 1}")
    # Two partitions of two versions; a batch has a file, so a partition may be 30 seconds behind the other.
    assert len(handle.report()["batches"]) >= 4
    assert handle.report()["late_rows"] == 0
    check(tmp_path)


def test_spark_reads_what_only_spark_computes(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "a", rows(0, 30), partition_by=["place"])
    write(tmp_path, "b", rows(0, 30))
    computed = ", select: {ts: ts, k: k, v: v, place: 'concat(place, repeat(\"\", cast(rand() AS INT)))'}"
    run(spark, tmp_path, computed)
    check(tmp_path)


def test_the_frame_has_the_columns_of_the_table(spark: SparkSession, tmp_path: Path) -> None:
    from anabranch.spark.delta_source import DeltaVersions

    write(tmp_path, "a", rows(0, 3), partition_by=["place"])
    spark.dataSource.register(DeltaVersions)
    frame = spark.readStream.format("anabranch-delta").load(str(tmp_path / "a"))
    assert frame.columns == ["ts", "k", "v", "place"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (", options: {startingTimestamp: '2026-01-01'}", "has no option 'startingtimestamp'"),
        (", options: {startingVersion: first}", "option 'startingVersion' is 'first'"),
        (', schema: "ts timestamp, k bigint, v string, place string"', "column 'v' has type string in the schema"),
    ],
)
def test_wrong_settings_are_refused(options: str, message: str, spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "a", rows(0, 3))
    write(tmp_path, "b", rows(0, 3))
    with pytest.raises(CatalogError, match=message):
        run(spark, tmp_path, options)


def test_without_our_source_sparks_connector_reads(
    monkeypatch: pytest.MonkeyPatch, spark: SparkSession, tmp_path: Path
) -> None:
    monkeypatch.setenv(OFF, "1")
    write(tmp_path, "a", rows(0, 3))
    with pytest.raises(Exception, match="delta"):
        run(spark, tmp_path)
