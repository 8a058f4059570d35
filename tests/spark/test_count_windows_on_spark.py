"""Count windows on Spark: rows wait for the watermark, are counted in every slot that needs them; restarts go on."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.stories import Story, before, over_restarts, written
from tests.support.oracle import describe_difference

pytestmark = pytest.mark.spark

STORIES = {
    "join": Story(
        "SELECT a.p AS p0, b.p AS p1, c.s AS s FROM s0 [ROWS 7] AS a, s1 [RANGE 9 SECONDS] AS b, "
        "s2 [PARTITION BY y ROWS 2] AS c WHERE a.x = b.x AND b.y = c.y AND a.p % 3 <> 0 AND c.s <> 'b'",
        disorder={"s0": 2},
    ),
    "groups": Story(
        "SELECT WINDOW_END() AS at, a.s AS s, COUNT(*) AS n, SUM(a.x) AS x, MAX(a.p) AS p "
        "FROM s0 [PARTITION BY s RANGE 20 SECONDS ROWS 3 SLIDE 2 SECONDS] AS a WHERE a.y >= 0 GROUP BY a.s",
        disorder={"s0": 3},
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_count_windows_survive_a_restart_with_other_slots(name: str, spark: SparkSession, tmp_path: Path) -> None:
    story = STORIES[name]
    tables = story.tables()
    watermark = over_restarts(spark, story, tables, tmp_path)
    if name == "join":
        tables = before(tables, watermark)
    expected = story.expected(tables)
    assert len(expected) > 10
    assert not describe_difference(expected, written(tmp_path))
