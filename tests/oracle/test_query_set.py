"""Queries that run together: whatever their plans, the cut, the slots, the restarts, each gets its batch answer."""

from __future__ import annotations

import tempfile
from contextlib import suppress

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, event, given, reject, settings
from hypothesis import strategies as st

from anabranch.cql import compile_query
from anabranch.engine.fabric import sorting
from anabranch.errors import BundleError, MigrationError
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.ddl import parse_schema
from anabranch.plan.mesh import Plan, parse_plan
from anabranch.plan.query import Query
from anabranch.plan.query_set import Member, Plans, QuerySet, together
from anabranch.run.local import LocalHost
from anabranch.run.results import ResultLayout
from tests.support.meshes import meshes
from tests.support.oracle import batch_answer, describe_difference, rows_as_multiset
from tests.support.strategies import (
    Arrivals,
    arrivals,
    batch_cuts,
    grouped_queries,
    join_queries,
    late_filters,
    plans,
)


@pytest.fixture(autouse=True)
def _rusters_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "SMALLEST_ROW_GROUP", 1)


@settings(max_examples=2 * settings().max_examples, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), sizes=st.lists(st.integers(1, 4), min_size=2, max_size=3))
def test_queries_that_run_together_get_their_batch_answers(data: st.DataObject, sizes: list[int]) -> None:
    rows = data.draw(arrivals(max(sizes), most_rows=10), "rows")
    queries, several = _together(data, rows, sizes)
    batches = data.draw(batch_cuts(rows), "batches")
    restarts = data.draw(st.sets(st.integers(1, len(batches)), max_size=2), "restarts")
    results: dict[str, list[pa.Table]] = {name: [] for name in queries}
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = folder if restarts else None
        host = _host(data, several, checkpoint)
        for number, batch in enumerate(batches):
            if number in restarts:
                host = _host(data, several, checkpoint)
            mine = {name: table for name, table in batch.items() if name in several.graph.streams}
            for name, table in ResultLayout(host.queries).split(host.step(mine)).items():
                results[name].append(table)
    assert not any(host.late.values())
    for name, query in queries.items():
        expected = batch_answer(query, rows.tables)
        event(f"results: {min(len(expected), 50) // 10 * 10}+")
        assert not describe_difference(expected, rows_as_multiset(pa.concat_tables(results[name])))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), sizes=st.lists(st.integers(2, 3), min_size=2, max_size=2))
def test_changing_the_plan_of_one_query_changes_no_answer(data: st.DataObject, sizes: list[int]) -> None:
    rows = data.draw(arrivals(max(sizes), most_rows=10), "rows")
    queries, several = _together(data, rows, sizes)
    batches = data.draw(batch_cuts(rows, least=3), "batches")
    restart = data.draw(st.sampled_from([None, *range(1, len(batches))]), "restart")
    results: dict[str, list[pa.Table]] = {name: [] for name in queries}
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None if restart is None else folder
        host = _host(data, several, checkpoint)
        for number, batch in enumerate(batches):
            if number == restart:
                host = _host(data, several, checkpoint)
            _ask(data, host, data.draw(st.sampled_from(host.queries.members), "changing"))
            mine = {name: table for name, table in batch.items() if name in several.graph.streams}
            for name, table in ResultLayout(host.queries).split(host.step(mine)).items():
                results[name].append(table)
    for name, query in queries.items():
        answer = rows_as_multiset(pa.concat_tables(results[name]))
        assert not describe_difference(batch_answer(query, rows.tables), answer)


def _ask(data: st.DataObject, host: LocalHost, member: Member) -> None:
    """A change of one query's plan, of all its slots or of one, or an abort of the change under way."""
    if not data.draw(st.integers(0, 4), "abort"):
        with suppress(MigrationError):  # none is under way
            host.steering.of_query(member.name).abort()
    plan = data.draw(_any_plan(member.query), "plan")
    strategy = data.draw(st.sampled_from(["moving-state", "parallel-track", "spread"]), "strategy")
    slots = data.draw(st.sampled_from([None, [0]]), "slots")
    with suppress(MigrationError):  # one is under way already
        host.migrate(plan, strategy, slots, query=member.name, box_by_box=data.draw(st.booleans(), "box by box"))


