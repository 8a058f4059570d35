"""Dear filters move while a query runs on Spark, both ways, and back after a restart; no result is lost or repeated."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pyspark.sql import SparkSession

from anabranch.adapt import filter_moves
from anabranch.api import changing
from anabranch.api.run import Run
from anabranch.catalog import Catalog, StreamDeclaration
from anabranch.cql import compile_query
from anabranch.errors import MigrationError
from anabranch.host import filters
from anabranch.host.changing import change_set
from anabranch.host.spark.handle import QueryHandle
from anabranch.plan.mesh import Mesh, one_route, parse_plan
from anabranch.plan.query_set import ALONE
from anabranch.schema import TIMESTAMP, Schema
from anabranch.spec.file import load
from anabranch.spec.launch import prepare
from anabranch.testing.duckdb_sql import duckdb_answer
from anabranch.testing.oracle import describe_difference, rows_as_multiset

pytestmark = pytest.mark.spark

SECOND = 1_000_000
COLUMNS = pa.schema([("ts", TIMESTAMP), ("kind", pa.int64()), ("k", pa.int64()), ("note", pa.string())])
SCHEMA = "ts timestamp, kind bigint, k bigint, note string"
DEAR = "RLIKE(a.note, '.*lot [0-9]+ was.*')"
TEXT = (
    "SELECT a.k AS k, b.ts AS at FROM s a [RANGE 4 SECONDS], s b [RANGE 4 SECONDS] "
    "WHERE a.kind = 0 AND b.kind = 1 AND a.k = b.k AND a.note RLIKE '.*lot [0-9]+ was.*'"
)
OVER = (
    "SELECT a.k AS k, d.at AS at FROM s a [RANGE 4 SECONDS], "
    "(SELECT b.k AS k, b.ts AS at FROM s b [RANGE 4 SECONDS] WHERE b.kind = 1) [RANGE 4 SECONDS] AS d "
    "WHERE a.kind = 0 AND a.k = d.k AND a.note RLIKE '.*lot [0-9]+ was.*'"
)
"""The same answer, by a subquery."""
THREE = TEXT.replace(" WHERE", ", s c [RANGE 4 SECONDS] WHERE c.kind = 1 AND b.k = c.k AND")
ADAPT = {"remember": 2, "gate": {"cool_down": 2}}
ROWS, OTHERS = 2_000, 100
"""Rows of either kind in a file, which is a second and a micro-batch."""
CHECK = 2e-4
"""Seconds that a check takes, as tests say."""
MOST = 40
"""Files after which a filter must have moved."""


class Rows(NamedTuple):
    """The share of notes that pass, and how many keys there are."""

    passing: float
    keys: int


LATE, EARLY = Rows(0.9, 20_000), Rows(0.01, 40)
"""Where the filter belongs by the joins, and where before them."""


@dataclass
class Story:
    """A query over one folder, so that a file is a batch, and the rows that were written."""

    folder: Path
    spark: SparkSession
    format: str = "parquet"
    written: list[pa.Table] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "s").mkdir()
        self._rng = np.random.default_rng(7)

    def feed(self, rows: Rows) -> None:
        """A second of the stream."""
        count, number = ROWS + OTHERS, len(self.written)
        times = np.sort(self._rng.integers(0, SECOND, count)) + number * SECOND
        kinds = self._rng.permutation(np.repeat([0, 1], [ROWS, OTHERS]))
        notes = ["lot 7 was sent" if draw < rows.passing else "nothing" for draw in self._rng.random(count)]
        instants = pa.array(times).cast(pa.timestamp("us")).cast(TIMESTAMP)
        columns = {"ts": instants, "kind": kinds, "k": self._rng.integers(0, rows.keys, count), "note": notes}
        table = pa.table(columns, schema=COLUMNS)
        hidden = self.folder / f".{number}"
        if self.format == "parquet":
            pq.write_table(table, hidden)
        else:
            hidden.write_text("\n".join(_line(row) for row in table.to_pylist()))
        # Spark sees the file whole or not at all.
        os.rename(hidden, self.folder / "s" / f"{number:05}.{self.format}")
        self.written.append(table)

    def run(self, **entries: object) -> Run:
        stream = {"format": self.format, "path": "s", "schema": SCHEMA, "event_time": "ts"}
        document = {
            "streams": {"s": stream},
            "query": TEXT,
            "sink": {"format": "parquet", "path": "out"},
            "checkpoint": "checkpoint",
            "slots": 2,
            "trigger": "0 seconds",
            "late_filters": "auto",
            "adapt": ADAPT,
            **entries,
        }
        document = {name: entry for name, entry in document.items() if entry is not None}
        (self.folder / "spec.yaml").write_text(yaml.safe_dump(document))
        return prepare(load(self.folder / "spec.yaml"), self.spark)

    def until(self, handle: QueryHandle, late: tuple[str, ...], rows: Rows) -> None:
        """Feeds rows of one kind until the filters are where they belong."""
        for _ in range(MOST):
            if handle.queries.late_filters == late:
                return
            self.feed(rows)
            handle.processAllAvailable()
            assert handle.awaitMigration(120)
        raise AssertionError(f"late are {handle.queries.late_filters}: {_decisions(handle)}")

    def check(self, out: str = "out", text: str = TEXT) -> None:
        """The results so far are the batch answer."""
        catalog = Catalog()
        catalog.register(StreamDeclaration("s", Schema.from_arrow(COLUMNS), "ts"))
        expected = rows_as_multiset(duckdb_answer(compile_query(text, catalog), {"s": pa.concat_tables(self.written)}))
        assert expected
        assert not describe_difference(expected, rows_as_multiset(pq.read_table(self.folder / out)))


def _line(row: dict[str, object]) -> str:
    time = row["ts"].isoformat()  # type: ignore[attr-defined]
    return f'{{"ts": "{time}", "kind": {row["kind"]}, "k": {row["k"]}, "note": "{row["note"]}"}}'


def _decisions(handle: QueryHandle) -> list[object]:
    return [(each["batch"], each["action"], each["reason"]) for each in handle.history if each["kind"] == "filters"]


@pytest.fixture(autouse=True)
def _costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No clock decides: a check costs nothing on the sample, and then what tests say."""
    monkeypatch.setattr(filters, "timed", lambda condition, rows: (0.9 * len(rows), 1e-8 * len(rows)))
    monkeypatch.setattr(filter_moves, "seconds_of", lambda check: CHECK)


