"""The streams of a workload as topics of Kafka, and as files of the same texts, for the process of a measured run."""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from anabranch.spark.kafka_source import FORMAT, KafkaTopics
from benchmarks.job import Job
from benchmarks.workloads import Stream

BROKERS = "BENCHMARK_BROKERS"
"""The variable with the address of the cluster."""


def disorder(job: Job) -> str:
    """The allowed disorder: the partitions of a topic are read in turn."""
    return "1 seconds" if job.system.endswith(("-kafka", "-json")) else "0 seconds"


def topic(spark: SparkSession, job: Job, stream: Stream) -> DataFrame:
    spark.dataSource.register(KafkaTopics)
    options = {
        "kafka.bootstrap.servers": os.environ[BROKERS],
        "subscribe": stream.name,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(-(-stream.rows // job.workload.batches)),
    }
    return spark.readStream.format(FORMAT).schema(stream.spark_schema).options(**options).load()


def texts(spark: SparkSession, job: Job, stream: Stream) -> DataFrame:
    """The texts in files, one file for each micro-batch, which Spark parses."""
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(texts_of(job.source, stream.name)))
    return lines.select(F.from_json("value", stream.spark_schema).alias("row")).select("row.*")


def texts_of(directory: Path, stream: str) -> Path:
    return directory / f"{stream}-texts"
