"""The same queries through Anabranch, with the settings it recommends for any session."""

from __future__ import annotations

from pyspark.sql import SparkSession

from anabranch.api import Session
from anabranch.spark.handle import QueryHandle
from anabranch.spark.session import recommended_configuration
from benchmarks.job import Job
from benchmarks.kafka_streams import disorder
from benchmarks.spark_native import streams
from benchmarks.workloads import TableJoin


def settings(_job: Job) -> dict[str, str]:
    return recommended_configuration()


def start(spark: SparkSession, job: Job) -> QueryHandle:
    """Starts the workload's query over its files."""
    session = Session(spark)
    for stream, frame in zip(job.workload.streams, streams(spark, job), strict=True):
        session.register(stream.name, frame, event_time="ts", watermark=disorder(job))
    if isinstance(job.workload, TableJoin):
        session.table("facts", spark.read.parquet(str(job.source / job.workload.table.name)))
    return (
        session.sql(job.workload.cql)
        .writeStream.format("delta" if job.system == "ours-delta" else job.workload.results)
        .option("path", str(job.output))
        .option("checkpointLocation", str(job.checkpoint))
        .slots(job.slots)
        .trigger(**job.trigger)
        .start()
    )
