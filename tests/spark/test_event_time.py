"""Event time on Spark: what is late, what is idle, and for how long a silent stream is waited for."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import anabranch
from anabranch.api import QueryHandle
from anabranch.cql import compile_query
from anabranch.plan.physical import mjoin
from anabranch.run.local import LocalHost
from anabranch.run.round import EventTimeRules
from anabranch.spark import running
from tests.spark.stories import SECOND, START, Story, feed, register, run, table, written

pytestmark = pytest.mark.spark

PAIR = "SELECT a.p AS p0, b.p AS p1 FROM s0 [RANGE 20 SECONDS] AS a, s1 [RANGE 20 SECONDS] AS b WHERE a.x = b.x"
COUNT = (
    "SELECT WINDOW_END() AS at, COUNT(*) AS n FROM s0 [RANGE 10 SECONDS SLIDE 10 SECONDS] AS a, "
    "s1 [RANGE 10 SECONDS SLIDE 10 SECONDS] AS b WHERE a.x = b.x GROUP BY a.x"
)


@pytest.fixture
def an_hour_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is an hour further whenever it is looked at, so that no test waits for silence, or for its end."""
    hours = itertools.count()
    monkeypatch.setattr(running, "_now", lambda: next(hours) * 3600 * SECOND)


def adaptive(handle: QueryHandle, key: str) -> list[Any]:
    """What every batch of the run says under a key."""
    return [progress["adaptive"][key] for progress in handle.recentProgress if progress["adaptive"] is not None]


def test_late_rows_are_dropped_and_counted(spark: SparkSession, tmp_path: Path) -> None:
    #   s0, disorder 2:  10  20 | 17 late, 18 just in time, 25
    story = Story(PAIR, disorder={"s0": 2})
    feed(tmp_path, {"s0": table([(10, 1, 1), (20, 1, 2)]), "s1": table([(15, 1, 100)])})
    feed(tmp_path, {"s0": table([(17, 1, 3), (18, 1, 4), (25, 1, 5)]), "s1": table([(15, 1, 101)])})
    handle = run(register(spark, story, tmp_path).sql(PAIR), tmp_path)
    assert adaptive(handle, "lateRows") == [{"s0": 0, "s1": 0}, {"s0": 1, "s1": 0}]
    assert adaptive(handle, "rowsIn") == [{"s0": 2, "s1": 1}, {"s0": 3, "s1": 1}]
    assert handle.report()["late_rows"] == 1
    assert written(tmp_path) == Counter((p, q) for p in (1, 2, 4, 5) for q in (100, 101))


def test_rows_that_a_filter_rejects_still_move_event_time(spark: SparkSession, tmp_path: Path) -> None:
    # The first batch brings nothing but a rejected row, and no slot has anything to do.
    cql = PAIR + " AND a.p > 0"
    feed(tmp_path, {"s0": table([(50, 1, -1)])})
    feed(tmp_path, {"s0": table([(40, 1, 1), (51, 1, 2)])})
    feed(tmp_path, {"s0": table([(52, 2, 3)])})
    query = register(spark, Story(cql), tmp_path).sql(cql)
    assert adaptive(run(query, tmp_path), "lateRows") == [{"s0": 0, "s1": 0}, {"s0": 1, "s1": 0}, {"s0": 0, "s1": 0}]
    feed(tmp_path, {"s1": table([(51, 1, 100)])})
    run(query, tmp_path)
    assert written(tmp_path) == Counter([(2, 100)])


def test_rows_without_a_key_still_move_event_time(spark: SparkSession, tmp_path: Path) -> None:
    feed(tmp_path, {"s0": table([(50, None, 9)]), "s1": table([(45, 1, 100)])})
    feed(tmp_path, {"s0": table([(40, 1, 1), (51, 1, 2)]), "s1": table([(46, None, 101)])})
    handle = run(register(spark, Story(PAIR), tmp_path).sql(PAIR), tmp_path)
    assert adaptive(handle, "lateRows") == [{"s0": 0, "s1": 0}, {"s0": 1, "s1": 0}]
    assert adaptive(handle, "rowsIn") == [{"s0": 1, "s1": 1}, {"s0": 2, "s1": 1}]
    assert written(tmp_path) == Counter([(2, 100)])


