"""Functions of one's own on Spark: in the engine, and as Arrow UDFs where a filter or a key needs them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from textwrap import dedent

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from anabranch.errors import CatalogError, FunctionError, SlowFunction
from anabranch.spec.file import load
from anabranch.spec.launch import start
from tests.spark.stories import Story, feed, register, run, table, written

pytestmark = pytest.mark.spark

PAIR = (
    "SELECT a.p AS p0, b.p AS p1, third(a.p + b.p) AS t FROM s0 [RANGE 20 SECONDS] AS a, s1 [RANGE 20 SECONDS] AS b "
    "WHERE third(a.x) = third(b.x) AND (a.p > 90 OR CASE WHEN a.p < 10 THEN digit(a.p) ELSE 0 END > 1) "
    "AND a.s IS NULL AND digit(b.x) < 9"
)


def test_a_function_runs_in_the_engine_and_in_sparks_filters_and_keys(spark: SparkSession, tmp_path: Path) -> None:
    def third(values: pa.Array) -> pa.Array:
        return pc.floor(pc.divide(values, 3.0))

    def digit(values: pa.Array) -> pa.Array:
        if pc.any(pc.greater(values, 9)).as_py():
            raise ValueError("more than a digit")
        return values

    session = register(spark, Story(PAIR), tmp_path)
    session.function("third", third, returns="bigint", takes=["double"])
    session.function("digit", digit, returns="bigint")
    rows = [(10, 1, 1), (11, 2, 5), (12, 3, 50), (13, 4, 100), (14, None, 7)]
    feed(tmp_path, {"s0": table(rows), "s1": table([(10, 0, 200), (11, 5, 201), (12, None, 202)])})
    handle = run(session.sql(PAIR), tmp_path)
    assert handle.report()["rows_out"] == 2
    assert written(tmp_path) == Counter([(5, 200, 68), (100, 201, 100)])
    # A key of ten is more than a digit.
    feed(tmp_path, {"s0": table([(15, 10, 1)]), "s1": table([(15, 10, 203)])})
    with pytest.raises(FunctionError) as caught:
        run(session.sql(PAIR), tmp_path)
    assert caught.value.message == "function 'digit' failed on rows of stream 's1' in batch 1"
    assert "more than a digit" in caught.value.detail


def test_what_is_slow_warns_and_what_is_random_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    cql = "SELECT plus(p) AS p, upper_first(s) AS s FROM s0 [NOW] WHERE plus(p) > 2"
    session = register(spark, Story(cql), tmp_path)
    with pytest.warns(SlowFunction, match="computes single values"):
        session.function("plus", lambda value: value + 1, "bigint", kind="scalar")
    with pytest.warns(SlowFunction, match="computes pandas series"):
        session.function("upper_first", lambda values: values.str.title(), "string", kind="pandas")
    with pytest.raises(CatalogError, match="function 'dice' is not deterministic"):
        session.function("dice", lambda value: value, "bigint", deterministic=False)
    feed(tmp_path, {"s0": table([(10, 1, 1), (11, 2, 5)]).set_column(3, "s", pa.array(["ab", "cd"]))})
    run(session.sql(cql), tmp_path)
    assert written(tmp_path) == Counter([(6, "Cd")])


def test_a_spec_finds_a_function_beside_it(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "my_scores.py").write_text(
        dedent(
            """
            import pyarrow.compute as pc
            OFFSET = 100

            def score(values):
                return pc.add(values, OFFSET)
            """
        )
    )
    feed(tmp_path, {"s0": table([(10, 1, 1), (11, 2, 5)])})
    (tmp_path / "query.yaml").write_text(
        dedent(
            """
            streams:
              s0: {format: parquet, path: feeds, event_time: ts,
                   schema: "ts timestamp, x bigint, y int, s string, f double, d decimal(9,2), p bigint"}
            functions:
              score: {python: "my_scores:score", returns: bigint, takes: [bigint], version: 1}
            query: SELECT score(p) AS v FROM s0 WHERE score(x) > 101
            sink: {format: parquet, path: out}
            checkpoint: checkpoint
            """
        )
    )
    start(load(tmp_path / "query.yaml"), spark).awaitTermination()
    assert written(tmp_path) == Counter([(105,)])
