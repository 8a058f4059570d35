"""The query of a soak, in a process of its own: live sources, a join that drifts and is skewed, and what it costs.

    python -m benchmarks.soak_query <folder> [real-time]

Three sources bring rows at a fixed pace: Spark's rate sources or, in real-time mode, folders that `soak` fills. Which
join is selective changes every few minutes, and one key has many rows, so plans change and partition groups move. Every
second the process adds a line to `samples.jsonl`: memory, files, triggers since the last line. It ends at SIGTERM, or
by `kill -9`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

import psutil

from anabranch import Session
from anabranch.spark.session import local_session

ROWS_PER_SECOND = 200
"""Divides 1000, so that Spark's rate source gives each row the same time in any batch."""
WINDOW = 10
PHASE_ROWS = 90 * ROWS_PER_SECOND
"""Rows after which the other join becomes the selective one."""
KEYS = [f"CASE WHEN (value DIV {PHASE_ROWS}) % 2 = {phase} THEN 400 ELSE 20000 END" for phase in (0, 1)]
"""How many keys each of the two joins has."""
COLUMNS = (
    "timestamp AS ts",
    "value AS v",
    # A tenth of the rows has one key. The number of the other keys changes with the phase.
    f"CASE WHEN value % 10 = 0 THEN -1 ELSE pmod(value * 7919, {KEYS[0]}) END AS k",
    f"pmod(value * 104729, {KEYS[1]}) AS m",
)
QUERY = f"""
    SELECT a.v AS av, b.v AS bv, c.v AS cv
    FROM a [RANGE {WINDOW} SECONDS], b [RANGE {WINDOW} SECONDS], c [RANGE {WINDOW} SECONDS]
    WHERE a.k = b.k AND b.m = c.m AND a.v % 97 = 0
"""


REAL_TIME = "real-time"


def main(folder: Path, mode: str = "") -> None:
    over = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        over.set()

    signal.signal(signal.SIGTERM, stop)
    is_real_time = mode == REAL_TIME
    spark = local_session(
        # Resident slots occupy their cores.
        3 if is_real_time else 2,
        **{
            "spark.app.name": "anabranch-soak",
            "spark.driver.memory": "1g",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.ui.enabled": "false",
        },
    )
    session = Session(spark)
    for name in "abc":
        if is_real_time:
            files = spark.readStream.schema("ts timestamp, v bigint, k bigint, m bigint")
            rows = files.parquet(str(folder / "in" / name))
        else:
            rate = spark.readStream.format("rate").option("rowsPerSecond", ROWS_PER_SECOND).option("numPartitions", 1)
            rows = rate.load().selectExpr(*COLUMNS)
        session.register(name, rows, event_time="ts", watermark="0 seconds")
    writer = (
        session.sql(QUERY)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .slots(2)
        .adapt(every="20 seconds")
        .balance("auto")
        .queryName("soak")
    )
    writer = writer.trigger(realTime=True) if is_real_time else writer.trigger(processingTime="1 second")
    handle = writer.start(str(folder / "out"))
    with (folder / "samples.jsonl").open("a") as lines:
        seen = -1
        while not over.wait(1.0):
            if (failure := handle.exception()) is not None:
                raise failure
            last = handle.lastProgress
            is_new = last is not None and last.get("adaptive") is not None and last["batchId"] > seen
            sample = {
                "at": monotonic(),
                "run": os.getpid(),
                **_memory(spark),
                **_files(folder),
                "triggers": [_trigger(last)] if is_new else [],
                "changes": len(handle.history),
            }
            seen = last["batchId"] if is_new and last is not None else seen
            lines.write(json.dumps(sample) + "\n")
            lines.flush()
    handle.stop()
    spark.stop()


def _trigger(progress: Any) -> dict[str, float]:
    return {
        "batch": progress["batchId"],
        "ms": progress["durationMs"].get("triggerExecution", 0),
        "rows": sum(progress["adaptive"]["rowsIn"].values()),
        "late": sum(progress["adaptive"]["lateRows"].values()),
        "state": progress["adaptive"]["stateBytes"],
    }


def _memory(spark: Any) -> dict[str, int]:
    """Resident bytes of the driver, of the JVM and of the workers, and the heap in use."""
    driver = psutil.Process()
    found = {"driver": driver.memory_info().rss, "jvm": 0, "workers": 0}
    for child in driver.children(recursive=True):
        try:
            kind = "jvm" if child.name().startswith("java") else "workers"
            found[kind] += child.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    runtime = spark._jvm.java.lang.Runtime.getRuntime()
    return {**found, "heap": runtime.totalMemory() - runtime.freeMemory()}


def _files(folder: Path) -> dict[str, int]:
    """Files of the checkpoint, ours and Spark's, and of the hot state."""
    hot = Path(os.environ["ANABRANCH_HOT_FOLDER"])
    return {
        "our_files": _count(folder / "checkpoint" / "anabranch"),
        "spark_files": _count(folder / "checkpoint" / "spark"),
        "hot_files": _count(hot),
        "hot_bytes": sum(map(_size, _walk(hot))),
    }


def _count(folder: Path) -> int:
    return len(_walk(folder))


def _size(path: Path) -> int:
    """Bytes of a file; none of one that has gone since it was listed."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _walk(folder: Path) -> list[Path]:
    found = []
    for root, _, names in os.walk(folder):
        found += [Path(root) / name for name in names]
    return [path for path in found if path.exists()]


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
