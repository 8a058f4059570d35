"""Neither a driver killed at any moment nor lost or damaged hot state changes the answer."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from anabranch.adapt.course import MoveStrategy
from anabranch.api import QueryHandle
from anabranch.run.hot import hot_folder
from tests.spark import crash_driver
from tests.spark.crash_driver import IN_WORKER, MOMENTS, PHASES
from tests.spark.stories import Story, cut, feed, feed_apart, register, run, written
from tests.support.oracle import describe_difference

pytestmark = pytest.mark.spark
# A driver to be killed is a process of its own, so its test need not wait for the shared Spark session.
own_driver = pytest.mark.xdist_group("drivers of their own")

BATCHES = 4
JOIN = Story(
    "SELECT a.p AS p0, b.p AS p1, c.p AS p2 FROM s0 [RANGE 10 SECONDS] AS a, s1 [RANGE 6 SECONDS] AS b, "
    "s2 [RANGE 10 SECONDS] AS c WHERE a.x = b.x AND b.y = c.y",
    disorder={"s1": 2},
    rows=100,
)
GROUPS = Story(
    "SELECT WINDOW_END() AS at, a.s AS s, COUNT(*) AS n, SUM(b.x) AS x FROM s0 [RANGE 9 SECONDS SLIDE 3 SECONDS] AS a, "
    "s1 [RANGE 6 SECONDS SLIDE 3 SECONDS] AS b WHERE a.x = b.x GROUP BY a.s",
    disorder={"s1": 3},
    rows=100,
)
FILES = replace(JOIN, is_apart=True)
ONE_KEY = replace(JOIN, cql=JOIN.cql.replace("b.y = c.y", "b.x = c.x"))
DELTA, ICEBERG = replace(FILES, sink="delta"), replace(FILES, sink="iceberg")
ALL = (*PHASES, *MOMENTS, *IN_WORKER)


def crash(folder: Path, story: Story, moment: str, batch: int, plan: str, slots: int) -> None:
    """Runs the story until the moment, at which the driver dies."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root), *sys.path])}
    command = [sys.executable, str(Path(crash_driver.__file__)), str(folder), moment, str(batch), plan, str(slots)]
    done = subprocess.run(
        [*command, json.dumps(asdict(story))],
        env=environment,
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if moment.endswith("the worker alone"):
        assert done.returncode == 1, done.stderr
        assert "HostError: a Python worker died on batch" in done.stderr
    else:
        assert done.returncode == -signal.SIGKILL, done.stderr


def check_recovery(
    spark: SparkSession, folder: Path, story: Story, crashes: list[tuple[str, int]], plan: str, slots: int
) -> None:
    """The story crashes at each of the moments in turn, with two slots; then it goes on with that plan and slots."""
    if story.sink != "parquet":
        package = {"delta": "deltalake", "iceberg": "pyiceberg"}[story.sink]
        pytest.importorskip(package, reason=f"the extra '{story.sink}' is not installed")
    tables = story.tables()
    for batch in cut(tables, BATCHES):
        (feed_apart if story.is_apart else feed)(folder, batch)
    for moment, number in crashes:
        crash(folder, story, moment, number, "mjoin", 2)
        assert describe_difference(story.expected(tables), written(folder, story.sink))
    handle = run(register(spark, story, folder).sql(story.cql), folder, plan, slots, story.sink)
    assert handle.report()["late_rows"] == 0
    assert not [*(folder / "checkpoint" / "anabranch").rglob("*.partial")]
    assert not describe_difference(story.expected(tables), written(folder, story.sink))


@own_driver
@pytest.mark.parametrize(
    ("story", "moment", "batch", "plan", "slots"),
    [
        (JOIN, "when one file is published", 2, "((a b) c)", 3),
        (GROUPS, "committed", 1, "(b a)", 2),
        (FILES, "in the middle of a step", 2, "((a b) c)", 3),
        (DELTA, "when all files are published", 2, "((a b) c)", 3),
        (ICEBERG, "when all files are published", 2, "((a b) c)", 3),
    ],
    ids=["publishing", "committed", "reading files", "delta", "iceberg"],
)
def test_a_killed_driver_loses_and_repeats_nothing(
    story: Story, moment: str, batch: int, plan: str, slots: int, spark: SparkSession, tmp_path: Path
) -> None:
    check_recovery(spark, tmp_path, story, [(moment, batch)], plan, slots)


@own_driver
@pytest.mark.slow
@pytest.mark.parametrize("moment", ALL)
@pytest.mark.parametrize(
    ("story", "plan", "slots"),
    [
        (JOIN, "((a b) c)", 3),
        (GROUPS, "(b a)", 1),
        (FILES, "((a b) c)", 3),
        (DELTA, "((a b) c)", 3),
        (ICEBERG, "((a b) c)", 3),
    ],
    ids=["join", "groups", "files", "delta", "iceberg"],
)
def test_a_driver_may_be_killed_at_any_moment(
    story: Story, plan: str, slots: int, moment: str, spark: SparkSession, tmp_path: Path
) -> None:
    check_recovery(spark, tmp_path, story, [(moment, 2)], plan, slots)


@own_driver
@pytest.mark.slow
@pytest.mark.parametrize(
    "moment", ["in the middle of a step", "written", "before the manifest is renamed", "committed"]
)
@pytest.mark.parametrize(
    ("story", "strategy"),
    [(JOIN, "parallel-track"), (ONE_KEY, "moving-state"), (ONE_KEY, "parallel-track"), (GROUPS, "parallel-track")],
    ids=["chain on tracks", "one key", "one key on tracks", "groups on tracks"],
)
def test_a_driver_killed_amid_a_move_loses_and_repeats_nothing(
    story: Story, strategy: MoveStrategy, moment: str, spark: SparkSession, tmp_path: Path
) -> None:
    moving = replace(story, moves=[(1, 1, 20, strategy)])
    check_recovery(spark, tmp_path, moving, [(moment, 1), (moment, 2)], "auto", 2)


@own_driver
@pytest.mark.slow
def test_a_driver_may_be_killed_again_and_again(spark: SparkSession, tmp_path: Path) -> None:
    crashes = [("begin", 0), ("when all files are published", 0), ("before the manifest is renamed", 0)]
    crashes += [("committed", 1), ("when the rows of a slot are kept", 2), ("in the middle of a step", 2)]
    check_recovery(spark, tmp_path, JOIN, crashes, "((c b) a)", 2)


# --- hot state --------------------------------------------------------------------------------------------------------


def _deleted(hot: Path, earlier: Path) -> None:
    shutil.rmtree(hot)


def _of_an_older_batch(hot: Path, earlier: Path) -> None:
    shutil.rmtree(hot)
    shutil.copytree(earlier, hot)


def _stamps_of_an_older_batch(hot: Path, earlier: Path) -> None:
    for stamp in earlier.glob("slot-*.json"):
        shutil.copy(stamp, hot / stamp.name)


def _half_a_stamp(hot: Path, earlier: Path) -> None:
    for stamp in (*hot.glob("slot-*.json"), hot / "owner.json"):
        stamp.write_text(stamp.read_text()[:40])


def _arrays_cut_short(hot: Path, earlier: Path) -> None:
    for array in hot.glob("slot-*-*/*"):
        os.truncate(array, array.stat().st_size // 2)


def _arrays_gone(hot: Path, earlier: Path) -> None:
    for arrays in hot.glob("slot-*-*"):
        shutil.rmtree(arrays)


def _untouched(hot: Path, earlier: Path) -> None:
    pass


DAMAGES = [
    _untouched,
    _deleted,
    _of_an_older_batch,
    _stamps_of_an_older_batch,
    _half_a_stamp,
    _arrays_cut_short,
    _arrays_gone,
]


def test_hot_state_is_used_and_never_needed(spark: SparkSession, tmp_path: Path) -> None:
    tables = JOIN.tables()
    batches = list(cut(tables, 2 + len(DAMAGES)))
    query = register(spark, JOIN, tmp_path).sql(JOIN.cql)
    writer = query.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    handle = writer.slots(2).start(str(tmp_path / "out"))
    try:
        for batch in batches[:2]:
            feed(tmp_path, batch)
            handle.processAllAvailable()
        identity = json.loads((tmp_path / "checkpoint" / "anabranch" / "metadata.json").read_text())["identity"]
        hot, earlier = hot_folder(identity), tmp_path / "earlier"
        shutil.copytree(hot, earlier)
        for batch, damage in zip(batches[2:], DAMAGES, strict=True):
            damage(hot, earlier)
            done = len(_hot_slots(handle))
            feed(tmp_path, batch)
            handle.processAllAvailable()
            assert _hot_slots(handle)[done] == {damage is _untouched}, damage.__name__
    finally:
        handle.stop()
    assert not hot.exists()
    hot.mkdir()  # as a later run of the same checkpoint would
    handle.stop()
    hot.rmdir()
    assert not describe_difference(JOIN.expected(tables), written(tmp_path))


def _hot_slots(handle: QueryHandle) -> list[set[bool]]:
    """For every batch so far, whether its slots found their state hot."""
    told = [progress["adaptive"] for progress in handle.recentProgress if progress["adaptive"] is not None]
    return [{slot["hot"] for slot in batch["slotStatistics"]} for batch in told]
