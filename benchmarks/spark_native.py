"""The same queries by Spark's own stream-stream joins, with the settings a good engineer would choose.

Every pair of relations is held within the window by an interval condition, which is max - min <= W, and watermarks of
no delay let Spark drop rows as early as it can. Spark takes one event time per input of a join, so an intermediate
result keeps that of its first relation and carries the others as plain timestamps. Relations are joined in the order of
the workload, which names the fastest stream last. Either state store can be asked for (RocksDB gets changelog
checkpoints and the join state format made for it), and so can all that our own driver's JVM is told.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from anabranch.spark.jvm import driver_options
from benchmarks.arrow_source import FORMAT, ArrowFiles
from benchmarks.job import Job
from benchmarks.kafka_streams import disorder, texts, topic
from benchmarks.stored_streams import objects
from benchmarks.workloads import LeftJoins, Stream, TableJoin, Workload

ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.join.stateFormatVersion": "4",
}


def settings(job: Job) -> dict[str, str]:
    match job.system:
        case "native-rocksdb":
            return ROCKSDB
        case "native-our-jvm" | "native-kafka" | "native-json":
            return {"spark.driver.extraJavaOptions": " ".join(driver_options())}
        case _:
            return {}


def start(spark: SparkSession, job: Job) -> StreamingQuery:
    """Starts the workload's query over its files."""
    return (
        query(spark, job)
        .writeStream.format(job.workload.results)
        .option("path", str(job.output))
        .option("checkpointLocation", str(job.checkpoint))
        .trigger(**job.trigger)
        .start()
    )


def query(spark: SparkSession, job: Job) -> DataFrame:
    """The workload's query: a chain of joins, or a stream joined with a batch frame."""
    frames = streams(spark, job)
    if isinstance(job.workload, TableJoin):
        facts = spark.read.parquet(str(job.source / job.workload.table.name)).withColumnRenamed("p", "p1")
        return frames[0].withColumnRenamed("p", "p0").join(facts, "k").select("p0", "p1")
    return joined(job.workload, frames, disorder(job))


def streams(spark: SparkSession, job: Job) -> list[DataFrame]:
    """The file sources of a workload: one file of each per micro-batch, or in a live run all that came."""
    return [_stream(spark, job, stream) for stream in job.workload.streams]


def _stream(spark: SparkSession, job: Job, stream: Stream) -> DataFrame:
    if job.system.endswith("-kafka"):
        return topic(spark, job, stream)
    if job.system.endswith("-json"):
        return texts(spark, job, stream)
    if job.system.endswith("-s3"):
        return objects(spark, stream)
    reader, path = spark.readStream.schema(stream.spark_schema), str(job.source / stream.name)
    if job.workload.form == "arrow":
        spark.dataSource.register(ArrowFiles)
        return reader.format(FORMAT).option("path", path).load()
    if job.live is None:
        reader = reader.option("maxFilesPerTrigger", 1)
    if job.workload.form == "parquet":
        return reader.parquet(path)
    if job.workload.form == "json":
        return reader.json(path)
    numbers = reader.schema(stream.spark_schema.replace("ts timestamp", "ts bigint")).csv(path)
    return numbers.withColumn("ts", F.timestamp_millis("ts"))


def joined(workload: Workload, frames: list[DataFrame], allowed: str = "0 seconds") -> DataFrame:
    """The workload's query as a chain of two-way joins; columns carry the number of their relation."""
    relations = [
        frame.select([F.col(name).alias(f"{name}{i}") for name in frame.columns]).withWatermark(f"ts{i}", allowed)
        for i, frame in enumerate(frames)
    ]
    whole = relations[0]
    for i, relation in enumerate(relations[1:], start=1):
        how = "left_outer" if isinstance(workload, LeftJoins) else "inner"
        whole = whole.join(relation, reduce(Column.__and__, _conditions(workload, i)), how)
        whole = whole.withColumn(f"ts{i}", F.col(f"ts{i}") + F.expr("INTERVAL 0 SECONDS"))
    return whole.select([f"{column}{i}" for i, column in workload.outputs])


def _conditions(workload: Workload, i: int) -> list[Column]:
    window = F.expr(f"INTERVAL {workload.window} MICROSECONDS")
    equal = [
        F.col(f"{e.left_key}{e.left}") == F.col(f"{e.right_key}{e.right}")
        for e in workload.equalities
        if max(e.left, e.right) == i
    ]
    bands = [
        F.abs(F.col(f"{b.left_column}{b.left}") - F.col(f"{b.right_column}{b.right}")) <= b.width
        for b in workload.bands
        if max(b.left, b.right) == i
    ]
    near = [F.col(f"ts{i}").between(F.col(f"ts{j}") - window, F.col(f"ts{j}") + window) for j in range(i)]
    if isinstance(workload, LeftJoins):
        near[1:] = [F.col(f"ts{j}").isNull() | condition for j, condition in enumerate(near[1:], start=1)]
    return equal + bands + near