def test_a_stream_read_twice_counts_its_rows_once(spark: SparkSession, tmp_path: Path) -> None:
    cql = "SELECT a.p AS p0, b.p AS p1 FROM s0 [RANGE 20 SECONDS] AS a, s0 [RANGE 20 SECONDS] AS b WHERE a.x = b.x"
    feed(tmp_path, {"s0": table([(10, 1, 1), (20, 2, 2)])})
    feed(tmp_path, {"s0": table([(19, 1, 3), (21, 1, 4)])})
    handle = run(register(spark, Story(cql), tmp_path).sql(cql), tmp_path)
    assert adaptive(handle, "rowsIn") == [{"s0": 2}, {"s0": 2}]
    assert adaptive(handle, "lateRows") == [{"s0": 0}, {"s0": 1}]


@pytest.mark.usefixtures("an_hour_a_look")
@pytest.mark.parametrize(
    ("timeouts", "idle", "answer"),
    [
        ({"s1": "1 minute"}, [[], ["s1"]], [(START + 10 * SECOND, 1)]),
        ({"s0": "1 minute", "s1": "1000 days"}, [[], []], []),
        ({"s0": "1 minute", "s1": "none"}, [[], []], []),
    ],
    ids=["of the silent stream", "of another stream", "switched off"],
)
def test_an_idle_stream_does_not_stall_a_grouped_query(
    timeouts: dict[str, str], idle: list[list[str]], answer: list[tuple[int, int]], spark: SparkSession, tmp_path: Path
) -> None:
    # Stream s0 has rows at 1 and, in the second batch, at 35; s1 has one at 2. Boundaries lie at 10, 20 and 30.
    story = Story(COUNT)
    feed(tmp_path, {"s0": table([(1, 1, 1)]), "s1": table([(2, 1, 100)])})
    feed(tmp_path, {"s0": table([(35, 1, 2)])})
    query = register(spark, story, tmp_path, **timeouts).sql(COUNT)
    assert adaptive(run(query, tmp_path), "idleStreams") == idle
    assert written(tmp_path) == Counter(answer)
    # What the stream brings after it was passed over is late, also in a later run; otherwise it is not.
    feed(tmp_path, {"s1": table([(5, 1, 101), (45, 1, 102)])})
    assert adaptive(run(query, tmp_path), "lateRows") == [{"s0": 0, "s1": int(bool(answer))}]
    assert written(tmp_path) == Counter(answer or [(START + 10 * SECOND, 2)])


@pytest.mark.usefixtures("an_hour_a_look")
def test_a_stream_that_brings_only_late_rows_is_not_silent(spark: SparkSession, tmp_path: Path) -> None:
    # Only the rows that were admitted counted, so s1 stayed idle at its row of 50, s0 raised its floor from 100 to 200,
    # and the row of 150 was late; in process, and in grouped queries, it was not.
    feed(tmp_path, {"s0": table([(1, 1, 1)]), "s1": table([(2, 1, 100)])})
    feed(tmp_path, {"s0": table([(100, 1, 2)])})
    query = register(spark, Story(PAIR), tmp_path, s0="none", s1="1 minute").sql(PAIR)
    assert adaptive(run(query, tmp_path), "idleStreams") == [[], ["s1"]]
    feed(tmp_path, {"s0": table([(200, 1, 3)]), "s1": table([(50, 1, 101)])})
    feed(tmp_path, {"s1": table([(150, 1, 102), (200, 1, 103)])})
    handle = run(query, tmp_path)
    assert adaptive(handle, "idleStreams") == [[], []]
    assert adaptive(handle, "lateRows") == [{"s0": 0, "s1": 1}, {"s0": 0, "s1": 0}]


