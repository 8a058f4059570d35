"""Outer, semi and anti joins give the batch answer, whatever the plan, its changes, cuts, slots, moves and crashes.

DuckDB is given SQL of the same meaning; grouped queries are compared with the naive evaluator.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import event, given, settings
from hypothesis import strategies as st

from anabranch.cql import compile_query
from anabranch.engine.engine import Engine
from anabranch.engine.state.arena import MappedArena
from anabranch.errors import MigrationError
from anabranch.plan.execution import EXECUTION_MODELS, ExecutionModel
from anabranch.plan.query import Query
from anabranch.plan.query_set import ALONE
from anabranch.run import commit
from anabranch.run.local import LocalHost
from tests.support.duckdb_sql import select
from tests.support.meshes import meshes
from tests.support.moves import SLOTS, draw_move
from tests.support.oracle import Answer, batch_answer, describe_difference, rows_as_multiset
from tests.support.outer_queries import outer_queries, with_watermark
from tests.support.strategies import Arrivals, arrivals, batch_cuts, plans

NOTHING_WAITS = st.sampled_from([EXECUTION_MODELS[0], EXECUTION_MODELS[0], EXECUTION_MODELS[1]])
HOW = st.sampled_from(["auto", "moving-state", "parallel-track", "spread"])


@settings(max_examples=4 * settings().max_examples)
@given(data=st.data(), streams=st.integers(1, 4))
def test_an_outer_join_gives_the_batch_answer(data: st.DataObject, streams: int) -> None:
    rows = data.draw(arrivals(streams, most_rows=7), "rows")
    drawn = data.draw(outer_queries(streams), "query")
    query = compile_query(drawn.cql, rows.catalog)
    expected = _duckdb(query, drawn.duckdb, rows)
    answer, _ = _run(data, query, rows)
    event(f"results: {'some' if expected else 'none'}")
    assert not describe_difference(expected, answer)


@settings(max_examples=2 * settings().max_examples)
@given(data=st.data(), streams=st.integers(1, 3), slide=st.sampled_from([1, 2, 5]))
def test_a_grouped_outer_join_gives_the_batch_answer(data: st.DataObject, streams: int, slide: int) -> None:
    rows = data.draw(arrivals(streams, most_rows=6), "rows")
    drawn = data.draw(outer_queries(streams, slide), "query")
    query = compile_query(drawn.cql, rows.catalog)
    expected = batch_answer(query, _read(query, rows).tables)
    event(f"results: {'some' if expected else 'none'}")
    assert not describe_difference(expected, _run(data, query, rows)[0])


@given(data=st.data(), streams=st.integers(1, 3))
def test_an_outer_join_whose_rows_wait_for_the_watermark_gives_the_answer_over_those_before_it(
    data: st.DataObject, streams: int
) -> None:
    """What a combination has met stays as long as the combination, in every execution model."""
    rows = data.draw(arrivals(streams, most_rows=12, mostly_dense=True), "rows")
    query = compile_query(data.draw(outer_queries(streams), "query").cql, rows.catalog)
    answer, watermark = _run(data, query, rows, st.sampled_from(EXECUTION_MODELS[2:]))
    passed = {
        name: table.filter(pc.less(table["ts"].cast(pa.timestamp("us")).cast(pa.int64()), watermark))
        for name, table in _read(query, rows).tables.items()
    }
    expected = batch_answer(query, passed, watermark)
    event(f"results: {'some' if expected else 'none'}")
    assert not describe_difference(expected, answer)


@given(data=st.data(), streams=st.integers(1, 4))
def test_both_oracles_agree_on_outer_joins(data: st.DataObject, streams: int) -> None:
    rows = data.draw(arrivals(streams, most_rows=5), "rows")
    drawn = data.draw(outer_queries(streams), "query")
    query = compile_query(drawn.cql, rows.catalog)
    naive = batch_answer(query, _read(query, rows).tables)
    assert not describe_difference(_duckdb(query, drawn.duckdb, rows), naive)


def _read(query: Query, rows: Arrivals) -> Arrivals:
    """The rows of the streams that the query reads; the others have no part in its watermark."""
    streams = {relation.stream for relation in query.whole.relations}
    return Arrivals(
        {name: table for name, table in rows.tables.items() if name in streams},
        {name: disorder for name, disorder in rows.disorder.items() if name in streams},
    )


def _duckdb(query: Query, sql: str, rows: Arrivals) -> Answer:
    return rows_as_multiset(select(with_watermark(sql, _read(query, rows)), rows.tables))


def _run(
    data: st.DataObject, query: Query, rows: Arrivals, models: st.SearchStrategy[ExecutionModel] = NOTHING_WAITS
) -> tuple[Answer, int]:
    """The query on the in-process host, with whatever may happen to it; its results, and the watermark after them."""
    rows = _read(query, rows)
    batches = data.draw(batch_cuts(rows), "batches")
    crashes = data.draw(st.sets(st.integers(1, len(batches)), max_size=2), "crashes")
    few = data.draw(st.sampled_from([2, commit.COMPACT_FILES]), "files to compact")
    execution = data.draw(models, "execution")
    results: list[pa.Table] = []

    def start() -> LocalHost:
        slots = data.draw(SLOTS, "slots")
        plan = data.draw(plans(query.graph.names) | meshes(query.graph), "plan")
        return LocalHost(query, plan, slots=slots, checkpoint=f"{folder}/kept", execution=execution)

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(commit, "COMPACT_FILES_ALWAYS", few):
        host = start()
        for number, batch in enumerate(batches):
            if number in crashes:
                host = start()
            _ask(data, host)
            if host.partitioning.slots == 1 and 0 in host.engines and data.draw(st.booleans(), "found again"):
                host.engines[0] = _found_again(host.engines[0], Path(folder) / f"hot{number}")
            results.append(host.step(batch))
    assert not any(host.late.values())
    return rows_as_multiset(pa.concat_tables(results)), host.clocks.watermark


def _ask(data: st.DataObject, host: LocalHost) -> None:
    """Another table, plan or mesh now and then."""
    graph = host.queries.member(ALONE).query.graph
    if not data.draw(st.integers(0, 2), "moves"):
        draw_move(data, host)
    if len(graph.names) == 1 or not data.draw(st.booleans(), "change"):
        return
    drawn = meshes(graph) if data.draw(st.booleans(), "mesh") else plans(graph.names, graph.thetas)
    try:
        host.migrate(data.draw(drawn, "new plan"), data.draw(HOW, "strategy"))
    except MigrationError:
        event("change refused")


def _found_again(engine: Engine, folder: Path) -> Engine:
    """The engine as another worker of the machine finds it: rebuilt in mapped memory, and opened from there."""
    folder.mkdir()
    if engine.is_migrating or engine.only.sides is None or engine.watermark_buffer is not None:
        return engine
    codes = {name: base.codes for name, base in engine.bases.items()}
    arena = MappedArena(folder)
    rebuilt = Engine.alone(engine.only.query, engine.only.plan, arena=arena, codes=codes, execution=engine.execution)
    passed = engine.only.sides.passed
    grouping = engine.only.query.grouping
    # The last watermark that passes no further boundary.
    answered = None if passed is None else {ALONE: passed if grouping is None else grouping.instant(passed + 1)}
    rebuilt.restore(engine.export(), answered)
    again = Engine.alone(engine.only.query, engine.only.plan, arena=arena, codes=codes, execution=engine.execution)
    again.reopen(json.loads(json.dumps(rebuilt.layout())))
    return again
