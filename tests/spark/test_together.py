"""Several queries as one streaming query on Spark: shared rows, own plans, own sinks, one checkpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession

from anabranch.api import QueryHandle, Together
from anabranch.errors import BundleError, ForeignCheckpoint, SinkError, SpecError
from anabranch.spec.file import parse
from anabranch.spec.launch import prepare
from tests.spark.stories import SPARK_COLUMNS, Story, cut, fails_once, feed, register, written
from tests.support.oracle import Answer, describe_difference, rows_as_multiset

pytestmark = pytest.mark.spark

THREE = Story(
    "SELECT a.p AS p0, b.p AS p1, c.p AS p2 FROM s0 [RANGE 10 SECONDS] AS a, s1 [RANGE 6 SECONDS] AS b, "
    "s2 [RANGE 10 SECONDS] AS c WHERE a.x = b.x AND b.x = c.x",
    rows=80,
)
TWO = Story(
    "SELECT a.p AS p0, b.s AS s, b.d AS d FROM s0 [RANGE 3 SECONDS] AS a, s1 [RANGE 20 SECONDS] AS b "
    "WHERE a.y = b.y AND a.f > 0.5",
    rows=80,
)
ONE = Story("SELECT b.p AS p FROM s1 [NOW] AS b WHERE b.x = 1", rows=80)
COUNTS = Story(
    "SELECT WINDOW_END() AS at, a.s AS s, COUNT(*) AS n FROM s0 [RANGE 6 SECONDS SLIDE 2 SECONDS] AS a GROUP BY a.s",
    rows=80,
)
"""Parts of its groups are found in several slots."""
SUMS = Story(
    "SELECT WINDOW_END() AS at, b.x AS x, SUM(c.p) AS total FROM s1 [RANGE 6 SECONDS SLIDE 5 SECONDS] AS b, "
    "s2 [RANGE 10 SECONDS] AS c WHERE b.x = c.x GROUP BY b.x",
    rows=80,
)
"""The key of a group decides its slot, where slots share by x alone."""


def test_queries_together_survive_failure_restart_and_migration(spark: SparkSession, tmp_path: Path) -> None:
    tables = THREE.tables()
    session = register(spark, THREE, tmp_path)
    seen: dict[int, Answer] = {}
    kept = fails_once(seen)
    sums: dict[int, Answer] = {}

    def keep_sums(frame: DataFrame, batch: int) -> None:
        sums[batch] = rows_as_multiset(frame.toArrow())

    def start(plan: str, slots: int) -> QueryHandle:
        together = session.together(
            three=session.sql(THREE.cql).writeStream.option("path", str(tmp_path / "out")).plan(plan),
            two=session.sql(TWO.cql).writeStream.foreachBatch(kept),
            one=session.sql(ONE.cql).writeStream.format("csv").option("path", str(tmp_path / "one")),
            counts=session.sql(COUNTS.cql).writeStream.option("path", str(tmp_path / "counts")),
            sums=session.sql(SUMS.cql).writeStream.foreachBatch(keep_sums),
        )
        return together.option("checkpointLocation", str(tmp_path / "checkpoint")).slots(slots).start()

    handle = start("((a b) c)", 2)
    for number, batch in enumerate(cut(tables, 5)):
        feed(tmp_path, batch)
        if number == 2:
            with pytest.raises(SinkError, match="sink 'foreachBatch' failed on batch 2"):
                handle.processAllAvailable()
            handle.stop()
            handle = start("mesh(a: c>b; b: a>c; c: b>a)", 3)
        handle.processAllAvailable()
        if number == 0:
            handle.migrate("(a (b c))", query="three")
    try:
        assert not describe_difference(THREE.expected(tables), written(tmp_path))
        assert not describe_difference(TWO.expected(tables), sum(seen.values(), Counter()))
        csv = spark.read.schema("p bigint").csv(str(tmp_path / "one")).toArrow()
        assert not describe_difference(ONE.expected(tables), rows_as_multiset(csv))
        counted = parquet.read_table(tmp_path / "counts")
        assert not describe_difference(COUNTS.expected(tables), rows_as_multiset(counted))
        assert not describe_difference(SUMS.expected(tables), sum(sums.values(), Counter()))
        assert COUNTS.expected(tables)
        assert SUMS.expected(tables)
        assert str(handle.plan).startswith("counts: a; one: b; sums: (b c); three: mesh(")
        last = [progress["adaptive"] for progress in handle.recentProgress if progress["adaptive"]][-1]
        assert {state["state"] for state in last["statistics"]["states"]} >= {"a", "b", "c"}
        assert set(last["queries"]) == {"counts", "one", "sums", "three", "two"}
        assert all(slot["hot"] for slot in last["slotStatistics"])
        assert [record["to"] for record in handle.history if record.get("phase") == "began"] == ["(a (b c))"]
    finally:
        handle.stop()
    alone = session.together(one=session.sql(ONE.cql).writeStream.format("memory"))
    with pytest.raises(ForeignCheckpoint, match="have changed"):
        alone.option("checkpointLocation", str(tmp_path / "checkpoint")).start()


KILLED = """
import os, signal, sys
from pathlib import Path
from anabranch.spark.session import local_session
from tests.spark.stories import register
from tests.spark.test_together import ONE, THREE, TWO

