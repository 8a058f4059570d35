"""Prepares the driver's JVM and starts Python workers before the first micro-batch needs them.

Both run in background threads, and a failure is left to the first batch to report. Limit: it starts the workers of one
machine; on a cluster, other machines start theirs with the first batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock, Thread

from pyspark.sql import SparkSession

from anabranch.spark.internals.driver import fix_environment
from anabranch.spark.internals.patches.local_files import replace_local_files
from anabranch.spark.worker import warm

SHORT_TRACEBACK = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"
_ONE_AT_A_TIME = Lock()
"""Serializes changes of the environment: an overlapping change would restore the wrong values."""


def warm_workers(spark: SparkSession) -> Thread:
    """Starts the Python daemon and loads the engine in it, in the background.

    This takes seconds, in parallel with registering streams and planning the first batch. One task is enough and leaves
    the other cores to that batch. It uses no SQL, which would need planning first.
    """

    def run() -> None:
        with suppress(Exception):  # the first batch will report the failure
            rows = spark.sparkContext.parallelize([0], 1).map(warm)
            with environment_of_sql(spark):
                fix_environment(rows)
            rows.collect()

    thread = Thread(target=run, daemon=True)
    thread.start()
    # In a separate thread: the first batch waits for the workers, whose start must not wait for anything else.
    Thread(target=replace_local_files, args=(spark,), daemon=True).start()
    return thread


@contextmanager
def environment_of_sql(spark: SparkSession) -> Iterator[None]:
    """Starts workers inside the context with the environment of SQL functions.

    Spark has one daemon per environment, and adds a variable to the environment of SQL functions.
    """
    context, name = spark.sparkContext, "SPARK_SIMPLIFIED_TRACEBACK"
    is_short = spark.conf.get(SHORT_TRACEBACK, "true") == "true"
    with _ONE_AT_A_TIME:
        before = context.environment
        if is_short:
            # A copy: another thread may be reading the environment now.
            context.environment = {**before, name: "1"}
        try:
            yield
        finally:
            context.environment = before
