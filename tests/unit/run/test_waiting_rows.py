"""Rows that wait for the watermark: they outlive a restart, and do not wait where results are older than it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from anabranch.cql import compile_query, declared_results
from anabranch.errors import SpecError
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.schema import TIMESTAMP, Field, Schema
from anabranch.plan.execution import DEFAULT_EXECUTION, EXECUTION_MODELS, ROWS, ExecutionModel
from anabranch.plan.physical import mjoin
from anabranch.plan.query_set import alone, set_of
from anabranch.run.local import LocalHost
from anabranch.run.work import refuse_order

SECOND = 1_000_000
COLUMNS = Schema((Field("ts", TIMESTAMP), Field("x", pa.int64())))


def test_results_that_are_older_than_the_watermark_are_not_read_where_rows_wait() -> None:
    """A window of the join was answered before the rows that wait had given their results."""
    catalog = Catalog()
    for name in ("a", "b"):
        catalog.register(StreamDeclaration(name, COLUMNS, "ts"))
    text = (
        "SELECT a.x AS x, COUNT(*) AS n FROM a [RANGE 1 SECOND] AS a, b [RANGE 1 SECOND] AS b WHERE a.x = b.x "
        "GROUP BY window(a.ts, '4 seconds'), a.x"
    )
    queries = alone(compile_query(text, catalog))
    refuse_order(queries, DEFAULT_EXECUTION)
    with pytest.raises(
        SpecError, match="rows cannot be buffered until the watermark because another query reads the subquery in FROM"
    ):
        refuse_order(queries, ROWS)


def test_a_join_with_a_count_window_is_not_read_by_window() -> None:
    """A count window makes rows wait, also without an execution model that says so."""
    catalog = Catalog()
    for name in ("a", "b"):
        catalog.register(StreamDeclaration(name, COLUMNS, "ts"))
    text = (
        "SELECT a.x AS x, COUNT(*) AS n FROM a [RANGE 1 SECOND ROWS 2] AS a, b [RANGE 1 SECOND] AS b WHERE a.x = b.x "
        "GROUP BY window(a.ts, '4 seconds'), a.x"
    )
    with pytest.raises(SpecError, match="rows cannot be buffered until the watermark because"):
        LocalHost(compile_query(text, catalog), mjoin(("a", "b")))


def test_results_of_an_outer_join_are_not_read_where_rows_wait() -> None:
    """An unmatched row becomes a result when the watermark has passed it, and is older than that."""
    catalog = Catalog()
    for name in ("a", "b"):
        catalog.register(StreamDeclaration(name, COLUMNS, "ts"))
    low = compile_query(
        "SELECT a.x AS x FROM a [RANGE 1 SECOND] AS a LEFT JOIN b [RANGE 1 SECOND] AS b ON a.x = b.x", catalog
    )
    catalog.register(declared_results("low", low))
    queries = set_of({"low": low, "top": compile_query("SELECT r.x AS x FROM low [NOW] AS r", catalog)})
    refuse_order(queries, DEFAULT_EXECUTION)
    with pytest.raises(SpecError, match="rows cannot be buffered until the watermark because another query reads"):
        refuse_order(queries, ROWS)


@pytest.mark.parametrize("execution", EXECUTION_MODELS, ids=str)
def test_a_row_that_waits_meets_older_rows_after_a_restart(execution: ExecutionModel, tmp_path: Path) -> None:
    """No future row of b matches it, but it has not met the rows of b that came before."""
    catalog = Catalog()
    catalog.register(StreamDeclaration("a", COLUMNS, "ts", disorder=3 * SECOND))
    catalog.register(StreamDeclaration("b", COLUMNS, "ts"))
    text = (
        "SELECT a.x AS one, b.x AS other FROM a [RANGE 20 SECONDS] AS a, b [RANGE 20 SECONDS] AS b "
        "WHERE b.ts <= a.ts - INTERVAL 2 SECONDS"
    )
    batches = [
        {"a": {9: 1, 8: 2, 7: 3}, "b": {5: 1, 11: 2}},
        {"a": {10: 4}, "b": {12: 3}},
        {"a": {60: 5}, "b": {60: 4}},
    ]
    found = []
    for batch in batches:
        host = LocalHost(compile_query(text, catalog), mjoin(("a", "b")), checkpoint=str(tmp_path), execution=execution)
        found += host.step({name: _rows(rows) for name, rows in batch.items()}).to_pylist()
    assert sorted((each["one"], each["other"]) for each in found) == [(1, 1), (2, 1), (3, 1), (4, 1)]


def _rows(values: dict[int, int]) -> pa.Table:
    times = pa.array([second * SECOND for second in values], pa.int64()).cast(TIMESTAMP)
    return pa.table({"ts": times, "x": pa.array(list(values.values()), pa.int64())})
