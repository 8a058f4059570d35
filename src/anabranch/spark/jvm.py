"""The options of the driver's JVM, which on `local[n]` runs the tasks too.

Law: an option never contradicts one that the user has set: with two collectors chosen, a JVM does not start.
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
"""HotSpot's usual thresholds for its optimizing compiler, ten times over.

Spark plans every micro-batch anew, through thousands of methods that each run some hundred times a batch. Optimizing
them all takes more CPU in the first minutes than running the stream; the loops over rows run often enough to be
optimized anyway.
"""
COLLECTOR = ("-XX:+UseParallelGC", "-XX:GCTimeRatio=19")
"""The collector that asks least of the code it serves, and keeps the heap small.

State lives outside the JVM, so there is little to keep, and pauses are short. With HotSpot's usual collector every
write of a reference is longer, to run and to compile: a twelfth of a run's CPU. A twentieth of the time may go to
collecting; by default the heap grows until it is a hundredth, to three times the size for no less CPU.
"""
CLASSES = ("-XX:MetaspaceSize=192m",)
"""Room for the classes that Spark loads: at HotSpot's usual first mark a tenth of it calls for a full collection."""
SPOKEN = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
"""Environment variables from which a JVM reads options."""


def driver_options() -> tuple[str, ...]:
    """The options of a driver that starts now."""
    return (*running_options(), *mapping_options())


def running_options() -> tuple[str, ...]:
    """The options but for the archive of classes."""
    return (*LAZY_COMPILER, *CLASSES, *(() if _collector_is_chosen() else COLLECTOR))


def _collector_is_chosen() -> bool:
    """True when the environment or Spark's own settings file names a collector."""
    options = [os.environ.get(name, "") for name in SPOKEN]
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (home and os.path.join(home, "conf"))
    if folder:
        with suppress(OSError):
            options.append((Path(folder) / "spark-defaults.conf").read_text(errors="replace"))
    return any(re.search(r"-XX:\+Use\w+GC\b", text) for text in options)
