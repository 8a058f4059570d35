"""A query on two executors that are processes of their own; this file is also the program that the test starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.testing.oracle import describe_difference
from tests.host.spark.stories import Story, cut, feed, register, run, written

STORY = Story(
    "SELECT a.p AS p0, b.p AS p1, c.p AS p2 FROM s0 [RANGE 10 SECONDS] AS a, s1 [RANGE 6 SECONDS] AS b, "
    "s2 [RANGE 10 SECONDS] AS c WHERE a.x = b.x AND b.y = c.y",
    disorder={"s1": 2},
    rows=100,
)


BATCHES = 6


@pytest.mark.spark
@pytest.mark.xdist_group("drivers of their own")
@pytest.mark.slow
def test_the_answer_is_exact_on_two_executors(tmp_path: Path) -> None:
    tables = STORY.tables()
    for batch in cut(tables, BATCHES):
        feed(tmp_path, batch)
    root = Path(__file__).parents[3]
    path = os.pathsep.join([str(root / "src"), str(root)])
    environment = {**os.environ, "PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert len(told["tasks"]) == 2
    assert all(count > 0 for count in told["tasks"].values())
    # Slots wake up where their state is, so after the first batch nothing is rebuilt.
    assert told["hot"] == [[False, False], *([True, True] for _ in range(BATCHES - 1))]
    # And nothing of it stays there when the query has ended.
    assert told["left"] == []
    assert not describe_difference(STORY.expected(tables), written(tmp_path))


def main(folder: Path) -> None:
    import pyspark
    from pyspark.sql import SparkSession

    from anabranch.host.spark.session import recommended_configuration

    settings = {
        **recommended_configuration(),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "1g",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        # In the folder of each executor, so that one cannot see the other's: as if they were two machines.
        "spark.executorEnv.ANABRANCH_HOT_FOLDER": "hot",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
    }
    builder = SparkSession.builder.master("local-cluster[2,1,1024]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        handle = run(register(spark, STORY, folder).sql(STORY.cql), folder, "((a b) c)", 2)
        steps = [progress["adaptive"]["slotStatistics"] for progress in handle.recentProgress if progress["adaptive"]]
        listed = spark._jsparkSession.sparkContext().statusStore().executorList(True)
        executors = [listed.apply(i) for i in range(listed.size())]
        tasks = {e.id(): e.completedTasks() for e in executors if e.id() != "driver"}
        work = Path(pyspark.__file__).parent / "work" / str(spark.sparkContext.applicationId)
        assert len([*work.glob("*/hot/anabranch-*")]) == 2
        left = [str(folder) for folder in work.glob("*/hot/anabranch-*/*")]
        told = {"tasks": tasks, "hot": [[slot["hot"] for slot in step] for step in steps], "left": left}
        print(json.dumps(told))  # noqa: T201
    finally:
        spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