@pytest.fixture
def stories(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[[str], Story]]:
    yield lambda format: Story(tmp_path, spark, format)
    for query in spark.streams.active:
        query.stop()


@pytest.mark.parametrize("format", ["parquet", "json"])
def test_a_filter_moves_both_ways_while_the_query_runs(stories: Callable[[str], Story], format: str) -> None:
    """Slots check the filter of Parquet files, and Spark that of others."""
    story = stories(format)
    for _ in range(2):
        story.feed(LATE)
    run = story.run()
    handle = run.start()
    assert handle.queries.late_filters == ()
    waiting = Thread(target=handle.awaitTermination, daemon=True)
    waiting.start()
    story.until(handle, (DEAR,), LATE)
    story.feed(LATE)
    handle.processAllAvailable()
    story.until(handle, (), EARLY)
    story.feed(EARLY)
    handle.processAllAvailable()
    assert waiting.is_alive()
    assert handle.isActive
    moved = [each for each in handle.history if each["kind"] == "filters" and each["action"] == "moved"]
    assert [(each["from"], each["to"]) for each in moved] == [([], [DEAR]), ([DEAR], [])]
    decided = [each for each in handle.history if each["kind"] == "filters" and each["action"] == "move"]
    assert all(each["cost"]["cpu"] > each["proposedCost"]["cpu"] for each in decided)
    ours = [progress["adaptive"] for progress in handle.recentProgress if progress.get("adaptive")]
    shown = [each for batch in ours for each in batch["records"]]
    assert [each for each in shown if each.get("action") == "moved"] == moved
    # Progress from before the moves is there; the stream is read for two relations, and counts once.
    assert handle.report()["rows_in"] == sum(table.num_rows for table in story.written)
    handle.stop()
    waiting.join(60)
    assert not waiting.is_alive()
    story.check()
    # A restart begins where the filters were last, and moves them again.
    again = story.run()
    assert f"as in the checkpoint: late are none; moved after batch {decided[-1]['batch']}" in again.explanation()
    handle = again.start()
    story.until(handle, (DEAR,), LATE)
    handle.stop()
    story.check()


@pytest.mark.parametrize("format", ["parquet", "json"])
def test_a_filter_of_a_query_with_a_subquery_moves_and_a_restart_knows_it(
    stories: Callable[[str], Story], format: str
) -> None:
    story = stories(format)
    for _ in range(2):
        story.feed(LATE)
    handle = story.run(query=OVER).start()
    assert handle.queries.stages == 2
    assert handle.queries.late_filters == ()
    story.until(handle, (DEAR,), LATE)
    story.feed(LATE)
    handle.processAllAvailable()
    handle.stop()
    again = story.run(query=OVER)
    assert f"as in the checkpoint: late are {DEAR}; moved after batch" in again.explanation()
    # Another list of late filters moves it by a restart; from there on it moves by itself again.
    handle = story.run(query=OVER, late_filters=[]).start()
    assert handle.queries.late_filters == ()
    story.feed(EARLY)
    handle.processAllAvailable()
    handle.stop()
    handle = story.run(query=OVER).start()
    story.until(handle, (DEAR,), LATE)
    story.until(handle, (), EARLY)
    handle.stop()
    story.check()


