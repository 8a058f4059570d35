"""Opens Spark sessions and checks their requirements on the machine.

Users may bring any session; `recommended_configuration` lists useful settings. `open_session` creates one on any master
for the shell. `local_session` creates one for the demo and the tests: one process, loopback only, no web UI. A missing
or old Java and a missing `pyspark` each raise a HostError that names what to install; a session that fails to start
raises one with the cause.

Invariant: a setting of the caller takes precedence over a recommended one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from types import MappingProxyType

from anabranch.errors import HostError, installation
from anabranch.settings.secrets import without_secrets
from anabranch.spark.quiet import VERBOSE, hushed, is_verbose

try:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from anabranch.spark.archive import java_command
    from anabranch.spark.internals.driver import has_context
    from anabranch.spark.internals.patches import SETTING
    from anabranch.spark.jvm import driver_options
except ModuleNotFoundError as error:
    raise HostError("pyspark is not installed", hint=installation("spark")) from error

__all__ = [
    "Column",
    "DataFrame",
    "SparkSession",
    "StructType",
    "local_session",
    "open_session",
    "recommended_configuration",
    "require_java",
    "watermarks",
]

OLDEST_JAVA = 17
_WATERMARK = "spark.watermarkDelayMs"
"""The metadata key of a column that Spark's event-time operators read."""
FILE_LOGS: Mapping[str, str] = MappingProxyType(
    {
        "spark.sql.streaming.fileSource.log.compactInterval": "100",
        "spark.sql.streaming.fileSource.log.cleanupDelay": "1min",
    }
)
"""Compaction settings of a file stream's log.

The log has the names of all files ever read. It is rewritten in full at the compact interval, and compacted entries are
deleted after the cleanup delay. Only the stream itself reads them.
"""
NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


def recommended_configuration() -> dict[str, str]:
    """Returns recommended Spark settings for any master; a session without them works, but slower.

    Writing checkpoint files through `FileSystem` saves one forked process per file on a disk without Hadoop's native
    library. Without reduce locality, Spark does not move slots to where most of their rows are. The daemon forks
    workers with the engine loaded. `anabranch.spark.jvm` has the options of the driver's JVM, and `FILE_LOGS` those of
    file stream logs.
    """
    return {
        **FILE_LOGS,
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        "spark.shuffle.reduceLocality.enabled": "false",
        "spark.python.daemon.module": "anabranch.spark.daemon",
        "spark.driver.extraJavaOptions": " ".join(driver_options()),
    }


def local_session(cores: int = 2, **configuration: str) -> SparkSession:
    """Opens a local Spark session; the given settings override the recommended ones.

    >>> spark = local_session(2, **{"spark.driver.memory": "2g"})  # doctest: +SKIP
    """
    return open_session(f"local[{cores}]", configuration)


def open_session(master: str, configuration: Mapping[str, str] = NO_SETTINGS) -> SparkSession:
    """Opens a Spark session on any master, quiet unless its log is enabled; the given settings override ours.

    Raises
    ------
    HostError
        When there is no usable Java, or Spark does not start.
    """
    require_java()
    # Spark's workers start the first `python3` on PATH, which may lack the packages of this environment.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {**recommended_configuration(), "spark.app.name": "anabranch", "spark.ui.showConsoleProgress": "false"}
    if master.startswith("local"):
        # Spark's launcher reads it before any setting; without it, an unresolvable host name warns or fails to bind.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(_cores(master)),
            "spark.ui.enabled": "false",
        }
    if not is_verbose():
        settings["spark.log.level"] = "ERROR"
    if not has_context():
        # Patches only a JVM that Anabranch starts, never one that the user started.
        settings[SETTING] = "true"
    builder = SparkSession.builder.master(master)
    for key, value in {**settings, **configuration}.items():
        builder = builder.config(key, value)
    try:
        with nullcontext() if is_verbose() else hushed():
            return builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        raise HostError(
            f"Spark does not start on master '{master}'",
            detail=first_cause(error),
            hint=f"check the master and the settings; {VERBOSE}=1 shows the whole output of Spark",
        ) from error


def _cores(master: str) -> int:
    """Returns the task parallelism of `local`, `local[n]`, `local[*]` or `local-cluster[executors, cores, memory]`."""
    numbers = [int(number) for number in re.findall(r"\d+", master)]
    if master.startswith("local-cluster"):
        return numbers[0] * numbers[1]
    return (os.cpu_count() or 1) if "[*" in master else numbers[0] if numbers else 1


def first_cause(error: Exception) -> str:
    """Returns the first line of a Java error, without its stack."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    java = [line.strip() for line in lines if re.match(r"\s*(: |Caused by: )?(java|org)\.[\w.$]+", line)]
    return without_secrets((java or lines)[0].removeprefix(": "))


def refuse_connect(spark: object) -> None:
    """Refuses a Spark Connect session: it has no driver in this process, and a query runs in the driver."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise HostError(
            "the Spark session is one of Spark Connect",
            detail="queries run in the driver, and this process is only its client",
            hint="run the program on the driver: spark-submit program.py, or SparkSession.builder.master(…)",
        )


def refuse_speculation(spark: SparkSession) -> None:
    """Refuses speculative execution: two concurrent attempts of one slot would corrupt its hot state."""
    if str(spark.conf.get("spark.speculation", "false")).lower() == "true":
        raise HostError(
            "the Spark session has 'spark.speculation' on",
            detail="a slot's state on a machine belongs to one attempt at a time",
            hint="start the session with spark.speculation=false",
        )


def require_java() -> int:
    """Returns the major version of the Java that Spark would start; raises a HostError with what to install."""
    remedy = f"install a Java {OLDEST_JAVA} or newer runtime and put it on PATH, or point JAVA_HOME at it"
    java = java_command()
    if java is None:
        raise HostError("java was not found", detail="neither JAVA_HOME nor PATH leads to it", hint=remedy)
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise HostError(f"java '{java}' does not run", detail=str(error), hint=remedy) from error
    version = _major_version(done.stderr + done.stdout)
    if version is None:
        raise HostError(f"java '{java}' does not print its version", detail=done.stderr.strip(), hint=remedy)
    if version < OLDEST_JAVA:
        raise HostError(f"java '{java}' is of version {version}", detail="Spark does not run on it", hint=remedy)
    return version


def _major_version(text: str) -> int | None:
    """Returns 17 for `openjdk version "17.0.15"`, 8 for `java version "1.8.0_392"`."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found.group(1)) if found else None


def settings(spark: SparkSession) -> dict[str, str]:
    """Returns the settings of the session, by name."""
    return dict(spark.conf.getAll)


def watermarks(frame: DataFrame) -> dict[str, int]:
    """Returns the `withWatermark` delay, in microseconds, of each column that has one."""
    return {
        field.name: 1000 * int(field.metadata[_WATERMARK]) for field in frame.schema if _WATERMARK in field.metadata
    }
