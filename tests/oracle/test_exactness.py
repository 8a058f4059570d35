"""The heart of the product: whatever the plan, the cut, the slots, the restarts, the answer is the batch answer.

Joins are compared with DuckDB, which is given the query text itself; grouped queries with the naive evaluator. Both are
independent of the engine.
"""

from __future__ import annotations

import contextlib
import tempfile

import duckdb
import pyarrow as pa
from hypothesis import event, given, settings
from hypothesis import strategies as st

from anabranch.cql import compile_query
from anabranch.errors import AnabranchError, ExpressionError
from anabranch.plan.query import Query
from anabranch.plan.text import parse
from anabranch.run.local import LocalHost
from tests.support.comparisons import Comparison, bands, keys
from tests.support.duckdb_sql import duckdb_answer, select
from tests.support.oracle import Answer, batch_answer, describe_difference, rows_as_multiset
from tests.support.strategies import (
    Arrivals,
    DrawnQuery,
    arrivals,
    batch_cuts,
    grouped_queries,
    join_queries,
    plans,
)


@settings(max_examples=4 * settings().max_examples)
@given(data=st.data(), relations=st.integers(2, 6))
def test_a_join_gives_the_batch_answer(data: st.DataObject, relations: int) -> None:
    streams = data.draw(st.integers(max(1, relations - 1), relations), "streams")
    rows = data.draw(arrivals(streams, most_rows=14 if relations < 4 else 8), "rows")
    drawn = data.draw(join_queries(streams, relations), "query")
    answer = _run(data, drawn, rows)
    expected = _duckdb(drawn, rows)
    event(f"results: {min(len(expected), 50) // 10 * 10}+")
    assert not describe_difference(expected, answer)


@given(data=st.data(), relations=st.integers(1, 3))
def test_a_grouped_query_gives_the_batch_answer(data: st.DataObject, relations: int) -> None:
    streams = data.draw(st.integers(max(1, relations - 1), relations), "streams")
    rows = data.draw(arrivals(streams, most_rows=10), "rows")
    drawn = data.draw(grouped_queries(streams, relations), "query")
    expected = batch_answer(compile_query(drawn.cql, rows.catalog), rows.tables)
    answer = _run(data, drawn, rows)
    assert not describe_difference(expected, answer)


@settings(max_examples=3 * settings().max_examples)
@given(drawn=bands() | keys(), slots=st.sampled_from([1, 3]), plan=st.sampled_from(["(a b)", "(b a)"]))
def test_a_comparison_of_any_types_gives_the_batch_answer(drawn: Comparison, slots: int, plan: str) -> None:
    try:
        query = compile_query(drawn.cql, drawn.catalog)
    except AnabranchError:
        event("refused")
        return
    try:
        expected = batch_answer(query, drawn.rows)
    except ExpressionError:
        event("overflows")  # for some pair, which an index may pass over
        return
    event(f"results: {min(expected.total(), 5)}")
    assert not describe_difference(
        expected, rows_as_multiset(LocalHost(query, parse(plan), slots=slots).step(drawn.rows))
    )
    with contextlib.suppress(ValueError, duckdb.Error):
        by_duckdb = rows_as_multiset(duckdb_answer(query, drawn.rows))
        event("asked DuckDB")
        assert not describe_difference(expected, by_duckdb)


@given(data=st.data())
def test_the_two_oracles_agree(data: st.DataObject) -> None:
    rows = data.draw(arrivals(2, most_rows=8), "rows")
    drawn = data.draw(join_queries(2, 2), "query")
    naive = batch_answer(compile_query(drawn.cql, rows.catalog), rows.tables)
    assert not describe_difference(_duckdb(drawn, rows), naive)


def _run(data: st.DataObject, drawn: DrawnQuery, rows: Arrivals) -> Answer:
    """The query on the in-process host, restarted now and then with another plan and another number of slots."""
    query = compile_query(drawn.cql, rows.catalog)
    batches = data.draw(batch_cuts(rows), "batches")
    restarts = data.draw(st.sets(st.integers(1, len(batches)), max_size=2), "restarts")
    results: list[pa.Table] = []
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = folder if restarts else None
        host = _host(data, drawn, query, checkpoint)
        for number, batch in enumerate(batches):
            if number in restarts:
                host = _host(data, drawn, query, checkpoint)
            results.append(host.step(batch))
    assert not any(host.late.values())
    return rows_as_multiset(pa.concat_tables(results))


def _host(data: st.DataObject, drawn: DrawnQuery, query: Query, checkpoint: str | None) -> LocalHost:
    plan = data.draw(plans(drawn.relations), "plan")
    slots = data.draw(st.sampled_from([1, 1, 2, 3, 4]), "slots")
    return LocalHost(query, plan, slots=slots, checkpoint=checkpoint)


def _duckdb(drawn: DrawnQuery, rows: Arrivals) -> Answer:
    return rows_as_multiset(select(drawn.duckdb, rows.tables))
