"""The pass before ranking leaves out no row that may be among the first of its group."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.cql import compile_query
from anabranch.engine.kernels import BoolArray
from anabranch.engine.operators.candidates import MOST, REST, Candidates, _numbers, candidates
from anabranch.engine.operators.group_by import GroupState, finish
from anabranch.engine.state.arena import ProcessArena
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.expr import Column
from anabranch.lang.schema import TIMESTAMP, Field, Schema
from anabranch.plan.query import Query

SCHEMA = Schema(
    (
        Field("ts", TIMESTAMP, False),
        Field("k", pa.string(), True),
        Field("v", pa.float64(), True),
        Field("w", pa.int64(), True),
    )
)
VALUES = st.sampled_from([None, 0.0, -0.0, 1.5, -1.5, float("nan"), float("inf"), -1e300])


def query(order: str, rows: int) -> Query:
    catalog = Catalog()
    catalog.register(StreamDeclaration("s", SCHEMA, "ts"))
    number = f"ROW_NUMBER() OVER (PARTITION BY k ORDER BY {order})"
    return compile_query(f"SELECT k, v, w FROM s [TUMBLE 10 SECONDS] QUALIFY {number} <= {rows}", catalog)


@given(
    rows=st.lists(st.tuples(st.sampled_from(["a", "b", None]), VALUES, st.integers(-2, 2)), min_size=1, max_size=30),
    order=st.sampled_from(["v", "v DESC", "v ASC NULLS LAST", "v DESC NULLS FIRST", "w, v", "k || 'x', v DESC"]),
    limit=st.integers(1, 3),
)
def test_a_row_is_left_out_only_behind_as_many_others(
    rows: list[tuple[str | None, float | None, int]], order: str, limit: int
) -> None:
    found = query(order, limit)
    grouping = found.grouping
    assert grouping is not None
    columns = {
        "ts": pa.array([0] * len(rows), pa.int64()).cast(TIMESTAMP),
        "k": pa.array([row[0] for row in rows], pa.string()),
        "v": pa.array([row[1] for row in rows], pa.float64()),
        "w": pa.array([row[2] for row in rows], pa.int64()),
    }

    def read(column: Column) -> pa.Array:
        return columns[column.name]

    times = np.zeros(len(rows), dtype=np.int64)
    kept = candidates(grouping, times, times + 9_999_999, read)
    assert kept is not None
    whole = np.ones(len(rows), dtype=np.bool_)
    assert _first(found, columns, whole) == _first(found, columns, kept)
    assert kept.sum() >= min(limit, len(rows))


def _first(found: Query, columns: Mapping[str, pa.Array], kept: BoolArray) -> list[str]:
    """The results of the engine's group-by over some of the rows, which has no pass before it."""
    some = {name: values.filter(pa.array(kept)) for name, values in columns.items()}
    times = np.zeros(int(kept.sum()), dtype=np.int64)
    assert found.grouping is not None
    state = GroupState(ProcessArena(), found.grouping)
    state.add(times, times + 9_999_999, lambda column: some[column.name])
    answer, _ = finish(found, state.pass_watermark(20_000_000))
    return sorted(map(repr, answer.to_pylist()))


def test_many_rows_of_a_group_are_not_searched() -> None:
    found = query("v", MOST + 1)
    assert found.grouping is not None
    times = np.zeros(1, dtype=np.int64)
    assert candidates(found.grouping, times, times, lambda column: pytest.fail("read")) is None


def test_the_pass_rests_where_it_leaves_out_few_rows() -> None:
    grouping = query("v", 1).grouping
    assert grouping is not None
    found = Candidates(grouping)
    times = np.zeros(8, np.int64)

    def among(keys: list[str]) -> BoolArray | None:
        columns = {"k": pa.array(keys), "v": pa.array(np.arange(8.0))}
        return found.among(times, times + 10, lambda column: columns[column.name])

    alike, apart = ["a"] * 8, list("abcdefgh")
    assert [passed is None or int(passed.sum()) for passed in (among(alike), among(apart))] == [1, 8]
    assert [among(alike) for _ in range(REST)] == [None] * REST
    again = among(alike)
    assert again is not None
    assert int(again.sum()) == 1


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.float64(), pa.string()])
def test_keys_of_any_type_are_told_apart(kind: pa.DataType) -> None:
    values = [-128, 127, 0, 127, -128, 5] if pa.types.is_integer(kind) else ["1", "2", "0", "2", "1", "5"]
    numbers, count = _numbers([pa.array(values).cast(kind), pa.array([0, 0, 0, 1, 0, 0])])
    assert numbers.max() < count
    assert [list(numbers).index(each) for each in numbers] == [0, 1, 2, 3, 0, 5]
