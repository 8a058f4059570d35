"""From when on a query that joins a running set answers, and that it answers right from then on.

A query must not be promised results that need rows which the set has dropped, never had, or had without some column.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from anabranch.cql import compile_query, declared_results
from anabranch.errors import BundleError
from anabranch.lang.catalog import TableDeclaration
from anabranch.lang.schema import TIMESTAMP, Field, Schema
from anabranch.plan.physical import mjoin
from anabranch.plan.query import Query
from anabranch.plan.query_set import Plans, QuerySet, partitioning_of, together
from anabranch.run.changing import change_set, refuse_change
from anabranch.run.local import LocalHost
from anabranch.run.manifest import manifest_to_json, read_manifest
from anabranch.run.results import ResultLayout
from anabranch.run.store import Store
from tests.support.oracle import comparable, describe_difference, rows_as_multiset, timed_results
from tests.support.scripted import read_script

SECOND = 1_000_000
CATALOG = read_script("stream s (id bigint, v bigint)\nstream r (id bigint, v bigint)").catalog
CATALOG.register_table(TableDeclaration("t", Schema((Field("v", pa.int64()),))))
TABLE = pa.table({"v": [1]})
BOTH = "SELECT v.id AS i FROM s [NOW] AS v, r [NOW] AS w WHERE v.id = w.id"
"""Reads all streams, under aliases of its own, and stays."""


def rows(stream: str, times: Sequence[float]) -> pa.Table:
    declared = CATALOG.find(stream)
    assert declared is not None
    moments = [round(time * SECOND) for time in times]
    numbers = pa.array(moments, pa.int64())
    ones = pa.array([1] * len(moments), pa.int64())
    return pa.table({declared.event_time: pa.array(moments, TIMESTAMP), "id": numbers, "v": ones})


class Course:
    """A set of queries that changes between batches; `see` compares what a query gave with the batch answer."""

    def __init__(self, folder: Path, **texts: str) -> None:
        self.folder = str(folder)
        self.queries = _compiled({"both": BOTH, **texts})
        self.since: dict[str, int | None] = {}
        self.found: dict[str, list[pa.Table]] = {}
        self.given: dict[str, list[pa.Table]] = {name: [rows(name, [])] for name in ("s", "r")}
        self.several = together(self.queries)

    def add(self, **texts: str) -> None:
        self.queries |= _compiled(texts)
        self._become()

    def remove(self, *names: str) -> None:
        self.queries = {name: query for name, query in self.queries.items() if name not in names}
        self._become()

    def _become(self) -> None:
        new = together(self.queries)
        change = change_set(Store(self.folder), self.several, new, partitioning_of(new, 1))
        self.several = new
        self.since |= change.joined
        self.found |= {name: [] for name in change.joined}

    def step(self, **times: Sequence[float]) -> None:
        batch = {name: rows(name, several) for name, several in times.items()}
        for name, table in batch.items():
            self.given[name].append(table)
        tables = {"t": TABLE} if self.several.graph.tables else {}
        host = LocalHost(self.several, _plans(self.several), checkpoint=self.folder, tables=tables)
        for name, table in ResultLayout(self.several).split(host.step(batch)).items():
            self.found.setdefault(name, []).append(table)

    def see(self, name: str) -> int:
        """The event time that the query was promised, in seconds; its results are those from then on."""
        since, query = self.since[name], self.queries[name]
        assert since is not None
        tables = {stream: pa.concat_tables(parts) for stream, parts in self.given.items()}
        results = timed_results(query, {**tables, "t": TABLE})
        expected = Counter(tuple(map(comparable, values)) for time, values in results if time >= since)
        assert expected
        assert not describe_difference(expected, rows_as_multiset(pa.concat_tables(self.found[name])))
        return since - 1


def _compiled(texts: Mapping[str, str]) -> dict[str, Query]:
    return {name: compile_query(text, CATALOG, allow_unbounded=True) for name, text in texts.items()}


def _plans(queries: QuerySet) -> Plans:
    return Plans({each.name: mjoin(each.query.graph.names) for each in queries.members})


COUNTS = "SELECT WINDOW_END() AS w, COUNT(*) AS n FROM s [RANGE {} SECONDS SLIDE {} SECONDS] AS a"


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a.id AS i FROM s [RANGE 10 SECONDS] AS a",
        "SELECT a.id AS i FROM s [RANGE 10 SECONDS] AS a, t WHERE a.v <= t.v",
        "SELECT a.id AS i FROM s [RANGE 10 SECONDS] AS a LEFT ANTI JOIN t ON a.v < t.v",
        # Rows leave when their window has ended, not after its whole length.
        "SELECT WINDOW_END() AS w, COUNT(*) AS n FROM s [TUMBLE 10 SECONDS] AS a",
        # No row of b is newer than the row of a that it joins.
        "SELECT a.id AS i FROM s [RANGE 10 SECONDS] AS a, r [RANGE 10 SECONDS] AS b WHERE a.v = b.v AND b.ts <= a.ts",
    ],
)
def test_rows_that_the_set_has_dropped_are_not_promised(text: str, tmp_path: Path) -> None:
    """A query over one stream, also beside tables, keeps no row, whatever its window."""
    course = Course(tmp_path, x=text)
    for second in range(0, 16, 2):
        course.step(s=[second, second + 1], r=[second + 1])
    course.add(g=COUNTS.format(10, 2))
    course.step(s=[16])
    course.step(s=[60], r=[60])
    # The rows of the window of ten seconds that has not ended are there.
    assert course.see("g") == (20 * SECOND - 1 if "TUMBLE" in text else 25 * SECOND)


def test_a_query_over_one_stream_needs_no_older_row(tmp_path: Path) -> None:
    course = Course(tmp_path)
    course.step(s=[0, 1], r=[1])
    course.add(
        x="SELECT a.id AS i FROM s [RANGE 10 SECONDS] AS a",
        y="SELECT a.id AS i FROM s [RANGE 10 SECONDS] AS a, t WHERE a.v = t.v",
    )
    # The first row is the oldest that is promised.
    course.step(s=[1, 1.000001, 2])
    assert course.see("x") == course.see("y") == SECOND


def test_a_second_query_over_an_alias_lacks_what_the_first_lacks(tmp_path: Path) -> None:
    pairs = "SELECT a.id AS i, b.id AS j FROM s [RANGE 5 SECONDS] AS a, r [RANGE 3 SECONDS] AS b WHERE a.id < b.id"
    course = Course(tmp_path)
    course.step(s=[0, 1], r=[1])
    course.add(h=COUNTS.format(5, 1), pairs=pairs)
    course.step(s=[2], r=[3])
    course.add(g=COUNTS.format(5, 1), more=pairs)
    course.step(s=[3, 7], r=[6, 7, 8])
    course.step(s=[60], r=[60])
    assert {course.see(name) for name in ("h", "pairs", "g", "more")} == {6 * SECOND}


def test_a_query_that_leaves_and_comes_back_lacks_what_it_lacked(tmp_path: Path) -> None:
    course = Course(tmp_path)
    course.step(s=[0, 1], r=[1])
    course.add(g=COUNTS.format(5, 1))
    course.step(s=[2])
    course.add(h=COUNTS.format(5, 1))
    course.step(s=[3])
    course.remove("g")
    course.step(s=[4])
    course.add(g=COUNTS.format(5, 1))
    course.step(s=[5])
    course.step(s=[60], r=[60])
    assert course.see("g") == course.see("h") == 6 * SECOND


@pytest.mark.parametrize(
    ("first", "second"),
    [
        # The window has become longer, a filter has gone, a column has come.
        (COUNTS.format(2, 1), COUNTS.format(6, 1)),
        (COUNTS.format(6, 1) + " WHERE a.id > 2500000", COUNTS.format(6, 1)),
        (COUNTS.format(6, 1), COUNTS.format(6, 1).replace("COUNT(*)", "SUM(a.id)")),
    ],
)
def test_missing_columns_of_a_relation_are_remembered_over_changes(first: str, second: str, tmp_path: Path) -> None:
    course = Course(tmp_path, h=first)
    for second_ in range(8):
        course.step(s=[second_], r=[second_])
    course.add(g=second)
    course.step(s=[8], r=[8])
    course.add(more=second)
    course.step(s=[9, 10], r=[10])
    course.step(s=[60], r=[60])
    assert course.see("more") == course.see("g")


def test_a_query_over_a_query_that_has_just_joined_begins_with_it(tmp_path: Path) -> None:
    """The query below is one that stays, and answers from later on than the change."""
    course = Course(tmp_path)
    course.step(s=[0, 1], r=[1])
    course.add(below=COUNTS.format(5, 1))
    course.step(s=[2])
    catalog = CATALOG.copy()
    catalog.register(declared_results("below", course.queries["below"]))
    text = "SELECT c.n AS n, b.id AS j FROM below [RANGE 3 SECONDS] AS c, r [RANGE 1 SECOND] AS b WHERE c.n > b.v"
    course.queries["over"] = compile_query(text, catalog)
    course.queries["lone"] = compile_query("SELECT c.n AS n FROM below [RANGE 3 SECONDS] AS c", catalog)
    course.add()
    for second in range(3, 15):
        course.step(s=[second], r=[second])
    assert course.see("below") == course.see("lone") == 6 * SECOND
    assert course.see("over") == 9 * SECOND


@pytest.mark.parametrize("window", ["TUMBLE 5 SECONDS", "HOP 5 SECONDS SLIDE 1 SECOND"])
def test_a_window_that_ends_when_a_query_begins_to_answer_is_answered(window: str, tmp_path: Path) -> None:
    text = f"SELECT WINDOW_END() AS w, COUNT(*) AS n FROM s [{window}] AS a"
    course = Course(tmp_path, x=text)
    course.step(s=[0, 1, 4.999999], r=[1])
    course.add(g=text)
    course.step(s=[5, 6])
    course.step(s=[60], r=[60])
    assert course.see("g") + 1 == 5 * SECOND
    assert (5 * SECOND, 3) in rows_as_multiset(pa.concat_tables(course.found["g"]))


def test_a_window_that_lacks_rows_is_not_answered(tmp_path: Path) -> None:
    course = Course(tmp_path)
    course.step(s=[0, 1, 3], r=[1])
    course.add(g="SELECT WINDOW_END() AS w, COUNT(*) AS n FROM s [TUMBLE 5 SECONDS] AS a")
    course.step(s=[4, 5, 6])
    course.step(s=[60], r=[60])
    assert course.see("g") == 5 * SECOND
    assert rows_as_multiset(pa.concat_tables(course.found["g"])) == {(10 * SECOND, 2): 1}


@pytest.mark.parametrize("kind", ["LEFT ANTI", "LEFT SEMI", "LEFT", "FULL"])
def test_no_outer_join_answers_before_its_time(kind: str, tmp_path: Path) -> None:
    """Rows from before the change, all of which are there, meet something or nothing after it."""
    x = "SELECT a.id AS i FROM s [RANGE 9 SECONDS] AS a, r [RANGE 9 SECONDS] AS c WHERE a.id <> c.id"
    course = Course(tmp_path, x=x)
    course.step(s=[0, 2, 3], r=[1])
    side = f"{kind} JOIN r [RANGE 9 SECONDS] AS c ON c.id - a.id BETWEEN 2000000 AND 2500000"
    course.add(y=f"SELECT a.id AS i FROM s [RANGE 4 SECONDS] AS a {side}")
    course.step(s=[4, 7, 8, 13, 14], r=[5, 10, 13.5])
    course.step(s=[60], r=[60])
    assert course.see("y") == 3 * SECOND


def test_an_unbounded_window_over_rows_that_an_earlier_change_left_out_is_refused(tmp_path: Path) -> None:
    first = "SELECT a.id AS i, b.id AS j FROM s [UNBOUNDED] AS a, r [NOW] AS b WHERE a.id = b.id"
    course = Course(tmp_path, x=first)
    course.step(s=[0, 1], r=[1])
    course.add(y=first)
    course.add(z="SELECT a.v AS v FROM s [RANGE 3 SECONDS] AS a, r [NOW] AS b WHERE a.id = b.id")
    before = Store(course.folder).latest()
    new = together({**course.queries, "late": compile_query(first, CATALOG, allow_unbounded=True)})
    with pytest.raises(BundleError, match="query 'late' has an unbounded window over rows"):
        refuse_change(course.several, new, manifest=before)
    with pytest.raises(BundleError, match="query 'late' has an unbounded window over rows"):
        course.add(late=first)
    assert Store(course.folder).latest() == before


def test_a_manifest_keeps_what_is_complete_through_batches_and_reads_older_ones(tmp_path: Path) -> None:
    course = Course(tmp_path)
    course.step(s=[0, 1], r=[1])
    course.add(h=COUNTS.format(5, 1))
    course.step(s=[2])
    manifest = Store(course.folder).latest()
    assert manifest is not None
    assert manifest.complete["a"] == SECOND + 1
    written = json.loads(json.dumps(manifest_to_json(manifest)))
    assert read_manifest(written, manifest.batch, course.several) == manifest
    complete = written.pop("complete")
    assert read_manifest(written, manifest.batch, course.several).complete == {}
    written["lacking"] = {"a": {"id": 3, "v": 7}, "b": {}}
    assert read_manifest(written, manifest.batch, course.several).complete == {"a": 7}
    with pytest.raises(ValueError, match="complete"):
        read_manifest({**written, "complete": {"a": "7"}}, manifest.batch, course.several)
    assert complete.keys() == {"a", "v", "w"}