@pytest.mark.usefixtures("an_hour_a_look")
def test_the_time_that_a_batch_takes_is_no_silence(spark: SparkSession, tmp_path: Path) -> None:
    # What s1 brings while the first batch runs comes with the second. Its silence was taken after the batch, and from
    # before Spark had started, so that on a slow machine it was idle, and its rows late, before it was asked again.
    feed(tmp_path, {"s0": table([(100, 1, 1)])})
    query = register(spark, Story(PAIR), tmp_path).sql(PAIR)
    assert adaptive(run(query, tmp_path), "idleStreams") == [[]]
    feed(tmp_path, {"s1": table([(90, 1, 100)])})
    assert adaptive(run(query, tmp_path), "lateRows") == [{"s0": 0, "s1": 0}]
    assert written(tmp_path) == Counter([(1, 100)])


def test_every_stream_has_a_timeout(spark: SparkSession, tmp_path: Path) -> None:
    query = register(spark, Story(PAIR), tmp_path, s1="none").sql(PAIR)

    def timeouts(**settings: str) -> object:
        writer = query.writeStream.foreachBatch(lambda frame, batch: None).trigger(availableNow=True)
        handle = (writer.idleTimeout(settings["query"]) if settings else writer).start()
        handle.awaitTermination()
        return handle._runner.options.event_time.idle_timeouts  # type: ignore[attr-defined]

    assert timeouts() == {"s0": 600 * SECOND, "s1": None}
    assert timeouts(query="3 seconds") == {"s0": 3 * SECOND, "s1": None}
    assert timeouts(query="none") == {"s0": None, "s1": None}


def test_silence_while_a_query_is_stopped_does_not_count(tmp_path: Path) -> None:
    query = compile_query(COUNT, Story(COUNT).catalog())
    now = [0]

    def host() -> LocalHost:
        timeouts = {"s0": 10 * SECOND, "s1": 10 * SECOND}
        checkpoint = str(tmp_path / "checkpoint")
        rules = EventTimeRules(timeouts)
        return LocalHost(query, mjoin(("a", "b")), checkpoint=checkpoint, event_time=rules, now=lambda: now[0])

    host().step({"s0": table([(1, 1, 1)]), "s1": table([(2, 1, 100)])})
    now[0] = 3600 * SECOND
    restarted = host()
    restarted.step({"s0": table([(35, 1, 2)])})
    assert not restarted.clocks.streams["s1"].is_idle
    restarted.step({"s1": table([(3, 1, 101)])})
    assert restarted.late == {"s0": 0, "s1": 0}
    now[0] += 10 * SECOND
    restarted.step({"s0": table([(36, 1, 2)])})
    assert restarted.clocks.streams["s1"].is_idle


def test_a_wall_clock_is_an_event_time_in_the_zone_of_the_session(spark: SparkSession, tmp_path: Path) -> None:
    """Also where the query selects it, as the wall clock that it is."""
    spark.sql("SELECT TIMESTAMP_NTZ'2026-01-01 12:00:00' AS at, 1L AS k").write.parquet(str(tmp_path / "local"))
    spark.sql("SELECT TIMESTAMP'2026-01-01 17:00:00+00:00' AS ts, 1L AS k").write.parquet(str(tmp_path / "instants"))
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        session = anabranch.Session(spark)
        local = spark.readStream.schema("at timestamp_ntz, k bigint").parquet(str(tmp_path / "local"))
        session.register("local", local, event_time="at")
        instants = spark.readStream.schema("ts timestamp, k bigint").parquet(str(tmp_path / "instants"))
        session.register("instants", instants, event_time="ts")
        query = session.sql("SELECT a.at AS at FROM local [NOW] AS a, instants [NOW] AS b WHERE a.k = b.k")
        query.writeStream.format("memory").queryName("clocks").trigger(availableNow=True).start().awaitTermination()
        assert [row["at"].isoformat() for row in spark.table("clocks").collect()] == ["2026-01-01T12:00:00"]
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
