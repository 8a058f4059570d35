"""The two oracles: small answers by hand, and agreement with each other."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.lang.expr import GROUPED, AggregateCall, Call, Cast, Column, Expr, Literal
from anabranch.lang.schema import TIMESTAMP, Field, Schema
from anabranch.lang.window import Window
from anabranch.plan.join_graph import JoinGraph, KeyClass, Relation, Theta
from anabranch.plan.logical import BOUNDARY, Output
from anabranch.plan.query import Grouping, Query
from tests.support.duckdb_sql import duckdb_answer, to_duckdb
from tests.support.oracle import batch_answer, comparable, describe_difference, rows_as_multiset

LONG, FLOAT, BOOL = pa.int64(), pa.float64(), pa.bool_()
STREAM = Schema((Field("ts", TIMESTAMP), Field("k", LONG), Field("v", FLOAT)))


def rows(*listed: tuple[int | None, int | None, float | None]) -> pa.Table:
    columns = list(zip(*listed, strict=True)) or [(), (), ()]
    return pa.table(
        [pa.array(values, field.type) for values, field in zip(columns, STREAM, strict=True)],
        schema=STREAM.to_arrow(),
    )


def relation(name: str, reach: int | None, disorder: int = 0, where: Expr | None = None) -> Relation:
    return Relation(name, f"s{name}", STREAM, "ts", Window(reach), disorder, where)


def column(name: str, field: str) -> Column:
    found = STREAM.find(field)
    assert found is not None
    return Column(name, field, found.type)


def key(*names: str) -> KeyClass:
    return KeyClass("k", tuple((name, column(name, "k")) for name in names), LONG)


def call(function: str, *arguments: Expr, kind: pa.DataType = BOOL) -> Call:
    return Call(function, arguments, kind)


def join_query(graph: JoinGraph) -> Query:
    outputs = tuple(Output(f"{name}_{field}", column(name, field)) for name in graph.names for field in ("ts", "v"))
    return Query("", graph, outputs)


PAIR = join_query(JoinGraph((relation("a", 10), relation("b", 5)), (key("a", "b"),)))


def test_a_row_stays_for_its_own_range_both_ends_included() -> None:
    #  a (range 10) at 0            b (range 5) at 0
    #  b at 10 still meets it       a at 5 still meets it, at 6 no longer
    answer = batch_answer(PAIR, {"sa": rows((0, 1, 0.0)), "sb": rows((10, 1, 1.0), (11, 1, 2.0))})
    assert answer == Counter({(0, 0.0, 10, 1.0): 1})
    answer = batch_answer(PAIR, {"sa": rows((5, 1, 0.0), (6, 1, 1.0)), "sb": rows((0, 1, 2.0))})
    assert answer == Counter({(5, 0.0, 0, 2.0): 1})


def test_null_keys_and_null_times_join_with_nothing() -> None:
    given_rows = {"sa": rows((0, None, 0.0), (None, 1, 1.0)), "sb": rows((0, None, 2.0), (0, 1, 3.0))}
    assert batch_answer(PAIR, given_rows) == Counter()


def test_equal_rows_are_counted() -> None:
    answer = batch_answer(PAIR, {"sa": rows((0, 1, 0.0), (0, 1, 0.0)), "sb": rows((0, 1, 1.0))})
    assert answer == Counter({(0, 0.0, 0, 1.0): 2})


def test_the_window_is_measured_from_the_newest_row_of_all() -> None:
    # a and b are 4 apart and b and c are 4 apart, but a is 8 before c: with equal ranges of 6 that is too long.
    graph = JoinGraph(tuple(relation(name, 6) for name in "abc"), (key("a", "b", "c"),))
    given_rows = {"sa": rows((0, 1, 0.0)), "sb": rows((4, 1, 0.0)), "sc": rows((8, 1, 0.0), (6, 1, 5.0))}
    assert [row[4] for row in batch_answer(join_query(graph), given_rows)] == [6]


def test_predicates_that_are_null_are_not_true() -> None:
    below = Theta(call("less", column("a", "v"), column("b", "v")), frozenset("ab"))
    query = join_query(JoinGraph((relation("a", None), relation("b", None)), (), (below,)))
    answer = batch_answer(query, {"sa": rows((0, 1, None), (0, 1, 1.0)), "sb": rows((99, 2, 2.0))})
    assert answer == Counter({(0, 1.0, 99, 2.0): 1})


def grouped(slide: int, reach: int | None, having: Expr | None = None, disorder: int = 0) -> Query:
    grouping = Grouping(
        (column("a", "k"),),
        (
            AggregateCall("count", None, LONG),
            AggregateCall("sum", column("a", "v"), FLOAT),
            AggregateCall("avg", column("a", "v"), FLOAT),
            AggregateCall("max", column("a", "v"), FLOAT),
            AggregateCall("count", column("a", "v"), LONG),
        ),
        having,
        slide,
    )
    kinds = [LONG, FLOAT, FLOAT, FLOAT, LONG]
    results = [Output(f"r{i}", Column(GROUPED, f"aggregate{i}", kind)) for i, kind in enumerate(kinds)]
    outputs = (Output("at", BOUNDARY), Output("k", Column(GROUPED, "key0", LONG)), *results)
    return Query("", JoinGraph((relation("a", reach, disorder),)), outputs, grouping)


def test_groups_are_answered_at_boundaries_strictly_below_the_watermark() -> None:
    #  rows    2   4(NULL)        19 20
    #  slide 10:        10          |20   watermark 20: the boundary 20 is not passed
    table = rows((2, 1, 1.0), (4, 1, None), (19, 2, 3.0), (20, None, 4.0))
    assert batch_answer(grouped(10, 8), {"sa": table}) == Counter({(10, 1, 2, 1.0, 1.0, 1.0, 1): 1})
    assert batch_answer(grouped(10, 5), {"sa": table}) == Counter()
    later = rows(*[(2, 1, 1.0), (21, None, 4.0), (20, None, 6.0)])
    assert batch_answer(grouped(10, 8), {"sa": later}) == Counter(
        {(10, 1, 1, 1.0, 1.0, 1.0, 1): 1, (20, None, 1, 6.0, 6.0, 6.0, 1): 1}
    )


def test_disorder_holds_the_watermark_back() -> None:
    table = rows((2, 1, 1.0), (15, 1, 1.0))
    assert batch_answer(grouped(10, 8, disorder=4), {"sa": table}).total() == 1
    assert batch_answer(grouped(10, 8, disorder=5), {"sa": table}).total() == 0


def test_having_sees_the_aggregates() -> None:
    many = call("greater", Column(GROUPED, "aggregate0", LONG), Literal(1, LONG))
    table = rows((2, 1, 1.0), (3, 1, 2.0), (4, 2, 3.0), (30, 9, 0.0))
    assert batch_answer(grouped(10, 9, many), {"sa": table}) == Counter({(10, 1, 2, 3.0, 1.5, 2.0, 2): 1})


def test_an_empty_stream_stalls_the_groups() -> None:
    assert batch_answer(grouped(10, 8), {"sa": rows()}) == Counter()


def test_results_of_an_engine_take_the_same_form() -> None:
    table = pa.table(
        {
            "at": pa.array([10], TIMESTAMP),
            "x": pa.array([0.1 + 0.2]),
            "n": pa.array([float("nan")]),
            "d": pa.array([Decimal("1.50")], pa.decimal128(5, 2)),
            "l": pa.array([[1, None]]),
        }
    )
    assert rows_as_multiset(table) == Counter({(10, 0.3, "NaN", Decimal("1.5"), (1, None)): 1})
    assert comparable(-0.0) == 0.0


def test_a_difference_says_what_is_missing_and_what_is_too_much() -> None:
    text = describe_difference(Counter({(1,): 2, (2,): 1}), Counter({(1,): 1, (3,): 1, (2,): 1}))
    assert text == "1 missing of 3 expected:\n  1 x (1,)\n1 unexpected of 3 expected:\n  1 x (3,)"
    assert describe_difference(Counter({(1,): 1}), Counter({(1,): 1})) == ""


# --- against DuckDB --------------------------------------------------------------------------------------------------

DRAWN_ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(0, 40),
        st.none() | st.integers(0, 2),
        st.none() | st.sampled_from([0.0, -0.0, 1.5, 2.0, 7.25, float("nan")]),
    ),
    max_size=10,
)
REACH = st.none() | st.integers(0, 20)


@given(
    data=st.data(),
    names=st.sampled_from(["a", "ab", "abc", "abcd"]),
    equalities=st.booleans(),
    theta=st.booleans(),
    filtered=st.booleans(),
)
def test_both_oracles_agree(data: Any, names: str, equalities: bool, theta: bool, filtered: bool) -> None:
    where = call("less_equal", column("a", "v"), Literal(2.0, FLOAT)) if filtered else None
    relations = tuple(relation(name, data.draw(REACH), where=where if name == "a" else None) for name in names)
    keys = (key(*names[:3]),) if equalities and len(names) > 1 else ()
    apart = call("not_equal", column("a", "v"), column(names[-1], "v"))
    thetas = (Theta(apart, frozenset({"a", names[-1]})),) if theta and len(names) > 1 else ()
    query = join_query(JoinGraph(relations, keys, thetas))
    size = 6 if len(names) == 4 else 10
    streams = {f"s{name}": rows(*data.draw(DRAWN_ROWS)[:size]) for name in names}
    expected = batch_answer(query, streams)
    actual = rows_as_multiset(duckdb_answer(query, streams))
    assert expected == actual, describe_difference(expected, actual)


def test_duckdb_gives_the_schema_of_the_query() -> None:
    total = call("add", column("a", "k"), Literal(1, LONG), kind=LONG)
    later = call("year", column("a", "ts"), kind=LONG)
    half = call("divide", Cast(column("a", "k"), FLOAT), Literal(2.0, FLOAT), kind=FLOAT)
    outputs = (Output("t", column("a", "ts")), Output("n", total), Output("y", later), Output("h", half))
    query = Query("", JoinGraph((relation("a", 1),)), outputs)
    answer = duckdb_answer(query, {"sa": rows((5, 1, None))})
    assert answer.schema.types == [TIMESTAMP, LONG, LONG, FLOAT]
    assert rows_as_multiset(answer) == Counter({(5, 2, 1970, 0.5): 1})


def test_expressions_that_duckdb_computes_differently_are_refused() -> None:
    rounded = call("round", column("a", "v"), Literal(1, LONG), kind=FLOAT)
    with pytest.raises(ValueError, match="'round'"):
        to_duckdb(Query("", JoinGraph((relation("a", 1),)), (Output("x", rounded),)))
    with pytest.raises(ValueError, match="CAST"):
        to_duckdb(Query("", JoinGraph((relation("a", 1),)), (Output("x", Cast(column("a", "v"), LONG)),)))
    with pytest.raises(ValueError, match="grouped"):
        to_duckdb(grouped(10, 5))


def test_filters_and_keys_may_read_columns_that_results_do_not_need() -> None:
    narrow = Schema((Field("ts", TIMESTAMP),))
    positive = call("greater", column("a", "v"), Literal(0.0, FLOAT))
    relations = (
        Relation("a", "sa", narrow, "ts", Window(5), filter=positive),
        Relation("b", "sb", narrow, "ts", Window(5)),
    )
    query = Query("", JoinGraph(relations, (key("a", "b"),)), (Output("t", column("a", "ts")),))
    streams = {"SA": rows((1, 7, 1.0), (2, 7, -1.0)), "sb": rows((3, 7, 0.0))}
    assert batch_answer(query, streams) == Counter({(1,): 1})
    assert rows_as_multiset(duckdb_answer(query, streams)) == Counter({(1,): 1})
