"""Groups move, slots come and go, and every query gets its batch answer: together, in order, grouped, restarted.

Moves are at once, spread over batches, or on parallel tracks. Plans change beside them. Without a checkpoint, slots
take rows over from each other's engines. (Moves beside schedules of plan changes: `test_switches`.)
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import event, given, reject
from hypothesis import strategies as st

from anabranch.cql import compile_query
from anabranch.errors import BundleError, MigrationError
from anabranch.host import commit
from anabranch.host.local import LocalHost
from anabranch.host.results import ResultLayout
from anabranch.plan.execution import EXECUTION_MODELS, ExecutionModel
from anabranch.plan.mesh import Plan
from anabranch.plan.query import Query
from anabranch.plan.query_set import Plans, QuerySet, as_set, together
from anabranch.testing.meshes import meshes
from anabranch.testing.moves import SLOTS, draw_move
from anabranch.testing.oracle import Answer, batch_answer, describe_difference, rows_as_multiset
from anabranch.testing.strategies import Arrivals, arrivals, batch_cuts, grouped_queries, join_queries, plans


@given(data=st.data(), relations=st.integers(1, 4), execution=st.sampled_from(EXECUTION_MODELS))
def test_a_join_in_any_execution_model(data: st.DataObject, relations: int, execution: ExecutionModel) -> None:
    rows = data.draw(arrivals(relations, most_rows=12 if relations < 4 else 8), "rows")
    query = compile_query(data.draw(join_queries(relations, relations), "query").cql, rows.catalog)
    results, watermark = _run(data, as_set(query), rows, execution)
    expected = _answer(query, rows, watermark if execution.rows_wait else None)
    assert not describe_difference(expected, rows_as_multiset(pa.concat_tables(results)))


@given(data=st.data(), relations=st.integers(1, 3))
def test_a_grouped_query(data: st.DataObject, relations: int) -> None:
    rows = data.draw(arrivals(relations, most_rows=10), "rows")
    query = compile_query(data.draw(grouped_queries(relations, relations), "query").cql, rows.catalog)
    results, _ = _run(data, as_set(query), rows, data.draw(st.sampled_from(EXECUTION_MODELS), "execution"))
    assert not describe_difference(batch_answer(query, rows.tables), rows_as_multiset(pa.concat_tables(results)))


@given(data=st.data(), sizes=st.lists(st.integers(1, 3), min_size=2, max_size=3))
def test_queries_together(data: st.DataObject, sizes: list[int]) -> None:
    rows = data.draw(arrivals(max(sizes), most_rows=10), "rows")
    drawn = [data.draw(join_queries(max(sizes), size, shuffled=True), "query") for size in sizes]
    queries = {f"q{i}": compile_query(each.cql, rows.catalog) for i, each in enumerate(drawn)}
    try:
        several = together(queries)
    except BundleError:  # a filter of one query's own guards what may fail
        reject()
    results, _ = _run(data, several, rows, EXECUTION_MODELS[0])
    split = [ResultLayout(several).split(each) for each in results]
    for name, query in queries.items():
        answer = rows_as_multiset(pa.concat_tables([each[name] for each in split]))
        assert not describe_difference(batch_answer(query, rows.tables), answer)


def _run(
    data: st.DataObject, queries: QuerySet, rows: Arrivals, execution: ExecutionModel
) -> tuple[list[pa.Table], int]:
    """The results of each batch, and the watermark after the last."""
    batches = data.draw(batch_cuts(rows, least=4), "batches")
    restarts = data.draw(st.sets(st.integers(1, len(batches)), max_size=2), "restarts")
    few = data.draw(st.sampled_from([2, commit.COMPACT_FILES]), "files to compact")
    results = []
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(commit, "COMPACT_FILES_ALWAYS", few):
        is_kept = bool(restarts) or data.draw(st.booleans(), "with a checkpoint")
        host = _host(data, queries, folder if is_kept else None, execution)
        for number, batch in enumerate(batches):
            if number in restarts:
                event("restarted on tracks" if host.steering.table.now.mark is not None else "restarted")
                host = _host(data, queries, folder, execution)
            draw_move(data, host)
            if data.draw(st.booleans(), "another plan"):
                member = data.draw(st.sampled_from(queries.members), "of query")
                with suppress(MigrationError):  # one is under way already
                    host.migrate(data.draw(_any_plan(member.query), "plan"), query=member.name or None)
            mine = {name: table for name, table in batch.items() if name in queries.graph.streams}
            results.append(host.step(mine))
            event(f"on tracks: {host.steering.table.now.mark is not None}")
    return results, host.clocks.watermark


def _host(data: st.DataObject, queries: QuerySet, checkpoint: str | None, execution: ExecutionModel) -> LocalHost:
    chosen = Plans({m.name: data.draw(_any_plan(m.query), "plan") for m in queries.members})
    return LocalHost(queries, chosen, slots=data.draw(SLOTS, "slots"), checkpoint=checkpoint, execution=execution)


def _any_plan(query: Query) -> st.SearchStrategy[Plan]:
    trees = plans(query.graph.names, query.graph.thetas, merging=query.grouping is not None)
    return trees if query.grouping is not None or len(query.graph.names) < 2 else meshes(query.graph) | trees


def _answer(query: Query, rows: Arrivals, before: int | None) -> Answer:
    """The batch answer over all rows, or over those before a time."""
    if before is None:
        return batch_answer(query, rows.tables)
    passed = {
        name: table.filter(pc.less(table["ts"].cast(pa.timestamp("us")).cast(pa.int64()), before))
        for name, table in rows.tables.items()
    }
    return batch_answer(query, passed)
