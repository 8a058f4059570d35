"""Count windows give the batch answer of the rows that the watermark has passed, whatever happens to the query.

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
from anabranch.engine import slices
from anabranch.engine.engine import Engine
from anabranch.engine.state import base
from anabranch.engine.state.arena import MappedArena
from anabranch.errors import MigrationError
from anabranch.plan.execution import EXECUTION_MODELS
from anabranch.plan.query import Query
from anabranch.plan.query_set import ALONE
from anabranch.run import commit
from anabranch.run.local import LocalHost
from tests.support.count_queries import count_plans, count_queries
from tests.support.duckdb_sql import duckdb_answer, select
from tests.support.meshes import meshes
from tests.support.oracle import Answer, batch_answer, describe_difference, rows_as_multiset
from tests.support.strategies import Arrivals, arrivals, batch_cuts, tables


@settings(max_examples=2 * settings().max_examples)
@given(data=st.data(), relations=st.integers(1, 4))
def test_a_join_of_count_windows_gives_the_batch_answer(data: st.DataObject, relations: int) -> None:
    streams = data.draw(st.integers(max(1, relations - 1), relations), "streams")
    rows = data.draw(arrivals(streams, most_rows=12 if relations < 4 else 8, alike=data.draw(st.booleans())), "rows")
    drawn = data.draw(count_queries(streams, relations), "query")
    answer, watermark = run(data, compile_query(drawn.cql, rows.catalog), rows)
    expected = rows_as_multiset(select(drawn.duckdb, passed(rows, watermark)))
    event(f"results: {'some' if expected else 'none'}")
    assert not describe_difference(expected, answer)


@settings(max_examples=2 * settings().max_examples)
@given(data=st.data(), relations=st.integers(1, 3), slide=st.sampled_from([1, 2, 5]))
def test_a_grouped_query_of_count_windows_gives_the_batch_answer(
    data: st.DataObject, relations: int, slide: int
) -> None:
    rows = data.draw(arrivals(relations, most_rows=10, alike=data.draw(st.booleans())), "rows")
    query = compile_query(data.draw(count_queries(relations, relations, slide), "query").cql, rows.catalog)
    answer, _ = run(data, query, rows)
    expected = batch_answer(query, rows.tables)
    event(f"results: {'some' if expected else 'none'}")
    assert not describe_difference(expected, answer)


@given(data=st.data(), relations=st.integers(1, 3))
def test_three_ways_to_reckon_count_windows_agree(data: st.DataObject, relations: int) -> None:
    rows = data.draw(arrivals(relations, most_rows=8, alike=data.draw(st.booleans())), "rows")
    drawn = data.draw(count_queries(relations, relations), "query")
    query = compile_query(drawn.cql, rows.catalog)
    naive = batch_answer(query, rows.tables)
    assert not describe_difference(naive, rows_as_multiset(select(drawn.duckdb, rows.tables)))
    assert not describe_difference(naive, rows_as_multiset(duckdb_answer(query, rows.tables)))


def passed(rows: Arrivals, watermark: int) -> dict[str, pa.Table]:
    """The rows before a watermark."""
    return {
        name: table.filter(pc.less(table["ts"].cast(pa.timestamp("us")).cast(pa.int64()), watermark))
        for name, table in rows.tables.items()
    }


def run(data: st.DataObject, query: Query, rows: Arrivals) -> tuple[Answer, int]:
    """The query on the in-process host, with whatever may happen to it; and the watermark at its end."""
    batches = data.draw(batch_cuts(rows), "batches")
    crashes = data.draw(st.sets(st.integers(1, len(batches)), max_size=2), "crashes")
    few = data.draw(st.sampled_from([2, commit.COMPACT_FILES]), "files to compact")
    waste = data.draw(st.sampled_from([0, 0, base.WASTE]), "waste")
    cut = data.draw(st.sampled_from([1, 1, slices.SLICE_ROWS]), "rows of a slice")
    execution = data.draw(st.sampled_from(EXECUTION_MODELS), "execution")
    results: list[pa.Table] = []

    def start() -> LocalHost:
        plan = data.draw(count_plans(query.graph) | meshes(query.graph), "plan")
        slots = data.draw(st.sampled_from([1, 2, 3]), "slots")
        return LocalHost(query, plan, slots=slots, checkpoint=checkpoint, execution=execution)

    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(commit, "COMPACT_FILES_ALWAYS", few),
        mock.patch.object(base, "WASTE", waste),
        mock.patch.object(slices, "SLICE_ROWS", cut),
    ):
        checkpoint = f"{folder}/kept" if len(crashes) > 0 or data.draw(st.booleans(), "checkpoint") else None
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
    """Another table of groups, plan or mesh now and then."""
    graph = host.queries.member(ALONE).query.graph
    if not data.draw(st.integers(0, 2), "moves"):
        host.spread(data.draw(tables(host.partitioning, host.queries.uncut), "table"))
    if len(graph.names) == 1 or not data.draw(st.booleans(), "change"):
        return
    drawn = meshes(graph) if data.draw(st.booleans(), "mesh") else count_plans(graph)
    try:
        host.migrate(data.draw(drawn, "new plan"), data.draw(st.sampled_from(["auto", "moving-state"]), "strategy"))
    except MigrationError:
        event("change refused")


def _found_again(engine: Engine, folder: Path) -> Engine:
    """The engine as another worker of the machine finds it: rebuilt in mapped memory, and opened from there."""
    folder.mkdir()
    if engine.is_migrating or engine.watermark_buffer is None or engine.watermark_buffer.passed is None:
        return engine
    codes = {name: each.codes for name, each in engine.bases.items()}
    arena = MappedArena(folder)
    rebuilt = Engine.alone(engine.only.query, engine.only.plan, arena=arena, codes=codes, execution=engine.execution)
    rebuilt.restore(engine.export(), {ALONE: engine.watermark_buffer.passed})
    again = Engine.alone(engine.only.query, engine.only.plan, arena=arena, codes=codes, execution=engine.execution)
    again.reopen(json.loads(json.dumps(rebuilt.layout())))
    return again
