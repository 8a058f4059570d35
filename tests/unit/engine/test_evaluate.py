"""The columnar evaluator against the naive interpreter, on edge values and on drawn ones."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.engine.evaluate.expression import KERNELS, evaluate, evaluate_mask
from anabranch.errors import ExpressionError
from anabranch.lang.expr import Call, Cast, Column, Expr, Literal, walk
from anabranch.lang.schema import INTERVAL, TIMESTAMP
from tests.support import edges
from tests.support.edges import BOOL, CASES, FLOAT, INT, TEXT, TEXTS_TO_READ, Case, agreed, column, edge_rows
from tests.support.interpreter import column_values, interpret


def by_engine(expr: Expr, table: pa.Table) -> pa.Array:
    return evaluate(expr, lambda wanted: table[wanted.name].combine_chunks(), table.num_rows)


def interpreted(expr: Expr, table: pa.Table) -> list[tuple[bool, Any]]:
    """For each row whether the interpreter accepts it, and its answer."""
    columns = {name: column_values(table[name]) for name in table.column_names}
    outcomes: list[tuple[bool, Any]] = []
    for index in range(table.num_rows):

        def value(wanted: Column, index: int = index) -> Any:
            return columns[wanted.name][index]

        try:
            outcomes.append((True, interpret(expr, value)))
        except ExpressionError:
            outcomes.append((False, None))
    return outcomes


def check_agreement(case: Case, table: pa.Table) -> None:
    outcomes = interpreted(case.expr, table)
    accepted = table.filter(pa.array([good for good, _ in outcomes], BOOL))
    result = by_engine(case.expr, accepted)
    assert result.type == case.expr.type
    assert len(result) == accepted.num_rows
    expected = [agreed(value, case) for good, value in outcomes if good]
    actual = [agreed(value, case) for value in column_values(result)]
    for row, (wanted, got) in enumerate(zip(expected, actual, strict=True)):
        assert wanted == got, f"{case} at {accepted.slice(row, 1).to_pylist()}"
    refused = [index for index, (good, _) in enumerate(outcomes) if not good]
    for index in refused[:20]:
        with pytest.raises(ExpressionError):
            by_engine(case.expr, table.slice(index, 1))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_edge_values_agree_with_the_interpreter(case: Case) -> None:
    check_agreement(case, edge_rows(case.types))


@pytest.mark.parametrize("target", TEXTS_TO_READ, ids=str)
def test_reading_texts_agrees_with_the_interpreter(target: pa.DataType) -> None:
    table = pa.table({"c0": pa.array([None, *TEXTS_TO_READ[target]], TEXT)})
    check_agreement(Case(Cast(column(0, TEXT), target), (TEXT,)), table)


def test_every_function_is_among_the_edge_cases() -> None:
    tried = {node.function for case in CASES for node in walk(case.expr) if isinstance(node, Call)}
    # Only the engine makes the struct of a window's bounds, from two columns of the grouping.
    assert tried == set(KERNELS) - {"window"} | {"and", "or", "case", "coalesce"}


DRAWN: dict[pa.DataType, st.SearchStrategy[Any]] = {
    BOOL: st.booleans(),
    INT: st.integers(-(2**63), 2**63 - 1) | st.integers(-20, 20),
    FLOAT: st.floats() | st.integers(-20, 20).map(float) | st.decimals("-1000", "1000", places=3).map(float),
    edges.PRICE: st.decimals("-99999999.99", "99999999.99", places=2),
    edges.RATE: st.decimals("-99.9999", "99.9999", places=4),
    edges.WIDE: st.decimals("-99999999999999999999", "99999999999999999999", places=18),
    edges.WHOLE: st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal),
    edges.FRACTION: st.integers(-(10**38) + 1, 10**38 - 1).map(lambda units: Decimal(f"{units}E-38")),
    edges.CLOCK: st.integers(-(2**63), 2**63 - 1),
    TEXT: st.text(alphabet="aAbß é%_\\\u0130\n", max_size=5),
    edges.DATE: st.dates(),
    TIMESTAMP: st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999),
    INTERVAL: st.integers(-(2**62), 2**62),
    pa.int8(): st.integers(-128, 127),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.float32(): st.floats(width=32),
}


@given(st.data())
def test_drawn_values_agree_with_the_interpreter(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(CASES))
    size = data.draw(st.integers(0, 4))
    columns = {
        f"c{index}": pa.array(data.draw(st.lists(st.none() | DRAWN[kind], min_size=size, max_size=size)), kind)
        for index, kind in enumerate(case.types)
    }
    check_agreement(case, pa.table(columns))


def test_a_filter_is_not_evaluated_on_rows_with_a_null_before_it() -> None:
    """What is NULL does not pass, whatever follows; Spark's filters pass such a row over, and here it overflowed."""
    x, y = column(0, INT), column(1, INT)
    table = pa.table({"c0": pa.array([3, None, 200, 4]), "c1": pa.array([3, 2**62, 2**62, None], INT)})
    small = Call("less", (x, Literal(100, INT)), BOOL)
    odd = Call("equal", (Call("multiply", (y, y), INT), Literal(9, INT)), BOOL)
    mask = evaluate_mask(Call("and", (small, odd), BOOL), lambda read: table.column(read.name).chunk(0), 4)
    assert mask.tolist() == [True, False, False, False]
    with pytest.raises(ExpressionError):
        evaluate_mask(Call("and", (odd, small), BOOL), lambda read: table.column(read.name).chunk(0), 4)


