"""A state: numbered rows in a ring, with hash indexes over them.

Rows get consecutive numbers that are never reused; the live ones are [first, next). Row n is at position n modulo the
capacity, in every array of the state. Appending makes a row readable by number; linking makes it findable through the
indexes. These are separate steps because a new row must be readable (for residual predicates and results) before it may
be found (each result is produced exactly once). Dropping moves `first`; it costs the rows dropped, never the rows kept.

Scaling: appending and linking are amortised O(1) per row, a probe costs its chain. A resize copies the live rows and
happens when their number has doubled or shrunk to an eighth. A growing ring is extended in place: half of its rows, on
average, move into the new part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from anabranch.engine import kernels
from anabranch.engine.compile import index_name
from anabranch.engine.kernels import NEWEST, NO_ROW, BoolArray, Int64Array, LinkArray
from anabranch.engine.state.arena import Arena, Array

SMALLEST_CAPACITY = 1 << 10
MOST_ROWS = 1 << 31
"""Links are 32 bits wide; a ring of this many rows would take 100 GB."""
_NOTHING = np.empty(0, dtype=np.int64)
INDEX_BYTES = 2 * 8 + 4 + 2 * 4
"""The bytes of an index per row: code and newest time, the link to the previous row, two heads."""
DEADLINE = "deadline"
ANY_TIME = -(2**63)
BLOCK = 1 << 15
"""The number of matches that a probe yields at once; bounds the memory of a join for any fan-out, and fits a cache."""


@dataclass(frozen=True)
class Matches:
    """Pairs found by a probe: the position of the probing row, the row number found, and their combined times."""

    probes: Int64Array
    rows: Int64Array
    newest: Int64Array
    deadline: Int64Array
    visited: int


Index = tuple[str, ...]
"""The code names that an index looks up together; empty for the index of all rows."""


class Ring:
    """The arrays of one state; `columns` are (numpy kind, values per row), `indexes` the hash indexes over them.

    The deadline of a row is `span` after its newest time; without a span it is the column `deadline`.
    """

    def __init__(
        self,
        arena: Arena,
        name: str,
        columns: Mapping[str, tuple[str, int]],
        indexes: tuple[Index, ...] = (),
        *,
        span: int | None = None,
    ) -> None:
        self.arena = arena
        self.name = name
        self.columns = dict(columns) | ({} if span is not None else {DEADLINE: ("<i8", 1)})
        self.indexes = indexes
        self.span = span
        self.first = 0
        self.next = 0
        self.capacity = 0
        self.generation = 0
        self._arrays: dict[str, Array] = {}

    # --- life ---------------------------------------------------------------------------------------------------------

    def layout(self) -> dict[str, Any]:
        """Returns what is needed, besides the arrays themselves, to reopen this state."""
        return {
            "indexes": self.indexes,
            "first": self.first,
            "next": self.next,
            "capacity": self.capacity,
            "generation": self.generation,
        }

    def reopen(self, layout: Mapping[str, Any]) -> None:
        self.indexes = tuple(tuple(index) for index in layout["indexes"])
        self.first, self.next = layout["first"], layout["next"]
        self.capacity, self.generation = layout["capacity"], layout["generation"]
        if self.capacity:
            self._arrays = {
                part: self.arena.open(self._file(part), shape, kind) for part, shape, kind in self._parts(self.capacity)
            }

    @property
    def live(self) -> int:
        return self.next - self.first

    @property
    def numbers(self) -> Int64Array:
        """The numbers of the live rows."""
        return np.arange(self.first, self.next, dtype=np.int64)

    def live_since(self, since: int) -> int:
        """Live rows numbered from `since` on."""
        return self.next - max(self.first, since)

    @property
    def bytes(self) -> int:
        """The bytes of the live rows, at the density the ring is kept at (a ring is at most half empty)."""
        per_row = sum(np.dtype(kind).itemsize * width for kind, width in self.columns.values())
        return self.live * (per_row + len(self.indexes) * INDEX_BYTES)

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

    def put(self, column: str, rows: Int64Array, value: int) -> None:
        """Writes one value into a column of live rows."""
        self._arrays[column][rows & (self.capacity - 1)] = value

    def lower(self, column: str, rows: Int64Array, values: Int64Array) -> None:
        """Lowers values in a column of live rows to the given ones where these are smaller; each row is given once."""
        places, array = rows & (self.capacity - 1), self._arrays[column]
        array[places] = np.minimum(array[places], values)

    def add_column(self, column: str, kind: str, value: int) -> None:
        """Adds a column; existing rows get the given value."""
        self.columns[column] = (kind, 1)
        if self.capacity:
            array = self._arrays[column] = self.arena.allocate(self._file(column), (self.capacity,), kind)
            array[:] = value

    def keep_column(self, name: str, form: tuple[str, int], values: Array) -> None:
        """Adds a column, with the values of the live rows."""
        self.columns[name] = form
        if self.capacity:
            ((_, shape, kind),) = (part for part in self._parts(self.capacity) if part[0] == name)
            self._arrays[name] = self.arena.allocate(self._file(name), shape, kind)
            self._write(name, values)

    def drop_column(self, name: str) -> None:
        """Releases the space of a column."""
        del self.columns[name]
        if self._arrays.pop(name, None) is not None:
            self.arena.release(self._file(name))

    def link(self, first: int, codes: Callable[[Index], Int64Array], newest: Int64Array) -> None:
        """Makes the rows numbered from `first` findable under their codes in each index."""
        for index in self.indexes:
            self._link(index, first, codes(index), newest)

    def require(self, indexes: tuple[Index, ...], codes: Callable[[Index], Int64Array]) -> None:
        """Maintains these indexes from now on; a new one finds the live rows, all linked, under the given codes.

        The first index must exist before the first row.
        """
        for index in indexes:
            if index in self.indexes:
                continue
            if self.capacity:
                self._make_index(index)
            if self.live:
                self._link(index, self.first, codes(index), self.times(self.numbers)[0])
            self.indexes = (*self.indexes, index)

    def retain(self, indexes: tuple[Index, ...]) -> None:
        """Keeps only these indexes and releases the space of the others; at least one must remain if there are rows."""
        useless = [index for index in self.indexes if index not in indexes]
        self.indexes = tuple(index for index in self.indexes if index in indexes)
        assert self.indexes or not self.live
        for part, _, _ in (part for index in useless for part in _index_parts(index, self.capacity)):
            if self._arrays.pop(part, None) is not None:
                self.arena.release(self._file(part))

    def _make_index(self, index: Index) -> None:
        parts = {
            part: self.arena.allocate(self._file(part), shape, kind)
            for part, shape, kind in _index_parts(index, self.capacity)
        }
        parts[f"heads.{index_name(index)}"][:] = NO_ROW
        self._arrays |= parts

    def _link(self, index: Index, first: int, codes: Int64Array, newest: Int64Array) -> None:
        kernels.link(*self._of(index), self._shift, first, codes, newest)

    def release(self) -> None:
        """Releases all space; the state cannot be used afterwards."""
        for part in self._arrays:
            self.arena.release(self._file(part))
        self._arrays = {}
        self.first, self.capacity = self.next, 0

    def clear(self) -> None:
        """Drops every row."""
        self.first = self.next

    def keep(self, rows: Int64Array, others: Mapping[str, Array]) -> None:
        """Keeps only these live rows, in order, all linked; they get the last numbers.

        The rows move into arrays of their size. `others` has new values of the kept rows for some columns.
        """
        if len(rows) == self.live:
            for name, values in others.items():
                self._write(name, values)
            return
        old, generation = self._arrays, self.generation
        self.first, self.generation = self.next - len(rows), generation + 1
        self.capacity = _capacity(len(rows))
        self._arrays = {}
        for part, shape, kind in self._parts(self.capacity):
            values = old.pop(part)
            self._arrays[part] = self.arena.allocate(self._file(part), shape, kind)
            if not part.startswith(("heads.", "previous.")):
                self._write(part, others[part] if part in others else values.take(rows & (len(values) - 1), axis=0))
            self.arena.release(f"{self.name}.{part}.{generation}")
        for index in self.indexes:
            kernels.relink(*self._of(index), self._shift, self.first, self.next)

    def _write(self, column: str, values: Array) -> None:
        """Writes the values of all live rows into a column."""
        target = self._arrays[column]
        for part, place in self._places(self.first, self.live):
            target[place] = values[part]

    def drop(self, low: int, oldest: int = ANY_TIME) -> int:
        """Drops the longest prefix with deadline before `low` or newest time before `oldest`; returns its length."""
        if not self.live:
            return 0
        before = self.first
        entries, _, _ = self._of(self.indexes[0])
        self.first = kernels.first_alive(entries, self._deadlines, self.span or 0, before, self.next, low, oldest)
        return self.first - before

    # --- reading ------------------------------------------------------------------------------------------------------

    def get(self, column: str, rows: Int64Array | range) -> Array:
        """Returns the column's values of the rows with those numbers; for a contiguous range, the ring's own memory."""
        values = self._arrays[column]
        if isinstance(rows, range):
            runs = [values[place] for _, place in self._places(rows.start, len(rows))]
            return runs[0] if len(runs) == 1 else np.concatenate(runs)
        if values.ndim == 1 and values.itemsize == 8:
            return kernels.gather(values.view(np.int64), rows).view(values.dtype)
        taken: Array = values.take(rows & (self.capacity - 1), axis=0)
        return taken

    def by_place(self, column: str) -> Array:
        """Returns the raw column: row n at n modulo its length."""
        return self._arrays[column]

    def times(self, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Newest time and deadline of linked rows."""
        entries, _, _ = self._of(self.indexes[0])
        newest: Int64Array = entries[:, NEWEST].take(rows & (self.capacity - 1))
        return newest, newest + self.span if self.span is not None else self.get(DEADLINE, rows)

    def latest(self, index: Index, codes: Int64Array) -> Int64Array:
        """Returns the number of the newest live linked row of each code; -1 if there is none."""
        if not self.live:
            return np.full(len(codes), -1, dtype=np.int64)
        return kernels.latest(*self._of(index), self._shift, self.first, self.next, codes)

    def probe(
        self,
        index: Index,
        codes: Int64Array,
        newest: Int64Array,
        deadline: Int64Array,
        block: int = BLOCK,
        since: int = 0,
    ) -> Iterator[Matches]:
        """Yields all live linked rows of equal code that match in time and are numbered from `since` on, in blocks."""
        first = max(self.first, since)
        if not self.live_since(since) or not len(codes):
            return
        at, pending, waiting = 0, 0, np.empty((2, kernels.WAITING), dtype=np.int64)
        while at < len(codes) or pending:
            probes, rows, newer, sooner = (np.empty(block, dtype=np.int64) for _ in range(4))
            count, at, pending, visited = kernels.probe(
                *self._of(index),
                self._deadlines,
                self.span or 0,
                self._shift,
                first,
                self.next,
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

    def mark_met(
        self, index: Index, codes: Int64Array, newest: Int64Array, deadline: Int64Array, is_met: BoolArray
    ) -> int:
        """Marks the codes that have a live linked row that matches in time; returns how many rows were visited."""
        if not self.live or not len(codes):
            return 0
        return kernels.mark_met(
            *self._of(index),
            self._deadlines,
            self.span or 0,
            self._shift,
            self.first,
            self.next,
            codes,
            newest,
            deadline,
            is_met,
        )

    # --- space --------------------------------------------------------------------------------------------------------

    @property
    def _shift(self) -> int:
        return 64 - (2 * self.capacity).bit_length() + 1

    @property
    def _deadlines(self) -> Int64Array:
        """The deadlines by position; empty if they follow from the newest times."""
        return self._arrays[DEADLINE] if self.span is None else _NOTHING

    def _of(self, index: Index) -> tuple[Int64Array, LinkArray, LinkArray]:
        """The arrays of an index, as the kernels expect them."""
        name = index_name(index)
        return self._arrays[f"entries.{name}"], self._arrays[f"previous.{name}"], self._arrays[f"heads.{name}"]

    def _file(self, part: str) -> str:
        return f"{self.name}.{part}.{self.generation}"

    def _parts(self, capacity: int) -> Iterator[tuple[str, tuple[int, ...], str]]:
        for name, (kind, width) in self.columns.items():
            yield name, (capacity,) if width == 1 else (capacity, width), kind
        for index in self.indexes:
            yield from _index_parts(index, capacity)

    def _places(self, start: int, count: int) -> Iterator[tuple[slice, slice]]:
        """Yields the positions of `count` rows from `start` on: one run, or two around the end of the ring."""
        place = start & (self.capacity - 1)
        head = min(count, self.capacity - place)
        yield slice(0, head), slice(place, place + head)
        if head < count:
            yield slice(head, count), slice(0, count - head)

    def _reserve(self, count: int) -> None:
        needed = self.live + count
        if needed <= self.capacity <= max(SMALLEST_CAPACITY, 8 * needed):
            return
        capacity = _capacity(needed)
        assert capacity <= MOST_ROWS or not self.indexes
        if capacity > self.capacity > 0:
            self._lengthen(capacity)
        else:
            self._move(capacity)
        for index in self.indexes:
            kernels.relink(*self._of(index), self._shift, self.first, self.next)

    def _lengthen(self, capacity: int) -> None:
        """Extends the arrays; rows whose position differs in the larger ring are copied into the new part."""
        old, self.capacity = self.capacity, capacity
        moved = [run for run in _runs(self.first, self.next, old) if run[0] & (capacity - 1) >= old]
        for part, shape, kind in self._parts(capacity):
            del self._arrays[part]
            array = self._arrays[part] = self.arena.extend(self._file(part), shape, kind)
            if not part.startswith("heads."):
                for start, stop in moved:
                    source, target = start & (old - 1), start & (capacity - 1)
                    array[target : target + stop - start] = array[source : source + stop - start]

    def _move(self, capacity: int) -> None:
        """Allocates new arrays, smaller than the old ones or the first."""
        old, old_capacity, old_generation = self._arrays, self.capacity, self.generation
        self._arrays, self.capacity, self.generation = {}, capacity, self.generation + 1
        runs = list(_runs(self.first, self.next, min(capacity, old_capacity)))
        for part, shape, kind in self._parts(capacity):
            array = self._arrays[part] = self.arena.allocate(self._file(part), shape, kind)
            if part not in old:
                continue
            values = old.pop(part)
            if not part.startswith("heads."):
                for start, stop in runs:
                    source, target = start & (old_capacity - 1), start & (capacity - 1)
                    array[target : target + stop - start] = values[source : source + stop - start]
            self.arena.release(f"{self.name}.{part}.{old_generation}")


def _capacity(rows: int) -> int:
    """Returns the smallest capacity of a ring for so many rows."""
    return max(SMALLEST_CAPACITY, 1 << (rows - 1).bit_length() if rows > 1 else 1)


def _index_parts(index: Index, capacity: int) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    name = index_name(index)
    return (
        (f"entries.{name}", (capacity, 2), "<i8"),
        (f"previous.{name}", (capacity,), "<u4"),
        (f"heads.{name}", (2 * capacity,), "<u4"),
    )


def _runs(first: int, stop: int, capacity: int) -> Iterator[tuple[int, int]]:
    """Cuts row numbers where a ring of that capacity, or of any larger one, wraps around."""
    while first < stop and capacity:
        end = min(stop, (first // capacity + 1) * capacity)
        yield first, end
        first = end
