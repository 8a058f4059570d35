"""Base rows: what was appended is read back, with its NULLs, whoever opens the state."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from anabranch.cql import compile_query
from anabranch.engine.batch import RelationBatch
from anabranch.engine.state.arena import Arena, MappedArena
from anabranch.engine.state.base import BaseState
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.ddl import parse_schema

ODD = "km/h"
LONG = "n" * 300
COLUMNS = {"whole": pa.int64(), "part": pa.float64(), "small": pa.int16(), "truth": pa.bool_()}


def state_of(arena: Arena) -> BaseState:
    catalog = Catalog()
    fields = "ts timestamp, whole bigint, part double, small smallint, truth boolean"
    catalog.register(StreamDeclaration("s", parse_schema(fields), "ts"))
    query = compile_query(f"SELECT {', '.join(f's.{name}' for name in COLUMNS)} FROM s [RANGE 9 SECONDS]", catalog)
    state = BaseState(arena, query.graph, "s", ())
    state.require(((),))
    return state


def rows_of(values: list[int | None]) -> RelationBatch:
    payload = {name: pa.array(values).cast(kind) for name, kind in COLUMNS.items()}
    return RelationBatch(np.arange(len(values), dtype=np.int64), {}, pa.RecordBatch.from_pydict(payload))


def read(state: BaseState, rows: list[int]) -> dict[str, list[object]]:
    return {name: state.column(name, np.array(rows, dtype=np.int64)).to_pylist() for name in COLUMNS}


def expected(values: list[int | None]) -> dict[str, list[object]]:
    return {name: pa.array(values).cast(kind).to_pylist() for name, kind in COLUMNS.items()}


def test_a_null_among_values_is_read_back_also_when_the_state_is_found_again(tmp_path: Path) -> None:
    state = state_of(MappedArena(tmp_path))
    state.append(rows_of([1, 0, 7]))
    assert read(state, [2, 0]) == expected([7, 1])
    state.append(rows_of([None, 5]))
    again = state_of(MappedArena(tmp_path))
    again.reopen(state.layout())
    for opened in (state, again):
        assert read(opened, [3, 1, 4, 3]) == expected([None, 0, 5, None])


def test_columns_of_any_name_have_a_file(tmp_path: Path) -> None:
    """The arrays of a state bear the names of its columns: a slash in it, or its length, ended a query on Spark."""
    catalog = Catalog()
    catalog.register(StreamDeclaration("s", parse_schema(f"ts timestamp, `{ODD}` double, {LONG} bigint"), "ts"))
    query = compile_query(f"SELECT s.`{ODD}`, s.{LONG} FROM s [RANGE 9 SECONDS]", catalog)
    state, again = (BaseState(MappedArena(tmp_path), query.graph, "s", ()) for _ in range(2))
    state.require(((),))
    payload = pa.RecordBatch.from_pydict({ODD: [2.5, None], LONG: [7, 8]})
    state.append(RelationBatch(np.arange(2, dtype=np.int64), {}, payload))
    again.reopen(state.layout())
    assert again.column(ODD, range(2)).to_pylist() == [2.5, None]
    assert again.column(LONG, range(2)).to_pylist() == [7, 8]
    assert all(path.parent == tmp_path for path in tmp_path.rglob("*"))
