"""Workers of a real cluster join and die while a query runs on it; this file is also the program that the test starts.

The cluster is Spark's own standalone one on the loopback address: a master and up to three workers with one core each.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anabranch.testing.oracle import describe_difference
from tests.host.spark.stories import Story, cut, feed, register, written

STORY = Story(
    "SELECT a.p AS p0, b.p AS p1, c.p AS p2 FROM s0 [RANGE 10 SECONDS] AS a, s1 [RANGE 6 SECONDS] AS b, "
    "s2 [RANGE 10 SECONDS] AS c WHERE a.x = b.x AND b.x = c.x",
    disorder={"s1": 2},
    rows=150,
)
BATCHES = 12


@pytest.mark.spark
@pytest.mark.xdist_group("drivers of their own")
@pytest.mark.slow
def test_executors_join_and_die_and_the_answer_is_exact(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    path = os.pathsep.join([str(root / "src"), str(root)])
    environment = {**os.environ, "PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert not describe_difference(STORY.expected(STORY.tables()), written(tmp_path))
    # With two executors, one of them has two of the three slots; the one that joins gets one of these.
    assert sorted(told["two"]) == ["0", "0", "1"] or sorted(told["two"]) == ["0", "1", "1"]
    assert sorted(set(told["three"])) == ["0", "1", "2"]
    # A slot stays where it is: nothing is rebuilt while nobody comes or goes.
    assert told["hot"]
    # When an executor dies, its groups spread over the other slots; its own has none until one joins.
    assert told["lost"] == ["executor 2 was lost"]
    assert 0 in told["groups after"]


def main(folder: Path) -> None:
    port = _free_port()
    cluster = [_start(folder, "Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")]
    try:
        _until(lambda: _is_open(port))
        url = f"spark://127.0.0.1:{port}"
        for _ in range(2):
            cluster.append(_worker(folder, url, len(cluster)))
        _run(folder, url, cluster)
    finally:
        for process in cluster:
            # A worker and its executors are one group of processes.
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _run(folder: Path, url: str, cluster: list[subprocess.Popen[bytes]]) -> None:
    from anabranch.host.spark.placement import live_executors
    from anabranch.host.spark.session import open_session

    spark = open_session(
        url,
        {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
            # In the folder of each executor, so that one cannot see the other's: as if they were on several machines.
            "spark.executorEnv.ANABRANCH_HOT_FOLDER": "hot",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.ui.enabled": "false",
        },
    )
    try:
        _until(lambda: len(live_executors(spark)) == 2)
        query = register(spark, STORY, folder).sql(STORY.cql)
        writer = query.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
        # Nothing but executors that come and go makes it move.
        handle = writer.slots(3).balance({"mode": "auto", "ratio": 1e9}).start(str(folder / "out"))
        batches = iter(cut(STORY.tables(), BATCHES))

        def step(count: int) -> list[dict[str, Any]]:
            for _ in range(count):
                feed(folder, next(batches))
                handle.processAllAvailable()
            progress = handle.lastProgress
            assert progress is not None
            slots: list[dict[str, Any]] = progress["adaptive"]["slotStatistics"]
            return slots

        step(1)
        two = step(2)
        cluster.append(_worker(folder, url, len(cluster)))
        _until(lambda: len(live_executors(spark)) == 3)
        step(1)
        three = step(2)
        # A worker dies, and its executor with it.
        os.killpg(cluster[-1].pid, signal.SIGKILL)
        _until(lambda: len(live_executors(spark)) == 2)
        after = step(1)
        step(BATCHES - 7)
        lost = [record["by"] for record in handle.history if record["kind"] == "move"]
        told = {
            "two": [slot["executor"] for slot in two],
            "three": [slot["executor"] for slot in three],
            "hot": all(slot["hot"] for slot in [*two, *three]),
            "lost": lost,
            "groups after": [slot["groups"] for slot in after],
        }
        handle.stop()
        print(json.dumps(told))  # noqa: T201
    finally:
        spark.stop()


def _worker(folder: Path, url: str, number: int) -> subprocess.Popen[bytes]:
    work = str(folder / f"worker{number}")
    limits = ("--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", work)
    return _start(folder, "Worker", "--host", "127.0.0.1", *limits, url)


def _start(folder: Path, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
    import pyspark

    home = Path(pyspark.__file__).parent
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind.lower()}.{kind}", *arguments]
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m"}
    with (folder / f"{kind}.log").open("ab") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def _is_open(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


def _until(is_so: Callable[[], bool], patience: float = 180.0) -> None:
    end = time.monotonic() + patience
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError("the cluster did not get there")
        time.sleep(0.2)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
