"""The Spark session that Anabranch runs in, and what it needs on the machine.

A user may bring any session; `recommended_configuration` says what is worth setting in it. `local_session` makes one
for the demo, the shell and the tests: one process, loopback only, no web interface. Missing Java, an old Java and a
missing `pyspark` are each a HostError that says what to install.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

from anabranch.errors import HostError

try:
    from pyspark.sql import DataFrame, SparkSession
except ModuleNotFoundError as error:
    raise HostError(
        "pyspark is not installed", hint="install the package with its extra: pip install 'anabranch[spark]'"
    ) from error

__all__ = ["DataFrame", "SparkSession", "local_session", "recommended_configuration", "require_java"]

OLDEST_JAVA = 17
LAZY_COMPILER = " ".join(
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


def recommended_configuration() -> dict[str, str]:
    """Spark settings that serve Anabranch on any master; a session without them works, only slower.

    Checkpoint files through `FileSystem` spare one forked process per file on a disk without Hadoop's native library.
    Without reduce locality Spark does not drag slots to where most of their rows happen to be. Larger Arrow batches
    cost less per row. The daemon forks workers that have the engine loaded. The driver's compiler is in less of a hurry
    (`LAZY_COMPILER`); on `local[n]` the driver runs the tasks too.
    """
    return {
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "131072",
        "spark.shuffle.reduceLocality.enabled": "false",
        "spark.python.daemon.module": "anabranch.host.spark.daemon",
        "spark.driver.extraJavaOptions": LAZY_COMPILER,
    }


def local_session(cores: int = 2, **configuration: str) -> SparkSession:
    """A Spark session inside this process tree; the given settings win over the recommended ones.

    >>> spark = local_session(2, **{"spark.driver.memory": "2g"})  # doctest: +SKIP
    """
    require_java()
    # Read by Spark's launcher before any setting; without it a machine with an odd host name warns or cannot bind.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Spark's workers start whatever `python3` PATH finds, which has not the packages of this one's environment.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        **recommended_configuration(),
        "spark.app.name": "anabranch",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **configuration,
    }
    builder = SparkSession.builder.master(f"local[{cores}]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def refuse_speculation(spark: SparkSession) -> None:
    """Two attempts of one slot at once would share, and spoil, its hot state."""
    if spark.conf.get("spark.speculation", "false") == "true":
        raise HostError(
            "the Spark session has 'spark.speculation' on",
            detail="a slot's state on a machine belongs to one attempt at a time",
            hint="start the session with spark.speculation=false",
        )


def require_java() -> int:
    """The major version of the Java that Spark would start, or a HostError with what to install."""
    remedy = f"install a Java {OLDEST_JAVA} or newer runtime and put it on PATH, or point JAVA_HOME at it"
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None:
        raise HostError("java was not found", detail="neither JAVA_HOME nor PATH leads to it", hint=remedy)
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise HostError(f"java '{java}' does not run", detail=str(error), hint=remedy) from error
    version = _major_version(done.stderr + done.stdout)
    if version is None:
        raise HostError(f"java '{java}' does not tell its version", detail=done.stderr.strip(), hint=remedy)
    if version < OLDEST_JAVA:
        raise HostError(f"java '{java}' is of version {version}", detail="Spark does not run on it", hint=remedy)
    return version


def _major_version(text: str) -> int | None:
    """17 of `openjdk version "17.0.15"`, 8 of `java version "1.8.0_392"`."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found.group(1)) if found else None
