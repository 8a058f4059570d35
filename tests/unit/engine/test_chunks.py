"""Columns of strings and nested values: merged, dropped, gathered and reopened like a list."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.engine.state.arena import Arena, MappedArena, ProcessArena
from anabranch.engine.state.chunks import ChunkStore
from anabranch.errors import StorageFull

SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("list", pa.list_(pa.int32())),
        ("struct", pa.struct([("x", pa.int64()), ("y", pa.string())])),
        ("map", pa.map_(pa.string(), pa.int64())),
    ]
)


def batch(first: int, count: int) -> pa.RecordBatch:
    """Rows that can be told from their number; every third value is NULL."""
    rows = range(first, first + count)
    columns = {
        "text": [None if n % 3 == 0 else f"t{n}" for n in rows],
        "list": [None if n % 3 == 1 else [n, None] for n in rows],
        "struct": [None if n % 3 == 2 else {"x": n, "y": None} for n in rows],
        "map": [None if n % 3 == 0 else [(f"k{n}", n)] for n in rows],
    }
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


@given(
    sizes=st.lists(st.integers(0, 9), max_size=30),
    drops=st.lists(st.integers(0, 120), max_size=30),
    wanted=st.lists(st.integers(0, 300), max_size=20),
)
def test_rows_are_found_by_number(sizes: list[int], drops: list[int], wanted: list[int]) -> None:
    store = ChunkStore(ProcessArena(), "s", SCHEMA)
    last, first = 0, 0
    for size, drop in zip(sizes, [*drops, *([0] * len(sizes))], strict=False):
        store.append(last, batch(last, size))
        last += size
        if drop <= last:
            first = max(first, drop)
            store.drop(first)
        rows = np.array([first + number % (last - first) for number in wanted] if last > first else [], dtype=np.int64)
        for name in SCHEMA.names:
            expected = [batch(int(row), 1).column(name)[0].as_py() for row in rows]
            got = store.get(name, rows)
            assert got.type == SCHEMA.field(name).type
            assert got.to_pylist() == expected


def test_there_are_few_chunks_whatever_the_batches() -> None:
    store = ChunkStore(ProcessArena(), "s", SCHEMA)
    for first in range(500):
        store.append(first, batch(first, 1))
    assert len(store.chunks) <= 10
    sizes = [chunk.batch.num_rows for chunk in store.chunks]
    assert all(older >= 2 * younger for older, younger in itertools.pairwise(sizes))


def test_dropped_chunks_are_given_back(tmp_path: Path) -> None:
    store = ChunkStore(MappedArena(tmp_path), "s", SCHEMA)
    store.append(0, batch(0, 40))
    store.append(40, batch(40, 4))
    assert len(list(tmp_path.iterdir())) == 2
    store.drop(39)
    assert len(list(tmp_path.iterdir())) == 2
    store.drop(40)
    assert len(list(tmp_path.iterdir())) == 1
    store.drop(44)
    assert not list(tmp_path.iterdir())
    assert store.bytes == 0


@pytest.mark.parametrize("rows", [[3], [12, 3, 12, 0]])
def test_a_store_is_found_again(rows: list[int], tmp_path: Path) -> None:
    arena: Arena = MappedArena(tmp_path)
    store = ChunkStore(arena, "s", SCHEMA)
    store.append(0, batch(0, 10))
    store.append(10, batch(10, 4))
    again = ChunkStore(MappedArena(tmp_path), "s", SCHEMA)
    again.reopen(store.layout())
    assert again.get("map", np.array(rows)).to_pylist() == store.get("map", np.array(rows)).to_pylist()
    again.append(14, batch(14, 1))
    assert again.get("text", np.array([14, 13])).to_pylist() == ["t14", "t13"]


def test_a_process_arena_keeps_nothing_for_others() -> None:
    with pytest.raises(KeyError, match="was not kept"):
        ProcessArena().open_batch("s.chunk.0")
    with pytest.raises(KeyError, match="was not kept"):
        ProcessArena().open("s.value.0", (4,), "<i8")


def test_a_full_file_system_is_an_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "s.chunk.0").symlink_to("/dev/full")
    with pytest.raises(StorageFull, match="hot state") as caught:
        ChunkStore(MappedArena(tmp_path), "s", SCHEMA).append(0, batch(0, 10))
    assert "ANABRANCH_HOT_FOLDER" in caught.value.hint


def test_an_array_cut_short_is_not_opened(tmp_path: Path) -> None:
    arena = MappedArena(tmp_path)
    arena.allocate("a", (8,), "<i8")[:] = 7
    with open(tmp_path / "a", "r+b") as file:
        file.truncate(16)
    with pytest.raises(OSError, match="16 bytes"):
        MappedArena(tmp_path).open("a", (8,), "<i8")
