"""A query reads another one on Spark: one micro-batch, one checkpoint, exact whatever the slots and restarts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from anabranch.api import QueryHandle, Session
from anabranch.errors import BundleError, CatalogError, SpecError, UnboundedJoin
from anabranch.plan.query import Query
from tests.spark.stories import Story, cut, fails_once, feed, register, written
from tests.support.oracle import Answer, batch_answer, describe_difference

pytestmark = pytest.mark.spark

PAIRS = Story(
    "SELECT a.x AS x, b.s AS s, a.p AS p FROM s0 [RANGE 6 SECONDS] AS a, s1 [RANGE 4 SECONDS] AS b WHERE a.y = b.y",
    rows=60,
)
COUNTS = (
    "SELECT WINDOW_END() AS at, r.x AS x, COUNT(*) AS n FROM pairs [RANGE 8 SECONDS SLIDE 2 SECONDS] AS r GROUP BY r.x"
)
OVER = (
    "SELECT c.x AS x, c.n AS n, a.p AS p FROM counts [RANGE 4 SECONDS] AS c, s0 [RANGE 6 SECONDS] AS a "
    "WHERE a.x = c.x AND c.n > 1"
)
INLINE = (
    "SELECT t.s AS s, t.n AS n, b.p AS p FROM (SELECT a.s AS s, COUNT(*) AS n "
    "FROM s0 [RANGE 9 SECONDS SLIDE 3 SECONDS] AS a GROUP BY a.s) [RANGE 5 SECONDS] AS t, "
    "s1 [RANGE 5 SECONDS] AS b WHERE t.s = b.s"
)


def test_queries_over_queries_survive_failure_restart_and_moves(spark: SparkSession, tmp_path: Path) -> None:
    """Three levels: a join, counts of its results, and counts joined to a stream again."""
    tables = PAIRS.tables()
    session = register(spark, PAIRS, tmp_path)
    session.register("pairs", session.sql(PAIRS.cql))
    session.register("counts", session.sql(COUNTS))
    seen: dict[int, Answer] = {}
    kept = fails_once(seen)

    def start(slots: int) -> QueryHandle:
        together = session.together(
            counts=session.sql(COUNTS).writeStream.foreachBatch(kept),
            over=session.sql(OVER).writeStream.option("path", str(tmp_path / "out")),
        )
        return together.option("checkpointLocation", str(tmp_path / "checkpoint")).slots(slots).start()

    handle = start(2)
    try:
        for number, batch in enumerate(cut(tables, 6)):
            feed(tmp_path, batch)
            if number == 2:
                with pytest.raises(Exception, match="sink 'foreachBatch' failed on batch 2"):
                    handle.processAllAvailable()
                handle.stop()
                handle = start(3)
            handle.processAllAvailable()
            if number == 3:
                handle.move(range(5), to=0)
        queries = _compiled(session)
        assert not describe_difference(batch_answer(queries["over"], tables), written(tmp_path))
        assert not describe_difference(batch_answer(queries["counts"], tables), sum(seen.values(), Counter()))
        assert batch_answer(queries["over"], tables)
        last = [progress["adaptive"] for progress in handle.recentProgress if progress["adaptive"]][-1]
        assert set(last["queries"]) == {"counts", "over", "pairs"}
        assert set(last["rowsIn"]) == {"s0", "s1"}
    finally:
        handle.stop()


def test_a_subquery_runs_alone(spark: SparkSession, tmp_path: Path) -> None:
    tables = PAIRS.tables()
    session = register(spark, PAIRS, tmp_path)
    query = session.sql(INLINE)
    handle = (
        query.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .slots(2)
        .start(str(tmp_path / "out"))
    )
    try:
        for batch in cut(tables, 4):
            feed(tmp_path, batch)
            handle.processAllAvailable()
        expected = batch_answer(query.compiled.query, tables)
        assert expected
        assert not describe_difference(expected, written(tmp_path))
        assert "derived_" in query.explanation()
        assert handle.report()["rows_out"] == expected.total()
    finally:
        handle.stop()


def test_what_cannot_be_read_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    session = register(spark, PAIRS, tmp_path)
    pairs = session.sql(PAIRS.cql)
    session.register("pairs", pairs)
    for name in ("pairs", "PAIRS", "s0"):
        with pytest.raises(CatalogError, match=r"is named '.*' already"):
            session.register(name, pairs)
    with pytest.raises(CatalogError, match="a query is named 'pairs' already"):
        session.register("pairs", spark.readStream.format("rate").load(), event_time="timestamp")
    with pytest.raises(CatalogError, match="registered with settings of a stream"):
        session.register("more", pairs, event_time="ts")
    with pytest.raises(UnboundedJoin, match="the window of relation 'r' is unbounded"):
        session.sql("SELECT r.x AS x FROM pairs AS r, s0 [RANGE 5 SECONDS] AS a WHERE r.x = a.x")
    over = session.sql("SELECT r.x AS x FROM pairs [NOW] AS r")
    with pytest.raises(SpecError, match="cannot run with execution 'semi-synchronised'"):
        over.writeStream.execution("semi-synchronised").format("memory").queryName("x").start()
    with pytest.raises(BundleError, match="query 'pairs' has two definitions"):
        session.together(over=over.writeStream, pairs=session.sql("SELECT a.x AS x FROM s0 [NOW] AS a").writeStream)


def _compiled(session: Session) -> dict[str, Query]:
    return {name: session.sql(text).compiled.query for name, text in {"counts": COUNTS, "over": OVER}.items()}
