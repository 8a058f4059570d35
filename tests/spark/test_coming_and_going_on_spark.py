"""Queries join a running set and leave it on Spark: the others miss no batch, and a restart goes on with the set."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession

from anabranch.api import ContinuousQueryWriter, QueryHandle
from anabranch.errors import BundleError, ForeignCheckpoint, SpecError
from tests.spark.stories import Story, cut, feed, register, written
from tests.support.oracle import (
    Answer,
    batch_answer,
    comparable,
    describe_difference,
    rows_as_multiset,
    timed_results,
)

pytestmark = pytest.mark.spark

PAIRS = Story(
    "SELECT a.p AS p0, b.p AS p1 FROM s0 [RANGE 6 SECONDS] AS a, s1 [RANGE 4 SECONDS] AS b WHERE a.x = b.x", rows=72
)
COUNTS = "SELECT WINDOW_END() AS at, a.x AS x, COUNT(*) AS n FROM s0 [RANGE 5 SECONDS SLIDE 1 SECOND] AS a GROUP BY a.x"
OVER = (
    "SELECT c.x AS x, c.n AS n, d.p AS p FROM counts [RANGE 3 SECONDS] AS c, s1 [RANGE 2 SECONDS] AS d WHERE c.x = d.x"
)


def test_queries_come_and_go(spark: SparkSession, tmp_path: Path) -> None:
    tables = PAIRS.tables()
    session = register(spark, PAIRS, tmp_path)
    counts = session.sql(COUNTS)
    session.register("counts", counts)
    over = session.sql(OVER)
    seen: dict[int, Answer] = {}

    def keep(frame: DataFrame, batch: int) -> None:
        seen[batch] = rows_as_multiset(frame.toArrow())

    def start(**more: ContinuousQueryWriter) -> QueryHandle:
        writers = {"pairs": session.sql(PAIRS.cql).writeStream.foreachBatch(keep), **more}
        together = session.together(**writers)
        return together.option("checkpointLocation", str(tmp_path / "checkpoint")).slots(2).start()

    over_writer = over.writeStream.option("path", str(tmp_path / "out"))
    counts_writer = counts.writeStream.option("path", str(tmp_path / "counts"))
    handle = start()
    try:
        since = None
        for number, batch in enumerate(cut(tables, 9)):
            feed(tmp_path, batch)
            handle.processAllAvailable()
            if number == 2:
                handle.add("counts", counts_writer)
            if number == 3:
                since = handle.add("over", over_writer)
            if number == 5:
                with pytest.raises(BundleError, match="query 'counts' is read by 'over'"):
                    handle.remove("counts")
                handle.stop()
                handle = start(counts=counts_writer, over=over_writer)
            if number == 7:
                handle.remove("over")
        handle.processAllAvailable()
        assert sorted(seen) == list(range(9))
        assert not describe_difference(PAIRS.expected(tables), sum(seen.values(), Counter()))
        assert since is not None
        first = int(since.timestamp() * 1e6)
        until = {name: table.slice(0, 8 * table.num_rows // 9) for name, table in tables.items()}
        results = timed_results(over.compiled.query, until)
        expected: Answer = Counter(tuple(map(comparable, values)) for time, values in results if time >= first)
        assert expected
        assert not describe_difference(expected, written(tmp_path))
        changes = [record for record in handle.history if record["kind"] == "queries"]
        assert [(sorted(each["joined"]), each["left"]) for each in changes] == [
            (["counts"], []),
            (["over"], []),
            ([], ["over"]),
        ]
        joined = changes[0]["joined"]["counts"]
        counted = Counter(
            tuple(map(comparable, values))
            for time, values in timed_results(counts.compiled.query, tables)
            if time >= joined
        )
        assert not describe_difference(counted, rows_as_multiset(parquet.read_table(tmp_path / "counts")))
    finally:
        handle.stop()
    with pytest.raises(ForeignCheckpoint, match="have changed"):
        start(counts=counts_writer, over=over_writer)


def test_what_cannot_join_or_leave_is_refused_and_the_set_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    session = register(spark, PAIRS, tmp_path)
    pairs = session.sql(PAIRS.cql)
    session.register("rates", spark.readStream.format("rate").load(), event_time="timestamp")
    handle = session.together(pairs=pairs.writeStream.format("memory")).slots(2).start()
    try:
        with pytest.raises(BundleError, match="a query is named 'pairs' already"):
            handle.add("pairs", pairs.writeStream.format("memory"))
        with pytest.raises(
            BundleError, match="query 'more' reads stream 'rates', which the running queries do not read"
        ):
            handle.add("more", session.sql("SELECT r.value AS v FROM rates [NOW] AS r").writeStream.format("memory"))
        with pytest.raises(BundleError, match="relation 'a' is not the same stream"):
            handle.add("more", session.sql("SELECT a.p AS p FROM s1 [NOW] AS a").writeStream.format("memory"))
        with pytest.raises(SpecError, match="query 'more' is given as ContinuousQuery"):
            handle.add("more", pairs)
        with pytest.raises(BundleError, match="no query is named 'nobody'"):
            handle.remove("nobody")
        with pytest.raises(BundleError, match="query 'pairs' is the only one"):
            handle.remove("pairs")
        feed(tmp_path, next(iter(cut(PAIRS.tables(), 1))))
        handle.processAllAvailable()
        assert not describe_difference(
            batch_answer(pairs.compiled.query, PAIRS.tables()), rows_as_multiset(spark.table("pairs").toArrow())
        )
    finally:
        handle.stop()
    alone = pairs.writeStream.format("memory").queryName("alone").start()
    try:
        with pytest.raises(SpecError, match="queries cannot be added to a query that runs alone"):
            alone.add("more", pairs.writeStream.format("memory"))
    finally:
        alone.stop()


def test_a_query_that_joins_gives_all_results_from_the_time_that_it_was_promised(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A query over one stream keeps no row, and a relation that joins with a query has no older ones."""
    tables = PAIRS.tables()
    session = register(spark, PAIRS, tmp_path)
    running = {
        "both": session.sql("SELECT v.p AS p FROM s0 [NOW] AS v, s1 [NOW] AS w WHERE v.x = w.x"),
        "one": session.sql("SELECT a.p AS p FROM s0 [RANGE 15 SECONDS] AS a"),
    }
    counts = COUNTS.replace("RANGE 5 SECONDS", "RANGE 15 SECONDS")
    anti = "SELECT a.ts AS ts, a.p AS p FROM s0 [RANGE 3 SECONDS] AS a LEFT ANTI JOIN s1 [RANGE 2 SECONDS] AS c"
    joining = {
        "counts": session.sql(counts),
        "again": session.sql(counts),
        "tumbles": session.sql("SELECT WINDOW_END() AS at, COUNT(*) AS n FROM s0 [TUMBLE 2 SECONDS] AS a"),
        "anti": session.sql(f"{anti} ON a.x = c.x"),
    }
    writers = {name: query.writeStream.option("path", str(tmp_path / name)) for name, query in joining.items()}
    together = session.together(**{name: query.writeStream.format("memory") for name, query in running.items()})
    handle = together.option("checkpointLocation", str(tmp_path / "checkpoint")).slots(2).start()
    since = {}
    try:
        for number, batch in enumerate(cut(tables, 9)):
            feed(tmp_path, batch)
            handle.processAllAvailable()
            if 2 <= number < 6:
                name = list(joining)[number - 2]
                since[name] = handle.add(name, writers[name])
    finally:
        handle.stop()
    for name, query in joining.items():
        promised = since[name]
        assert promised is not None, name
        first = int(promised.timestamp() * 1e6)
        results = timed_results(query.compiled.query, tables)
        expected: Answer = Counter(tuple(map(comparable, values)) for time, values in results if time >= first)
        assert expected, name
        found = rows_as_multiset(parquet.read_table(tmp_path / name))
        assert not describe_difference(expected, found), name
