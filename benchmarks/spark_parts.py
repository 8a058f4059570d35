"""What Spark does for one micro-batch: executions, jobs, stages, tasks, generated classes, and the time of each phase.

The counts are those of Spark's event log, divided by the micro-batches; the phases are Spark's own progress. The first
quarter of the micro-batches is left out of the times, because the JVM is cold.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.bench import Bench
from benchmarks.figures import Figure
from benchmarks.job import Outcome, System
from benchmarks.stored_streams import stored
from benchmarks.user_workloads import auctions

LOG = "BENCHMARK_EVENT_LOG"
"""The variable with the folder of Spark's event log."""
_EVENTS = {
    "org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart": "executions",
    "SparkListenerJobStart": "jobs",
    "SparkListenerStageSubmitted": "stages",
    "SparkListenerTaskEnd": "tasks",
}
ROADS: dict[System, str] = {"ours": "local Parquet", "ours-s3": "Parquet on S3"}
PHASES = ("latestOffset", "getBatch", "queryPlanning", "walCommit", "addBatch", "commitOffsets", "triggerExecution")


def parts(bench: Bench) -> list[Figure]:
    """Counts for auctions with three relations, read from local files, and from an S3 server."""
    workload = auctions(3, bench.sizes.user_rows, bench.sizes.user_batches)
    found = []
    with TemporaryDirectory() as folder, stored(workload):
        os.environ[LOG] = folder
        try:
            for system, road in ROADS.items():
                before = set(Path(folder).iterdir())
                outcome = bench.spark(system, workload, -1).outcome
                logs = set(Path(folder).iterdir()) - before
                found += _figures(f"a micro-batch, {road}", outcome, [event for log in logs for event in events(log)])
        finally:
            del os.environ[LOG]
    return found


def events(log: Path) -> Iterator[Mapping[str, Any]]:
    """Yields the events of a log, which may be a folder."""
    for path in sorted(log.rglob("events_*")) if log.is_dir() else [log]:
        with path.open() as lines:
            yield from map(json.loads, lines)


def _figures(label: str, outcome: Outcome, found: list[Mapping[str, Any]]) -> list[Figure]:
    batches = outcome.progress[len(outcome.progress) // 4 :]
    counts = Counter(_EVENTS[event["Event"]] for event in found if event["Event"] in _EVENTS)
    figures = [
        Figure(f"{label}: {name}", "count", (counts[name] / len(outcome.progress),)) for name in _EVENTS.values()
    ]
    figures += [
        Figure(f"{label}: {phase}", "ms", (median(each["durationMs"].get(phase, 0) for each in batches),))
        for phase in PHASES
    ]
    tasks = [event["Task Metrics"] for event in found if event["Event"] == "SparkListenerTaskEnd"]
    return figures + [
        Figure(f"{label}: a task's {name.lower()}", "ms", (median(each[name] for each in tasks[len(tasks) // 4 :]),))
        for name in ("Executor Deserialize Time", "Executor Run Time")
    ]
