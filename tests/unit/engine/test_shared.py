"""Queries over shared base states: rows, codes and indexes are there once, and rows stay as long as one needs them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from anabranch.catalog import Catalog, StreamDeclaration
from anabranch.cql import compile_query
from anabranch.engine.batch import RelationBatch
from anabranch.engine.shared import SharedEngine
from anabranch.plan.bundle import Bundle, BundlePlan, bundle
from anabranch.plan.mesh import one_route
from anabranch.plan.text import parse
from anabranch.schema import TIMESTAMP, Field, Schema

COLUMNS = Schema((Field("ts", TIMESTAMP, False), Field("k", pa.int64(), False), Field("v", pa.int64(), False)))
LONG = "SELECT a.v AS x, b.v AS y FROM a [RANGE 60 SECONDS] AS a, b [RANGE 60 SECONDS] AS b WHERE a.k = b.k"
SHORT = "SELECT a.v AS x, b.v AS y FROM a [RANGE 5 SECONDS] AS a, b [RANGE 60 SECONDS] AS b WHERE a.k = b.k"
SECOND = 1_000_000


def queries() -> Bundle:
    catalog = Catalog()
    for stream in "ab":
        catalog.register(StreamDeclaration(stream, COLUMNS, "ts"))
    return bundle({"long": compile_query(LONG, catalog), "short": compile_query(SHORT, catalog)})


def engine(together: Bundle) -> SharedEngine:
    mesh = one_route(together.members[0].query.graph)
    return SharedEngine(together, BundlePlan({"long": parse("(a b)"), "short": mesh}))


def rows(*seconds: int) -> RelationBatch:
    times = np.array(seconds, dtype=np.int64) * SECOND
    payload = pa.RecordBatch.from_pydict({"v": pa.array(seconds, pa.int64())})
    return RelationBatch(times, {"k0": np.zeros(len(seconds), dtype=np.int64)}, payload)


def test_rows_and_indexes_are_there_once() -> None:
    shared = engine(queries())
    list(shared.step({"a": rows(1, 2), "b": rows(1)}, {"a": 0, "b": 0}))
    assert {name: base.ring.live for name, base in shared.bases.items()} == {"a": 2, "b": 1}
    assert all(base.indexes == (("k0",),) for base in shared.bases.values())
    whole, each = shared.statistics()
    assert whole.state_rows == 3
    assert whole.rows_in == {"a": 2, "b": 1}
    assert each["short"].rows_in == {"a": 2, "b": 1}


def test_a_row_stays_for_the_query_with_the_longer_window() -> None:
    """a at 0 s: of use to `short` until 5 s, to `long` until 60 s.

    a  0s ─────────────────────────────┐
    b            10s: only `long`      60s: only `long`    61s: none
    """
    shared = engine(queries())
    found = [
        batch
        for second in (0, 10, 60, 61)
        for batch in shared.step({"b" if second else "a": rows(second)}, {"a": second * SECOND, "b": second * SECOND})
    ]
    table = pa.Table.from_batches(found, shared.result_schema())
    assert [row["long"] for row in table.to_pylist()] == [{"x": 0, "y": 10}, {"x": 0, "y": 60}]
    assert table.column("short").null_count == 2
    assert shared.bases["a"].ring.live == 0


def test_an_index_that_one_query_gives_up_stays_for_the_other() -> None:
    shared = engine(queries())
    list(shared.step({"a": rows(1), "b": rows(1)}, {"a": 0, "b": 0}))
    shared.engines["long"].migrate(one_route(shared.query.members[0].query.graph), "none")
    assert all(("k0",) in base.indexes for base in shared.bases.values())
    found = list(shared.step({"b": rows(2)}, {"a": 0, "b": 0}))
    assert sum(batch.num_rows for batch in found) == 2
