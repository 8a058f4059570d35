"""Bad checkpoints, failing sinks and expressions, full disks: a named error, nothing lost, nothing half-done."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from anabranch import errors
from tests.spark.stories import FEEDS, Story, cut, feed, register, run, table, written
from tests.support.oracle import Answer, describe_difference, rows_as_multiset

pytestmark = pytest.mark.spark

PAIR = Story(
    "SELECT a.p AS p0, b.p AS p1 FROM s0 [RANGE 8 SECONDS] AS a, s1 [RANGE 5 SECONDS] AS b WHERE a.x = b.x", rows=100
)

GROUPED = (
    "SELECT WINDOW_END() AS at, SUM(a.p * 9223372036854775807) AS n FROM s0 [RANGE 8 SECONDS SLIDE 1 SECOND] AS a "
    "WHERE a.x * 9223372036854775807 > 0 GROUP BY a.x"
)


def committed(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoint" / "anabranch" / "manifests").iterdir())


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, byte for byte."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- checkpoints ------------------------------------------------------------------------------------------------------


def _truncate_manifest(state: Path) -> None:
    manifest = max((state / "manifests").iterdir())
    manifest.write_bytes(manifest.read_bytes()[:-30])


def _empty_manifest(state: Path) -> None:
    max((state / "manifests").iterdir()).write_text("{}")


def _remove_rows(state: Path) -> None:
    listed = json.loads(max((state / "manifests").iterdir()).read_text())["files"]
    (state / "rows" / listed[0]["name"]).unlink()


def _truncate_rows(state: Path) -> None:
    listed = json.loads(max((state / "manifests").iterdir()).read_text())["files"]
    os.truncate(state / "rows" / listed[0]["name"], 100)


def _remove_metadata(state: Path) -> None:
    (state / "metadata.json").unlink()


def test_a_checkpoint_that_cannot_be_used_is_refused_and_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    session = register(spark, PAIR, tmp_path)
    query = session.sql(PAIR.cql)
    feed(tmp_path, PAIR.tables())
    run(query, tmp_path)
    feed(tmp_path, {"s0": table([(70, 1, 1)])})
    checkpoint = tmp_path / "checkpoint"
    whole = contents(checkpoint)

    with pytest.raises(errors.ForeignCheckpoint, match="has changed") as caught:
        run(session.sql(PAIR.cql.replace("8 SECONDS", "9 SECONDS")), tmp_path)
    assert PAIR.cql in caught.value.detail
    assert contents(checkpoint) == whole

    damages = [_truncate_manifest, _empty_manifest, _remove_rows, _truncate_rows, _remove_metadata]
    for damage in damages:
        damage(checkpoint / "anabranch")
        before = contents(checkpoint)
        assert before != whole
        with pytest.raises(errors.CorruptCheckpoint) as refused:
            run(query, tmp_path)
        assert refused.value.hint, damage.__name__
        assert contents(checkpoint) == before, damage.__name__
        for name, content in whole.items():
            (checkpoint / name).write_bytes(content)
    run(query, tmp_path)
    assert len(committed(tmp_path)) == 2


def test_parts_of_different_runs_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    query = register(spark, PAIR, tmp_path).sql(PAIR.cql)
    for batch in cut(PAIR.tables(), 3):
        feed(tmp_path, batch)
    run(query, tmp_path)
    (tmp_path / "checkpoint" / "anabranch" / "manifests" / "000000002.json").unlink()
    feed(tmp_path, {"s0": table([(70, 1, 1)])})
    with pytest.raises(errors.CorruptCheckpoint, match="has state up to batch 1, but Spark continues with batch 3"):
        run(query, tmp_path)
    assert committed(tmp_path) == ["000000001.json"]


def test_what_spark_keeps_of_a_checkpoint_is_named_when_it_is_damaged(spark: SparkSession, tmp_path: Path) -> None:
    query = register(spark, PAIR, tmp_path).sql(PAIR.cql)
    feed(tmp_path, PAIR.tables())
    run(query, tmp_path)
    feed(tmp_path, {"s0": table([(70, 1, 1)])})
    checkpoint = tmp_path / "checkpoint"
    whole = contents(checkpoint)
    for name in ("metadata", "offsets/0", "commits/0", "sources/0/0"):
        file = checkpoint / "spark" / name
        (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
        file.write_text("v9 nonsense {")
        with pytest.raises(errors.CorruptCheckpoint, match="cannot be used") as refused:
            run(query, tmp_path)
        assert refused.value.detail.count("\n") == 0, name
        assert "restore the whole folder" in refused.value.hint
        assert committed(tmp_path) == ["000000000.json"]
        for path, content in whole.items():
            (checkpoint / path).write_bytes(content)
    run(query, tmp_path)
    assert len(committed(tmp_path)) == 2


# --- sources ----------------------------------------------------------------------------------------------------------


def test_a_file_that_cannot_be_read_is_no_fault_of_the_sink(spark: SparkSession, tmp_path: Path) -> None:
    tables = PAIR.tables()
    query = register(spark, PAIR, tmp_path).sql(PAIR.cql)
    feed(tmp_path, tables)
    bad = tmp_path / FEEDS / "9999.parquet"
    bad.write_text("no Parquet")
    with pytest.raises(errors.CatalogError, match="a file of a stream cannot be read, on batch") as caught:
        run(query, tmp_path)
    assert "9999.parquet" in caught.value.detail
    assert "not committed" in caught.value.hint
    bad.unlink()
    run(query, tmp_path)
    assert not describe_difference(PAIR.expected(tables), written(tmp_path))


# --- sinks ------------------------------------------------------------------------------------------------------------


def test_a_function_that_fails_is_called_again_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    tables = PAIR.tables()
    for batch in cut(tables, 3):
        feed(tmp_path, batch)
    query = register(spark, PAIR, tmp_path).sql(PAIR.cql)
    got: dict[int, pa.Table] = {}
    is_broken = True

    def take(frame: DataFrame, batch: int) -> None:
        if batch == 1 and is_broken:
            raise RuntimeError("no route to the warehouse")
        got[batch] = frame.toArrow()

    def start() -> None:
        writer = query.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).slots(2).start().awaitTermination()

    with pytest.raises(errors.SinkError, match="'foreachBatch' failed on batch 1") as caught:
        start()
    assert "no route to the warehouse" in caught.value.detail
    assert committed(tmp_path) == ["000000000.json"]
    is_broken = False
    start()
    assert sorted(got) == [0, 1, 2]
    answer = sum((rows_as_multiset(part) for part in got.values()), Answer())
    assert not describe_difference(PAIR.expected(tables), answer)


def test_files_that_cannot_be_written_are_written_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    tables = PAIR.tables()
    for batch in cut(tables, 2):
        feed(tmp_path, batch)
    query = register(spark, PAIR, tmp_path).sql(PAIR.cql)
    (tmp_path / "out").write_text("a file where a folder should be")
    with pytest.raises(errors.SinkError):
        run(query, tmp_path)
    assert committed(tmp_path) == []
    (tmp_path / "out").unlink()
    run(query, tmp_path, "(b a)", 3)
    assert not describe_difference(PAIR.expected(tables), written(tmp_path))


# --- expressions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cql",
    [
        PAIR.cql.replace("a.p AS p0", "a.p * 9223372036854775807 AS p0"),
        PAIR.cql + " AND a.p * 9223372036854775807 > 0",
        PAIR.cql + " AND a.p * 9223372036854775807 > b.p",
        PAIR.cql.replace("a.x = b.x", "a.x * 9223372036854775807 = b.x"),
        GROUPED,
    ],
    ids=["select", "filter", "theta", "key", "grouped"],
)
def test_an_expression_that_overflows_ends_the_query(cql: str, spark: SparkSession, tmp_path: Path) -> None:
    feed(tmp_path, PAIR.tables())
    query = register(spark, Story(cql), tmp_path).sql(cql)
    with pytest.raises(errors.ExpressionError):
        run(query, tmp_path)
    assert committed(tmp_path) == []
    assert written(tmp_path) == Answer()


def test_the_answer_does_not_depend_on_the_ansi_mode_of_the_session(spark: SparkSession, tmp_path: Path) -> None:
    """The engine evaluates keys and filters, and not Spark."""
    story = Story(PAIR.cql.replace("a.x = b.x", "a.x + 1 = b.x AND a.p * 2 > 4"))
    session, tables = register(spark, story, tmp_path), story.tables()
    feed(tmp_path, tables)
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        run(session.sql(story.cql), tmp_path)
    finally:
        spark.conf.set("spark.sql.ansi.enabled", "true")
    assert not describe_difference(story.expected(tables), written(tmp_path))


# --- disks ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[Path], None]]:
    """Mounts a file system of eight kilobytes at a folder, until the test ends or unmounts it."""
    mounted: list[Path] = []

    def mount(folder: Path) -> None:
        folder.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(folder)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("mounting a file system needs the rights of an administrator")
        mounted.append(folder)

    yield mount
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=False, capture_output=True)


def test_a_full_disk_ends_the_query_and_loses_nothing(
    small_disk: Callable[[Path], None], spark: SparkSession, tmp_path: Path
) -> None:
    tables = PAIR.tables()
    for batch in cut(tables, 2):
        feed(tmp_path, batch)
    rows = tmp_path / "checkpoint" / "anabranch" / "rows"
    small_disk(rows)
    query = register(spark, PAIR, tmp_path).sql(PAIR.cql)
    with pytest.raises(errors.StorageFull, match="no space left") as caught:
        run(query, tmp_path)
    assert "free space" in caught.value.hint
    assert committed(tmp_path) == []
    subprocess.run(["umount", str(rows)], check=True, capture_output=True)
    run(query, tmp_path)
    assert not describe_difference(PAIR.expected(tables), written(tmp_path))
