"""Moving a filter between Spark and the joins by a restart: state filtering, and the copy of filtered states."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from anabranch.cql import compile_query
from anabranch.errors import BundleError, ForeignCheckpoint
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.ddl import parse_schema
from anabranch.plan.query import Query
from anabranch.plan.query_set import Plans, QuerySet, alone, partitioning_of, together
from anabranch.plan.text import parse
from anabranch.run import evolving
from anabranch.run.changing import change_set
from anabranch.run.local import LocalHost
from anabranch.run.results import ResultLayout
from anabranch.run.store import Store
from tests.support.hosts import engines_of
from tests.support.oracle import batch_answer, describe_difference, rows_as_multiset

SECOND = 1_000_000
TEXT = (
    "SELECT a.v AS x, b.v AS y FROM a [RANGE 60 SECONDS], b [RANGE 60 SECONDS]"
    " WHERE a.k = b.k AND a.note LIKE 'urgent%' AND a.v <> 3"
)
LIKE = "a.note LIKE 'urgent%'"


def catalog() -> Catalog:
    catalog = Catalog()
    for name in "ab":
        catalog.register(StreamDeclaration(name, parse_schema("ts timestamp, k bigint, v bigint, note string"), "ts"))
    return catalog


def compiled(late: Sequence[str], text: str = TEXT) -> Query:
    return compile_query(text, catalog(), late_filters=late)


def rows(second: int) -> pa.Table:
    times = pa.array([second * SECOND + i for i in range(6)], pa.int64())
    notes = [None, "urgent", "plain", "urgent: pay", "x", "urgent"]
    return pa.table(
        {
            "ts": times.cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC")),
            "k": pa.array([0, 1, 0, 1, None, 0], pa.int64()),
            "v": pa.array([second, 2, 3, 3, 4, 5], pa.int64()),
            "note": notes,
        }
    )


def follow(folder: Path, late: Sequence[str], text: str = TEXT) -> bool:
    queries = alone(compiled(late, text))
    return evolving.follow(Store(str(folder)), queries, catalog(), lambda: partitioning_of(queries, 1)) is not None


@pytest.mark.parametrize(
    "course",
    [
        [[], ["a"]],
        [["a"], []],
        [[], [LIKE], [], ["a"], [LIKE]],
        [["a"], [LIKE], ["a"]],
    ],
)
@pytest.mark.parametrize("slots", [1, 3])
def test_filters_move_by_a_restart_and_no_result_is_lost_or_repeated(
    tmp_path: Path, course: list[list[str]], slots: int
) -> None:
    given: dict[str, list[pa.Table]] = {"a": [], "b": []}
    found = []
    for stage, late in enumerate(course):
        assert follow(tmp_path, late) == (stage > 0)
        host = LocalHost(compiled(late), parse("(a b)"), slots=slots, checkpoint=str(tmp_path))
        for batch in range(2):
            step = {name: rows(4 * stage + batch) for name in "ab"}
            found.append(host.step(step))
            for name, table in step.items():
                given[name].append(table)
    expected = batch_answer(compiled([]), {name: pa.concat_tables(tables) for name, tables in given.items()})
    assert not describe_difference(expected, rows_as_multiset(pa.concat_tables(found)))


def test_a_filter_that_is_pushed_down_leaves_the_rows_that_pass_it(tmp_path: Path) -> None:
    host = LocalHost(compiled(["a"]), parse("(a b)"), checkpoint=str(tmp_path))
    host.step({name: rows(0) for name in "ab"})
    (engine,) = engines_of(host)
    assert engine.bases["a"].ring.live == 5
    follow(tmp_path, [])
    host = LocalHost(compiled([]), parse("(a b)"), checkpoint=str(tmp_path))
    host.step({"b": rows(1)})
    (engine,) = engines_of(host)
    assert engine.bases["a"].ring.live == 2


def test_rows_of_a_filter_that_is_pulled_up_are_copied_as_they_are(tmp_path: Path) -> None:
    LocalHost(compiled([]), parse("(a b)"), checkpoint=str(tmp_path)).step({name: rows(0) for name in "ab"})
    follow(tmp_path, ["a"])
    host = LocalHost(compiled(["a"]), parse("(a b)"), checkpoint=str(tmp_path))
    host.step({"b": rows(1)})
    (engine,) = engines_of(host)
    notes = set(engine.bases["a"].export().payload.column("note").to_pylist())
    assert len(notes) == 1
    assert notes.pop().startswith("urgent")


def test_a_filter_without_known_placeholders_is_not_moved(tmp_path: Path) -> None:
    text = TEXT.replace("a.note LIKE 'urgent%'", "LENGTH(a.note) = 1234")
    LocalHost(compiled([], text), parse("(a b)"), checkpoint=str(tmp_path)).step({name: rows(0) for name in "ab"})
    with pytest.raises(ForeignCheckpoint, match="other late filters"):
        follow(tmp_path, ["a"], text)
    # The checkpoint is as it was.
    LocalHost(compiled([], text), parse("(a b)"), checkpoint=str(tmp_path)).step({name: rows(1) for name in "ab"})


def test_the_checkpoint_of_another_query_is_not_touched(tmp_path: Path) -> None:
    LocalHost(compiled([]), parse("(a b)"), checkpoint=str(tmp_path)).step({name: rows(0) for name in "ab"})
    other = TEXT.replace("<> 3", "<> 4")
    assert not follow(tmp_path, ["a"], other)
    with pytest.raises(ForeignCheckpoint, match="another query"):
        LocalHost(compiled(["a"], other), parse("(a b)"), checkpoint=str(tmp_path))


def test_filters_of_queries_that_run_together_move_with_a_change_of_the_set(tmp_path: Path) -> None:
    """The other query has the same filter and does not move it."""
    other = TEXT.replace("b.v AS y", "b.v + 1 AS z")
    found: dict[str, list[pa.Table]] = {"moving": [], "staying": []}
    given: dict[str, list[pa.Table]] = {"a": [], "b": []}
    before: QuerySet | None = None
    for stage, late in enumerate(([], ["a"], [LIKE], [])):
        queries = together({"moving": compiled(late), "staying": compiled([], other)})
        if before is not None:
            change_set(Store(str(tmp_path)), before, queries, partitioning_of(queries, 1))
        before = queries
        host = LocalHost(queries, Plans(dict.fromkeys(found, parse("(a b)"))), checkpoint=str(tmp_path))
        step = {name: rows(3 * stage) for name in "ab"}
        for name, part in ResultLayout(queries).split(host.step(step)).items():
            found[name].append(part)
        for name, table in step.items():
            given[name].append(table)
    whole = {name: pa.concat_tables(tables) for name, tables in given.items()}
    for name, text in (("moving", TEXT), ("staying", other)):
        expected = batch_answer(compiled([], text), whole)
        assert not describe_difference(expected, rows_as_multiset(pa.concat_tables(found[name])))


def put_off_one_by_one(folder: Path, other: str) -> tuple[list[pa.Table], dict[str, pa.Table]]:
    """Two filters of one column are put off, one after the other, while rows from before are still there."""
    found, given, before = [], {name: list[pa.Table]() for name in "ab"}, None
    for stage, late in enumerate(((), (LIKE,), (LIKE, other))):
        queries = alone(compiled(late, TEXT.replace("a.v <> 3", other)))
        if before is not None:
            change_set(Store(str(folder)), before, queries, partitioning_of(queries, 1))
        before = queries
        step = {name: rows(4 * stage) for name in "ab"}
        found.append(LocalHost(queries, parse("(a b)"), checkpoint=str(folder)).step(step))
        for name, table in step.items():
            given[name].append(table)
    return found, {name: pa.concat_tables(tables) for name, tables in given.items()}


def test_filters_of_one_column_that_are_put_off_one_by_one_lose_nothing(tmp_path: Path) -> None:
    """Rows that lack the column get a value with which both filters pass, though only one of them checks it yet."""
    other = "a.note LIKE '%nt'"
    found, given = put_off_one_by_one(tmp_path, other)
    expected = batch_answer(compiled([], TEXT.replace("a.v <> 3", other)), given)
    assert expected
    assert not describe_difference(expected, rows_as_multiset(pa.concat_tables(found)))


def test_a_filter_that_earlier_placeholders_do_not_pass_is_not_moved(tmp_path: Path) -> None:
    """No value is known with which both pass: the first moves, and the second must wait."""
    other = "a.note LIKE '%pay'"
    with pytest.raises(BundleError, match=r"have placeholders that fail .* LIKE '%pay'"):
        put_off_one_by_one(tmp_path, other)
    queries = alone(compiled([LIKE], TEXT.replace("a.v <> 3", other)))
    LocalHost(queries, parse("(a b)"), checkpoint=str(tmp_path)).step({name: rows(9) for name in "ab"})