def die(frame, batch):
    if batch == 2:
        os.kill(os.getpid(), signal.SIGKILL)

folder = Path(sys.argv[1])
session = register(local_session(2), THREE, folder)
together = session.together(
    three=session.sql(THREE.cql).writeStream.option("path", str(folder / "out")).plan("((a b) c)"),
    two=session.sql(TWO.cql).writeStream.foreachBatch(die),
    one=session.sql(ONE.cql).writeStream.format("csv").option("path", str(folder / "one")),
).option("checkpointLocation", str(folder / "checkpoint"))
together.trigger(availableNow=True).slots(2).start().awaitTermination()
"""


@pytest.mark.xdist_group("drivers of their own")
@pytest.mark.slow
def test_queries_together_survive_a_killed_driver(spark: SparkSession, tmp_path: Path) -> None:
    """The driver dies in the sink of one query, when the files of others may be there already."""
    tables = THREE.tables()
    for batch in cut(tables, 4):
        feed(tmp_path, batch)
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    done = subprocess.run(
        command, env=environment, start_new_session=True, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert describe_difference(THREE.expected(tables), written(tmp_path))
    session = register(spark, THREE, tmp_path)
    seen: dict[int, Answer] = {}

    def keep(frame: DataFrame, batch: int) -> None:
        seen[batch] = rows_as_multiset(frame.toArrow())

    together = session.together(
        three=session.sql(THREE.cql).writeStream.option("path", str(tmp_path / "out")).plan("(a (b c))"),
        two=session.sql(TWO.cql).writeStream.foreachBatch(keep),
        one=session.sql(ONE.cql).writeStream.format("csv").option("path", str(tmp_path / "one")),
    )
    together.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).slots(
        3
    ).start().awaitTermination()
    assert not describe_difference(THREE.expected(tables), written(tmp_path))
    assert sorted(seen) == [2, 3]
    csv = spark.read.schema("p bigint").csv(str(tmp_path / "one")).toArrow()
    assert not describe_difference(ONE.expected(tables), rows_as_multiset(csv))


def test_what_cannot_run_together_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    session = register(spark, THREE, tmp_path)

    def writers(path: str) -> Together:
        three, two = session.sql(THREE.cql).writeStream, session.sql(TWO.cql).writeStream
        return session.together(three=three.option("path", path), two=two.option("path", str(tmp_path / "two")))

    with pytest.raises(SpecError, match="the run of queries three, two has no checkpoint"):
        writers(str(tmp_path / "three")).start()
    # However the folder is written: of two queries in one, each would replace the files of the other.
    for path in (f"{tmp_path}/two", f"file:{tmp_path}/two/", f"file://{tmp_path}/one/../two"):
        with pytest.raises(SpecError, match="queries 'three' and 'two' write to the same folder"):
            writers(path).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(SpecError, match="query 'two' is given as ContinuousQuery"):
        session.together(two=session.sql(TWO.cql))  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="query 'two' has a trigger of its own"):
        session.together(two=session.sql(TWO.cql).writeStream.trigger(availableNow=True))
    with pytest.raises(BundleError, match="relation 'a' is not the same stream"):
        session.together(
            two=session.sql(TWO.cql).writeStream,
            other=session.sql("SELECT a.p AS p FROM s2 [NOW] AS a").writeStream,
        )
    shown = writers(str(tmp_path / "three")).explanation()
    assert "relation a = s0 [RANGE 10 SECONDS]  read by three, two" in shown
    assert "two restricts a to [RANGE 3 SECONDS], " in shown


def test_a_spec_of_several_queries_runs(spark: SparkSession, tmp_path: Path) -> None:
    tables = TWO.tables()
    for name, rows in tables.items():
        (tmp_path / name).mkdir()
        parquet.write_table(rows, tmp_path / name / "0.parquet")
    streams = {
        name: {"format": "parquet", "path": name, "schema": SPARK_COLUMNS, "event_time": "ts"} for name in TWO.streams
    }
    queries = {
        "two": {"query": TWO.cql, "sink": {"format": "parquet", "path": "out"}},
        "one": {"query": ONE.cql, "sink": {"format": "parquet", "path": "one"}},
    }
    written_down = yaml.safe_dump({"streams": streams, "queries": queries, "checkpoint": "checkpoint", "slots": 2})
    handle = prepare(parse(written_down, folder=tmp_path), spark).start()
    handle.awaitTermination()
    assert not describe_difference(TWO.expected(tables), written(tmp_path))
    report = handle.report()
    assert report["queries"]["one"] == ONE.expected(tables).total()