def test_a_filter_moves_beside_a_mesh(stories: Callable[[str], Story]) -> None:
    story = stories("parquet")
    story.feed(LATE)
    handle = story.run(query=THREE).start()
    handle.processAllAvailable()
    handle.migrate(str(one_route(handle.queries.member(ALONE).query.graph)))
    story.until(handle, (DEAR,), LATE)
    (moved,) = (each for each in handle.history if each["kind"] == "filters" and each["action"] == "move")
    plans = {each["batchId"]: each["adaptive"]["plan"] for each in handle.recentProgress if each.get("adaptive")}
    assert isinstance(parse_plan(plans[moved["batch"]]), Mesh)
    story.until(handle, (), EARLY)
    handle.stop()
    story.check(text=THREE)


def test_a_filter_that_queries_have_in_common_moves_in_all_of_them(stories: Callable[[str], Story]) -> None:
    """The third query has no dear filter, and reads other rows; it misses nothing."""
    story = stories("parquet")
    for _ in range(2):
        story.feed(LATE)
    third = "SELECT b.k AS k FROM s b [RANGE 4 SECONDS] WHERE b.kind = 1"
    texts = {"one": TEXT, "two": TEXT.replace("[RANGE 4 SECONDS] WHERE", "[RANGE 4 SECONDS] WHERE a.k >= 0 AND")}
    queries: dict[str, object] = {
        name: {
            "query": text,
            "late_filters": "auto",
            "adapt": ADAPT,
            "sink": {"format": "parquet", "path": f"out_{name}"},
        }
        for name, text in texts.items()
    }
    queries["third"] = {"query": third, "sink": {"format": "parquet", "path": "out_third"}}
    settings = {"query": None, "sink": None, "late_filters": None, "adapt": None, "queries": queries}
    handle = story.run(**settings).start()
    assert handle.queries.late_filters == ()
    both = tuple(f"{name}: {DEAR}" for name in texts)
    story.until(handle, both, LATE)
    story.feed(LATE)
    handle.processAllAvailable()
    story.until(handle, (), EARLY)
    moved = [each for each in handle.history if each["kind"] == "filters" and each["action"] == "moved"]
    assert [(each["from"], each["to"]) for each in moved] == [([], [*both]), ([*both], [])]
    story.until(handle, both, LATE)
    handle.stop()
    again = story.run(**settings)
    assert again.queries.late_filters == both
    handle = again.start()
    story.feed(LATE)
    handle.processAllAvailable()
    handle.stop()
    for name in texts:
        story.check(f"out_{name}")
    assert pq.read_table(story.folder / "out_third").num_rows == OTHERS * len(story.written)


def test_a_move_that_fails_leaves_the_filter_and_the_query_goes_on(
    stories: Callable[[str], Story], monkeypatch: pytest.MonkeyPatch
) -> None:
    story = stories("parquet")
    story.feed(LATE)
    handle = story.run().start()
    failing = Event()
    real = change_set

    def breaks(*arguments: object) -> object:
        if not failing.is_set():
            failing.set()
            raise OSError("the disk is full")
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(changing, "change_set", breaks)
    story.until(handle, (DEAR,), LATE)
    assert failing.is_set()
    (refused,) = (each for each in handle.history if each["kind"] == "refused")
    assert "filters stay where they are: OSError('the disk is full')" in refused["reason"]
    assert handle.exception() is None
    handle.stop()
    story.check()


def test_a_user_who_stops_or_changes_the_plan_meanwhile_waits_for_the_move(
    stories: Callable[[str], Story], monkeypatch: pytest.MonkeyPatch
) -> None:
    story = stories("parquet")
    story.feed(LATE)
    handle = story.run().start()
    begun, asked = Event(), Event()
    real = change_set

    def waits(*arguments: object) -> object:
        begun.set()
        assert asked.wait(60)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(changing, "change_set", waits)
    said: list[str] = []

    def ask() -> None:
        begun.wait(120)
        asked.set()
        try:
            handle.migrate("(b a)")
        except MigrationError as error:
            said.append(error.message)
        handle.stop()

    asking = Thread(target=ask, daemon=True)
    asking.start()
    for _ in range(MOST):
        if begun.is_set():
            break
        story.feed(LATE)
        handle.processAllAvailable()
    asking.join(120)
    assert not asking.is_alive()
    assert not said
    assert not handle.isActive
    assert handle.queries.late_filters == (DEAR,)
    # What was asked for while the filters moved was asked of the query that followed.
    again = story.run().start()
    again.processAllAvailable()
    again.stop()
    story.check()
