"""Every aggregate over every type gives the batch answer, or the binder refuses it by name."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from anabranch.cql import compile_query
from anabranch.engine.operators.aggregates import raw, value_of
from anabranch.engine.operators.group_by import reduced
from anabranch.errors import BindError, ExpressionError
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.expr import AggregateCall
from anabranch.lang.schema import INTERVAL, TIMESTAMP, Field, Schema
from anabranch.plan.pregrouping import Part, parts_of
from anabranch.plan.query import Query
from anabranch.plan.text import parse
from anabranch.run.local import LocalHost
from tests.support.oracle import Answer, batch_answer, describe_difference, rows_as_multiset

SECOND = 1_000_000
VALUES: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [True, False],
    pa.int8(): [1, -128, 127],
    pa.int64(): [5, -(2**62), 2**62],
    pa.float32(): [0.5, -0.25, float("inf")],
    pa.float64(): [0.1, float("nan"), -0.0, 0.0, float("-inf")],
    pa.decimal128(9, 2): [Decimal("1.50"), Decimal("-2.25")],
    pa.decimal128(38, 10): [Decimal("1.50"), Decimal("-9e25"), Decimal("9e25")],
    pa.string(): ["a", "", "b"],
    pa.large_string(): ["a", "b"],
    pa.date32(): [datetime.date(2020, 1, 1), datetime.date(1, 1, 1)],
    TIMESTAMP: [5, -5, 2**52],
    pa.timestamp("us"): [5, -5],
    pa.timestamp("ms", tz="Europe/Rome"): [5, -5],
    INTERVAL: [5, -5, 2**62, -(2**62)],
    pa.duration("ms"): [5, -5],
    pa.binary(): [b"a", b"\xff"],
    pa.list_(pa.int64()): [[1], [2]],
    pa.struct([("a", pa.int64())]): [{"a": 1}],
    pa.map_(pa.string(), pa.int64()): [[("a", 1)]],
    pa.decimal256(40, 2): [Decimal("1.50"), Decimal("2.50")],
}
NUMBERS = {kind for kind in VALUES if pa.types.is_integer(kind) or pa.types.is_floating(kind)}
NUMBERS |= {kind for kind in VALUES if pa.types.is_decimal128(kind)}
OPAQUE = {kind for kind in VALUES if pa.types.is_nested(kind)} | {pa.binary(), pa.decimal256(40, 2)}
PLANS = ("(a b)", "([a] b)", "(a [b])", "([a] [b])")


@pytest.mark.parametrize("aggregate", ["COUNT", "SUM", "AVG", "MIN", "MAX", "GROUP BY"])
@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_an_aggregate_of_any_type_works_or_is_refused(kind: pa.DataType, aggregate: str) -> None:
    is_taken = {
        "COUNT": True,
        "SUM": kind in NUMBERS,
        "AVG": kind in NUMBERS,
        "MIN": kind not in OPAQUE,
        "MAX": kind not in OPAQUE,
        "GROUP BY": kind not in OPAQUE,
    }[aggregate]
    if not is_taken:
        with pytest.raises(BindError):
            _query(kind, aggregate, "a.x")
        return
    query, rows = _query(kind, aggregate, "a.x"), _rows(kind)
    if aggregate == "AVG" and kind == pa.decimal128(38, 10):
        # Its type has four more digits after the point, and none left for these.
        for plan in PLANS:
            with pytest.raises(ExpressionError, match="is too large for its type"):
                _answer(query, rows, plan)
        return
    _check(query, rows, PLANS)


@pytest.mark.parametrize(
    "text",
    ["COUNT(DISTINCT a.x)", "MIN_BY(a.x, b.k)", "MAX_BY(b.k, a.x)", "FIRST(a.x)", "LAST(a.x)", "COLLECT_LIST(a.x, 2)"],
)
@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_an_aggregate_that_keeps_values_takes_any_type_or_refuses_it(kind: pa.DataType, text: str) -> None:
    if kind in OPAQUE or (text.startswith("MAX_BY") and pa.types.is_boolean(kind)):
        with pytest.raises(BindError):
            _of_text(kind, text)
        return
    _check(_of_text(kind, text), _rows(kind), PLANS)


@pytest.mark.parametrize("function", ["STDDEV", "STDDEV_POP", "VARIANCE", "VAR_POP", "MEDIAN"])
@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_a_spread_is_of_numbers(kind: pa.DataType, function: str) -> None:
    text = f"{function}(a.x)"
    if kind not in NUMBERS:
        with pytest.raises(BindError):
            _of_text(kind, text)
        return
    _check(_of_text(kind, text), _rows(kind), PLANS)


def test_a_spread_far_from_zero_keeps_its_digits() -> None:
    """The sum of squares less the square of the sum would have none left."""
    rows = {"a": [1e9 + offset for offset in (4, 7, 13, 16)]}
    kinds = [Part(f"part0.{name}", 0, name, pa.float64()) for name in ("mean", "squares")]
    parts = [raw(part, [pa.array(rows["a"])], None) for part in kinds]
    table = pa.table({"key": [1] * 4, "part0.count": [1] * 4, "part0.mean": parts[0], "part0.squares": parts[1]})
    call = AggregateCall("var_samp", None, pa.float64())
    merged = reduced(table, ["key"], parts_of(0, call))
    own = {name: merged.column(f"part0.{name}").combine_chunks() for name in ("count", "mean", "squares")}
    assert value_of(call, own).to_pylist() == [30.0]


def _of_text(kind: pa.DataType, text: str) -> Query:
    catalog = Catalog()
    for name in "ab":
        catalog.register(StreamDeclaration(name, _schema(kind), "ts", 0))
    windows = "a [HOP 5 SECONDS SLIDE 2 SECONDS], b [HOP 3 SECONDS SLIDE 2 SECONDS]"
    return compile_query(f"SELECT WINDOW_END() AS e, {text} AS v FROM {windows} WHERE a.k = b.k", catalog)


@pytest.mark.parametrize("aggregate", ["COUNT", "MIN", "MAX", "GROUP BY"])
@pytest.mark.parametrize(
    "argument", ["b.ts - a.ts", "(a.ts - b.ts) * 2", "-(b.ts - a.ts)", "CASE WHEN a.k = 1 THEN b.ts - a.ts END"]
)
def test_intervals_are_aggregated_and_survive_a_restart(tmp_path: Path, argument: str, aggregate: str) -> None:
    _check(_query(pa.int64(), aggregate, argument), _rows(pa.int64()), PLANS, tmp_path)


def test_groups_are_chosen_by_an_interval() -> None:
    query = _query(pa.int64(), "MAX", "b.ts - a.ts", " HAVING MAX(b.ts - a.ts) > INTERVAL 500 MILLISECONDS")
    _check(query, _rows(pa.int64()), ["([a] b)"])


@pytest.mark.parametrize("aggregate", ["SUM", "AVG"])
def test_the_error_for_a_sum_of_intervals_has_a_hint(aggregate: str) -> None:
    with pytest.raises(BindError, match="UNIX_MICROS"):
        _query(pa.int64(), aggregate, "b.ts - a.ts")


def _query(kind: pa.DataType, aggregate: str, argument: str, having: str = "") -> Query:
    catalog = Catalog()
    for name in "ab":
        catalog.register(StreamDeclaration(name, _schema(kind), "ts", 0))
    windows = "a [RANGE 5 SECONDS SLIDE 2 SECONDS], b [RANGE 3 SECONDS SLIDE 2 SECONDS]"
    if aggregate == "GROUP BY":
        outputs, group = f"{argument} AS g", f" GROUP BY {argument}"
    else:
        outputs, group = f"{aggregate}({argument}) AS v", ""
    text = f"SELECT WINDOW_END() AS e, {outputs}, COUNT(*) AS n FROM {windows} WHERE a.k = b.k{group}{having}"
    return compile_query(text, catalog)


def _schema(kind: pa.DataType) -> Schema:
    return Schema((Field("ts", TIMESTAMP), Field("x", kind), Field("k", pa.int64())))


def _rows(kind: pa.DataType) -> dict[str, pa.Table]:
    values = [*VALUES[kind], None]
    several = [values[number % len(values)] for number in range(9)]
    tables = {}
    for name, start in (("a", 0), ("b", SECOND // 2)):
        times = pa.array([start + number * SECOND for number in range(9)], TIMESTAMP)
        columns = [times, pa.array(several, kind), pa.array([1, 1, 2, 1, 1, 2, 2, 1, 1], pa.int64())]
        tables[name] = pa.table(columns, schema=_schema(kind).to_arrow())
    return tables


def _check(query: Query, rows: dict[str, pa.Table], plans: Sequence[str], checkpoints: Path | None = None) -> None:
    expected = batch_answer(query, rows)
    assert expected
    for plan in plans:
        answer = _answer(query, rows, plan, None if checkpoints is None else str(checkpoints / plan))
        assert not describe_difference(expected, answer), plan


def _answer(query: Query, rows: dict[str, pa.Table], plan: str, checkpoint: str | None = None) -> Answer:
    """The answer in three batches, after each of which a query with a checkpoint starts again."""
    results = []
    host = LocalHost(query, parse(plan), checkpoint=checkpoint)
    for start in range(0, 9, 3):
        if checkpoint is not None:
            host = LocalHost(query, parse(plan), checkpoint=checkpoint)
        results.append(host.step({name: table.slice(start, 3) for name, table in rows.items()}))
    return rows_as_multiset(pa.concat_tables(results))
