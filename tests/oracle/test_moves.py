"""Groups move, slots come and go, and every query gets its batch answer: together, in order, grouped, restarted.

Moves are at once, spread over batches, or on parallel tracks, by hand or by the query itself, whose loads are drawn.
Plans change beside them. A host may be restarted between two batches, or die in one before it is committed. Without a
checkpoint, slots take rows over from each other's engines; with one, they may be workers that find their hot state
again in every batch. (Moves beside schedules of plan changes: `test_switches`.)
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import event, given, reject
from hypothesis import strategies as st

from anabranch.cql import compile_query
from anabranch.errors import BundleError, MigrationError
from anabranch.plan.execution import EXECUTION_MODELS, ExecutionModel
from anabranch.plan.mesh import Plan
from anabranch.plan.query import Query
from anabranch.plan.query_set import Plans, QuerySet, as_set, together
from anabranch.run import commit
from anabranch.run.local import LocalHost
from anabranch.run.results import ResultLayout
from anabranch.run.slot import SlotTask
from tests.support.loads import given_loads
from tests.support.meshes import meshes
from tests.support.moves import BALANCES, SLOTS, draw_move, drawn_loads
from tests.support.oracle import Answer, batch_answer, describe_difference, rows_as_multiset
from tests.support.strategies import Arrivals, arrivals, batch_cuts, grouped_queries, join_queries, plans
from tests.support.workers import WorkerHost


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


@given(data=st.data(), slide=st.sampled_from([1, 2]), having=st.sampled_from(["", " HAVING COUNT(*) > 1"]))
def test_groups_by_the_key_that_spreads_rows(data: st.DataObject, slide: int, having: str) -> None:
    """A slot finds whole groups, except while groups move on parallel tracks and where the key is split."""
    rows = data.draw(arrivals(2, most_rows=16, mostly_dense=True), "rows")
    window = f"[RANGE 6 SECONDS SLIDE {slide} SECONDS]"
    text = (
        f"SELECT WINDOW_END() AS at, a.x AS k, COUNT(*) AS n, SUM(b.p) AS s "
        f"FROM s0 {window} AS a, s1 {window} AS b WHERE a.x = b.x GROUP BY a.x{having}"
    )
    query = compile_query(text, rows.catalog)
    results, _ = _run(data, as_set(query), rows, EXECUTION_MODELS[0])
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


class Death(Exception):
    """The end of a host before its batch was committed."""


def _die(task: SlotTask, answer: pa.Table) -> None:
    raise Death


def _run(
    data: st.DataObject, queries: QuerySet, rows: Arrivals, execution: ExecutionModel
) -> tuple[list[pa.Table], int]:
    """The results of each batch, and the watermark after the last."""
    batches = data.draw(batch_cuts(rows, least=4), "batches")
    restarts = data.draw(st.sets(st.integers(1, len(batches)), max_size=2), "restarts")
    deaths = data.draw(st.sets(st.integers(0, len(batches)), max_size=2), "deaths")
    few = data.draw(st.sampled_from([2, commit.COMPACT_FILES]), "files to compact")
    loads = drawn_loads(data.draw(st.integers(0, 2**32 - 1), "loads"))
    results = []
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(commit, "COMPACT_FILES_ALWAYS", few),
        mock.patch.dict(os.environ, ANABRANCH_HOT_FOLDER=f"{folder}/hot"),
        given_loads(loads),
    ):
        is_kept = bool(restarts or deaths) or data.draw(st.booleans(), "with a checkpoint")
        checkpoint = f"{folder}/kept" if is_kept else None
        host = _host(data, queries, checkpoint, execution)
        for number, batch in enumerate(batches):
            if number in restarts:
                event("restarted on tracks" if host.steering.table.now.mark is not None else "restarted")
                host = _host(data, queries, checkpoint, execution)
            mine = {name: table for name, table in batch.items() if name in queries.graph.streams}
            _ask(data, host)
            if number in deaths:
                with pytest.raises(Death):
                    host.step(mine, deliver=_die)
                event(f"died amid a move: {host.steering.table._began is not None}")
                host = _host(data, queries, checkpoint, execution)
                _ask(data, host)
            results.append(host.step(mine))
            event(f"on tracks: {host.steering.table.now.mark is not None}")
        for record in host.history:
            if record["kind"] in ("balance", "move"):
                event(f"{record['kind']} by {'balance' if record.get('by') == 'balance' else 'others'}")
    return results, host.clocks.watermark


def _ask(data: st.DataObject, host: LocalHost) -> None:
    """Another table, and another plan, now and then."""
    draw_move(data, host)
    if data.draw(st.booleans(), "another plan"):
        member = data.draw(st.sampled_from(host.queries.members), "of query")
        with suppress(MigrationError):  # one is under way already
            host.migrate(data.draw(_any_plan(member.query), "plan"), query=member.name or None)


def _host(data: st.DataObject, queries: QuerySet, checkpoint: str | None, execution: ExecutionModel) -> LocalHost:
    chosen = Plans({m.name: data.draw(_any_plan(m.query), "plan") for m in queries.members})
    slots, balance = data.draw(SLOTS, "slots"), data.draw(BALANCES, "balance")
    if checkpoint is not None and data.draw(st.booleans(), "as workers"):
        return WorkerHost(queries, chosen, slots=slots, checkpoint=checkpoint, execution=execution, balance=balance)
    return LocalHost(queries, chosen, slots=slots, checkpoint=checkpoint, execution=execution, balance=balance)


def _any_plan(query: Query) -> st.SearchStrategy[Plan]:
    trees = plans(query.graph.names, query.graph.thetas, merging=query.grouping is not None)
    if query.grouping is not None or len(query.graph.names) < 2:
        return trees
    return meshes(query.graph) | trees


def _answer(query: Query, rows: Arrivals, before: int | None) -> Answer:
    """The batch answer over all rows, or over those before a time."""
    if before is None:
        return batch_answer(query, rows.tables)
    passed = {
        name: table.filter(pc.less(table["ts"].cast(pa.timestamp("us")).cast(pa.int64()), before))
        for name, table in rows.tables.items()
    }
    return batch_answer(query, passed)
