"""First rows of windows, ASOF joins and sessions have their batch answer on Spark, over restarts with other slots."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from anabranch.cql import compile_query
from tests.spark.stories import Story, before, feed, over_restarts, register, table, written
from tests.support.oracle import batch_answer, describe_difference, rows_as_multiset

pytestmark = pytest.mark.spark

STORIES = {
    "first rows": Story(
        "WITH r AS (SELECT a.s AS s, b.p AS p, ROW_NUMBER() OVER (PARTITION BY a.s ORDER BY b.y DESC, b.p) AS n "
        "FROM s0 [TUMBLE 10 SECONDS] AS a, s1 [TUMBLE 10 SECONDS] AS b WHERE a.x = b.x) SELECT * FROM r WHERE n <= 2",
        disorder={"s0": 2},
    ),
    "asof": Story(
        "SELECT a.p AS p0, b.p AS p1, c.s AS s FROM s0 [NOW] AS a ASOF JOIN s1 [RANGE 20 SECONDS] AS b "
        "ON a.x = b.x AND b.ts <= a.ts LEFT ASOF JOIN s2 [RANGE 5 SECONDS] AS c ON c.y = b.y AND c.ts <= a.ts",
        disorder={"s1": 2},
    ),
    "sessions": Story(
        "SELECT a.x AS x, a.s AS s, COUNT(*) AS n, SUM(a.p) AS p, WINDOW_START() AS begins, WINDOW_END() AS ends "
        "FROM s0 [SESSION 3 SECONDS] AS a WHERE a.y >= 0 GROUP BY a.x, a.s",
        disorder={"s0": 3},
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_the_batch_answer_over_restarts_with_other_slots(name: str, spark: SparkSession, tmp_path: Path) -> None:
    story = STORIES[name]
    tables = story.tables()
    watermark = over_restarts(spark, story, tables, tmp_path)
    if name == "asof":
        tables = before(tables, watermark)
    expected = batch_answer(compile_query(story.cql, story.catalog()), tables, watermark)
    assert len(expected) > 10
    assert not describe_difference(expected, written(tmp_path))


def test_spark_has_the_same_sessions_in_batch(spark: SparkSession, tmp_path: Path) -> None:
    """Also of rows exactly one gap apart."""
    text = (
        "SELECT session_window(ts, '3 seconds') AS session, x, COUNT(*) AS n, MAX(p) AS p FROM s0 "
        "GROUP BY session_window(ts, '3 seconds'), x"
    )
    story = Story("s0 []", rows=60)
    session = register(spark, story, tmp_path)
    handle = session.sql(text).writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).slots(2)
    tables = story.tables()
    running = handle.start(str(tmp_path / "out"))
    try:
        feed(tmp_path, tables)
        running.processAllAvailable()
        feed(tmp_path, {"s0": table([(1_000, None, -1)])})
        running.processAllAvailable()
        found = written(tmp_path)
    finally:
        running.stop()
    spark.createDataFrame(tables["s0"]).createOrReplaceTempView("s0")
    expected = rows_as_multiset(spark.sql(text).toArrow())
    assert expected
    assert not describe_difference(expected, found)
