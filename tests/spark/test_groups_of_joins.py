"""A join that intervals bound, and groups of its results, have on Spark the answer of Spark's own batch query."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.stories import Story, cut, feed, register, table, written
from tests.support.oracle import describe_difference, rows_as_multiset

pytestmark = pytest.mark.spark

STREAMS = Story("s0 [] s1 []", rows=80, disorder={"s1": 2})
JOIN = "FROM s0 AS a LEFT JOIN s1 AS b ON a.x = b.x AND b.ts BETWEEN a.ts AND a.ts + INTERVAL 5 SECONDS"
PAIRS = f"SELECT a.p AS p, b.p AS q {JOIN}"
GROUPS = (
    f"SELECT window(a.ts, '10 seconds') AS window, b.s AS s, COUNT(*) AS n, COUNT(b.p) AS m, MAX(b.p) AS most {JOIN} "
    "GROUP BY window(a.ts, '10 seconds'), b.s"
)
END = 1_000


@pytest.mark.parametrize("text", [PAIRS, GROUPS], ids=["pairs", "groups"])
def test_spark_gives_the_same_answer_in_batch(spark: SparkSession, tmp_path: Path, text: str) -> None:
    tables = STREAMS.tables()
    session = register(spark, STREAMS, tmp_path)
    writer = session.sql(text).writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    handle = writer.slots(2).start(str(tmp_path / "out"))
    try:
        for number, batch in enumerate(cut(tables, 4)):
            feed(tmp_path, batch)
            handle.processAllAvailable()
            if number == 1:
                handle.stop()
                handle = writer.slots(3).start(str(tmp_path / "out"))
        # Rows that let out everything that waits for the watermark, and meet nothing.
        feed(tmp_path, {name: table([(END, None, -1)]) for name in tables})
        handle.processAllAvailable()
        found = written(tmp_path)
    finally:
        handle.stop()
    for name, rows in tables.items():
        spark.createDataFrame(rows).createOrReplaceTempView(name)
    expected = rows_as_multiset(spark.sql(text).toArrow())
    assert expected
    assert not describe_difference(expected, found)
