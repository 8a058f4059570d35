"""On Spark, too, the answer is the batch answer: whatever the keys, the slots, the plan, the cut and the restarts."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from tests.spark.stories import Story, cut, feed, register, run, written
from tests.support.oracle import describe_difference, rows_as_multiset

pytestmark = pytest.mark.spark

PAIR = "SELECT a.p AS p0, b.p AS p1 FROM s0 [RANGE 8 SECONDS] AS a, s1 [RANGE 5 SECONDS] AS b WHERE "
THREE = (
    "SELECT a.p AS p0, b.p AS p1, c.p AS p2, a.s AS s, c.f AS f, b.ts AS ts "
    "FROM s0 [RANGE 10 SECONDS] AS a, s1 [RANGE 6 SECONDS] AS b, s2 [RANGE 10 SECONDS] AS c WHERE "
)
GROUPS = (
    "SELECT WINDOW_END() AS at, a.s AS s, COUNT(*) AS n, SUM(b.x) AS x, MIN(b.s) AS low, AVG(a.p) AS mean, "
    "SUM(a.d) AS d FROM s0 [RANGE 9 SECONDS SLIDE 3 SECONDS] AS a, s1 [RANGE 6 SECONDS SLIDE 3 SECONDS] AS b WHERE "
)
CHAIN = THREE + "a.x = b.x AND b.y = c.y"
OUTER = (
    "SELECT a.p AS p0, b.p AS p1, c.p AS p2, c.s AS s FROM s0 [RANGE 6 SECONDS] AS a JOIN s1 [RANGE 6 SECONDS] AS b "
    "ON a.x = b.x LEFT JOIN s2 [RANGE 3 SECONDS] AS c ON b.y = c.y AND c.s LIKE 'a%' "
    "WHERE NOT EXISTS (SELECT 1 FROM s2 [RANGE 1 SECOND] AS d WHERE d.x = a.x AND d.p % 2 = 0)"
)

STORIES = {
    "one key": Story(THREE + "a.x = b.x AND b.x = c.x"),
    "one key, tree": Story(THREE + "a.x = b.x AND b.x = c.x", plan="((a b) c)", slots=3),
    "chain": Story(CHAIN, plan="(a (c b))", disorder={"s1": 3}),
    "chain, three slots": Story(CHAIN, slots=3),
    "cycle": Story(THREE + "a.x = b.x AND b.y = c.y AND c.s = a.s", slots=4),
    "grid": Story(PAIR + "a.x < b.x AND a.p % 2 = b.p % 2", slots=4),
    "band": Story(PAIR + "a.p - b.p BETWEEN -1003 AND -996", slots=3),
    "band and key": Story(PAIR + "a.s = b.s AND ABS(a.x - b.x) <= 1"),
    "text": Story(PAIR + "a.s = b.s", slots=3, disorder={"s0": 2, "s1": 4}),
    "decimal and float": Story(THREE + "a.d = b.d AND b.f = c.f", rows=40),
    "computed keys of two types": Story(PAIR + "a.x + 1 = b.y AND a.s = b.s"),
    "self-join": Story(
        "SELECT a.p AS p0, b.p AS p1 FROM s0 [RANGE 8 SECONDS] AS a, s0 [RANGE 8 SECONDS] AS b "
        "WHERE a.x = b.x AND a.p < b.p",
        disorder={"s0": 3},
    ),
    "filters": Story(THREE + "a.x = b.x AND b.x = c.x AND a.p % 3 <> 0 AND b.s LIKE 'a%' AND c.y IS NOT NULL"),
    "outer joins": Story(OUTER, slots=3, disorder={"s1": 3}),
    "full join": Story(
        "SELECT a.p AS p0, b.p AS p1, a.s AS s FROM s0 [RANGE 3 SECONDS] AS a FULL JOIN s1 [RANGE 2 SECONDS] AS b "
        "ON a.s = b.s AND a.x = b.x WHERE COALESCE(a.s, b.s) IS NULL OR b.s LIKE 'a%' OR a.s LIKE 'a%'",
        slots=3,
    ),
    "groups of an outer join": Story(
        "SELECT WINDOW_END() AS at, a.s AS s, COUNT(*) AS n, COUNT(b.p) AS m FROM s0 [RANGE 6 SECONDS SLIDE 2 SECONDS] "
        "AS a LEFT JOIN s1 [RANGE 3 SECONDS] AS b ON a.x = b.x GROUP BY a.s",
        slots=2,
    ),
    "one stream": Story("SELECT a.p AS p, a.x + 1 AS x, a.s AS s FROM s0 [NOW] AS a WHERE a.x > 0", slots=2),
    "groups": Story(GROUPS + "a.x = b.x GROUP BY a.s HAVING COUNT(*) > 1", slots=3, disorder={"s1": 3}),
    "groups, merged first": Story(GROUPS + "a.x = b.x GROUP BY a.s", plan="([a] [b])", slots=3, disorder={"s1": 3}),
    "groups of intervals": Story(
        "SELECT WINDOW_END() AS at, a.ts - b.ts AS gap, COUNT(*) AS n, MIN(b.ts - a.ts) AS low, MAX(a.ts) AS last, "
        "MAX(CASE WHEN b.x > 0 THEN a.ts - b.ts END) AS high, MIN(a.x > b.x) AS lower "
        "FROM s0 [RANGE 9 SECONDS SLIDE 3 SECONDS] AS a, s1 [RANGE 6 SECONDS SLIDE 3 SECONDS] AS b "
        "WHERE a.y = b.y GROUP BY a.ts - b.ts HAVING MAX(a.ts - b.ts) > -INTERVAL 3 SECONDS",
        plan="([a] b)",
        slots=2,
    ),
    "groups of a chain": Story(
        "SELECT WINDOW_END() AS at, COUNT(*) AS n, MAX(c.p) AS p FROM s0 [RANGE 6 SECONDS SLIDE 2 SECONDS] AS a, "
        "s1 [RANGE 6 SECONDS SLIDE 2 SECONDS] AS b, s2 [RANGE 4 SECONDS SLIDE 2 SECONDS] AS c "
        "WHERE a.x = b.x AND b.y = c.y AND c.p % 5 <> 0",
        slots=2,
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_the_answer_is_the_batch_answer(name: str, spark: SparkSession, tmp_path: Path) -> None:
    story = STORIES[name]
    tables = story.tables()
    for batch in cut(tables, 3):
        feed(tmp_path, batch)
    query = register(spark, story, tmp_path).sql(story.cql)
    table = "answer_" + "".join(letter for letter in name if letter.isalpha())
    writer = query.writeStream.format("memory").queryName(table).trigger(availableNow=True)
    handle = writer.plan(story.plan).slots(story.slots).start()
    handle.awaitTermination()
    answer = rows_as_multiset(spark.table(table).toArrow())
    expected = story.expected(tables)
    assert len(expected) > 10
    assert not describe_difference(expected, answer)
    report = handle.report()
    assert (len(report["batches"]), report["late_rows"]) == (3, 0)


@pytest.mark.parametrize(
    ("story", "legs"),
    [
        (Story(CHAIN, disorder={"s0": 2}), [("mjoin", 2), ("((a b) c)", 3), ("(a (b c))", 1), ("mjoin", 4)]),
        (STORIES["groups"], [("(a b)", 3), ("([b] a)", 1), ("(a b)", 2), ("([a] [b])", 3)]),
        (STORIES["outer joins"], [("(a b)", 3), ("(b a)", 1), ("(a b)", 2), ("(b a)", 3)]),
    ],
    ids=["join", "groups", "outer joins"],
)
def test_a_restart_may_change_plan_and_slots(
    story: Story, legs: list[tuple[str, int]], spark: SparkSession, tmp_path: Path
) -> None:
    tables = story.tables()
    query = register(spark, story, tmp_path).sql(story.cql)
    for batch, (plan, slots) in zip(cut(tables, len(legs)), legs, strict=True):
        feed(tmp_path, batch)
        handle = run(query, tmp_path, plan, slots)
        assert handle.report()["late_rows"] == 0
    expected = story.expected(tables)
    assert len(expected) > 10
    assert not describe_difference(expected, written(tmp_path))


def test_where_rows_wait_results_come_in_order_from_first_to_last(spark: SparkSession, tmp_path: Path) -> None:
    """Two runs from one checkpoint: what waited at the end of the first goes on in the second."""
    story = Story(PAIR.replace("SELECT ", "SELECT a.ts AS t0, b.ts AS t1, ") + "a.x = b.x", disorder={"s1": 3})
    tables = story.tables()
    query = register(spark, story, tmp_path).sql(story.cql)
    for batch in cut(tables, 4):
        feed(tmp_path, batch)
        writer = query.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).slots(1)
        writer = writer.trigger(availableNow=True).execution("totally-synchronised")
        handle = writer.start(str(tmp_path / "out"))
        handle.awaitTermination()
    progress = handle.lastProgress
    assert progress is not None
    before = progress["adaptive"]["watermark"]
    passed = {
        name: rows.filter(pc.less(rows["ts"].cast(pa.timestamp("us")).cast(pa.int64()), before))
        for name, rows in tables.items()
    }
    assert not describe_difference(story.expected(passed), written(tmp_path))
    files = sorted((tmp_path / "out").glob("part-*.parquet"))
    newest = [max(row["t0"], row["t1"]) for file in files for row in parquet.read_table(file).to_pylist()]
    assert len(newest) > 10
    assert newest == sorted(newest)
