"""The newer words of the language end to end: parts of lists travel between slots, filters and keys run in Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from anabranch.cql import compile_query
from tests.spark.stories import Story, cut, feed, register, run, written
from tests.support.oracle import batch_answer, rows_as_multiset

pytestmark = pytest.mark.spark

GROUPED = (
    "SELECT WINDOW_END() AS at, a.x, COUNT(DISTINCT b.s) AS ns, MIN_BY(a.p, b.f) AS low, LAST(b.d) AS last, "
    "STDDEV(b.p) AS spread, MEDIAN(a.p) AS median, COLLECT_LIST(b.p, 2) AS few, AVG(a.d) AS mean "
    "FROM s0 [HOP 10 SECONDS SLIDE 5 SECONDS] AS a, s1 [HOP 8 SECONDS SLIDE 5 SECONDS] AS b WHERE a.x = b.x "
    "GROUP BY a.x"
)


def test_newer_words_give_the_batch_answer(spark: SparkSession, tmp_path: Path) -> None:
    cql = GROUPED
    story = Story(cql, slots=2, disorder={"s0": 2}, rows=80)
    tables = story.tables()
    for batch in cut(tables, 3):
        feed(tmp_path, batch)
    run(register(spark, story, tmp_path).sql(cql), tmp_path)
    expected = batch_answer(compile_query(cql, story.catalog()), tables)
    assert expected.total() > 5
    assert written(tmp_path) == expected


def test_nested_values_and_json_are_read_on_both_sides(spark: SparkSession, tmp_path: Path) -> None:
    cql = (
        "SELECT a.n.k + 1 AS k, a.l[1] AS e, a.m['b'] AS m, GET_JSON_OBJECT(a.j, '$.v[0]') AS v FROM s0 [NOW] AS a "
        "WHERE a.n.deep.t = 'ab' AND a.l[0] = 7 AND GET_JSON_OBJECT(a.j, '$.ok') = 'true' AND SIZE(a.l) = 2"
    )
    session = register(spark, Story(cql), tmp_path)
    frame = session.registered("s0").frame.selectExpr(
        "ts",
        "named_struct('k', p, 'deep', named_struct('t', s)) AS n",
        "array(7L, x) AS l",
        "map('b', p) AS m",
        """concat('{"ok": ', CAST(p > 1 AS STRING), ', "v": [', p, ']}') AS j""",
    )
    session.register("s0", frame, "ts", "0 seconds")
    rows = Story(cql).tables()["s0"].slice(0, 3)
    rows = rows.set_column(3, "s", pa.array(["ab", "ab", "b"])).set_column(6, "p", pa.array([1, 2, 3]))
    feed(tmp_path, {"s0": rows})
    run(session.sql(cql), tmp_path)
    second = rows.column("x").to_pylist()[1]
    answer = pa.table({"k": [3], "e": pa.array([second], pa.int64()), "m": [2], "v": ["2"]})
    assert written(tmp_path) == rows_as_multiset(answer)
