"""Tables beside streams give the batch answer, whatever happens; one that changes is met by the batches after.

DuckDB answers for tables that stay; for tables that change, results of a batch are those of all rows so far less those
of all rows before, both with the tables of the batch.
"""

from __future__ import annotations

import tempfile
from unittest import mock

import pyarrow as pa
from hypothesis import event, given, settings
from hypothesis import strategies as st

from anabranch.cql import compile_query
from anabranch.errors import MigrationError
from anabranch.plan.query import Query
from anabranch.plan.query_set import ALONE
from anabranch.run import table_versions
from anabranch.run import tables as host_tables
from anabranch.run.local import LocalHost
from tests.support.duckdb_sql import select
from tests.support.meshes import meshes
from tests.support.oracle import Answer, batch_answer, describe_difference, rows_as_multiset
from tests.support.outer_queries import drawn_tables, outer_queries, with_tables, with_watermark
from tests.support.strategies import Arrivals, arrivals, batch_cuts, plans, tables

HOW = st.sampled_from(["auto", "moving-state", "parallel-track", "spread"])


@settings(max_examples=3 * settings().max_examples)
@given(data=st.data(), streams=st.integers(1, 3))
def test_tables_beside_streams_give_the_batch_answer(data: st.DataObject, streams: int) -> None:
    rows = data.draw(arrivals(streams, most_rows=7), "rows")
    beside = data.draw(drawn_tables(2), "tables")
    drawn = data.draw(outer_queries(streams, tables=2), "query")
    query = compile_query(drawn.cql, with_tables(rows.catalog, beside), allow_unbounded=True)
    read = _read(query, rows)
    expected = rows_as_multiset(select(with_watermark(drawn.duckdb, read), {**rows.tables, **beside}))
    event(f"tables: {len(query.whole.tables)}, results: {'some' if expected else 'none'}")
    assert not describe_difference(expected, _run(data, query, read, beside))


@given(data=st.data(), streams=st.integers(1, 2), slide=st.sampled_from([1, 2, 5]))
def test_grouped_tables_beside_streams_give_the_batch_answer(data: st.DataObject, streams: int, slide: int) -> None:
    rows = data.draw(arrivals(streams, most_rows=6), "rows")
    beside = data.draw(drawn_tables(2), "tables")
    drawn = data.draw(outer_queries(streams, slide, tables=2), "query")
    query = compile_query(drawn.cql, with_tables(rows.catalog, beside))
    read = _read(query, rows)
    expected = batch_answer(query, {**read.tables, **beside})
    assert not describe_difference(expected, _run(data, query, read, beside))


@given(data=st.data(), streams=st.integers(1, 3), share=st.sampled_from([0.5, 20.0]))
def test_a_changed_table_is_met_by_the_batches_after(data: st.DataObject, streams: int, share: float) -> None:
    """Tables are small, so it takes a large share of changed rows for slots to follow in place."""
    with mock.patch.object(table_versions, "MOST_CHANGED", share):
        _check_changes(data, streams)


def _check_changes(data: st.DataObject, streams: int) -> None:
    rows = data.draw(arrivals(streams, most_rows=7), "rows")
    first = data.draw(drawn_tables(2), "tables")
    drawn = data.draw(outer_queries(streams, tables=2), "query")
    query = compile_query(drawn.cql, with_tables(rows.catalog, first), allow_unbounded=True)
    if query.waits or not query.whole.tables:
        event("no table that may change")
        return
    batches = data.draw(batch_cuts(_read(query, rows)), "batches")
    expected, answer = Answer(), Answer()
    so_far: dict[str, pa.Table] = {name: rows.tables[name].slice(0, 0) for name in query.whole.streams}
    now = {name: first[name] for name in query.whole.tables}
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = folder if data.draw(st.booleans(), "keeps") else None
        host, offered = _host(data, query, checkpoint, now), dict(now)
        for number, batch in enumerate(batches):
            if number and checkpoint is not None and data.draw(st.booleans(), "crash"):
                # A batch that may be a repetition meets what was met before.
                offered = dict(now)
                host = _host(data, query, checkpoint, now)
            elif data.draw(st.booleans(), "change"):
                name = data.draw(st.sampled_from(sorted(now)), "table")
                offered[name] = data.draw(drawn_tables(1), "new rows")["t0"]
                host.change_table(name, offered[name])
            now = dict(offered)
            _ask(data, host)
            answer += rows_as_multiset(host.step(batch))
            before = dict(so_far)
            so_far |= {name: pa.concat_tables([so_far[name], table]) for name, table in batch.items()}
            expected += batch_answer(query, {**so_far, **now}) - batch_answer(query, {**before, **now})
    assert not describe_difference(expected, answer)


def _read(query: Query, rows: Arrivals) -> Arrivals:
    streams = query.whole.streams
    return Arrivals(
        {name: table for name, table in rows.tables.items() if name in streams},
        {name: disorder for name, disorder in rows.disorder.items() if name in streams},
    )


def _run(data: st.DataObject, query: Query, rows: Arrivals, beside: dict[str, pa.Table]) -> Answer:
    """The query on the in-process host, with crashes, other plans, slots and tables of groups."""
    batches = data.draw(batch_cuts(rows), "batches")
    crashes = data.draw(st.sets(st.integers(1, len(batches)), max_size=2), "crashes")
    given_tables = {name: beside[name] for name in query.whole.tables}
    results: list[pa.Table] = []
    with tempfile.TemporaryDirectory() as folder:
        host = _host(data, query, folder, given_tables)
        for number, batch in enumerate(batches):
            if number in crashes:
                host = _host(data, query, folder, given_tables)
            _ask(data, host)
            results.append(host.step(batch))
    assert not any(host.late.values())
    return rows_as_multiset(pa.concat_tables(results))


def _host(data: st.DataObject, query: Query, checkpoint: str | None, beside: dict[str, pa.Table]) -> LocalHost:
    # A table of three rows is large, now and then; it may have grown so since the host before.
    small = data.draw(st.sampled_from([2, host_tables.SMALL]), "small")
    slots = data.draw(st.sampled_from([1, 2, 3]), "slots")
    plan = data.draw(plans(query.graph.names) | meshes(query.graph), "plan")
    with mock.patch.object(host_tables, "SMALL", small):
        return LocalHost(query, plan, slots=slots, checkpoint=checkpoint, tables=beside)


def _ask(data: st.DataObject, host: LocalHost) -> None:
    """Another table of groups, plan or mesh now and then."""
    graph = host.queries.member(ALONE).query.graph
    if not data.draw(st.integers(0, 2), "moves"):
        host.spread(data.draw(tables(host.partitioning, host.queries.uncut), "table of groups"))
    if len(graph.names) == 1 or not data.draw(st.booleans(), "change of plan"):
        return
    drawn = meshes(graph) if data.draw(st.booleans(), "mesh") else plans(graph.names, graph.thetas)
    try:
        host.migrate(data.draw(drawn, "new plan"), data.draw(HOW, "strategy"))
    except MigrationError:
        event("change refused")
