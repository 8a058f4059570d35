"""Policy, objective and limits of a running query change through the handle and by command; a restart keeps them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from anabranch.cli.main import main
from anabranch.errors import MigrationError, SpecError
from anabranch.settings.commands import USER_ERROR
from anabranch.spec.changes import Changes
from anabranch.spec.file import parse
from anabranch.spec.launch import prepare
from tests.spark.stories import FEEDS, SPARK_COLUMNS, Story, cut, feed
from tests.support.oracle import describe_difference, rows_as_multiset

pytestmark = pytest.mark.spark

JOIN = (
    "SELECT a.p AS p0, b.p AS p1, c.p AS p2 FROM s0 [RANGE 6 SECONDS] AS a, s0 [RANGE 4 SECONDS] AS b, "
    "s0 [RANGE 5 SECONDS] AS c WHERE a.x = b.x AND b.y = c.y"
)
STORY = Story(JOIN, rows=96)
SETTLED = 10
"""After as many batches a decision waits no longer for the streams to settle."""
BATCHES = [*cut(STORY.tables(), 2 + SETTLED + 1 + SETTLED)]


def text(folder: Path) -> str:
    return f"""
streams:
  s0: {{format: parquet, path: {folder / FEEDS}, schema: "{SPARK_COLUMNS}", event_time: ts,
       watermark: 0 seconds, options: {{maxFilesPerTrigger: 1}}}}
query: {JOIN}
sink: {{format: parquet, path: {folder / "out"}}}
checkpoint: {folder / "checkpoint"}
trigger: 0 seconds
slots: 2
plan: tree
adapt: {{policy: periodic, every: 1000}}
"""


@contextmanager
def running(spark: SparkSession, folder: Path) -> Iterator[Changes]:
    (folder / FEEDS).mkdir(exist_ok=True)
    spec = folder / "spec.yaml"
    spec.write_text(text(folder))
    chosen = parse(spec.read_text(), folder=folder)
    handle = prepare(chosen, spark).start()
    changes = Changes(chosen, handle, lambda given, place: parse(given, folder=place))
    changes.open()
    try:
        yield changes
    finally:
        handle.stop()


def fed(changes: Changes, folder: Path, batch: int) -> None:
    feed(folder, BATCHES[batch])
    changes.handle.processAllAvailable()


def by_command(changes: Changes, *words: str) -> int:
    """Runs a command of the shell beside the driver, which serves it meanwhile."""
    status: list[int] = []
    asking = threading.Thread(target=lambda: status.append(main([*words])))
    asking.start()
    while asking.is_alive():
        changes.serve()
        asking.join(0.02)
    return status[0]


def of_kind(changes: Changes, kind: str) -> list[dict[str, Any]]:
    return [record for record in changes.handle.history if record["kind"] == kind]


def test_settings_change_while_a_query_runs_and_are_kept_over_a_restart(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(spark, tmp_path) as changes:
        for batch in range(2):
            fed(changes, tmp_path, batch)
        assert not of_kind(changes, "decision"), "the interval has not passed"
        changes.handle.policy("periodic", every=1)
        changes.handle.objective("memory")
        for batch in range(2, 2 + SETTLED):
            fed(changes, tmp_path, batch)
        assert of_kind(changes, "decision")
        assert by_command(changes, "set", str(tmp_path / "spec.yaml"), "--memory", "1 MB", "--cpu", "0.9") == 0
        assert "set; the next decision uses it" in capsys.readouterr().out
        assert not of_kind(changes, "limit")
        fed(changes, tmp_path, 2 + SETTLED)
        (broken,) = of_kind(changes, "limit")
        assert broken["allowed"] == 1_000_000
        with pytest.raises(SpecError):
            changes.handle.objective("beauty")
        assert by_command(changes, "set", str(tmp_path / "checkpoint"), "--policy", "never") == USER_ERROR
        assert "'never'" in capsys.readouterr().err
        assert by_command(changes, "set", str(tmp_path / "checkpoint")) == USER_ERROR
        assert "nothing to set" in capsys.readouterr().err
        wanted: list[dict[str, Any]] = [
            {"adapt": {"policy": "periodic", "every": 1}},
            {"objective": "memory"},
            {"limits": {"cpu": 0.9, "memory": "1 MB"}},
        ]
        assert [(each["batch"], each["settings"]) for each in of_kind(changes, "settings")] == [
            (2, wanted[0]),
            (2, wanted[1]),
            (2 + SETTLED, wanted[2]),
        ]
    restart = 2 + SETTLED + 1
    with running(spark, tmp_path) as changes:
        for batch in range(restart, len(BATCHES)):
            fed(changes, tmp_path, batch)
        # The spec still has an interval of 1000 batches and no limit.
        assert [each["batch"] for each in of_kind(changes, "decision") if each["batch"] >= restart]
        assert [each["allowed"] for each in of_kind(changes, "limit") if each["batch"] >= restart] == [1_000_000]
    files = sorted((tmp_path / "out").glob("part-*.parquet"))
    found = sum((rows_as_multiset(parquet.read_table(file)) for file in files), Counter())
    assert not describe_difference(STORY.expected(STORY.tables()), found)


def test_a_query_that_does_not_adapt_refuses(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / FEEDS).mkdir()
    chosen = parse(text(tmp_path).replace("adapt: {policy: periodic, every: 1000}", ""), folder=tmp_path)
    handle = prepare(chosen, spark).start()
    try:
        with pytest.raises(MigrationError, match="does not adapt"):
            handle.limits(memory="1 GB")
    finally:
        handle.stop()
