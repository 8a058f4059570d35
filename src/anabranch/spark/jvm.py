"""The options of the driver's JVM, which on `local[n]` also runs the tasks.

Invariant: no option conflicts with one that the user has set: a JVM with two collectors does not start.

Limit: executors on a cluster start with the options of the cluster.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from anabranch.spark.archive import mapping_options

LAZY_COMPILER = tuple(
    f"-XX:Tier4{name}={10 * usual}"
    for name, usual in {
        "InvocationThreshold": 5_000,
        "MinInvocationThreshold": 600,
        "CompileThreshold": 15_000,
        "BackEdgeThreshold": 40_000,
    }.items()
)
"""Ten times the default thresholds of HotSpot's optimizing compiler.

Spark plans every micro-batch from scratch, with thousands of methods that each run a few hundred times per batch.
Optimizing them all takes more CPU in the first minutes than running the stream. The loops over rows run often enough to
be optimized anyway.
"""
COLLECTOR = ("-XX:+UseParallelGC", "-XX:GCTimeRatio=19")
"""The collector with the least overhead in compiled code, configured for a small heap.

State is outside the JVM, so there is little live data, and pauses are short. HotSpot's default collector makes every
reference write longer, to run and to compile: a twelfth of a run's CPU. Up to a twentieth of the time may go to
collection; by default the heap grows until it is a hundredth, to three times the size for no less CPU.
"""
CLASSES = ("-XX:MetaspaceSize=192m",)
"""Metaspace for Spark's classes: HotSpot's default is a tenth of it, at which it starts a full collection."""
SPOKEN = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
"""Environment variables from which a JVM reads options."""


def driver_options() -> tuple[str, ...]:
    """Returns the options for a driver that is started now."""
    return (*running_options(), *mapping_options())


def running_options() -> tuple[str, ...]:
    """Returns the options without those of the class archive."""
    return (*LAZY_COMPILER, *CLASSES, *(() if _collector_is_chosen() else COLLECTOR))


def _collector_is_chosen() -> bool:
    """Returns True if the environment or Spark's own settings file names a collector."""
    options = [os.environ.get(name, "") for name in SPOKEN]
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (home and os.path.join(home, "conf"))
    if folder:
        with suppress(OSError):
            options.append((Path(folder) / "spark-defaults.conf").read_text(errors="replace"))
    return any(re.search(r"-XX:\+Use\w+GC\b", text) for text in options)
