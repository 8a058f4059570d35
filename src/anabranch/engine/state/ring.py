"""A state: numbered rows in a ring, with hash indexes over them.

Rows get consecutive numbers for ever; the live ones are [first, next). Row n stands at n modulo the capacity, in every
array of the state alike. Appending makes a row readable by number; linking makes it findable through the indexes. The
two are apart because a new row must be readable (for residual predicates and results) before it may be found (each
result is born exactly once). Dropping moves `first`; it costs the rows dropped, never the rows kept.

Scaling: appending and linking are amortised O(1) per row, a probe costs its chain, a resize copies the live rows and
happens when their number has doubled or shrunk to an eighth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from anabranch.engine import kernels
from anabranch.engine.kernels import DEADLINE, NEWEST, Int64Array
from anabranch.engine.state.arena import Arena, Array

SMALLEST_CAPACITY = 1 << 10
BLOCK = 1 << 14
"""How many matches a probe hands over at once; bounds the memory of a join whatever its fan-out, and fits a cache."""


@dataclass(frozen=True)
class Matches:
    """Pairs found by a probe: the position of the probing row, the row number found, and their combined times."""

    probes: Int64Array
    rows: Int64Array
    newest: Int64Array
    deadline: Int64Array
    visited: int


class Ring:
    """The arrays of one state; `columns` are (numpy kind, values per row), `indexes` are names of hash indexes."""

    def __init__(
        self, arena: Arena, name: str, columns: Mapping[str, tuple[str, int]], indexes: tuple[str, ...]
    ) -> None:
        self.arena = arena
        self.name = name
        self.columns = dict(columns)
        self.indexes = indexes
        self.first = 0
        self.next = 0
        self.capacity = 0
        self.generation = 0
        self._arrays: dict[str, Array] = {}

    # --- life ---------------------------------------------------------------------------------------------------------

    def layout(self) -> dict[str, Any]:
        """All that is needed, beside the arrays themselves, to find this state again."""
        return {
            "indexes": self.indexes,
            "first": self.first,
            "next": self.next,
            "capacity": self.capacity,
            "generation": self.generation,
        }

    def reopen(self, layout: Mapping[str, Any]) -> None:
        self.indexes = tuple(layout["indexes"])
        self.first, self.next = layout["first"], layout["next"]
        self.capacity, self.generation = layout["capacity"], layout["generation"]
        if self.capacity:
            self._arrays = {
                part: self.arena.open(self._file(part), shape, kind) for part, shape, kind in self._parts(self.capacity)
            }

    @property
    def live(self) -> int:
        return self.next - self.first

    def live_since(self, since: int) -> int:
        """Live rows numbered from `since` on."""
        return self.next - max(self.first, since)

    @property
    def bytes(self) -> int:
        """Bytes that the live rows take, at the density the ring is kept at (a ring is at most half empty)."""
        per_row = sum(np.dtype(kind).itemsize * width for kind, width in self.columns.values())
        return self.live * (per_row + len(self.indexes) * (4 * 8 + 2 * 8))

    # --- writing ------------------------------------------------------------------------------------------------------

    def append(self, columns: Mapping[str, Array], count: int) -> int:
        """Adds rows, not yet findable, and returns the number of the first."""
        self._reserve(count)
        start = self.next
        for name, values in columns.items():
            target = self._arrays[name]
            for part, place in self._places(start, count):
                target[place] = values[part]
        self.next += count
        return start

    def link(self, index: str, first: int, codes: Int64Array, newest: Int64Array, deadline: Int64Array) -> None:
        """Makes the rows numbered from `first` findable under their codes."""
        entries, heads = self._arrays[f"entries.{index}"], self._arrays[f"heads.{index}"]
        kernels.link(entries, heads, self._shift, first, codes, newest, deadline)

    def add_index(self, index: str) -> None:
        """From now on an index, in which nothing is findable yet; the first one must be there before the first row."""
        if self.capacity:
            parts = {
                part: self.arena.allocate(self._file(part), shape, "<i8")
                for part, shape in _index_parts(index, self.capacity)
            }
            parts[f"heads.{index}"][:] = -1
            self._arrays |= parts
        self.indexes = (*self.indexes, index)

    def remove_index(self, index: str) -> None:
        """The index is gone and its space given back; one must be left while there are rows."""
        self.indexes = tuple(kept for kept in self.indexes if kept != index)
        assert self.indexes or not self.live
        for part, _ in _index_parts(index, self.capacity):
            if self._arrays.pop(part, None) is not None:
                self.arena.release(self._file(part))

    def release(self) -> None:
        """Gives back all space; the state ends here."""
        for part in self._arrays:
            self.arena.release(self._file(part))
        self._arrays = {}
        self.first, self.capacity = self.next, 0

    def clear(self) -> None:
        """Drops every row."""
        self.first = self.next

    def drop(self, low: int) -> int:
        """Drops the longest prefix of rows whose deadline is before `low`; returns how many."""
        if not self.live:
            return 0
        before = self.first
        self.first = kernels.first_alive(self._arrays[f"entries.{self.indexes[0]}"], before, self.next, low)
        return self.first - before

    # --- reading ------------------------------------------------------------------------------------------------------

    def get(self, column: str, rows: Int64Array) -> Array:
        """The column's values of the rows of those numbers."""
        values = self._arrays[column]
        if values.ndim == 1 and values.itemsize == 8:
            return kernels.gather(values.view(np.int64), rows).view(values.dtype)
        taken: Array = values.take(rows & (self.capacity - 1), axis=0)
        return taken

    def times(self, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Newest time and deadline of linked rows."""
        entries = self._arrays[f"entries.{self.indexes[0]}"].take(rows & (self.capacity - 1), axis=0)
        return np.ascontiguousarray(entries[:, NEWEST]), np.ascontiguousarray(entries[:, DEADLINE])

    def probe(
        self,
        index: str,
        codes: Int64Array,
        newest: Int64Array,
        deadline: Int64Array,
        block: int = BLOCK,
        since: int = 0,
    ) -> Iterator[Matches]:
        """All live linked rows of equal code that fit in time and are numbered from `since` on, in blocks."""
        first = max(self.first, since)
        if not self.live_since(since) or not len(codes):
            return
        entries, heads = self._arrays[f"entries.{index}"], self._arrays[f"heads.{index}"]
        at, pending, waiting = 0, 0, np.empty((2, kernels.WAITING), dtype=np.int64)
        while at < len(codes) or pending:
            probes, rows, newer, sooner = (np.empty(block, dtype=np.int64) for _ in range(4))
            count, at, pending, visited = kernels.probe(
                entries,
                heads,
                self._shift,
                first,
                codes,
                newest,
                deadline,
                at,
                pending,
                waiting,
                probes,
                rows,
                newer,
                sooner,
            )
            yield Matches(probes[:count], rows[:count], newer[:count], sooner[:count], visited)

    # --- space --------------------------------------------------------------------------------------------------------

    @property
    def _shift(self) -> int:
        return 64 - (2 * self.capacity).bit_length() + 1

    def _file(self, part: str) -> str:
        return f"{self.name}.{part}.{self.generation}"

    def _parts(self, capacity: int) -> Iterator[tuple[str, tuple[int, ...], str]]:
        for name, (kind, width) in self.columns.items():
            yield name, (capacity,) if width == 1 else (capacity, width), kind
        for index in self.indexes:
            yield from ((part, shape, "<i8") for part, shape in _index_parts(index, capacity))

    def _places(self, start: int, count: int) -> Iterator[tuple[slice, slice]]:
        """Where `count` rows from `start` on stand: one run, or two around the end of the ring."""
        place = start & (self.capacity - 1)
        head = min(count, self.capacity - place)
        yield slice(0, head), slice(place, place + head)
        if head < count:
            yield slice(head, count), slice(0, count - head)

    def _reserve(self, count: int) -> None:
        needed = self.live + count
        if needed <= self.capacity <= max(SMALLEST_CAPACITY, 8 * needed):
            return
        capacity = max(SMALLEST_CAPACITY, 1 << (needed - 1).bit_length() if needed > 1 else 1)
        old, old_capacity, old_generation = self._arrays, self.capacity, self.generation
        self._arrays, self.capacity, self.generation = {}, capacity, self.generation + 1
        runs = list(_runs(self.first, self.next, min(capacity, old_capacity)))
        # One array after another, the widest first, so that the next may stand where the last one stood.
        for part, shape, kind in sorted(self._parts(capacity), key=lambda each: -_size(*each[1:])):
            self._arrays[part] = self.arena.allocate(self._file(part), shape, kind)
            if part not in old:
                continue
            values = old.pop(part)
            if not part.startswith("heads."):
                for start, stop in runs:
                    source, target = start & (old_capacity - 1), start & (capacity - 1)
                    self._arrays[part][target : target + stop - start] = values[source : source + stop - start]
            del values
            self.arena.release(f"{self.name}.{part}.{old_generation}")
        for index in self.indexes:
            entries, heads = self._arrays[f"entries.{index}"], self._arrays[f"heads.{index}"]
            kernels.relink(entries, heads, self._shift, self.first, self.next)


def _size(shape: tuple[int, ...], kind: str) -> int:
    return int(np.prod(shape)) * np.dtype(kind).itemsize


def _index_parts(index: str, capacity: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return ((f"entries.{index}", (capacity, 4)), (f"heads.{index}", (2 * capacity,)))


def _runs(first: int, stop: int, capacity: int) -> Iterator[tuple[int, int]]:
    """Row numbers cut where a ring of that capacity, or of any larger one, wraps around."""
    while first < stop and capacity:
        end = min(stop, (first // capacity + 1) * capacity)
        yield first, end
        first = end
