"""Optional patches of the driver's JVM that make micro-batches over local files shorter.

They change Hadoop's classes by reflection (`local_files`) and the listings of Spark's file sources (`new_files`).
Invariant: files, settings and results are the same with and without them; if a class is not as expected, nothing is
patched. The setting `spark.anabranch.jvmPatches` turns them on: it is `true` in a session whose JVM Anabranch started,
and `false` in any other session unless the user sets it.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

SETTING = "spark.anabranch.jvmPatches"


def are_on(spark: SparkSession) -> bool:
    """Returns whether the session allows patches of its JVM."""
    return str(spark.conf.get(SETTING, "false")).lower() == "true"
