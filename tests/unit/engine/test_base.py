"""Base rows: what was appended is read back, with its NULLs, whoever opens the state."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from anabranch.catalog import Catalog, StreamDeclaration
from anabranch.cql import compile_query
from anabranch.ddl import parse_schema
from anabranch.engine.batch import RelationBatch
from anabranch.engine.state.arena import Arena, MappedArena
from anabranch.engine.state.base import BaseState

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
