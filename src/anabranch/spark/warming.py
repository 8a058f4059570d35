"""Prepares the driver's JVM and starts Python workers before the first micro-batch needs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock, Thread

from pyspark.sql import SparkSession

from anabranch.spark.patches.local_files import replace_local_files
from anabranch.spark.worker import warm

SHORT_TRACEBACK = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"
_ONE_AT_A_TIME = Lock()
"""Of two that change the environment at once, the later would put back what the earlier one had made of it."""


def warm_workers(spark: SparkSession) -> Thread:
    """Starts the Python daemon and loads the engine in it, in the background.

    That takes seconds, which pass while streams are registered and Spark plans the first batch. One task is enough, and
    leaves the other cores to that batch; and one without SQL, which would first have to be planned.
    """

    def run() -> None:
        with suppress(Exception):  # the first batch reports a failure
            rows = spark.sparkContext.parallelize([0], 1).map(warm)
            with environment_of_sql(spark):
                rows._jrdd  # noqa: B018 - made here, because it remembers the environment
            rows.collect()

    thread = Thread(target=run, daemon=True)
    thread.start()
    # Beside it: the first batch waits for the workers, and starting them for nothing else.
    Thread(target=replace_local_files, args=(spark,), daemon=True).start()
    return thread


@contextmanager
def environment_of_sql(spark: SparkSession) -> Iterator[None]:
    """Workers that are started meanwhile serve SQL, too.

    Spark has a daemon for each environment, and adds a variable to that of functions in SQL.
    """
    context, name = spark.sparkContext, "SPARK_SIMPLIFIED_TRACEBACK"
    is_short = spark.conf.get(SHORT_TRACEBACK, "true") == "true"
    with _ONE_AT_A_TIME:
        before = context.environment
        if is_short:
            # A copy: another thread may be reading the environment just now.
            context.environment = {**before, name: "1"}
        try:
            yield
        finally:
            context.environment = before
