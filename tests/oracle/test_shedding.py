"""Keys that a run keeps have their exact results, keys that it sheds have none, and every lost row is counted."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from anabranch.adapt.keeping_up import Shedding
from anabranch.cql import compile_query
from anabranch.engine.evaluate.codes import key_codes
from anabranch.engine.ownership import coordinates
from anabranch.errors import PlanError
from anabranch.plan.query_set import as_set
from anabranch.plan.text import parse
from anabranch.run.local import LocalHost
from anabranch.run.shedding import PARTS
from tests.support.oracle import batch_answer, describe_difference, rows_as_multiset
from tests.support.scripted import read_script
from tests.support.strategies import arrivals, batch_cuts, plans

W = "[RANGE 4 SECONDS]"
S = "[RANGE 4 SECONDS SLIDE 1 SECOND]"
QUERIES = (
    f"SELECT a.p AS x, b.p AS y FROM s0 {W} AS a, s1 {W} AS b WHERE a.x = b.x",
    f"SELECT a.p AS x, b.p AS y FROM s0 {W} AS a LEFT JOIN s1 {W} AS b ON a.x = b.x",
    f"SELECT a.p AS x FROM s0 {W} AS a WHERE NOT EXISTS (SELECT * FROM s1 {W} AS b WHERE b.x = a.x)",
    f"SELECT WINDOW_END() AS at, COUNT(*) AS n FROM s0 {S} AS a, s1 {S} AS b WHERE a.x = b.x",
)


@given(data=st.data(), text=st.sampled_from(QUERIES), share=st.sampled_from([0.0, 0.3, 0.5, 0.8, 1.0]))
def test_kept_keys_are_exact(data: st.DataObject, text: str, share: float) -> None:
    rows = data.draw(arrivals(2, most_rows=14, mostly_dense=True), "rows")
    query = compile_query(text, rows.catalog)
    host = LocalHost(
        query, data.draw(plans(query.graph.names), "plan"), slots=data.draw(st.integers(1, 3)), overload="shed"
    )
    # Nothing changes the share: it is not in trouble, and its rest is never over.
    host.steering._shedding = Shedding(share, quiet=-1000)
    results = [host.step(batch) for batch in data.draw(batch_cuts(rows), "batches")]
    kept = {name: table.filter(is_kept(table, share)) for name, table in rows.tables.items()}
    assert not describe_difference(
        batch_answer(query, kept, host.clocks.watermark), rows_as_multiset(pa.concat_tables(results))
    )
    # Rows without a key are dropped by a filter before, unless an outer join needs them.
    lost = {name: table.filter(pc.invert(is_kept(table, share))).column("x") for name, table in rows.tables.items()}
    most = sum(map(len, lost.values()))
    assert most - sum(each.null_count for each in lost.values()) <= sum(host.shed.values()) + sum(host.late.values())
    assert sum(host.shed.values()) <= most
    event(f"lost: {most > 0}")


def is_kept(table: pa.Table, share: float) -> pa.Array:
    """Whether the rows have keys that are kept."""
    codes = key_codes(table.column("x").combine_chunks(), pa.int64())
    return pa.array(coordinates(codes, PARTS) < share * PARTS)


@pytest.mark.parametrize(
    "text",
    [
        f"SELECT a.p AS x FROM s0 {W} AS a, s1 {W} AS b WHERE a.x < b.x",
        "SELECT a.p AS x FROM s0 [ROWS 3] AS a, s1 [ROWS 3] AS b WHERE a.x = b.x",
    ],
    ids=["no key", "windows of rows"],
)
def test_queries_that_cannot_shed_are_refused(text: str) -> None:
    catalog = read_script("stream s0 (x bigint, p bigint)\nstream s1 (x bigint, p bigint)").catalog
    with pytest.raises(PlanError, match="rows cannot be shed"):
        LocalHost(as_set(compile_query(text, catalog)), parse("(a b)"), overload="shed")
