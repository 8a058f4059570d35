"""Real-time mode: every result once, whatever starts, stops, changes or dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from anabranch.api import ContinuousQuery, QueryHandle, Session
from anabranch.api.writer import ContinuousQueryWriter
from anabranch.errors import AnabranchError, ForeignCheckpoint, HostError, SpecError
from anabranch.run.round import PHASES
from tests.spark import crash_real_time
from tests.spark.cluster import standalone
from tests.spark.stories import Story, cut, feed_apart, register, run, without_nan, write_apart, written
from tests.support.oracle import Answer, describe_difference, rows_as_multiset

pytestmark = pytest.mark.spark
own_driver = pytest.mark.xdist_group("drivers of their own")

JOIN = Story(
    "SELECT a.p AS p0, b.p AS p1, c.p AS p2 FROM s0 [RANGE 10 SECONDS] AS a, s1 [RANGE 6 SECONDS] AS b, "
    "s2 [RANGE 10 SECONDS] AS c WHERE a.x = b.x AND b.y = c.y",
    disorder={"s1": 2},
    rows=100,
    is_apart=True,
)
GROUPS = Story(
    "SELECT WINDOW_END() AS at, a.s AS s, COUNT(*) AS n, SUM(b.x) AS x FROM s0 [RANGE 9 SECONDS SLIDE 3 SECONDS] AS a, "
    "s1 [RANGE 6 SECONDS SLIDE 3 SECONDS] AS b WHERE a.x = b.x GROUP BY a.s",
    disorder={"s1": 3},
    rows=100,
    is_apart=True,
)
PAIRS = "SELECT a.p AS p0, b.p AS p1 FROM s0 [RANGE 10 SECONDS] AS a, s1 [RANGE 6 SECONDS] AS b WHERE a.x = b.x"
BATCHES = 4


def start(query: ContinuousQuery, folder: Path, **more: object) -> QueryHandle:
    """Starts a query in real-time mode; the shared session has two cores, so there is one slot."""
    writer = query.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    return writer.trigger(realTime=True).slots(1).start(str(folder / "out"))


def test_a_plan_changes_while_the_query_runs_and_the_answer_is_exact(spark: SparkSession, tmp_path: Path) -> None:
    tables = JOIN.tables()
    handle = start(register(spark, JOIN, tmp_path).sql(JOIN.cql), tmp_path)
    plans = iter(["((a b) c)", "(a (b c))", "(a b c)"])
    for batch in cut(tables, BATCHES):
        feed_apart(tmp_path, batch)
        handle.processAllAvailable()
        if (plan := next(plans, None)) is not None:
            handle.migrate(plan)
    progress = handle.lastProgress
    assert progress is not None
    assert progress["durationMs"]["triggerExecution"] > 0
    assert handle.isActive
    assert not handle.status["isDataAvailable"]
    handle.stop()
    assert [each["phase"] for each in handle.history if each["kind"] == "migration"].count("ended") == 3
    assert sum(each["numInputRows"] for each in handle.recentProgress) == 3 * JOIN.rows
    assert handle.report()["late_rows"] == 0
    assert not describe_difference(JOIN.expected(tables), written(tmp_path))


def test_a_restart_reads_every_file_once(spark: SparkSession, tmp_path: Path) -> None:
    tables = GROUPS.tables()
    query = register(spark, GROUPS, tmp_path).sql(GROUPS.cql)
    for batch in cut(tables, BATCHES):
        feed_apart(tmp_path, batch)
        handle = start(query, tmp_path)
        handle.processAllAvailable()
        handle.stop()
    assert not describe_difference(GROUPS.expected(tables), written(tmp_path))


def test_a_checkpoint_of_micro_batches_goes_on_in_real_time_and_not_back(spark: SparkSession, tmp_path: Path) -> None:
    tables = JOIN.tables()
    first, *rest = cut(tables, BATCHES)
    query = register(spark, JOIN, tmp_path).sql(JOIN.cql)
    feed_apart(tmp_path, first)
    before = run(query, tmp_path, slots=1)
    for batch in rest:
        feed_apart(tmp_path, batch)
    handle = start(query, tmp_path)
    handle.processAllAvailable()
    handle.stop()
    assert handle.id == before.id
    assert not describe_difference(JOIN.expected(tables), written(tmp_path))
    with pytest.raises(ForeignCheckpoint, match="was continued in real-time mode"):
        run(query, tmp_path, slots=1)


def test_results_in_memory_and_late_rows_beside_them(spark: SparkSession, tmp_path: Path) -> None:
    story = replace(JOIN, cql=PAIRS, disorder={})
    tables = story.tables()
    session = register(spark, story, tmp_path)
    writer = session.sql(PAIRS).writeStream.format("memory").queryName("real_time_pairs").late(str(tmp_path / "late"))
    handle = writer.trigger(realTime=True).slots(1).start()
    for batch in cut(tables, 2):
        feed_apart(tmp_path, batch)
        handle.processAllAvailable()
    feed_apart(tmp_path, {"s0": tables["s0"].slice(0, 3)})
    handle.processAllAvailable()
    handle.stop()
    found = rows_as_multiset(spark.table("real_time_pairs").toArrow())
    assert not describe_difference(story.expected(tables), found)
    assert spark.read.parquet(str(tmp_path / "late")).count() == 3


def test_queries_join_and_leave(spark: SparkSession, tmp_path: Path) -> None:
    story = replace(JOIN, cql=PAIRS)
    tables = story.tables()
    session = register(spark, story, tmp_path)
    pairs, filtered = session.sql(PAIRS), session.sql(f"{PAIRS} AND a.y = 1")

    def writer(query: ContinuousQuery, name: str) -> ContinuousQueryWriter:
        return query.writeStream.format("parquet").option("path", str(tmp_path / name / "out"))

    together = session.together(pairs=writer(pairs, "pairs"))
    together = together.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(realTime=True).slots(1)
    handle = together.start()
    batches = list(cut({name: tables[name] for name in ("s0", "s1")}, 3))
    feed_apart(tmp_path, batches[0])
    handle.processAllAvailable()
    handle.add("filtered", writer(filtered, "filtered"))
    feed_apart(tmp_path, batches[1])
    handle.processAllAvailable()
    handle.remove("filtered")
    feed_apart(tmp_path, batches[2])
    handle.processAllAvailable()
    handle.stop()
    assert not describe_difference(story.expected(tables), written(tmp_path / "pairs"))
    assert written(tmp_path / "filtered") != Answer()


def test_a_file_that_cannot_be_read_ends_the_query_by_name(spark: SparkSession, tmp_path: Path) -> None:
    session = register(spark, JOIN, tmp_path)
    handle = start(session.sql(JOIN.cql), tmp_path)
    rows = JOIN.tables()["s0"]
    write_apart(tmp_path, "s0", 0, rows.set_column(1, "x", rows["x"].cast("int32")))
    with pytest.raises(HostError, match="of stream 's0' cannot be read in real-time mode"):
        handle.processAllAvailable()
    assert isinstance(handle.exception(), HostError)
    assert not handle.isActive


def test_json_lines_are_read_and_one_that_only_spark_can_read_ends_the_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    story = replace(JOIN, form="json")
    tables = without_nan(story.tables())
    handle = start(register(spark, story, tmp_path).sql(story.cql), tmp_path)
    for batch in cut(tables, 2):
        feed_apart(tmp_path, batch, "json")
        handle.processAllAvailable()
    assert not describe_difference(story.expected(tables), written(tmp_path))
    (tmp_path / "s0" / ".odd").write_text('{"x": 1')
    (tmp_path / "s0" / ".odd").rename(tmp_path / "s0" / "odd.json")
    with pytest.raises(HostError, match=r"odd\.json' of stream 's0' cannot be read in real-time mode"):
        handle.processAllAvailable()


def _rate(session: Session, folder: Path) -> object:
    frame = session.spark.readStream.format("rate").load()
    session.register("ticks", frame, "timestamp")
    return start(session.sql("SELECT t.value AS v FROM ticks [NOW] AS t"), folder)


def _json_sink(session: Session, folder: Path) -> object:
    writer = session.sql(PAIRS).writeStream.format("json").option("checkpointLocation", str(folder / "checkpoint"))
    return writer.trigger(realTime=True).slots(1).start(str(folder / "out"))


def _many_slots(session: Session, folder: Path) -> object:
    writer = session.sql(PAIRS).writeStream.option("checkpointLocation", str(folder / "checkpoint"))
    return writer.trigger(realTime=True).slots(2).start(str(folder / "out"))


def _option(session: Session, folder: Path) -> object:
    frame = session.spark.readStream.schema("ts timestamp, x bigint").option("cleanSource", "delete")
    session.register("cleaned", frame.parquet(str(folder / "s0")), "ts")
    return start(session.sql("SELECT c.x AS x FROM cleaned [NOW] AS c"), folder)


@pytest.mark.parametrize(
    ("attempt", "kind", "message"),
    [
        (_rate, SpecError, "stream 'ticks' cannot be read in real-time mode\nit is read from 'rate'"),
        (
            _option,
            SpecError,
            "stream 'cleaned' cannot be read in real-time mode\nits source has the option 'cleansource'",
        ),
        (_json_sink, SpecError, "sink 'json' at .* cannot be used in real-time mode"),
        (_many_slots, HostError, "2 resident slots need 3 cores, and the session has 2"),
    ],
    ids=["source", "option", "sink", "slots"],
)
def test_what_real_time_mode_does_not_do_is_refused_by_name(
    attempt: Callable[[Session, Path], object],
    kind: type[AnabranchError],
    message: str,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    session = register(spark, JOIN, tmp_path)
    with pytest.raises(kind, match=message) as caught:
        attempt(session, tmp_path)
    assert caught.value.hint


# --- deaths -----------------------------------------------------------------------------------------------------------


def die_and_go_on(folder: Path, story: Story, deaths: list[tuple[str, str, int]], master: str = "local[3]") -> None:
    """Runs a story that is fed beforehand with these deaths, of the driver or of a slot; then to its end."""
    tables = story.tables()
    for batch in cut(tables, BATCHES):
        feed_apart(folder, batch)
    deaths_change_nothing(folder, story, tables, deaths, master)


def deaths_change_nothing(
    folder: Path, story: Story, tables: Mapping[str, pa.Table], deaths: list[tuple[str, str, int]], master: str
) -> None:
    """Runs a story, whose rows are there, with these deaths and then to its end."""
    for who, phase, number in deaths:
        done = _process(folder, master, who, phase, number, story)
        assert done.returncode == (-signal.SIGKILL if who == "driver" else 0), done.stderr
    if deaths[-1][0] == "driver":
        done = _process(folder, master, "nobody", "begin", 0, story)
        assert done.returncode == 0, done.stderr
    assert not describe_difference(story.expected(tables), written(folder))


def _process(
    folder: Path, master: str, who: str, phase: str, batch: int, story: Story
) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root), *sys.path])}
    command = [sys.executable, str(Path(crash_real_time.__file__)), str(folder), master, who, phase, str(batch)]
    return subprocess.run(
        [*command, json.dumps(asdict(story))],
        env=environment,
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@own_driver
def test_a_killed_slot_is_started_again(tmp_path: Path) -> None:
    die_and_go_on(tmp_path, JOIN, [("slot", "begin", 2)])


@own_driver
@pytest.mark.slow
@pytest.mark.parametrize("who", ["driver", "slot"])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("story", [JOIN, GROUPS], ids=["join", "groups"])
def test_a_death_at_any_crash_point_changes_no_answer(story: Story, phase: str, who: str, tmp_path: Path) -> None:
    die_and_go_on(tmp_path, story, [(who, phase, 1)])


@own_driver
@pytest.mark.slow
def test_a_killed_slot_is_started_again_on_two_executors(tmp_path: Path) -> None:
    die_and_go_on(tmp_path, GROUPS, [("slot", "begin", 2)], "local-cluster[2,2,1024]")


@own_driver
@pytest.mark.slow
def test_a_killed_slot_is_started_again_on_a_cluster(tmp_path: Path) -> None:
    with standalone(tmp_path, 3) as cluster:
        die_and_go_on(tmp_path, GROUPS, [("slot", "begin", 2)], cluster.url)


@own_driver
@pytest.mark.slow
def test_deaths_one_after_another_change_no_answer(tmp_path: Path) -> None:
    die_and_go_on(tmp_path, JOIN, [("driver", "begin", 0), ("driver", "written", 0), ("driver", "committed", 1)])
