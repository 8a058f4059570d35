"""The streams of a workload as objects of an S3 server on loopback, moto in a process of its own.

Limit: the server shares the machine, and its CPU is not counted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession

from anabranch.spark.stored_files import open_stored
from benchmarks.workloads import Stream, Workload, written
from tests.support.s3_server import s3_server

BUCKET = "bucket"


@contextmanager
def stored(workload: Workload) -> Iterator[None]:
    """Writes the files of a workload into a bucket; processes that are started meanwhile find the server."""
    directory = written(workload)
    with s3_server(BUCKET) as server:
        for stream in workload.streams:
            for path in sorted((directory / stream.name).iterdir()):
                server.put(f"{BUCKET}/{stream.name}/{path.name}", path.read_bytes())
        before = dict(os.environ)
        os.environ.update(server.variables)
        try:
            yield
        finally:
            for name in server.variables:
                del os.environ[name]
            os.environ.update({name: before[name] for name in server.variables if name in before})


def objects(spark: SparkSession, stream: Stream) -> DataFrame:
    """One object of a stream per micro-batch."""
    options = {"maxFilesPerTrigger": "1"}
    return open_stored(spark, "parquet", f"s3://{BUCKET}/{stream.name}", stream.spark_schema, options)
