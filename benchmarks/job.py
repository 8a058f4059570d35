"""One measured Spark run as data: what to run, and what it reported. Nothing here knows Spark.

A job runs one workload through one system in a process of its own (`benchmarks.child`), so that CPU and memory can be
told apart; `run` starts it under the supervisor and checks the answer.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from benchmarks.answer import expected, found_in
from benchmarks.flink import flink_command
from benchmarks.measure import Cost, measure
from benchmarks.workloads import DATA, Workload, written

ROOT = Path(__file__).parent.parent
System = Literal[
    "ours",
    "ours-delta",
    "ours-kafka",
    "ours-real-time",
    "ours-s3",
    "native",
    "native-rocksdb",
    "native-our-jvm",
    "native-kafka",
    "native-json",
    "count",
    "pass",
    "flink",
]
TIMEOUT = 900.0
SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True)
class Live:
    """How a live run and its feeder hear of each other: a file says that the query runs, another that all is fed."""

    started: Path
    fed: Path


@dataclass(frozen=True)
class Job:
    """A workload, the system to run it through, and where it reads and writes."""

    system: System
    workload: Workload
    source: Path
    output: Path
    checkpoint: Path
    hot: Path
    slots: int = 2
    live: Live | None = None
    """Set when files come while the query runs; without it they are all there, and the query ends by itself."""

    @property
    def trigger(self) -> dict[str, Any]:
        """As a stream writer takes it: through what is there, or as fast as triggers go."""
        if self.system == "ours-real-time":
            return {"realTime": True}
        return {"availableNow": True} if self.live is None else {"processingTime": "0 seconds"}


@dataclass(frozen=True)
class Outcome:
    """What the child saw: when the query was started, by the Unix clock, and Spark's progress of each micro-batch."""

    session_seconds: float
    started: float
    ended: float
    progress: tuple[Mapping[str, Any], ...]

    @property
    def batch_seconds(self) -> tuple[float, ...]:
        return tuple(one["durationMs"]["triggerExecution"] / 1000 for one in self.progress)

    @property
    def batch_ends(self) -> tuple[float, ...]:
        """When each micro-batch was done, by the Unix clock."""
        return tuple(_instant(one) + seconds for one, seconds in zip(self.progress, self.batch_seconds, strict=True))

    @property
    def first_batch(self) -> float:
        """When the first micro-batch began; a system without micro-batches begins when it is started."""
        return _instant(self.progress[0]) if self.progress else self.started

    @property
    def first_result(self) -> float:
        """When the first micro-batch was done."""
        return self.first_batch + self.batch_seconds[0]

    @property
    def last_result(self) -> float:
        return _instant(self.progress[-1]) + self.batch_seconds[-1] if self.progress else self.ended

    @property
    def stream_seconds(self) -> float:
        """From the beginning of the first micro-batch to the end of the last: what the workload took, Spark's start
        excluded."""
        return self.last_result - self.first_batch


@dataclass(frozen=True)
class Run:
    """A finished and checked run."""

    job: Job
    outcome: Outcome
    cost: Cost

    @property
    def rows_per_second(self) -> float:
        return self.job.workload.rows / self.outcome.stream_seconds

    @property
    def stream_cpu(self) -> float:
        """CPU seconds of all processes while the workload ran, with what was done for it before its first batch."""
        return self.cost.cpu_between(self.outcome.started, self.outcome.last_result)

    @property
    def summary(self) -> dict[str, float | str]:
        megabytes = 1 << 20
        return {
            "system": self.job.system,
            "slots": self.job.slots,
            "rows": self.job.workload.rows,
            "batches": len(self.outcome.progress),
            "stream_seconds": round(self.outcome.stream_seconds, 3),
            "rows_per_second": round(self.rows_per_second),
            "process_seconds": round(self.cost.wall, 3),
            "session_seconds": round(self.outcome.session_seconds, 3),
            "cpu_seconds": round(self.cost.cpu, 2),
            "stream_cpu_seconds": round(self.stream_cpu, 2),
            "peak_megabytes": round(self.cost.peak.total / megabytes),
            "peak_private_megabytes": round(self.cost.peak.private / megabytes),
            "peak_mapped_shared_megabytes": round(self.cost.peak.mapped_shared / megabytes),
            "peak_hot_megabytes": round(self.cost.peak.in_folder / megabytes),
        }


class WrongAnswer(Exception):
    """A system's results differ from the batch answer, so its time means nothing."""


class FailedRun(Exception):
    """A measured process did not end well; carries the end of its log."""


def run(system: System, workload: Workload, *, slots: int = 2) -> Run:
    """Runs a workload through a system in a fresh process and checks its answer."""
    with Scratch() as scratch:
        job = scratch.job(system, workload, written(workload), slots)
        finished = execute(job, scratch.disk)
        if system not in ("count", "pass"):
            check(job)
        return finished


def execute(job: Job, scratch: Path) -> Run:
    """Runs a job under the supervisor, leaving its output and checkpoint in place."""
    asked, answered, log = scratch / "job.pickle", scratch / "outcome.json", scratch / "log.txt"
    asked.write_bytes(pickle.dumps(job))
    answered.unlink(missing_ok=True)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    command = [sys.executable, "-m", "benchmarks.child", str(asked), str(answered)]
    if job.system == "flink":
        command = flink_command(job, answered)
    cost = measure(command, timeout=TIMEOUT, log=log, shared=job.hot)
    if cost.exit_code != 0 or not answered.exists():
        raise FailedRun(f"'{job.system}' ended with code {cost.exit_code}\n{log.read_text()[-4000:]}")
    found = json.loads(answered.read_text())
    return Run(job, Outcome(**{**found, "progress": tuple(found["progress"])}), cost)


def check(job: Job) -> None:
    wanted, got = expected(job.workload), found_in(job.workload, job.output)
    if got != wanted:
        raise WrongAnswer(f"'{job.system}' on '{job.workload.name}' gave {got}, not {wanted}")


class Scratch:
    """Two directories for one run, on disk and on tmpfs where there is one; both gone afterwards."""

    def __enter__(self) -> Scratch:
        DATA.mkdir(exist_ok=True)
        shared = SHARED_MEMORY if os.path.isdir(SHARED_MEMORY) else None
        self.disk = Path(tempfile.mkdtemp(prefix="scratch-", dir=DATA))
        self.tmpfs = Path(tempfile.mkdtemp(prefix="anabranch-benchmark-", dir=shared))
        return self

    def job(self, system: System, workload: Workload, source: Path, slots: int = 2) -> Job:
        """A job that leaves everything it writes in these directories, checkpoint and hot state on tmpfs."""
        return Job(system, workload, source, self.disk / "out", self.tmpfs / "checkpoint", self.tmpfs / "hot", slots)

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.disk, ignore_errors=True)
        shutil.rmtree(self.tmpfs, ignore_errors=True)


def _instant(progress: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(progress["timestamp"]).timestamp()
