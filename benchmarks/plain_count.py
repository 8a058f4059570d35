"""Spark's own share of a micro-batch: the same sources, unioned, in a `foreachBatch` that only counts."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.job import Job
from benchmarks.spark_native import streams


def settings(_job: Job) -> dict[str, str]:
    return {}


def start(spark: SparkSession, job: Job) -> StreamingQuery:
    """Starts counting the rows of the workload's streams, batch by batch."""
    whole = reduce(DataFrame.union, [frame.select("ts", "p") for frame in streams(spark, job)])
    return (
        whole.writeStream.foreachBatch(_count)
        .option("checkpointLocation", str(job.checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def _count(frame: DataFrame, _batch: int) -> None:
    frame.count()
