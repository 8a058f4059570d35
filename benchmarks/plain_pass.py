"""The least that any Python operator over these sources costs: a shuffle, rows to Python and back, and no sink."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from anabranch.spark.session import recommended_configuration
from benchmarks.job import Job
from benchmarks.spark_native import streams


def settings(_job: Job) -> dict[str, str]:
    """Ours: what they gain is not our merit."""
    return recommended_configuration()


def start(spark: SparkSession, job: Job) -> StreamingQuery:
    """Starts passing the rows of the workload's streams through Python workers."""
    whole = reduce(DataFrame.union, [frame.select("ts", "k", "p") for frame in streams(spark, job)])
    return (
        whole.repartition(job.slots, "k")
        .mapInArrow(_pass, whole.schema)
        .writeStream.format("noop")
        .option("checkpointLocation", str(job.checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def _pass(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
