"""Spark's Python daemon with the engine already loaded, so that every worker it forks starts ready.

A worker otherwise imports numba, pyarrow and the kernels by itself: seconds for each, at the first batch of a query and
again whenever Spark starts another. Named by `spark.python.daemon.module` (see `recommended_configuration`); without
the setting everything works, only the first batch takes longer.
"""

from __future__ import annotations

from pyspark.daemon import manager

import anabranch.host.spark.parquet_sink
import anabranch.host.spark.worker  # noqa: F401

if __name__ == "__main__":
    manager()
