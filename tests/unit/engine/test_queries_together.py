"""Queries over shared base states: rows, codes and indexes are there once, and rows stay as long as one needs them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from anabranch.cql import compile_query
from anabranch.engine.batch import RelationBatch
from anabranch.engine.engine import Engine
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.schema import TIMESTAMP, Field, Schema
from anabranch.migrate.strategies.registry import strategy_named
from anabranch.plan.execution import EXECUTION_MODELS, ExecutionModel
from anabranch.plan.mesh import one_route
from anabranch.plan.query_set import Plans, QuerySet, together
from anabranch.plan.text import parse

COLUMNS = Schema((Field("ts", TIMESTAMP, False), Field("k", pa.int64(), False), Field("v", pa.int64(), False)))
LONG = "SELECT a.v AS x, b.v AS y FROM a [RANGE 60 SECONDS] AS a, b [RANGE 60 SECONDS] AS b WHERE a.k = b.k"
SHORT = "SELECT a.v AS x, b.v AS y FROM a [RANGE 5 SECONDS] AS a, b [RANGE 60 SECONDS] AS b WHERE a.k = b.k"
PRODUCT = "SELECT a.v AS x, b.v AS y FROM a [RANGE 60 SECONDS] AS a, b [RANGE 60 SECONDS] AS b"
SECOND = 1_000_000


CATALOG = Catalog()
for stream in "ab":
    CATALOG.register(StreamDeclaration(stream, COLUMNS, "ts"))


def queries() -> QuerySet:
    return together({"long": compile_query(LONG, CATALOG), "short": compile_query(SHORT, CATALOG)})


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


def test_an_index_is_kept_while_a_query_probes_it() -> None:
    several = together({"keyed": compile_query(LONG, CATALOG), "product": compile_query(PRODUCT, CATALOG)})
    shared = Engine(several, Plans({"keyed": parse("(a b)"), "product": parse("(a b)")}))
    list(shared.step({"a": rows(1), "b": rows(1)}, {"a": 0, "b": 0}))
    assert {*shared.bases["a"].indexes} == {("k0",), ()}
    for name, member in zip(several.names, several.members, strict=True):
        shared.migrate(one_route(member.query.graph), strategy_named("none"), name)
    assert {*shared.bases["a"].indexes} == {("k0",), ()}
    found = list(shared.step({"b": rows(2)}, {"a": 0, "b": 0}))
    assert {name: batch.num_rows for name, batch in found} == {"keyed": 1, "product": 1}


def test_an_index_goes_when_the_last_query_gives_it_up() -> None:
    """Of three relations, `((a b) c)` looks into b by one key, and `((a c) b)` by both at once."""
    text = (
        "SELECT a.v AS x FROM a [RANGE 9 SECONDS] AS a, b [RANGE 9 SECONDS] AS b, b [RANGE 9 SECONDS] AS c "
        "WHERE a.k = b.k AND a.v = c.v AND b.v = c.k"
    )
    several = together({name: compile_query(text, CATALOG) for name in ("p", "q")})
    before, after = parse("((a b) c)"), parse("((a c) b)")
    shared = Engine(several, Plans({"p": before, "q": before}))
    used = shared.bases["b"].indexes
    shared.migrate(after, strategy_named("moving-state"), "p")
    assert {*used} < {*shared.bases["b"].indexes}
    shared.migrate(after, strategy_named("moving-state"), "q")
    assert shared.bases["b"].indexes == Engine(several, Plans({"p": after, "q": after})).bases["b"].indexes


@pytest.mark.parametrize("execution", [model for model in EXECUTION_MODELS if model.orders_results], ids=str)
def test_ordered_results_are_in_order_for_each_query(execution: ExecutionModel) -> None:
    several = queries()
    shared = Engine(several, Plans({"long": parse("(a b)"), "short": parse("(b a)")}), execution=execution)
    found = list(
        shared.step(
            {"a": rows(4, 1, 2), "b": rows(3, 5, 2)}, {"a": 0, "b": 0}, dict.fromkeys(several.names, 100 * SECOND)
        )
    )
    for name in several.names:
        newest = [max(row.values()) for query, batch in found if query == name for row in batch.to_pylist()]
        assert newest == sorted(newest)
        assert len(newest) == 9
