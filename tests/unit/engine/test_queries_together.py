"""Queries over shared base states: rows, codes and indexes are there once, and rows stay as long as one needs them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from anabranch.catalog import Catalog, StreamDeclaration
from anabranch.cql import compile_query
from anabranch.engine.batch import RelationBatch
from anabranch.engine.engine import Engine
from anabranch.plan.mesh import one_route
from anabranch.plan.query_set import Plans, QuerySet, together
from anabranch.plan.text import parse
from anabranch.schema import TIMESTAMP, Field, Schema

COLUMNS = Schema((Field("ts", TIMESTAMP, False), Field("k", pa.int64(), False), Field("v", pa.int64(), False)))
LONG = "SELECT a.v AS x, b.v AS y FROM a [RANGE 60 SECONDS] AS a, b [RANGE 60 SECONDS] AS b WHERE a.k = b.k"
SHORT = "SELECT a.v AS x, b.v AS y FROM a [RANGE 5 SECONDS] AS a, b [RANGE 60 SECONDS] AS b WHERE a.k = b.k"
SECOND = 1_000_000


def queries() -> QuerySet:
    catalog = Catalog()
    for stream in "ab":
        catalog.register(StreamDeclaration(stream, COLUMNS, "ts"))
    return together({"long": compile_query(LONG, catalog), "short": compile_query(SHORT, catalog)})


def engine(several: QuerySet) -> Engine:
    mesh = one_route(several.members[0].query.graph)
    return Engine(several, Plans({"long": parse("(a b)"), "short": mesh}))


def rows(*seconds: int) -> RelationBatch:
    times = np.array(seconds, dtype=np.int64) * SECOND
    payload = pa.RecordBatch.from_pydict({"v": pa.array(seconds, pa.int64())})
    return RelationBatch(times, {"k0": np.zeros(len(seconds), dtype=np.int64)}, payload)


def test_rows_and_indexes_are_there_once() -> None:
    shared = engine(queries())
    list(shared.step({"a": rows(1, 2), "b": rows(1)}, {"a": 0, "b": 0}))
    assert {name: base.ring.live for name, base in shared.bases.items()} == {"a": 2, "b": 1}
    assert all(base.indexes == (("k0",),) for base in shared.bases.values())
    statistics = shared.statistics()
    whole, each = statistics.total, statistics.queries
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
    assert {name for name, _ in found} == {"long"}
    table = pa.Table.from_batches([batch for _, batch in found])
    assert table.to_pylist() == [{"x": 0, "y": 10}, {"x": 0, "y": 60}]
    assert shared.bases["a"].ring.live == 0


def test_an_index_that_one_query_gives_up_stays_for_the_other() -> None:
    shared = engine(queries())
    list(shared.step({"a": rows(1), "b": rows(1)}, {"a": 0, "b": 0}))
    shared.migrate(one_route(shared.queries.members[0].query.graph), "none", "long")
    assert all(("k0",) in base.indexes for base in shared.bases.values())
    found = list(shared.step({"b": rows(2)}, {"a": 0, "b": 0}))
    assert sum(batch.num_rows for _, batch in found) == 2
