"""Columns that numpy cannot hold (nested and binary values), kept as Arrow record batches in row-number order.

Adjacent batches are merged when the younger has grown to half the older, so there are O(log rows) batches and each row
is copied O(log rows) times. Batches entirely below the oldest live row are released.

Invariant: reading rows by number does not depend on the division into batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.engine.kernels import Int64Array
from anabranch.engine.state.arena import Arena


@dataclass(frozen=True)
class Chunk:
    """Rows [first, first + rows) of the state."""

    file: str
    first: int
    batch: pa.RecordBatch

    @property
    def stop(self) -> int:
        return self.first + int(self.batch.num_rows)


class ChunkStore:
    """The variable-width columns of one state."""

    def __init__(self, arena: Arena, name: str, schema: pa.Schema) -> None:
        self.arena = arena
        self.name = name
        self.schema = schema
        self.chunks: list[Chunk] = []
        self.written = 0

    def layout(self) -> dict[str, Any]:
        return {"written": self.written, "chunks": [[chunk.file, chunk.first] for chunk in self.chunks]}

    def reopen(self, layout: Mapping[str, Any]) -> None:
        self.written = layout["written"]
        self.chunks = [Chunk(file, first, self.arena.open_batch(file)) for file, first in layout["chunks"]]

    @property
    def bytes(self) -> int:
        return sum(int(chunk.batch.nbytes) for chunk in self.chunks)

    def append(self, first: int, batch: pa.RecordBatch) -> None:
        """Adds rows numbered from `first`."""
        if not batch.num_rows:
            return
        start, parts = first, [batch]
        while self.chunks and self.chunks[-1].batch.num_rows < 2 * sum(part.num_rows for part in parts):
            younger = self.chunks.pop()
            start, parts = younger.first, [younger.batch, *parts]
            self.arena.release(younger.file)
        merged = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
        file = f"{self.name}.chunk.{self.written}"
        self.written += 1
        self.chunks.append(Chunk(file, start, self.arena.keep_batch(file, merged)))

    def keep(self, rows: Int64Array, first: int) -> None:
        """Keeps only these rows, which are numbered from `first` on afterwards."""
        kept = pa.RecordBatch.from_arrays([self.get(name, rows) for name in self.schema.names], schema=self.schema)
        for chunk in self.chunks:
            self.arena.release(chunk.file)
        self.chunks = []
        self.append(first, kept)

    def drop(self, first: int) -> None:
        """Releases the chunks that hold no row numbered `first` or later."""
        while self.chunks and self.chunks[0].stop <= first:
            self.arena.release(self.chunks.pop(0).file)

    def get(self, column: str, rows: Int64Array | range) -> pa.Array:
        """Returns the column's values of the rows with those numbers; a contiguous range may share the chunk's data."""
        if isinstance(rows, range):
            youngest = self.chunks[-1]
            if youngest.first <= rows.start:
                return youngest.batch.column(column).slice(rows.start - youngest.first, len(rows))
            rows = np.arange(rows.start, rows.stop, dtype=np.int64)
        if not len(rows):
            return pa.array([], self.schema.field(column).type)
        starts = np.array([chunk.first for chunk in self.chunks], dtype=np.int64)
        owners = np.searchsorted(starts, rows, side="right") - 1
        touched = np.unique(owners)
        if len(touched) == 1:
            chunk = self.chunks[int(touched[0])]
            return chunk.batch.column(column).take(pa.array(rows - chunk.first))
        order = np.argsort(owners, kind="stable")
        pieces = []
        for owner in touched:
            chunk = self.chunks[int(owner)]
            mine = rows[owners == owner] - chunk.first
            pieces.append(chunk.batch.column(column).take(pa.array(mine)))
        back = np.empty(len(rows), dtype=np.int64)
        back[order] = np.arange(len(rows), dtype=np.int64)
        return pa.concat_arrays(pieces).take(pa.array(back))
