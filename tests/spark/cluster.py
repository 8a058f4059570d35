"""Real clusters on the loopback address, for tests in which executors join, leave and die.

Spark's own standalone cluster: a master, and workers with one core each, which are processes of their own. Programs
that run on a cluster are started by their tests as a child process, because a process has one Spark context.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from anabranch.cost.steps import price_of_step
from anabranch.cost.units import ENGINE
from anabranch.run.store import Store
from anabranch.spark import worker
from anabranch.spark.session import open_session
from anabranch.stats.report import SlotReport

PATIENCE = 180.0
"""Seconds to wait for a cluster; a test that waits as long has failed."""


def told_by(program: str, *arguments: str) -> Any:
    """Runs a program of this folder in a process of its own; returns the JSON in the last line that it prints."""
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root / "src"), str(root)])
    done = subprocess.run(
        [sys.executable, program, *arguments],
        env={**os.environ, "PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


class Cluster:
    """A master and its workers; a worker and its executors are one group of processes."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder = folder
        port = _free_port()
        self.url = f"spark://127.0.0.1:{port}"
        self._processes = [self._start("Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")]
        until(lambda: _is_open(port))
        for _ in range(workers):
            self.join()

    def join(self) -> None:
        """Starts another worker."""
        work = str(self._folder / f"worker{len(self._processes)}")
        limits = ("--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", work)
        self._processes.append(self._start("Worker", "--host", "127.0.0.1", *limits, self.url))

    def kill_last(self) -> None:
        """Kills the worker that joined last, and its executor with it."""
        os.killpg(self._processes[-1].pid, signal.SIGKILL)

    def stop(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _start(self, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        import pyspark

        home = Path(pyspark.__file__).parent
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind.lower()}.{kind}", *arguments]
        environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m"}
        with (self._folder / f"{kind}.log").open("ab") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)


@contextmanager
def standalone(folder: Path, workers: int) -> Iterator[Cluster]:
    """A standalone cluster that ends with the block."""
    cluster = Cluster(folder, workers)
    try:
        yield cluster
    finally:
        cluster.stop()


@contextmanager
def session(master: str, folder: Path, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session on a cluster, whose executors have hot folders of their own, as if they were on several machines."""
    spark = open_session(
        master,
        {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
            # A relative path: below the folder of each executor.
            "spark.executorEnv.ANABRANCH_HOT_FOLDER": "hot",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.ui.enabled": "false",
            **settings,
        },
    )
    try:
        yield spark
    finally:
        spark.stop()


def until(is_so: Callable[[], bool], patience: float = PATIENCE) -> None:
    end = time.monotonic() + patience
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError("the cluster did not get there")
        time.sleep(0.2)


# --- inside executors: what the step function calls is replaced, and travels to the workers with it -------------------


def die_amid_steps(batches: Mapping[int, int], marks: Path) -> None:
    """Lets the executor of a slot die in the middle of its step, once, in each of some batches."""
    marks.mkdir()

    def before(batch: int, slot: int) -> None:
        mark = marks / str(batch)
        if batches.get(batch) == slot and not mark.exists():
            mark.touch()
            _kill_executor()

    _amid_step(before)


def wait_amid_steps(closed: Path) -> None:
    """Lets steps wait in their middle as long as a file exists."""

    def before(batch: int, slot: int) -> None:
        until(lambda: not closed.exists())

    _amid_step(before)


def slow_down(slow: int, times: float) -> None:
    """Lets the machine of a slot take longer for the same operations, and all others as long as their price says."""

    class Slow(Store):
        def write_rows(self, name: str, table: pa.Table, report: SlotReport) -> None:
            # As on machines on which there is something to gain.
            usual = 1000 * price_of_step(report.statistics, ENGINE)
            seconds = usual * (times if name.split("-")[1] == f"{slow:04d}" else 1.0)
            statistics = replace(report.statistics, seconds={"probe": seconds})
            report = replace(report, statistics=statistics, seconds={**report.seconds, "admit": 0.0})
            super().write_rows(name, table, report)

    setattr(worker, "Store", Slow)  # noqa: B010


def _amid_step(act: Callable[[int, int], None]) -> None:
    real = getattr(worker, "advance")  # noqa: B009

    def advance(engine: Any, task: Any, slot: int, *rest: Any) -> Generator[pa.RecordBatch, None, SlotReport]:
        step, has_acted = real(engine, task, slot, *rest), False
        while True:
            try:
                found = next(step)
            except StopIteration as end:
                if not has_acted:
                    act(task.batch, slot)
                report: SlotReport = end.value
                return report
            if not has_acted:
                act(task.batch, slot)
                has_acted = True
            yield found

    setattr(worker, "advance", advance)  # noqa: B010


def _kill_executor() -> None:
    """Kills the JVM above the daemon of this worker, and this worker."""
    daemon = os.getppid()
    executor = int(Path(f"/proc/{daemon}/stat").read_text().rsplit(")", 1)[1].split()[1])
    assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{executor}/cmdline").read_bytes()
    os.kill(executor, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def _is_open(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0
