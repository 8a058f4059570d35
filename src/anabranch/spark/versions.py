"""Change detection for tables of a spec: by their files, or by the result of a query.

Both are evaluated before every batch, in the driver. Listing files costs a file system call; a query costs a Spark job.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from anabranch.run.tables import FILES
from anabranch.spark.failure import named_source
from anabranch.spark.internals.driver import list_files


def version_of(spark: SparkSession, name: str, path: str | None, wanted: str) -> tuple[Any, ...]:
    """Returns a value that changes when the table changes."""
    with named_source(name, kind="table"):
        if wanted != FILES:
            return tuple(tuple(row) for row in spark.sql(wanted).collect())
        assert path is not None, "the spec was checked"
        return tuple(sorted(list_files(spark, path)))
