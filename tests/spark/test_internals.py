"""Makes every private call of Spark on the installed version; run it first on a new version of Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from anabranch.spark.failure import query_id
from anabranch.spark.internals import driver, plans, queries, writers

pytestmark = pytest.mark.spark


@pytest.fixture
def folder(spark: SparkSession, tmp_path: Path) -> Path:
    """A folder with one Parquet file of three rows."""
    spark.range(3).coalesce(1).write.parquet(str(tmp_path / "in"))
    return tmp_path / "in"


def streamed(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(folder))


def test_the_context_of_this_process(spark: SparkSession) -> None:
    assert driver.has_context()
    assert not driver.is_stopped(spark)


def test_the_jvm_makes_arrays_and_has_hadoops_settings(spark: SparkSession) -> None:
    array = driver.java_array(spark, driver.jvm_of(spark).java.lang.Object, "a", 1)
    assert list(array) == ["a", 1]
    assert driver.hadoop_settings(spark).get("fs.defaultFS") == "file:///"


def test_one_machine_has_the_driver_as_its_executor(spark: SparkSession) -> None:
    ((name, address, cores),) = driver.executors(spark)
    assert name == "driver"
    assert address.startswith("127.0.0.1")
    assert cores > 0


def test_files_have_paths_sizes_and_times(spark: SparkSession, folder: Path) -> None:
    found = {
        Path(path.removeprefix("file:")): (size, time) for path, size, time in driver.list_files(spark, str(folder))
    }
    (file,) = folder.glob("*.parquet")
    assert found[file] == (file.stat().st_size, file.stat().st_mtime_ns // 1_000_000)


def test_an_rdd_keeps_the_environment_of_workers_that_it_was_made_with(spark: SparkSession) -> None:
    context = spark.sparkContext
    rows = context.parallelize([0], 1).map(lambda _: os.environ.get("ANABRANCH_TEST"))
    before = context.environment
    context.environment = {**before, "ANABRANCH_TEST": "made"}
    try:
        driver.fix_environment(rows)
    finally:
        context.environment = before
    assert rows.collect() == ["made"]


def test_a_frame_is_a_scan_and_its_layers(spark: SparkSession, folder: Path) -> None:
    frame = streamed(spark, folder).select("id", (f.col("id") + 1).alias("n")).where("n > 1")
    found = plans.scan_below(frame)
    assert found is not None
    scan, (projection, filtered) = found
    source = plans.source_of_scan(scan)
    assert source.format == "parquet"
    assert source.options == {"path": str(folder), "maxFilesPerTrigger": "1"}
    assert [plans.is_filter(layer) for layer in (projection, filtered)] == [False, True]
    outputs = plans.outputs_of(projection)
    assert outputs is not None
    assert [(name, value.column) for name, value in outputs] == [("id", "id"), ("n", None)]
    condition = plans.condition_of(filtered)
    assert condition.column is None
    assert condition.is_deterministic
    below = plans.frame_of(spark, plans.child_of(filtered))
    assert below.columns == ["id", "n"]
    assert plans.is_same(filtered, below.where(condition.sql.replace("L", "")))
    assert not plans.is_same(filtered, below.where("n > 2"))
    assert plans.scan_below(frame.union(frame)) is None


def test_partitions_prefer_a_location_and_are_where_spark_hashes_their_keys(spark: SparkSession) -> None:
    frame = plans.located_frame(spark, "key", [7], ["executor_somewhere_1"])
    assert [row.key for row in frame.collect()] == [7]
    assert frame.rdd.getNumPartitions() == 1


def test_a_frame_runs_without_an_execution_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    def touch(batches: Iterator[object]) -> Iterator[object]:
        mark.touch()
        return batches

    plans.run(spark.range(1).mapInArrow(touch, "id long"))
    assert mark.exists()


def test_a_batch_has_its_files_and_counts_and_a_query_its_progress(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    found: list[tuple[object, ...]] = []

    def take(frame: DataFrame, _: int) -> None:
        execution = queries.current_batch(spark, query_id(frame))
        (relation,) = queries.scanned(execution)
        (counter,) = queries.row_counters(execution)
        assert counter is not None
        counter.add(5)
        rows = queries.frame_of_files(frame.sparkSession, relation).count()
        found.append((queries.paths_of(relation), queries.is_partitioned(relation), rows))

    queries.require_batch_plans(spark)
    writer = streamed(spark, folder).writeStream.foreachBatch(take)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        (source,) = queries.file_sources(query)
        assert source.getClass().getSimpleName() == "FileStreamSource"
        (file,) = folder.glob("*.parquet")
        assert found == [((f"file://{file}",), False, 3)]
        progress = [(batch, text()) for batch, text in queries.newest_progress(query)]
        assert progress[-1][0] == 0
        assert '"numInputRows":5' in progress[-1][1].replace(" ", "")
    finally:
        query.stop()


def test_a_format_that_spark_lacks_is_an_error(spark: SparkSession) -> None:
    writers.require_format(spark, "parquet")
    with pytest.raises((PySparkException, Py4JError)):
        writers.require_format(spark, "no such format")


def test_a_connection_to_a_database_quotes_names(spark: SparkSession, tmp_path: Path) -> None:
    options = {"url": f"jdbc:derby:{tmp_path}/database;create=true", "dbtable": "t"}
    connection, quote = writers.jdbc_connection(spark, options)
    try:
        assert connection.getAutoCommit()
        assert quote("a b") == '"a b"'
    finally:
        connection.close()
