"""Private calls about the driver: its context, its JVM, its executors and its file systems."""

from __future__ import annotations

from typing import Any

from pyspark import RDD, SparkContext
from pyspark.sql import SparkSession


def jvm_of(spark: SparkSession) -> Any:
    """Returns py4j's view of the driver's JVM, which gives access to Spark's classes."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    return jvm


def java_array(spark: SparkSession, element: Any, *values: Any) -> Any:
    """Returns a Java array of an element class, for calls that need one."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    array = gateway.new_array(element, len(values))
    for place, value in enumerate(values):
        array[place] = value
    return array


def hadoop_settings(spark: SparkSession) -> Any:
    """Returns Hadoop's configuration of the context, for its file systems."""
    java = spark.sparkContext._jsc
    assert java is not None
    return java.hadoopConfiguration()


def has_context() -> bool:
    """Returns whether this process has a Spark context.

    Without the attribute, no session opens, because a JVM started by the user could not be distinguished from ours.
    """
    return SparkContext._active_spark_context is not None


def is_stopped(spark: SparkSession) -> bool:
    """Returns whether the context has ended. Callers treat an error as True."""
    context: Any = spark.sparkContext
    return bool(context._jsc.sc().isStopped())


def hush_updates(spark: SparkSession) -> None:
    """Silences PySpark's accumulator server, which prints a stack when its JVM ends; without it, the stack is shown."""
    server = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None


def stop_with_jvm(spark: SparkSession) -> None:
    """Stops the session and waits for the end of its JVM; without a gateway, the JVM ends with this process."""
    gateway = spark.sparkContext._gateway
    spark.stop()
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()


def fix_environment(rows: RDD[Any]) -> None:
    """Creates the Java side of an RDD now, with the current environment of workers.

    Without it, the workers that are started early do not serve SQL, and the first batch starts others.
    """
    rows._jrdd  # noqa: B018 - a property that makes it


def executors(spark: SparkSession) -> list[tuple[str, str, int]]:
    """Returns the identifier, the address and the cores of each live executor, and of the driver.

    On a cluster, a query does not run without it; on one machine it is not called.
    """
    java = spark.sparkContext._jsc
    assert java is not None
    listed = java.sc().statusStore().executorList(True)
    found = (listed.apply(place) for place in range(listed.size()))
    return [(each.id(), each.hostPort(), each.totalCores()) for each in found]


def list_files(spark: SparkSession, path: str) -> list[tuple[str, int, int]]:
    """Returns path, size and modification time of the files below a path, on any file system of Hadoop.

    Without it, tables whose version is that of their files are refused as unreadable.
    """
    place = jvm_of(spark).org.apache.hadoop.fs.Path(path)
    files = place.getFileSystem(hadoop_settings(spark)).listFiles(place, True)
    found = []
    while files.hasNext():
        status = files.next()
        found.append((status.getPath().toString(), status.getLen(), status.getModificationTime()))
    return found
