"""A query started again from a checkpoint that an earlier run still has: the later one takes it over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession

from anabranch.errors import CheckpointError
from anabranch.plan.query_set import alone
from anabranch.run.hot import hot_folder
from anabranch.run.store import Store
from anabranch.spark import runner
from anabranch.spark.spark_rows import SparkRows
from tests.spark.stories import Story, cut, feed, register, written
from tests.support.oracle import Answer, comparable, describe_difference, timed_results

pytestmark = pytest.mark.spark

PAIR = Story(
    "SELECT a.p AS p0, b.p AS p1 FROM s0 [RANGE 8 SECONDS] AS a, s1 [RANGE 5 SECONDS] AS b WHERE a.x = b.x", rows=40
)


def test_a_later_run_takes_over_what_the_earlier_one_did_and_keeps_its_hot_state(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = PAIR.tables()
    batches = list(cut(tables, 4))
    feed(tmp_path, batches[0])
    query = register(spark, PAIR, tmp_path).sql(PAIR.cql)
    writer = query.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    earlier = writer.start(str(tmp_path / "out"))
    earlier.processAllAvailable()
    real: Callable[..., tuple[DataFrame, SparkRows]] = getattr(runner, "spark_rows")  # noqa: B009

    def meanwhile(*anything: Any) -> tuple[DataFrame, SparkRows]:
        """The earlier run goes on while the later one is being started, and has read the checkpoint already."""
        for batch in batches[1:3]:
            feed(tmp_path, batch)
            earlier.processAllAvailable()
        return real(*anything)

    monkeypatch.setattr(runner, "spark_rows", meanwhile)
    later = writer.start(str(tmp_path / "out"))
    assert not earlier.isActive
    feed(tmp_path, batches[3])
    later.processAllAvailable()
    hot = hot_folder(Store(str(tmp_path / "checkpoint")).open(alone(query.compiled.query)))
    earlier.stop()
    assert list(hot.glob("slot-*.json"))
    later.stop()
    assert not hot.exists()
    assert not describe_difference(PAIR.expected(tables), written(tmp_path))


def test_a_running_query_ends_its_answers_without_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    tables = PAIR.tables()
    batches = list(cut(tables, 4))
    query = register(spark, PAIR, tmp_path).sql(PAIR.cql)
    writer = query.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    handle = writer.slots(2).start(str(tmp_path / "out"))
    spark_query = handle._query
    try:
        for batch in batches[:2]:
            feed(tmp_path, batch)
            handle.processAllAvailable()
        seen = [batch[name]["ts"].cast(pa.int64()) for batch in batches[:2] for name in batch]
        time = handle.finish(0)
        assert time == max(pc.max(each).as_py() for each in seen) + 1
        assert handle.finish(time + 5) == time  # the first request counts
        before = handle.has_answered
        assert not before
        for batch in batches[2:]:
            feed(tmp_path, batch)
            handle.processAllAvailable()
            progress = handle.lastProgress
            assert progress is not None
            assert all(slot["hot"] for slot in progress["adaptive"]["slotStatistics"])
        assert handle.has_answered
        assert handle._query is spark_query
    finally:
        handle.stop()
    results = list(timed_results(query.compiled.query, tables))
    older: Answer = Counter(tuple(map(comparable, row)) for at, row in results if at < time)
    assert older
    assert len(older) < len(Counter(tuple(map(comparable, row)) for _, row in results))
    assert not describe_difference(older, written(tmp_path))


def test_a_run_that_spark_does_not_start_leaves_the_earlier_one_alone(spark: SparkSession, tmp_path: Path) -> None:
    feed(tmp_path, PAIR.tables())
    query = register(spark, PAIR, tmp_path).sql(PAIR.cql)
    writer = query.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    earlier = writer.start(str(tmp_path / "out"))
    earlier.processAllAvailable()
    hot = hot_folder(Store(str(tmp_path / "checkpoint")).open(alone(query.compiled.query)))
    spark.conf.set("spark.sql.streaming.stopActiveRunOnRestart", "false")
    try:
        with pytest.raises(CheckpointError, match="is in use by a running query"):
            writer.start(str(tmp_path / "out"))
    finally:
        spark.conf.unset("spark.sql.streaming.stopActiveRunOnRestart")
    assert earlier.isActive
    assert list(hot.glob("slot-*.json"))
    earlier.stop()
    assert not hot.exists()
