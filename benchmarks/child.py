"""The process of one measured run: `python -m benchmarks.child job.pickle outcome.json`.

All systems get the same session, so that none is slowed by a default the other was spared: two cores, two shuffle
partitions, no micro-batches without data, the checkpoint file manager that does not fork a `chmod` per file, logs of
read files that are seldom written anew, and Spark's classes mapped from an archive where there is one. On top of it
each system has the few settings it asks for.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import sys
import time
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import SparkSession

from anabranch.spark.archive import mapping_options
from anabranch.spark.session import FILE_LOGS
from benchmarks.job import Job, System

CORES = 2
DRIVER_MEMORY = "4g"
CHECKPOINT_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
SETTINGS = {
    "spark.driver.memory": DRIVER_MEMORY,
    "spark.driver.extraJavaOptions": " ".join(mapping_options()),
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_MANAGER,
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
    **FILE_LOGS,
}
MODULES: dict[System, str] = {
    "ours": "ours",
    "ours-delta": "ours",
    "ours-kafka": "ours",
    "ours-real-time": "ours",
    "ours-s3": "ours",
    "native": "spark_native",
    "native-kafka": "spark_native",
    "native-json": "spark_native",
    "native-rocksdb": "spark_native",
    "native-our-jvm": "spark_native",
    "count": "plain_count",
    "pass": "plain_pass",
}
"""Which module starts a system; only that one is loaded, so that nobody's libraries weigh on another's memory."""


class Handle(Protocol):
    """What the two systems' running queries have in common."""

    @property
    def recentProgress(self) -> Any: ...

    @property
    def isActive(self) -> bool: ...

    def awaitTermination(self) -> Any: ...

    def processAllAvailable(self) -> None: ...

    def stop(self) -> None: ...


def main(asked: Path, answered: Path) -> None:
    job: Job = pickle.loads(asked.read_bytes())
    begun = time.time()
    # Spark looks for `python3` on the path otherwise, which need not be the one with our packages.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    job.hot.mkdir(parents=True, exist_ok=True)
    os.environ["ANABRANCH_HOT_FOLDER"] = str(job.hot)
    # Resident slots occupy a core each, and Spark wants another one.
    cores = job.slots + 1 if job.system == "ours-real-time" else CORES
    builder = SparkSession.builder.master(f"local[{cores}]").appName(job.system)
    module = importlib.import_module(f"benchmarks.{MODULES[job.system]}")
    for name, value in (SETTINGS | module.settings(job) | _logged()).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    started = time.time()
    query: Handle = module.start(spark, job)
    _follow(query, job)
    ended = time.time()
    progress = [dict(one) for one in query.recentProgress]
    outcome = {
        "session_seconds": started - begun,
        "started": started,
        "ended": ended,
        "progress": [one for one in progress if one["numInputRows"]],
    }
    answered.write_text(json.dumps(outcome, default=str))
    spark.stop()


def _logged() -> dict[str, str]:
    """The settings of Spark's event log, if the run is one of `benchmarks.spark_parts`."""
    folder = os.environ.get("BENCHMARK_EVENT_LOG")
    log = {"spark.eventLog.dir": f"file://{folder}", "spark.eventLog.compress": "false"}
    return {"spark.eventLog.enabled": "true", **log} if folder else {}


def _follow(query: Handle, job: Job) -> None:
    """Waits until the query has read everything; a live one runs until its feeder is done, and is then stopped.

    One in real-time mode has no end of its own.
    """
    live = job.live
    if live is None and job.system == "ours-real-time":
        query.processAllAvailable()
        query.stop()
    elif live is not None:
        live.started.touch()
        while query.isActive and not live.fed.exists():
            time.sleep(0.1)
        if query.isActive:
            query.processAllAvailable()
            query.stop()
    query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