def _together(data: st.DataObject, rows: Arrivals, sizes: list[int]) -> tuple[dict[str, Query], QuerySet]:
    """Queries over the rows, each with late filters of its own, and the same as a set."""
    queries = {}
    one_column = data.draw(st.booleans(), "equalities of one column")
    for number, size in enumerate(sizes):
        # Relations are taken in the order of the set, whatever the order of a query's own FROM.
        if data.draw(st.integers(0, 2), f"q{number} is grouped") == 0:
            drawn = data.draw(grouped_queries(max(sizes), size, plain=True), f"q{number}")
        else:
            drawn = data.draw(join_queries(max(sizes), size, shuffled=True, one_column=one_column), f"q{number}")
        late = data.draw(late_filters(drawn, rows), f"late filters of q{number}")
        event(f"late filters: {bool(late)}")
        queries[f"q{number}"] = compile_query(drawn.cql, rows.catalog, late_filters=late)
    try:
        return queries, together(queries)
    except BundleError:  # a filter of one query's own guards what may fail
        reject()


def _host(data: st.DataObject, several: QuerySet, checkpoint: str | None) -> LocalHost:
    plan = Plans({m.name: data.draw(_any_plan(m.query), f"plan of {m.name}") for m in several.members})
    slots = data.draw(st.sampled_from([1, 1, 2, 3, 4]), "slots")
    host = LocalHost(several, plan, slots=slots, checkpoint=checkpoint)
    event(f"class columns: {min(2, sum(len(each.classes) for each in host.queries.graph.relations))}")
    return host


def _any_plan(query: Query) -> st.SearchStrategy[Plan]:
    return meshes(query.graph) | plans(query.graph.names, query.graph.thetas, merging=query.grouping is not None)


_GROUPED = (
    "SELECT a.x AS x, COUNT(*) AS n, MIN(d.s) AS s, MAX(a.p) AS p FROM s0 [RANGE {a} SECONDS SLIDE 2 SECONDS] AS a, "
    "s0 [RANGE 4 SECONDS] AS d, s1 [RANGE {b} SECONDS] AS b WHERE a.x = b.x AND a.x = d.x {filter} GROUP BY a.x"
)
_OTHER = "SELECT a.p AS p0, b.p AS p1 FROM s0 [RANGE 7 SECONDS] AS a, s1 [RANGE 7 SECONDS] AS b WHERE a.x = b.x"


@pytest.mark.parametrize("plan", ["(a [(b d)])", "(a [([b] [d])])", "([(a b)] d)", "([(d b)] [a])"])
@pytest.mark.parametrize(
    "asked",
    [
        {"a": 7, "b": 7, "filter": "AND b.s LIKE 'a%'"},
        {"a": 7, "b": 4, "filter": ""},
        {"a": 3, "b": 2, "filter": "AND b.s LIKE 'a%' AND d.s <> 'b'"},
    ],
    ids=["a filter of its own", "a shorter window", "both"],
)
def test_rows_are_merged_only_with_rows_that_the_query_reads(asked: dict[str, object], plan: str) -> None:
    """In a set a base state has rows that only other queries ask for; merged, one row answers for all of them."""
    words = ["a", None, "ab", "b", "a", "b", None, "ab", "b", "a"]
    tables = {
        name: pa.table(
            {
                "ts": pa.array([int(1e6 * t) for t in times], pa.timestamp("us", "UTC")),
                "x": pa.array([1, 2, 2, 1, 2, 2, 1, 2, 2, 1], pa.int64()),
                "s": pa.array(words[::step], pa.string()),
                "p": pa.array(range(10), pa.int64()),
            }
        )
        for name, times, step in (
            ("s0", [1, 1, 1.5, 2.5, 3, 4.5, 5, 6, 6, 30], 1),
            ("s1", [1, 2.5, 2.5, 2.5, 2.7, 3.1, 6, 6.5, 7.5, 30], -1),
        )
    }
    catalog = Catalog()
    for name in tables:
        catalog.register(StreamDeclaration(name, parse_schema("ts timestamp, x bigint, s string, p bigint"), "ts"))
    query = compile_query(_GROUPED.format(**asked), catalog)
    several = together({"grouped": query, "other": compile_query(_OTHER, catalog)})
    assert next(each for each in several.members if each.name == "grouped").residuals, "the query asks for no less"
    expected = batch_answer(query, tables)
    assert expected
    for first in (1, 4, 9):  # the rows of s1 come first, so that rows of s0 find them in their state
        host = LocalHost(several, Plans({"grouped": parse_plan(plan), "other": parse_plan("(a b)")}), slots=1)
        batches = [{"s1": tables["s1"].slice(0, first)}, {"s0": tables["s0"]}, {"s1": tables["s1"].slice(first)}]
        found = [ResultLayout(several).split(host.step(batch))["grouped"] for batch in batches]
        assert not describe_difference(expected, rows_as_multiset(pa.concat_tables(found)))