def test_a_branch_not_taken_cannot_fail() -> None:
    x = column(0, INT)
    table = pa.table({"c0": pa.array([3, 2**62, None])})
    square = Call("multiply", (x, x), INT)
    small = Call("less", (x, Literal(100, INT)), BOOL)
    assert by_engine(Call("case", (small, square, Literal(-1, INT)), INT), table).to_pylist() == [9, -1, -1]
    nonsense = Cast(Literal("x", TEXT), INT)
    always = Call("is_null", (Literal(None, INT),), BOOL)
    assert by_engine(Call("case", (always, x, nonsense), INT), table).to_pylist() == [3, 2**62, None]
    assert by_engine(Call("or", (always, Call("equal", (x, nonsense), BOOL)), BOOL), table).to_pylist() == [True] * 3
    assert by_engine(nonsense, table.slice(0, 0)).to_pylist() == []
    none = Call("modulo", (nonsense, Call("subtract", (x, x), INT)), INT)
    assert by_engine(none, table).to_pylist() == [None] * 3
    huge = pa.table({"c0": pa.array([None, 2**62]), "c1": pa.array([2**62, None], INT)})
    double = Call("add", (column(1, INT), column(1, INT)), INT)
    assert by_engine(Call("less", (x, double), BOOL), huge).to_pylist() == [None, None]
    odd = Call("equal", (square, Literal(9, INT)), BOOL)
    assert by_engine(Call("and", (small, odd), BOOL), table).to_pylist() == [True, False, None]
    large = Call("greater_equal", (x, Literal(100, INT)), BOOL)
    assert by_engine(Call("or", (large, odd), BOOL), table).to_pylist() == [True, True, None]
    known = Call("case", (small, x, Literal(None, INT)), INT)
    first_known = Call("coalesce", (x, square), INT)
    assert by_engine(first_known, table).to_pylist() == [3, 2**62, None]
    assert by_engine(known, table).to_pylist() == [3, None, None]


def test_errors_name_the_expression() -> None:
    table = pa.table({"c0": pa.array([2**63 - 1])})
    with pytest.raises(ExpressionError) as raised:
        by_engine(Call("add", (column(0, INT), Literal(1, INT)), INT), table)
    assert raised.value.message == "expression 't.c0 + 1' failed on a row"
    assert raised.value.detail == "overflow"


def test_a_mask_is_false_where_the_predicate_is_null() -> None:
    table = pa.table({"c0": pa.array([1, None, 3])})
    mask = evaluate_mask(
        Call("less", (column(0, INT), Literal(2, INT)), BOOL), lambda c: table[c.name].combine_chunks(), 3
    )
    assert mask.dtype == np.bool_
    assert mask.tolist() == [True, False, False]


def test_constants_are_repeated_for_every_row() -> None:
    assert by_engine(Literal("x", TEXT), pa.table({"c0": pa.array([1, 2])})).to_pylist() == ["x", "x"]
    total = Call("modulo", (Literal(7, INT), Literal(4, INT)), INT)
    assert by_engine(total, pa.table({"c0": pa.array([1, 2])})).to_pylist() == [3, 3]
    assert evaluate(Literal(None, INT), lambda _: pa.array([]), 0).type == INT


def test_other_encodings_of_a_type_are_read_alike() -> None:
    moment = datetime.datetime(2024, 2, 29, 23, 30, tzinfo=datetime.UTC)
    elsewhere = pa.array([moment], pa.timestamp("us", tz="Asia/Tokyo"))
    hour = Call("hour", (column(0, TIMESTAMP),), INT)
    assert evaluate(hour, lambda _: elsewhere, 1).to_pylist() == [23]
    large = pa.array(["xyz", None], pa.large_string())
    piece = Call("substring", (column(0, TEXT), Literal(2, INT), Literal(1, INT)), TEXT)
    assert evaluate(piece, lambda _: large, 2).to_pylist() == ["y", None]


@pytest.mark.parametrize("case", [case for case in CASES if len(case.types) == 1], ids=str)
def test_slices_evaluate_like_copies(case: Case) -> None:
    values = edge_rows(case.types)["c0"].combine_chunks()
    outcomes = interpreted(case.expr, pa.table({"c0": values}))
    good = values.filter(pa.array([accepted for accepted, _ in outcomes], BOOL))
    sliced = evaluate(case.expr, lambda _: good[1:], len(good) - 1)
    whole = evaluate(case.expr, lambda _: good, len(good))
    first = [agreed(value, case) for value in column_values(sliced)]
    assert first == [agreed(value, case) for value in column_values(whole)[1:]]


def test_wide_decimals_keep_every_digit() -> None:
    value = Decimal("12345678901234567890.123456789012345678")
    table = pa.table({"c0": pa.array([value], edges.WIDE)})
    assert by_engine(Cast(column(0, edges.WIDE), TEXT), table).to_pylist() == [str(value)]
    assert by_engine(Cast(column(0, edges.WIDE), FLOAT), table).to_pylist() == [float(value)]


def test_a_value_under_a_null_cannot_overflow() -> None:
    """Arrow adds durations and times also where one of them is NULL, with whatever bytes lie there."""
    hidden = pa.Array.from_buffers(INTERVAL, 1, [pa.py_buffer(b"\0"), pa.py_buffer(np.array([-(2**63)]).tobytes())])
    table = pa.table({"c0": hidden, "c1": pa.array([-(2**62)], INTERVAL), "c2": pa.array([2**62])})
    for expr in (
        Call("add", (column(0, INTERVAL), column(1, INTERVAL)), INTERVAL),
        Call("multiply", (column(0, INTERVAL), column(2, INT)), INTERVAL),
        Call("negate", (column(0, INTERVAL),), INTERVAL),
    ):
        assert by_engine(expr, table).to_pylist() == [None]
