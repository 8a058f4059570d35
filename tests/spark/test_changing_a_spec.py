"""A running spec changes its queries: by `anabranch add`, `remove` and `reload`; the others miss no batch."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from anabranch.cli.main import main
from anabranch.cql import compile_query
from anabranch.errors import BundleError, SpecError
from anabranch.spec.change_commands import ADD, RELOAD, REMOVE
from anabranch.spec.changes import Changes
from anabranch.spec.file import parse
from anabranch.spec.launch import prepare
from anabranch.spec.model import Spec
from tests.spark.stories import FEEDS, SPARK_COLUMNS, Story, cut, feed
from tests.support.oracle import Answer, comparable, describe_difference, rows_as_multiset, timed_results

pytestmark = pytest.mark.spark

PAIRS = "SELECT a.p AS p0, b.p AS p1 FROM s0 [RANGE 6 SECONDS] AS a, s0 [RANGE 4 SECONDS] AS b WHERE a.x = b.x"
NEAR = PAIRS.replace("6 SECONDS", "2 SECONDS")
COUNTS = "SELECT a.x AS x, COUNT(*) AS n FROM s0 [RANGE 5 SECONDS SLIDE 1 SECOND] AS a GROUP BY a.x"
OVER = (
    "SELECT c.x AS x, c.n AS n, b.p AS p FROM counts [RANGE 3 SECONDS] AS c, s0 [RANGE 2 SECONDS] AS b WHERE c.x = b.x"
)
STORY = Story(PAIRS, rows=64)


def text(folder: Path, extra: str = "", **queries: str) -> str:
    """A spec with these queries, each with a sink of its own; one that ends with `!` has none."""
    lines = [f"  {name}: {query(folder, name, cql)}" for name, cql in queries.items()]
    return "\n".join(
        [
            "streams:",
            f'  s0: {{format: parquet, path: {folder / FEEDS}, schema: "{SPARK_COLUMNS}", event_time: ts,',
            "       watermark: 0 seconds, options: {maxFilesPerTrigger: 1}}",
            f"checkpoint: {folder / 'checkpoint'}",
            "trigger: 0 seconds",
            "slots: 2",
            *([extra] if extra else []),
            "queries:",
            *lines,
            "",
        ]
    )


def query(folder: Path, name: str, cql: str) -> str:
    sink = "" if cql.endswith("!") else f", sink: {{format: parquet, path: {folder / name}}}"
    return f"{{query: {cql.removesuffix('!')!r}{sink}}}"


def found(folder: Path, name: str) -> Answer:
    files = sorted((folder / name).glob("part-*.parquet"))
    return sum((rows_as_multiset(parquet.read_table(file)) for file in files), Counter())


def expected(cql: str, first: int, batches: int, of: int = 8) -> Answer:
    """The results from an event time on, over the rows of so many batches."""
    tables = {name: table.slice(0, batches * table.num_rows // of) for name, table in STORY.tables().items()}
    results = timed_results(compile_query(cql, STORY.catalog()), tables)
    return Counter(tuple(map(comparable, values)) for time, values in results if time >= first)


def changed(chosen: Spec, changes: Changes, *command: str) -> int:
    """Runs a command of the shell beside the driver, which serves it meanwhile."""
    status: list[int] = []
    asking = threading.Thread(target=lambda: status.append(main(list(command))))
    asking.start()
    while asking.is_alive():
        changes.serve()
        asking.join(0.02)
    return status[0]


@pytest.fixture
def running(spark: SparkSession, tmp_path: Path) -> Iterator[Changes]:
    (tmp_path / FEEDS).mkdir()
    (tmp_path / "spec.yaml").write_text(text(tmp_path, pairs=PAIRS))
    chosen = parse((tmp_path / "spec.yaml").read_text(), folder=tmp_path)
    handle = prepare(chosen, spark).start()
    changes = Changes(chosen, handle, lambda given, folder: parse(given, folder=folder))
    changes.open()
    yield changes
    handle.stop()


def test_queries_join_leave_and_are_replaced_from_the_shell(
    running: Changes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, more, checkpoint = tmp_path / "spec.yaml", tmp_path / "more.yaml", str(tmp_path / "checkpoint")
    more.write_text(
        f"queries:\n  counts: {query(tmp_path, 'counts', COUNTS)}\n  near: {query(tmp_path, 'near', NEAR)}\n"
    )
    for number, batch in enumerate(cut(STORY.tables(), 8)):
        feed(tmp_path, batch)
        running.handle.processAllAvailable()
        if number == 1:
            assert changed(running.spec, running, "add", checkpoint, str(more), "near") == 0
            assert "near joined; its answer is complete from 2023-11-14 " in capsys.readouterr().out
        if number == 3:
            # Another query of the same name, and one over a query that is new.
            wanted = {
                "pairs": PAIRS,
                "near": NEAR.replace("2 SECONDS", "3 SECONDS"),
                "counts": f"{COUNTS}!",
                "over": OVER,
            }
            spec.write_text(text(tmp_path, **wanted))
            assert changed(running.spec, running, "reload", str(spec)) == 0
            said = capsys.readouterr().out
            assert said.startswith("near left\n")
            assert "over joined" in said
            assert "near joined" in said
        if number == 5:
            assert changed(running.spec, running, "remove", str(spec), "over", "counts") == 0
            assert sorted(capsys.readouterr().out.splitlines()) == ["counts left", "over left"]
    running.handle.processAllAvailable()
    assert [progress["batchId"] for progress in running.handle.recentProgress if progress["adaptive"]] == list(range(8))
    records = [each for each in running.handle.history if each["kind"] == "queries"]
    assert [(sorted(each["joined"]), sorted(each["left"])) for each in records] == [
        (["near"], []),
        ([], ["near"]),
        (["counts", "near", "over"], []),
        ([], ["counts", "over"]),
    ]
    assert sorted(running.spec.queries) == sorted(running.handle.queries.names) == ["near", "pairs"]
    everything = expected(PAIRS, 0, 8)
    assert everything
    assert not describe_difference(everything, found(tmp_path, "pairs"))
    once, again = records[0]["joined"]["near"], records[2]["joined"]["near"]
    near = expected(NEAR, once, 4) + expected(NEAR.replace("2 SECONDS", "3 SECONDS"), again, 8)
    assert not describe_difference(near, found(tmp_path, "near"))


def test_what_cannot_be_changed_is_refused_by_name_and_the_run_goes_on(
    running: Changes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def given(**queries: str) -> dict[str, object]:
        return {"text": text(tmp_path, **queries), "folder": str(tmp_path), "names": []}

    with pytest.raises(BundleError, match="a query is named 'pairs' already"):
        running.make(ADD, given(pairs=PAIRS))
    with pytest.raises(SpecError, match="the file has no query 'others'"):
        running.make(ADD, {**given(more=PAIRS), "names": ["others"]})
    with pytest.raises(BundleError, match="no query is named 'nobody'"):
        running.make(REMOVE, {"names": ["nobody"]})
    with pytest.raises(BundleError, match="query 'pairs' is the only one"):
        running.make(REMOVE, {"names": ["pairs"]})
    with pytest.raises(BundleError, match="every query of the run differs: 'pairs'"):
        running.make(RELOAD, given(pairs=NEAR))
    with pytest.raises(SpecError, match="entry 'slots' differs from the value at the start of the run"):
        running.make(RELOAD, {**given(), "text": text(tmp_path, pairs=PAIRS).replace("slots: 2", "slots: 1")})
    with pytest.raises(SpecError, match="entry 'limits' or 'share' differs from the value at the start"):
        running.make(RELOAD, {**given(), "text": text(tmp_path, extra="share: auto", pairs=PAIRS)})
    with pytest.raises(SpecError, match=r"'queries\.pairs' has another 'sink' than the running query"):
        running.make(RELOAD, {**given(), "text": text(tmp_path, pairs=PAIRS).replace("/pairs}", "/others}")})
    with pytest.raises(SpecError, match="'counts' has no sink, and no other query reads it"):
        running.make(RELOAD, given(pairs=PAIRS, counts=f"{COUNTS}!"))
    running.make(ADD, given(counts=COUNTS))
    running.make(ADD, given(over=OVER))
    with pytest.raises(BundleError, match="query 'counts' is read by 'over'"):
        running.make(REMOVE, {"names": ["counts"]})
    (tmp_path / "wrong.yaml").write_text(
        f"queries:\n  more: {query(tmp_path, 'more', 'SELECT a.q FROM s0 [NOW] AS a')}\n"
    )
    wrong = changed(running.spec, running, "add", str(tmp_path / "checkpoint"), str(tmp_path / "wrong.yaml"))
    assert wrong == 2
    assert "SELECT a.q FROM s0" in capsys.readouterr().err
    feed(tmp_path, next(iter(cut(STORY.tables(), 1))))
    running.handle.processAllAvailable()
    assert not describe_difference(expected(PAIRS, 0, 8), found(tmp_path, "pairs"))
    assert sorted(running.handle.queries.names) == ["counts", "over", "pairs"]


def test_a_run_with_sparks_part_elsewhere_or_of_one_query_cannot_change(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / FEEDS).mkdir()
    feed(tmp_path, next(iter(cut(STORY.tables(), 1))))
    apart = text(tmp_path, extra=f"spark_checkpoint: {tmp_path / 'spark'}", pairs=PAIRS, near=NEAR)
    single = text(tmp_path, pairs=PAIRS).partition("queries:")[0].replace("checkpoint\n", "single\n")
    alone = f"{single}query: {PAIRS}\nsink: {{format: parquet, path: {tmp_path / 'alone'}}}\n"
    for given, says in ((apart, "while 'spark_checkpoint' is set"), (alone, "that runs alone")):
        chosen = parse(given, folder=tmp_path)
        handle = prepare(chosen, spark).start()
        changes = Changes(chosen, handle, lambda given, folder: parse(given, folder=folder))
        try:
            with pytest.raises(SpecError, match=says):
                changes.make(ADD, {"text": text(tmp_path, more=PAIRS), "folder": str(tmp_path), "names": []})
            with pytest.raises(SpecError, match=says):
                changes.make(REMOVE, {"names": ["near"]})
            if chosen.spark_checkpoint:
                with pytest.raises(SpecError, match=says):
                    handle.remove("near")
            handle.processAllAvailable()
            assert handle.isActive
        finally:
            handle.stop()
    assert not describe_difference(expected(PAIRS, 0, 8), found(tmp_path, "pairs"))
    assert not describe_difference(expected(PAIRS, 0, 8), found(tmp_path, "alone"))


def test_filters_move_to_the_joins_and_back_by_a_reload(spark: SparkSession, tmp_path: Path) -> None:
    """The same query with other late filters stays: it neither leaves nor joins, and misses nothing."""
    filtered = f"{PAIRS} AND a.s LIKE 'a%' AND a.p <> 3"
    (tmp_path / FEEDS).mkdir()
    spec = tmp_path / "spec.yaml"

    def write(late: str) -> Spec:
        written = text(tmp_path, pairs=filtered, near=NEAR)
        moved = f"{{late_filters: [{late}], query: {filtered!r}" if late else f"{{query: {filtered!r}"
        spec.write_text(written.replace(f"{{query: {filtered!r}", moved))
        return parse(spec.read_text(), folder=tmp_path)

    chosen = write("")
    handle = prepare(chosen, spark).start()
    changes = Changes(chosen, handle, lambda given, folder: parse(given, folder=folder))
    changes.open()
    try:
        for number, batch in enumerate(cut(STORY.tables(), 8)):
            feed(tmp_path, batch)
            handle.processAllAvailable()
            if number in (2, 5):
                write("a" if number == 2 else "")
                assert changed(changes.spec, changes, "reload", str(spec)) == 0
                assert bool(handle.queries.member("pairs").query.late_filters) == (number == 2)
        handle.processAllAvailable()
    finally:
        handle.stop()
    assert all(not each["joined"] and not each["left"] for each in handle.history if each["kind"] == "queries")
    assert not describe_difference(expected(filtered, 0, 8), found(tmp_path, "pairs"))
    assert not describe_difference(expected(NEAR, 0, 8), found(tmp_path, "near"))
