"""Texts of a state: whatever is appended and dropped, every live row has its own texts, in any arena."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.engine import kernels
from anabranch.engine.kernels import Int64Array
from anabranch.engine.state.arena import Arena, MappedArena, ProcessArena
from anabranch.engine.state.ring import Ring
from anabranch.engine.state.texts import TextStore
from anabranch.errors import StorageFull

TYPES = {"short": pa.string(), "long": pa.large_string()}
Row = tuple[str | None, str | None]


class State:
    """A ring of times with texts, and what it should have."""

    def __init__(self, arena: Arena, types: dict[str, pa.DataType] = TYPES) -> None:
        self.arena = arena
        self.texts = TextStore(arena, "s", types)
        self.ring = Ring(arena, "s", self.texts.columns, ((),), span=0)
        self.rows: list[Row] = []

    def append(self, rows: list[Row], offset: int = 0) -> None:
        """Adds rows; with an offset, out of the middle of longer arrays."""
        padded = [("before", "before")] * offset + rows + [("after", "after")]
        arrays = [
            pa.array([row[place] for row in padded], kind).slice(offset, len(rows))
            for place, kind in enumerate(self.texts.types.values())
        ]
        first = self.ring.append(self.texts.append(arrays), len(rows))
        codes = np.zeros(len(rows), dtype=np.int64)
        self.ring.link(first, lambda _: codes, np.arange(first, first + len(rows), dtype=np.int64))
        self.rows += rows

    def drop(self, count: int) -> None:
        self.ring.drop(min(self.ring.first + count, self.ring.next))
        self.texts.drop(self.ring)

    def reopened(self) -> State:
        again = State(self.arena, dict(self.texts.types))
        again.ring.reopen(self.ring.layout())
        again.texts.reopen(self.texts.layout())
        again.rows = self.rows
        return again

    def check(self) -> None:
        alive = self.ring.numbers[::-1].copy()
        for place, (column, kind) in enumerate(self.texts.types.items()):
            wanted = [self.rows[number][place] for number in alive]
            valid = np.array([text is not None for text in wanted], dtype=np.uint8)
            found = self.texts.get(column, self.ring, alive, valid if not valid.all() else None)
            assert found.type == kind
            found.validate(full=True)
            assert found.to_pylist() == wanted
        self.check_equality(alive)

    def check_equality(self, alive: Int64Array) -> None:
        """Each live row's first text against another row's last one; NULL stands as the empty text."""
        if not len(alive):
            return
        others, last = np.roll(alive, 1), len(self.texts.types) - 1
        columns = [self.texts.place(column, self.ring) for column in self.texts.types]
        same = kernels.equal_texts(*columns[0], alive, *columns[last], others)
        pairs = zip(alive, others, strict=True)
        assert same.tolist() == [(self.rows[one][0] or "") == (self.rows[other][last] or "") for one, other in pairs]


texts = st.one_of(st.none(), st.text("ab", max_size=2), st.text(max_size=12), st.just("ü" * 300))
moves = st.lists(
    st.one_of(
        st.lists(st.tuples(texts, texts), min_size=1, max_size=40),
        st.integers(1, 60),
        st.just("reopen"),
    ),
    max_size=30,
)


@given(moves=moves, offset=st.integers(0, 3))
def test_every_live_row_has_its_texts(
    tmp_path_factory: pytest.TempPathFactory, moves: list[object], offset: int
) -> None:
    state = State(MappedArena(tmp_path_factory.mktemp("texts")))
    for move in moves:
        if isinstance(move, list):
            state.append(move, offset)
        elif isinstance(move, int):
            state.drop(move)
        else:
            state = state.reopened()
        state.check()


def test_one_column_and_no_bytes_at_all() -> None:
    state = State(ProcessArena(), {"only": pa.string()})
    state.append([("", None), (None, None)])
    state.check()
    state.append([("x" * 5_000, None)])
    state.drop(2)
    state.check()
    assert state.texts.bytes == 5_000


def test_the_bytes_of_dropped_rows_are_used_again(tmp_path: Path) -> None:
    state = State(MappedArena(tmp_path))
    for _ in range(200):
        state.append([("abcdefgh" * 8, "z" * 64)] * 16)
        state.drop(max(0, state.ring.live - 32))
        state.check()
    assert state.texts.bytes <= 64 * 128
    heap = [file for file in tmp_path.iterdir() if "bytes" in file.name]
    assert sum(file.stat().st_size for file in heap) <= 1 << 14


def test_texts_that_run_around_the_end_of_the_ring_are_compared() -> None:
    state = State(ProcessArena())
    for number in range(60):
        text = f"{number % 3}" * 37
        state.append([(text, text)] * 3)
        state.drop(max(0, state.ring.live - 6))
        state.check()


def test_more_texts_than_arrow_can_have_in_one_array_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.engine.state.texts.MOST_BYTES", 100)
    state = State(ProcessArena())
    state.append([("x" * 60, "y" * 60)] * 2)
    with pytest.raises(StorageFull, match="120 bytes of texts in column 'short'"):
        state.check()
