"""A stream is told of files that it does not know, and of nothing less."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import anabranch
from anabranch.spark.internals.patches.local_files import local_files, replace_local_files
from anabranch.spark.internals.patches.new_files import find_new_files

pytestmark = pytest.mark.spark

ODD_NAMES = ("a b.parquet", "a%20b.parquet", "über.parquet", "x=1.parquet", "[a].parquet", "#1.parquet")


def put(folder: Path, name: str, value: int, modified: int = 1_000_000_000) -> None:
    """A file of one row that appears whole; `modified` is in seconds since 1970."""
    folder.mkdir(parents=True, exist_ok=True)
    beside = folder.parent / f"{folder.name}-{value}.part"
    parquet.write_table(pa.table({"v": pa.array([value], pa.int64())}), beside)
    os.utime(beside, (modified, modified))
    os.rename(beside, folder / name)


class Watched:
    """A running query that keeps the rows of its micro-batches, and is told of new files only."""

    def __init__(self, spark: SparkSession, folder: Path, checkpoint: Path, **options: Any) -> None:
        self.rows = list[int]()
        self.taken = 0
        self.seen_by_others = list[int]()
        self.folder, self.spark = folder, spark
        reader = spark.readStream.schema("v long").options(**options)
        writer = reader.parquet(str(folder)).writeStream.foreachBatch(self._keep)
        self.query: StreamingQuery = writer.option("checkpointLocation", str(checkpoint)).start()
        self.listings = list[tuple[Any, Any]]()

    def _keep(self, frame: DataFrame, _: int) -> None:
        self.rows += [row.v for row in frame.collect()]
        self.seen_by_others.append(self.spark.read.parquet(str(self.folder)).count())

    def take(self) -> list[int]:
        """The rows of all that is there and has not been taken."""
        self.query.processAllAvailable()
        if not self.listings:
            self.listings = find_new_files(self.spark, self.query)
        rows, self.taken = self.rows[self.taken :], len(self.rows)
        return sorted(rows)


@contextmanager
def set_for_now(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


@pytest.fixture
def watch(spark: SparkSession, tmp_path: Path) -> Callable[..., Any]:
    replace_local_files(spark)

    @contextmanager
    def watching(folder: Path, **options: Any) -> Iterator[Watched]:
        folder.mkdir(parents=True, exist_ok=True)
        watched = Watched(spark, folder, tmp_path / "checkpoint", **options)
        try:
            yield watched
        finally:
            watched.query.stop()

    return watching


def test_known_files_are_left_out_and_new_ones_are_found(watch: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / "in"
    for number in range(20):
        put(folder, f"{number}.parquet", number)
    with watch(folder) as watched:
        assert watched.take() == list(range(20))
        put(folder, "20.parquet", 20)
        assert watched.take() == [20]
        put(folder, "21.parquet", 21)
        put(folder, "older.parquet", 22, modified=999_999_000)
        assert watched.take() == [21, 22]
        assert watched.take() == []
        assert [listing.known() for listing, _ in watched.listings] == [23]


def test_names_of_every_kind(watch: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / "a folder, ünd %20"
    put(folder, "first.parquet", -1)
    with watch(folder) as watched:
        assert watched.take() == [-1]
        for number, name in enumerate(ODD_NAMES):
            put(folder, name, number)
            assert watched.take() == [number]
        assert watched.take() == []
        assert watched.listings[0][0].known() == 1 + len(ODD_NAMES)


def test_all_others_see_the_whole_folder(watch: Callable[..., Any], spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    put(folder, "0.parquet", 0)
    with watch(folder) as watched:
        for number in range(1, 5):
            watched.take()
            put(folder, f"{number}.parquet", number)
        watched.take()
        assert watched.listings[0][0].known() >= 4
        assert watched.seen_by_others == [1, 2, 3, 4, 5], "inside of a micro-batch"
        assert spark.read.parquet(str(folder)).count() == 5


def test_two_queries_over_a_folder_have_each_its_own_new_files(
    watch: Callable[..., Any], spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    put(folder, "0.parquet", 0)
    with watch(folder) as first:
        assert first.take() == [0]
        second = Watched(spark, folder, tmp_path / "other checkpoint")
        try:
            assert second.take() == [0]
            put(folder, "1.parquet", 1)
            assert first.take() == [1]
            assert second.take() == [1]
            put(folder, "2.parquet", 2)
            assert second.take() == [2]
            assert first.take() == [2]
        finally:
            second.query.stop()


def test_files_that_are_gone_and_files_that_nobody_reads(watch: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / "in"
    put(folder, "0.parquet", 0)
    put(folder, "1.parquet", 1)
    with watch(folder) as watched:
        assert watched.take() == [0, 1]
        (folder / "0.parquet").unlink()
        (folder / ".7.parquet.crc").write_bytes(b"sum")
        (folder / ".hidden").write_bytes(b"no rows")
        (folder / "_SUCCESS").touch()
        os.symlink(folder / "nowhere", folder / "dangling.parquet")
        put(folder, "2.parquet", 2)
        assert watched.take() == [2]
        put(folder, "0.parquet", 3)
        assert watched.take() == [], "as ever, a name is read once"
        put(folder, "3.parquet", 4)
        assert watched.take() == [4]
        assert watched.listings[0][0].known() == 4


def test_a_known_file_that_is_too_old_to_be_known_and_then_written_anew(
    watch: Callable[..., Any], tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    put(folder, "0.parquet", 0, modified=1_000_000_000)
    with watch(folder, maxFileAge="1h") as watched:
        assert watched.take() == [0]
        put(folder, "1.parquet", 1, modified=1_000_010_000)
        assert watched.take() == [1]
        put(folder, "too old.parquet", 2, modified=1_000_000_000)
        assert watched.take() == []
        put(folder, "0.parquet", 3, modified=1_000_010_001)
        assert watched.take() == [3], "Spark has forgotten it, so it is new"
        put(folder, "too old.parquet", 4, modified=1_000_010_002)
        assert watched.take() == [4]


def test_limits_of_files_per_trigger_and_the_order_by_age(watch: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / "in"
    put(folder, "first.parquet", 0)
    with watch(folder, maxFilesPerTrigger=2) as watched:
        assert watched.take() == [0]
        for number in range(1, 8):
            put(folder, f"{9 - number}.parquet", number, modified=1_000_000_000 + number)
        watched.take()
        assert watched.rows == list(range(8))
        assert watched.take() == []
        assert watched.listings[0][0].known() == 8


def test_folders_inside_a_folder_are_listed_as_ever(watch: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / "in"
    put(folder, "0.parquet", 0)
    with watch(folder, recursiveFileLookup="true") as watched:
        assert watched.take() == [0]
        put(folder / "deeper", "1.parquet", 1)
        assert watched.take() == [1]
        put(folder / "deeper", "2.parquet", 2)
        put(folder, "3.parquet", 3)
        assert watched.take() == [2, 3]


def test_patterns_are_listed_as_ever(spark: SparkSession, tmp_path: Path) -> None:
    replace_local_files(spark)
    put(tmp_path / "in" / "a", "0.parquet", 0)
    watched = Watched(spark, tmp_path / "in" / "*", tmp_path / "checkpoint")
    try:
        assert watched.take() == [0]
        put(tmp_path / "in" / "b", "1.parquet", 1)
        put(tmp_path / "in" / "a", "2.parquet", 2)
        assert watched.take() == [1, 2]
        assert watched.listings[0][0].known() == 0
    finally:
        watched.query.stop()


def test_an_empty_folder_may_still_become_the_output_of_a_stream(watch: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / "in"
    with watch(folder) as watched:
        assert watched.take() == []
        put(folder, "0.parquet", 0)
        assert watched.take() == [0]
        put(folder, "1.parquet", 1)
        assert watched.take() == [1]
        assert watched.listings[0][0].known() == 2


def test_a_run_that_follows_goes_on_where_the_first_ended(watch: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / "in"
    put(folder, "0.parquet", 0)
    with watch(folder) as watched:
        assert watched.take() == [0]
        put(folder, "1.parquet", 1)
        assert watched.take() == [1]
    put(folder, "2.parquet", 2)
    with watch(folder) as watched:
        assert watched.take() == [2]
        put(folder, "3.parquet", 3)
        assert watched.take() == [3]


def test_of_its_log_a_source_is_shown_the_oldest_files_and_deletes_them(
    watch: Callable[..., Any], spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch.spark.internals.patches.new_files.OLDEST", 2)
    settings = {
        "spark.sql.streaming.minBatchesToRetain": "1",
        "spark.sql.streaming.fileSource.log.compactInterval": "2",
        "spark.sql.streaming.fileSource.log.cleanupDelay": "0",
    }
    with set_for_now(spark, settings):
        folder, log = tmp_path / "in", tmp_path / "checkpoint" / "sources" / "0"
        left = list[int]()
        with watch(folder) as watched:
            for number in range(13):
                put(folder, f"{number}.parquet", number)
                assert watched.take() == [number]
                left.append(sum(path.name.split(".")[0].isdigit() for path in log.iterdir()))
            assert watched.listings[0][1].times() == 11, "the first two have nothing before them"
        assert max(left) <= 4, "those since the log was last written anew, and what one more may leave"
        put(folder, "13.parquet", 13)
        with watch(folder) as watched:
            assert watched.take() == [13]


def test_a_log_that_was_written_under_other_settings_goes_on(
    watch: Callable[..., Any], spark: SparkSession, tmp_path: Path
) -> None:
    """Checkpoints from before have logs that are made one every ten micro-batches."""
    folder = tmp_path / "in"
    expected = 0
    for interval in ("2", "100", "3"):
        settings = {"spark.sql.streaming.fileSource.log.compactInterval": interval}
        with set_for_now(spark, settings), watch(folder) as watched:
            for _ in range(5):
                put(folder, f"{expected}.parquet", expected)
                assert watched.take() == [expected]
                expected += 1


def test_where_spark_is_other_than_expected_all_stays_as_it_was(
    watch: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch.spark.internals.patches.new_files.JAVA", "no Java")
    monkeypatch.setattr("anabranch.spark.internals.patches.new_files.NEW_FILES", "anabranch.Another")
    folder = tmp_path / "in"
    put(folder, "0.parquet", 0)
    with watch(folder) as watched:
        assert watched.take() == [0]
        assert watched.listings == []
        put(folder, "1.parquet", 1)
        assert watched.take() == [1]


def test_queries_list_new_files(spark: SparkSession, tmp_path: Path) -> None:
    session = anabranch.Session(spark)
    for name in ("s0", "s1"):
        (tmp_path / name).mkdir()
        frame = spark.readStream.schema("ts timestamp, k long, p long").parquet(str(tmp_path / name))
        session.register(name, frame, event_time="ts", watermark="0 seconds")
    query = session.sql("SELECT a.p AS p, b.p AS q FROM s0 [RANGE 1 HOUR] AS a, s1 [RANGE 1 HOUR] AS b WHERE a.k = b.k")
    writer = query.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    handle = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).slots(2).start()
    try:
        for number in range(4):
            for name in ("s0", "s1"):
                _put_row(tmp_path / name, number)
                handle.processAllAvailable()
    finally:
        handle.stop()
    files = local_files(spark)
    assert files is not None
    assert files.listings() > 0
    found = sorted((row.p, row.q) for row in spark.read.parquet(str(tmp_path / "out")).collect())
    assert found == [(p, q) for p in range(4) for q in range(4) if p % 2 == q % 2]


def _put_row(folder: Path, number: int) -> None:
    row = {"ts": pa.array([number], pa.timestamp("us", tz="UTC")), "k": [number % 2], "p": [number]}
    beside = folder.parent / f"{folder.name}-{number}.part"
    parquet.write_table(pa.table(row), beside)
    os.rename(beside, folder / f"{number}.parquet")
