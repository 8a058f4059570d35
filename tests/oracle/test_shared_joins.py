"""Queries that share joins: whatever is shared, when, and with whom, each query gets its batch answer."""

from __future__ import annotations

import tempfile
from collections import Counter
from unittest.mock import patch

import pyarrow as pa
from hypothesis import event, given, reject
from hypothesis import strategies as st

from anabranch.cql import compile_query
from anabranch.engine.operators import group_by
from anabranch.errors import BundleError
from anabranch.plan.execution import DEFAULT_EXECUTION, EXECUTION_MODELS, ExecutionModel
from anabranch.plan.query import Query
from anabranch.plan.query_set import QuerySet, together
from anabranch.run.local import LocalHost
from anabranch.run.results import ResultLayout
from tests.oracle.sharing import ask, some_plans
from tests.support.oracle import (
    Answer,
    batch_answer,
    comparable,
    describe_difference,
    rows_as_multiset,
    timed_results,
)
from tests.support.strategies import Arrivals, arrivals, batch_cuts, overlapping_query, overlaps


@given(data=st.data(), count=st.integers(2, 4))
def test_sharing_joins_changes_no_answer(data: st.DataObject, count: int) -> None:
    """Plans are shared, unshared and switched, groups move, and the queries restart, between any two batches."""
    _run(data, count, DEFAULT_EXECUTION)


@given(data=st.data(), count=st.integers(2, 3), execution=st.sampled_from(EXECUTION_MODELS[1:]))
def test_sharing_joins_changes_no_answer_in_ordered_models(
    data: st.DataObject, count: int, execution: ExecutionModel
) -> None:
    _run(data, count, execution)


def _run(data: st.DataObject, count: int, execution: ExecutionModel) -> None:
    rows = data.draw(arrivals(3, most_rows=10, mostly_dense=True), "rows")
    queries, several = _together(data, rows, count)
    batches = data.draw(batch_cuts(rows, least=2), "batches")
    restarts = data.draw(st.sets(st.integers(1, len(batches)), max_size=2), "restarts")
    results: dict[str, list[pa.Table]] = {name: [] for name in queries}
    long = data.draw(st.sampled_from([group_by.LONG, 0, 2]), "long")
    with tempfile.TemporaryDirectory() as folder, patch.object(group_by, "LONG", long):
        checkpoint = folder if restarts else None
        host = _host(data, several, checkpoint, execution)
        for number, batch in enumerate(batches):
            if number in restarts:
                host = _host(data, several, checkpoint, execution)
            elif number:
                ask(data, host)
            mine = {name: table for name, table in batch.items() if name in several.graph.streams}
            for name, table in ResultLayout(host.queries).split(host.step(mine)).items():
                results[name].append(table)
    assert not any(record["kind"] == "refused" for record in host.history)
    for name, query in queries.items():
        expected = _expected(query, rows, host.clocks.watermark if execution.rows_wait else None)
        event(f"{'grouped' if query.grouping else 'join'} results: {min(len(expected), 50) // 10 * 10}+")
        assert not describe_difference(expected, rows_as_multiset(pa.concat_tables(results[name])))


def _expected(query: Query, rows: Arrivals, watermark: int | None) -> Answer:
    """The batch answer; where rows wait, that of what the watermark of all streams has passed."""
    if watermark is None:
        return batch_answer(query, rows.tables)
    timed = timed_results(query, rows.tables)
    return Counter(tuple(map(comparable, values)) for time, values in timed if time < watermark)


def _together(data: st.DataObject, rows: Arrivals, count: int) -> tuple[dict[str, Query], QuerySet]:
    overlap = data.draw(overlaps(3), "overlap")
    queries = {}
    for number in range(count):
        is_grouped = not data.draw(st.integers(0, 2), f"q{number} is grouped")
        text = data.draw(overlapping_query(overlap, grouped=is_grouped), f"text of q{number}")
        queries[f"q{number}"] = compile_query(text, rows.catalog)
    try:
        return queries, together(queries)
    except BundleError:
        reject()


def _host(data: st.DataObject, several: QuerySet, checkpoint: str | None, execution: ExecutionModel) -> LocalHost:
    slots = data.draw(st.sampled_from([1, 1, 2, 3]), "slots")
    return LocalHost(several, some_plans(data, several), slots=slots, checkpoint=checkpoint, execution=execution)
