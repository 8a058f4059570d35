"""The Spark session that Anabranch runs in, and what it needs on the machine.

A user may bring any session; `recommended_configuration` says what is worth setting in it. `open_session` makes one
on any master for the shell, `local_session` one for the demo and the tests: one process, loopback only, no web
interface. Missing Java, an old Java and a missing `pyspark` each raise a HostError that names what to install; a
session that does not start raises one with the cause.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from types import MappingProxyType

from anabranch.errors import HostError
from anabranch.settings.secrets import without_secrets
from anabranch.spark.quiet import VERBOSE, hushed, is_verbose

try:
    from py4j.protocol import Py4JError
    from pyspark import SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from anabranch.spark.archive import java_command
    from anabranch.spark.jvm import driver_options
    from anabranch.spark.patches import SETTING
except ModuleNotFoundError as error:
    raise HostError(
        "pyspark is not installed", hint="install the package with its extra: pip install 'anabranch[spark]'"
    ) from error

__all__ = [
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
"""In the metadata of a column, as Spark's own event-time operators read it."""
FILE_LOGS: Mapping[str, str] = MappingProxyType(
    {
        "spark.sql.streaming.fileSource.log.compactInterval": "100",
        "spark.sql.streaming.fileSource.log.cleanupDelay": "1min",
    }
)
"""A file stream logs the names of all files that it has ever read, and writes the whole log anew every so many batches;
parts that are in it are deleted so much later. Nobody but the stream reads them."""
NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


def recommended_configuration() -> dict[str, str]:
    """Spark settings that serve Anabranch on any master; a session without them works, only slower.

    Checkpoint files through `FileSystem` spare one forked process per file on a disk without Hadoop's native library.
    Without reduce locality Spark does not drag slots to where most of their rows happen to be. The daemon forks workers
    that have the engine loaded. The options of the driver's JVM are in `anabranch.spark.jvm`, what a file stream
    writes down of its files in `FILE_LOGS`.
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
    """A Spark session inside this process tree; the given settings win over the recommended ones.

    >>> spark = local_session(2, **{"spark.driver.memory": "2g"})  # doctest: +SKIP
    """
    return open_session(f"local[{cores}]", configuration)


def open_session(master: str, configuration: Mapping[str, str] = NO_SETTINGS) -> SparkSession:
    """A Spark session on any master, quiet unless the user wants its log; the given settings win over ours.

    Raises
    ------
    HostError
        When there is no usable Java, or Spark does not start.
    """
    require_java()
    # Spark's workers start whatever `python3` PATH finds, which has not the packages of this one's environment.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {**recommended_configuration(), "spark.app.name": "anabranch", "spark.ui.showConsoleProgress": "false"}
    if master.startswith("local"):
        # Read by Spark's launcher before any setting; without it a machine with an odd host name warns or cannot bind.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(_cores(master)),
            "spark.ui.enabled": "false",
        }
    if not is_verbose():
        settings["spark.log.level"] = "ERROR"
    if SparkContext._active_spark_context is None:
        # The JVM is ours to patch; one that the user started is not.
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
    """How many tasks run at once on `local`, `local[n]`, `local[*]` or `local-cluster[executors, cores, memory]`."""
    numbers = [int(number) for number in re.findall(r"\d+", master)]
    if master.startswith("local-cluster"):
        return numbers[0] * numbers[1]
    return (os.cpu_count() or 1) if "[*" in master else numbers[0] if numbers else 1


def first_cause(error: Exception) -> str:
    """The first line of a Java error, without its stack."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    java = [line.strip() for line in lines if re.match(r"\s*(: |Caused by: )?(java|org)\.[\w.$]+", line)]
    return without_secrets((java or lines)[0].removeprefix(": "))


def refuse_connect(spark: object) -> None:
    """A session of Spark Connect has no driver in this process, and the rounds of a query run in the driver."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise HostError(
            "the Spark session is one of Spark Connect",
            detail="queries run in the driver, and this process is only its client",
            hint="run the program on the driver: spark-submit program.py, or SparkSession.builder.master(…)",
        )


def refuse_speculation(spark: SparkSession) -> None:
    """Two attempts of one slot at once would share, and spoil, its hot state."""
    if str(spark.conf.get("spark.speculation", "false")).lower() == "true":
        raise HostError(
            "the Spark session has 'spark.speculation' on",
            detail="a slot's state on a machine belongs to one attempt at a time",
            hint="start the session with spark.speculation=false",
        )


def require_java() -> int:
    """The major version of the Java that Spark would start, or a HostError with what to install."""
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
    """17 of `openjdk version "17.0.15"`, 8 of `java version "1.8.0_392"`."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found.group(1)) if found else None


def watermarks(frame: DataFrame) -> dict[str, int]:
    """The delay of `withWatermark`, in microseconds, of each column of the frame that has one."""
    return {
        field.name: 1000 * int(field.metadata[_WATERMARK]) for field in frame.schema if _WATERMARK in field.metadata
    }
