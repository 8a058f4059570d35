"""Spark's Python daemon with the engine already loaded, so that every worker it forks starts ready.

A worker otherwise imports numba, pyarrow and the kernels by itself: seconds for each, at the first batch of a query and
again whenever Spark starts another. Named by `spark.python.daemon.module` (see `recommended_configuration`); without
the setting everything works, only the first batch takes longer.
"""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from pyspark.daemon import manager

LINEAR_ALGEBRA = "scipy.linalg"
loaded: dict[str, Any] = sys.modules
# numba imports it only to know whether it is there: a quarter of a second for what no kernel of ours needs.
loaded.setdefault(LINEAR_ALGEBRA, None)
import anabranch.spark.sinks.worker_files  # noqa: E402
import anabranch.spark.worker  # noqa: E402, F401

if loaded[LINEAR_ALGEBRA] is None:
    del loaded[LINEAR_ALGEBRA]
    from numba.np import arraymath

    arraymath._HAVE_BLAS = find_spec("scipy") is not None

if __name__ == "__main__":
    # What every worker would import in its first task: pyarrow asks for pandas when it hands a column to numpy.
    for name in ("pyspark.worker", "pandas", "pyarrow.pandas_compat"):
        with suppress(ImportError):
            import_module(name)
    # A worker collects garbage after every task. What was loaded here is none, and looking through it takes longer than
    # a small step of the engine.
    gc.collect()
    gc.freeze()
    manager()
