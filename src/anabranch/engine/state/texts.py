"""The text columns of a state: their bytes in one ring, appended once and never moved while they live.

The state's own ring stores, for every row and text column, the start and the length of the bytes. Positions are never
reused, and a byte is at its position modulo the size of this ring, so a text may wrap around the end. A step copies the
bytes of its new rows and of its results; rows that are kept cost nothing.

Invariant: `get` returns the bytes that were appended. Limit: the texts of one block of rows must fit one Arrow array.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from anabranch.engine import kernels
from anabranch.engine.evaluate.codes import text_buffers
from anabranch.engine.kernels import ByteArray, Int64Array
from anabranch.engine.state.arena import Arena, Array
from anabranch.engine.state.ring import Ring
from anabranch.errors import StorageFull

BYTES = "bytes"
START, LENGTH = "text.start", "text.length"
"""The columns of the state's ring: one value for each text column, in the order of the store."""
MOST_BYTES = (1 << 31) - 1
"""The maximum size of one Arrow array of texts."""
_NO_BYTES = np.empty(0, dtype=np.uint8)

TextColumn: TypeAlias = tuple[ByteArray, Array, Array, int]
"""The bytes of a store, the starts and the lengths of the texts of all its columns, and the number of one column."""


class TextStore:
    """The texts of one state, by the names of their columns."""

    def __init__(self, arena: Arena, name: str, types: Mapping[str, pa.DataType]) -> None:
        self.types = types
        self._places = {column: place for place, column in enumerate(types)}
        self._heap = Ring(arena, f"{name}.texts", {BYTES: ("|u1", 1)}, span=0)

    @property
    def columns(self) -> dict[str, tuple[str, int]]:
        """The columns that the state's ring has for these texts."""
        return {START: ("<i8", len(self.types)), LENGTH: ("<i4", len(self.types))}

    def layout(self) -> dict[str, Any]:
        return self._heap.layout()

    def reopen(self, layout: Mapping[str, Any]) -> None:
        self._heap.reopen(layout)

    @property
    def bytes(self) -> int:
        return self._heap.live

    def append(self, arrays: Sequence[pa.Array]) -> dict[str, Array]:
        """Stores the bytes of new rows, one array for each column; returns the columns of the state's ring."""
        spans = []
        for array in arrays:
            offsets, data = text_buffers(array)
            size = int(offsets[-1] - offsets[0])
            start = self._heap.append({BYTES: data[offsets[0] : offsets[-1]]}, size) if size else self._heap.next
            spans.append((offsets[:-1] + (start - offsets[0]), np.diff(offsets).astype(np.int32)))
        return _as_columns(*zip(*spans, strict=True))

    def keep(self, state: Ring, rows: Int64Array) -> dict[str, Array]:
        """Keeps only the texts of these rows; returns the columns of the state's ring for them."""
        starts, lengths = self._spans(state, START), self._spans(state, LENGTH)
        heap = self._heap.by_place(BYTES) if self._heap.capacity else _NO_BYTES
        spans = [kernels.text_spans(starts, lengths, place, rows) for place in range(len(self.types))]
        kept = np.empty(sum(int(offsets[-1]) for _, offsets in spans), dtype=np.uint8)
        at, columns = 0, []
        for found, offsets in spans:
            kernels.copy_texts(heap, found, offsets, kept[at : at + int(offsets[-1])])
            columns.append(offsets[:-1] + at)
            at += int(offsets[-1])
        self._heap.release()
        first = self._heap.append({BYTES: kept}, len(kept)) if len(kept) else self._heap.next
        sizes = [np.diff(offsets).astype(np.int32) for _, offsets in spans]
        return _as_columns([each + first for each in columns], sizes)

    def drop(self, state: Ring) -> None:
        """Releases the bytes that no live row of the state's ring uses."""
        low = self._heap.next
        if state.live:
            # The bytes of a batch's first column were appended first.
            low = int(self._spans(state, START)[state.first & (state.capacity - 1), 0])
        self._heap.first = low

    def get(self, column: str, state: Ring, rows: Int64Array, valid: ByteArray | None) -> pa.Array:
        """Returns the texts of rows of the state's ring."""
        kind, place = self.types[column], self._places[column]
        if not len(rows):
            return pa.array([], kind)
        starts, offsets = kernels.text_spans(self._spans(state, START), self._spans(state, LENGTH), place, rows)
        width = np.int64 if pa.types.is_large_string(kind) else np.int32
        if offsets[-1] > MOST_BYTES and width == np.int32:
            raise StorageFull(
                f"{offsets[-1]:,} bytes of texts in column '{column}' of one block of rows, more than {MOST_BYTES:,}",
                hint="use more slots, shorter windows or smaller batches",
            )
        # Arrow's memory pool reuses memory of earlier results; new memory would cost as much as the copy.
        data = pa.allocate_buffer(int(offsets[-1]))
        if data.size:
            kernels.copy_texts(self._heap.by_place(BYTES), starts, offsets, np.frombuffer(data, dtype=np.uint8))
        bitmap = None
        if valid is not None and not valid.all():
            bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
        buffers = [bitmap, pa.py_buffer(offsets.astype(width)), data]
        return pa.Array.from_buffers(kind, len(rows), buffers)

    def place(self, column: str, state: Ring) -> TextColumn:
        """Returns the texts of a column in place, as the kernels expect them."""
        heap = self._heap.by_place(BYTES) if self._heap.capacity else _NO_BYTES
        return heap, self._spans(state, START), self._spans(state, LENGTH), self._places[column]

    def _spans(self, state: Ring, column: str) -> Array:
        return state.by_place(column).reshape(-1, len(self.types))


def _as_columns(starts: Sequence[Array], lengths: Sequence[Array]) -> dict[str, Array]:
    """Returns starts and lengths, an array for each text column, as the columns of the state's ring."""
    if len(starts) == 1:
        # A column of one value per row has one dimension in a ring.
        return {START: starts[0], LENGTH: lengths[0]}
    return {START: np.stack(starts, axis=1), LENGTH: np.stack(lengths, axis=1)}
