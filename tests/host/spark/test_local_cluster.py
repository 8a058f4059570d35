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


@pytest.mark.spark
@pytest.mark.slow
def test_the_answer_is_exact_on_two_executors(tmp_path: Path) -> None:
    tables = STORY.tables()
    for batch in cut(tables, 4):
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
    tasks = json.loads(done.stdout.splitlines()[-1])
    assert len(tasks) == 2
    assert all(count > 0 for count in tasks.values())
    assert not describe_difference(STORY.expected(tables), written(tmp_path))


def main(folder: Path) -> None:
    from pyspark.sql import SparkSession

    from anabranch.host.spark.session import recommended_configuration

    settings = {
        **recommended_configuration(),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "1g",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
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
        run(register(spark, STORY, folder).sql(STORY.cql), folder, "((a b) c)", 2)
        listed = spark._jsparkSession.sparkContext().statusStore().executorList(True)
        executors = [listed.apply(i) for i in range(listed.size())]
        print(json.dumps({e.id(): e.completedTasks() for e in executors if e.id() != "driver"}))  # noqa: T201
    finally:
        spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
