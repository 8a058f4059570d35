"""Spark's Python daemon with the engine preloaded, so that forked workers start ready.

Otherwise each worker imports numba, pyarrow and the kernels itself, which takes seconds at the first batch of a query
and whenever Spark starts another worker. `spark.python.daemon.module` selects it (see `recommended_configuration`). The
setting is optional: without it, only the first batch takes longer.
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
# numba imports it only to check for its presence: a quarter of a second that no kernel needs.
loaded.setdefault(LINEAR_ALGEBRA, None)
import anabranch.spark.sinks.worker_files  # noqa: E402
import anabranch.spark.worker  # noqa: E402, F401

if loaded[LINEAR_ALGEBRA] is None:
    del loaded[LINEAR_ALGEBRA]
    from numba.np import arraymath

    arraymath._HAVE_BLAS = find_spec("scipy") is not None

if __name__ == "__main__":
    # Modules that every worker would import in its first task: pyarrow imports pandas to convert a column to numpy.
    for name in ("pyspark.worker", "pandas", "pyarrow.pandas_compat"):
        with suppress(ImportError):
            import_module(name)
    # A worker collects garbage after every task. Modules loaded here are never garbage, and scanning them takes longer
    # than a small step of the engine.
    gc.collect()
    gc.freeze()
    manager()
