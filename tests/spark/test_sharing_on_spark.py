"""Queries that share joins on Spark: by choice and by hand, over a failure and a restart with other slots."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from anabranch.api import QueryHandle
from anabranch.errors import SinkError
from tests.spark.stories import Story, cut, fails_once, feed, register, written
from tests.support.oracle import Answer, describe_difference

pytestmark = pytest.mark.spark

LONG = Story(
    "SELECT a.p AS p0, b.p AS p1, c.p AS p2 FROM s0 [RANGE 10 SECONDS] AS a, s1 [RANGE 10 SECONDS] AS b, "
    "s2 [RANGE 10 SECONDS] AS c WHERE a.x = b.x AND b.x = c.x",
    rows=80,
)
SHORT = Story(
    "SELECT a.p AS p0, b.s AS s, c.p AS p2 FROM s0 [RANGE 3 SECONDS] AS a, s1 [RANGE 10 SECONDS] AS b, "
    "s2 [RANGE 5 SECONDS] AS c WHERE a.x = b.x AND b.x = c.x AND a.y <> 1",
    rows=80,
)


def test_shared_joins_survive_failure_restart_and_changes(spark: SparkSession, tmp_path: Path) -> None:
    tables = LONG.tables()
    session = register(spark, LONG, tmp_path)
    seen: dict[int, Answer] = {}
    kept = fails_once(seen)

    def start(slots: int) -> QueryHandle:
        together = session.together(
            long=session.sql(LONG.cql).writeStream.option("path", str(tmp_path / "out")),
            short=session.sql(SHORT.cql).writeStream.foreachBatch(kept),
        )
        assert "used by long, short: saves" in together.share("auto").explanation()
        return together.share("auto").option("checkpointLocation", str(tmp_path / "checkpoint")).slots(slots).start()

    handle = start(2)
    first = str(handle.plan)
    assert first.count("{") == 2
    for number, batch in enumerate(cut(tables, 6)):
        feed(tmp_path, batch)
        if number == 2:
            with pytest.raises(SinkError, match="sink 'foreachBatch' failed on batch 2"):
                handle.processAllAvailable()
            handle.stop()
            handle = start(3)
        handle.processAllAvailable()
        match number:
            case 0:
                handle.unshare()
            case 2:
                handle.share("(a b)")
            case 4:
                handle.share("((b c) a)", queries=["long", "short"])
    try:
        assert not describe_difference(LONG.expected(tables), written(tmp_path))
        assert not describe_difference(SHORT.expected(tables), sum(seen.values(), Counter()))
        assert str(handle.plan) == "long: {(b c) a}; short: {(b c) a}"
        last = [progress["adaptive"] for progress in handle.recentProgress if progress["adaptive"]][-1]
        assert {state["state"] for state in last["statistics"]["states"]} == {"a", "b", "c", "shared (b c)"}
        assert all(slot["hot"] for slot in last["slotStatistics"])
        began = [record["to"] for record in handle.history if record.get("phase") == "began"]
        assert began[2:] == ["({a b} c)", "({a b} c)", "{(b c) a}", "{(b c) a}"]
    finally:
        handle.stop()
