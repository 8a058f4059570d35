"""`anabranch prepare`: prepares this machine once, so that later starts are faster.

Compiles the kernels into numba's cache, and writes the classes that Spark loads in a small join and a small aggregation
to an archive that later JVMs map (`spark.archive`). Both are optional: without them, code is compiled and loaded on
demand.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from anabranch.api import Session
from anabranch.errors import HostError
from anabranch.optimize.warm_up import compile_searches
from anabranch.spark.archive import OFF, archive_file, writing_options
from anabranch.spark.internals.driver import stop_with_jvm
from anabranch.spark.jvm import running_options
from anabranch.spark.session import local_session

KERNELS = (
    "anabranch.engine.kernels",
    "anabranch.engine.fabric.kernels",
    "anabranch.mesh.kernels",
    "anabranch.run.json_kernels",
)
JOIN = "SELECT a.p AS p0, b.p AS p1, c.p AS p2 FROM {0} AS a, {1} AS b, {2} AS c WHERE a.k = b.k AND b.k = c.k"
GROUPS = "SELECT a.k AS k, COUNT(*) AS n FROM s0 [RANGE 10 SECONDS SLIDE 5 SECONDS] AS a GROUP BY a.k"
SCHEMA = "ts timestamp, k bigint, p bigint"


def compile_kernels() -> None:
    """Compiles the kernels that numba has not compiled for this machine yet."""
    for name in KERNELS:
        import_module(name)
    compile_searches()


def make_archive() -> Path:
    """Runs two small queries in a separate process, whose JVM writes its classes to the archive.

    Raises
    ------
    HostError
        When the process fails, or its JVM left no archive.
    """
    file = archive_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}.partial")
        command = [sys.executable, "-m", "anabranch.cli.prepare", str(partial)]
        done = subprocess.run(command, env={**os.environ, OFF: "1"}, capture_output=True, text=True, timeout=600)
        if done.returncode or not partial.is_file():
            raise HostError("Spark's classes were not archived", detail=(done.stderr or done.stdout).strip()[-1000:])
        partial.replace(file)
    except (OSError, subprocess.SubprocessError) as error:
        raise HostError(f"the archive of Spark's classes cannot be saved to '{file}'", detail=str(error)) from error
    return file


def record(file: Path) -> None:
    """Runs the two queries; when this returns, the JVM has ended and written the archive."""
    options = " ".join((*running_options(), *writing_options(file)))
    spark = local_session(2, **{"spark.driver.extraJavaOptions": options, "spark.driver.memory": "1g"})
    session = Session(spark)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("s0", "s1", "s2"):
            _write(Path(folder) / name)
            rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(f"{folder}/{name}")
            session.register(name, rows, event_time="ts", watermark="0 seconds")
        windows = [f"s{i} [RANGE 10 SECONDS]" for i in range(3)]
        for number, text in enumerate((JOIN.format(*windows), GROUPS)):
            writer = session.sql(text).writeStream.format("parquet").option("path", f"{folder}/out{number}")
            writer.option("checkpointLocation", f"{folder}/checkpoint{number}").trigger(
                availableNow=True
            ).start().awaitTermination()
    stop_with_jvm(spark)


def _write(folder: Path) -> None:
    """Writes three small files of rows, for three micro-batches."""
    folder.mkdir()
    for number in range(3):
        times = pa.array(np.arange(1000) * 5_000 + number * 5_000_000, pa.timestamp("us", "UTC"))
        keys = pa.array(np.arange(1000) % 100)
        pq.write_table(pa.table({"ts": times, "k": keys, "p": keys}), folder / f"{number}.parquet")


if __name__ == "__main__":
    record(Path(sys.argv[1]))
