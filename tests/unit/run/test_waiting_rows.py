"""Rows do not wait for the watermark where a query reads results that are older than it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from anabranch.cql import compile_query
from anabranch.errors import SpecError
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.schema import TIMESTAMP, Field, Schema
from anabranch.plan.execution import DEFAULT_EXECUTION, ROWS
from anabranch.plan.query_set import alone
from anabranch.run.work import refuse_order

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
    with pytest.raises(SpecError, match="rows cannot wait for the watermark where the subquery in FROM is read"):
        refuse_order(queries, ROWS)
