"""What tells that a table has changed, where a spec names it: its files, or the answer to a query.

Both are asked before every batch, in the driver. Listing files costs a call to their file system; a query costs a job.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from anabranch.run.tables import FILES
from anabranch.spark.failure import named_source


def version_of(spark: SparkSession, name: str, path: str | None, wanted: str) -> tuple[Any, ...]:
    """A value that is another when the table has changed."""
    with named_source(name, kind="table"):
        if wanted != FILES:
            return tuple(tuple(row) for row in spark.sql(wanted).collect())
        assert path is not None, "the spec was checked"
        return _files(spark, path)


def _files(spark: SparkSession, path: str) -> tuple[Any, ...]:
    """The files below a path: any file system of Spark's."""
    context: Any = spark.sparkContext
    place = context._jvm.org.apache.hadoop.fs.Path(path)
    system = place.getFileSystem(context._jsc.hadoopConfiguration())
    files = system.listFiles(place, True)
    found = []
    while files.hasNext():
        status = files.next()
        found.append((status.getPath().toString(), status.getLen(), status.getModificationTime()))
    return tuple(sorted(found))
