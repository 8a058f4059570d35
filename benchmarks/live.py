"""A live feed: the files of a workload arrive at their pace while a query runs, and results are dated.

The files are written before the run. The feeder links each into its stream's folder when its time has come, which is
one atomic act and costs next to nothing. A feeder that is held up does not slow its pace down: a file's arrival is when
it was linked. A result is visible when its file got its name, or, by Spark's file sink, when the log of the sink names
the file; either is the time of a rename, which the file system keeps as the time of the last change.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from benchmarks.job import Job, Live, Run, Scratch, System, check, execute
from benchmarks.workloads import SECOND, Workload, first_rows, written

TICK = SECOND // 4
"""Event time in a file, and the time between two files of a stream."""
SINK_LOG = "_spark_metadata"

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LiveRun:
    """A finished and checked run with the latency of each result, by the file that completed it."""

    run: Run
    latencies: Seconds
    completed_by: npt.NDArray[np.int64]

    def after(self, seconds: float) -> Seconds:
        """Latencies of the results that were complete so long after the feed began, or later."""
        return self.latencies[self.completed_by * TICK >= seconds * SECOND]


@dataclass(eq=False)
class Feeder(threading.Thread):
    """Links the files of a workload into the folders of a job, one of each stream every tick."""

    files: Path
    job: Job
    live: Live
    arrivals: list[float] = field(default_factory=list)
    """When the files of each tick were about to be there, by the Unix clock."""
    stopped: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    def run(self) -> None:
        while not self.live.started.exists():
            if self.stopped.wait(0.02):
                return
        begun = time.monotonic()
        names = sorted(path.name for path in (self.files / self.job.workload.streams[0].name).iterdir())
        for number, name in enumerate(names):
            if self.stopped.wait(max(0.0, begun + number * TICK / SECOND - time.monotonic())):
                return
            self.arrivals.append(time.time())
            for stream in self.job.workload.streams:
                os.link(self.files / stream.name / name, self.job.source / stream.name / name)
        self.live.fed.touch()


def run_live(system: System, workload: Workload) -> LiveRun:
    """Feeds a workload of one tick a file to a system, checks its answer and dates its results."""
    with Scratch() as scratch:
        live = Live(scratch.disk / "started", scratch.disk / "fed")
        job = replace(scratch.job(system, workload, scratch.disk / "in"), live=live)
        for stream in workload.streams:
            (job.source / stream.name).mkdir(parents=True)
        feeder = Feeder(written(workload), job, live)
        feeder.start()
        try:
            finished = execute(job, scratch.disk)
        finally:
            feeder.stopped.set()
            feeder.join()
        check(job)
        return LiveRun(finished, *dated(job, feeder.arrivals))


def dated(job: Job, arrivals: list[float]) -> tuple[Seconds, npt.NDArray[np.int64]]:
    """The latency of every result, and the number of the last file that it needed."""
    clock = np.array(arrivals)
    firsts = [first_rows(job.workload, i) for i in range(len(job.workload.streams))]
    latencies, ticks = [np.zeros(0)], [np.zeros(0, dtype=np.int64)]
    for path, seen in visible(job):
        rows = _rows(path, job.workload)
        needed = np.max(
            [np.searchsorted(first, rows[f"p{i}"].to_numpy(), side="right") - 1 for i, first in enumerate(firsts)],
            axis=0,
        )
        latencies.append(seen - clock[needed])
        ticks.append(needed)
    return np.concatenate(latencies), np.concatenate(ticks)


def visible(job: Job) -> Iterator[tuple[Path, float]]:
    """The result files of a job, each with the time at which it could be read."""
    log = job.output / SINK_LOG
    if log.is_dir():
        yield from _logged(log)
        return
    pattern = "*.parquet" if job.workload.results == "parquet" else "part-*"
    for path in job.output.rglob(pattern):
        if not any(part.startswith((".", "_")) for part in path.relative_to(job.output).parts):
            yield path, path.stat().st_ctime


def _logged(log: Path) -> Iterator[tuple[Path, float]]:
    """Files in the log of Spark's file sink; an entry that has been compacted counts where it came first."""
    entries = [path for path in log.iterdir() if path.name.split(".")[0].isdigit()]
    known: set[str] = set()
    for entry in sorted(entries, key=lambda path: int(path.name.split(".")[0])):
        for line in entry.read_text().splitlines()[1:]:
            name = json.loads(line)["path"]
            if name not in known:
                known.add(name)
                yield Path(name.removeprefix("file://")), entry.stat().st_ctime


def _rows(path: Path, workload: Workload) -> pa.Table:
    if workload.results == "parquet":
        return pq.read_table(path, columns=[f"p{i}" for i in range(len(workload.streams))])
    names = [f"{column}{i}" for i, column in workload.outputs]
    return csv.read_csv(path, csv.ReadOptions(column_names=names))


def percentile(latencies: Seconds, which: int) -> float:
    """The latency that so many percent of the results keep; a run without results has none to tell."""
    if not len(latencies):
        raise ValueError("no result came after the warm-up")
    return float(np.percentile(latencies, which))
