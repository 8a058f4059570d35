"""Combinations that wait at a side for a match, or for the watermark after which none can come.

They are kept in runs, each in order of deadline: one run for each block that arrived. So those that a watermark has
passed are found run by run, at the cost of what is due, although combinations do not arrive in order of deadline.

For join queries a flag records whether a combination has been matched. For grouped queries the boundaries at which its
matches count are kept, as *covers*, until the watermark has passed them.

Invariant: a combination is due once. Limit: each boundary of a grouped query reads all waiting combinations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.engine.batch import Combinations
from anabranch.engine.kernels import BoolArray, Int64Array
from anabranch.engine.state.arena import Arena
from anabranch.engine.state.intermediate import CodeReader, IntermediateState
from anabranch.engine.state.ring import DEADLINE, Index
from anabranch.plan.query import Grouping

NUMBER = "#number"
"""The name under which a match carries the number of its waiting combination; no relation can have such a name."""
MET = "met"
_NOTHING = np.empty(0, dtype=np.int64)


class Waiting(IntermediateState):
    """Waiting combinations of some relations, by number."""

    def __init__(self, arena: Arena, name: str, relations: tuple[str, ...], indexes: tuple[Index, ...]) -> None:
        super().__init__(arena, name, relations, indexes, beside={MET: ("|u1", 1)})
        self.arena = arena
        self._runs: list[list[int]] = []
        """The first number and the end (exclusive) of each run that is not due yet."""
        self._covers: list[tuple[Int64Array, Int64Array, Int64Array]] = []
        """Numbers, with the first and the last boundary at which a match of each counts."""
        self._written = 0
        self._file: str | None = None

    def layout(self) -> dict[str, Any]:
        if self._file is not None:
            self.arena.release(self._file)
            self._file = None
        covers = self._joined_covers()
        if len(covers[0]):
            self._file = f"{self.ring.name}.covers.{self._written}"
            self._written += 1
            columns = {name: pa.array(each) for name, each in zip(("number", "first", "last"), covers, strict=True)}
            self.arena.keep_batch(self._file, pa.RecordBatch.from_pydict(columns))
        return {**super().layout(), "runs": self._runs, "covers": self._file, "written": self._written}

    def reopen(self, layout: Mapping[str, Any]) -> None:
        super().reopen(layout)
        self._runs = [list(run) for run in layout["runs"]]
        self._file, self._written = layout["covers"], layout["written"]
        if self._file is not None:
            kept = self.arena.open_batch(self._file)
            number, first, last = (np.array(kept.column(name)) for name in ("number", "first", "last"))
            self._covers = [(number, first, last)]

    def bound(self, numbers: Int64Array) -> dict[str, Int64Array]:
        """Returns the rows of the combinations with those numbers, and the numbers."""
        return {**super().bound(numbers), NUMBER: numbers}

    # --- arriving and meeting -----------------------------------------------------------------------------------------

    def add(self, found: Combinations, code: CodeReader) -> Int64Array:
        """Adds combinations, findable at once; returns the number of each."""
        numbers = np.empty(len(found), dtype=np.int64)
        if len(found):
            order = np.argsort(found.deadline, kind="stable")
            first = self.ring.next
            self.insert(found.take(order), code, {MET: np.zeros(len(found), dtype=np.uint8)})
            numbers[order] = np.arange(first, first + len(found))
            self._runs.append([first, first + len(found)])
        return numbers

    def met(self, numbers: Int64Array) -> BoolArray:
        """Returns True for the numbers of combinations that have been matched."""
        if not len(numbers):
            return np.zeros(0, dtype=np.bool_)
        return self.ring.get(MET, numbers).astype(np.bool_)

    def mark(self, numbers: Int64Array) -> None:
        """Marks combinations as matched."""
        if len(numbers):
            self.ring.put(MET, numbers, 1)

    def cover(self, numbers: Int64Array, first: Int64Array, last: Int64Array) -> None:
        """Records the boundaries at which matches of the combinations count."""
        some = first <= last
        if some.any():
            self._covers.append((numbers[some], first[some], last[some]))

    def find(self, relation: str, rows: Int64Array) -> tuple[Int64Array, BoolArray]:
        """Returns the numbers of the combinations with these rows of a relation, and a mask of the rows that wait.

        Rows have arrived in order. After a restart, a row that has already continued may be matched again.
        """
        if not self.ring.live:
            return _NOTHING, np.zeros(len(rows), dtype=np.bool_)
        held = self.rows(relation, self.ring.numbers)
        places = np.searchsorted(held, rows)
        waits = held[np.minimum(places, len(held) - 1)] == rows
        return self.ring.first + places[waits], waits

    # --- the watermark ------------------------------------------------------------------------------------------------

    def due(self, watermark: int) -> Int64Array:
        """Returns the numbers of the combinations whose deadline the watermark has passed, each once."""
        found = []
        for run in self._runs:
            start, stop = run
            if int(self.ring.get(DEADLINE, range(start, start + 1))[0]) < watermark:
                count = int(np.searchsorted(self.ring.get(DEADLINE, range(start, stop)), watermark))
                found.append(np.arange(start, start + count))
                run[0] += count
        self._runs = [run for run in self._runs if run[0] < run[1]]
        return np.concatenate(found) if found else _NOTHING

    def pass_boundaries(
        self, passed: int | None, last: int, grouping: Grouping, *, met: bool
    ) -> tuple[Int64Array, Int64Array]:
        """Returns the combinations that count at a boundary after `passed`, up to `last`, each with the boundary.

        With `met`, boundaries where some match counts; otherwise those where none does. Drops combinations without
        later boundaries.
        """
        numbers = self.ring.numbers
        if not len(numbers) or (passed is not None and last <= passed):
            return _NOTHING, _NOTHING
        newest, deadline = self.ring.times(numbers)
        waiting = _spread(numbers, grouping.first_boundary(newest), grouping.last_boundary(deadline), passed, last)
        covers = self._joined_covers()
        covered = _spread(*covers, passed, last)
        # Boundaries are renumbered, so that a number and a boundary fit one integer.
        boundaries, codes = np.unique(np.concatenate([waiting[1], covered[1]]), return_inverse=True)
        places = np.concatenate([waiting[0], covered[0]]) * len(boundaries) + codes
        is_covered = np.isin(places[: len(waiting[0])], places[len(waiting[0]) :])
        chosen = is_covered if met else ~is_covered
        self._covers = [tuple(each[covers[2] > last] for each in covers)]  # type: ignore[list-item]
        return waiting[0][chosen], waiting[1][chosen]

    def _joined_covers(self) -> tuple[Int64Array, Int64Array, Int64Array]:
        if not self._covers:
            return _NOTHING, _NOTHING, _NOTHING
        number, first, last = (np.concatenate(each) for each in zip(*self._covers, strict=True))
        return number, first, last


def _spread(
    numbers: Int64Array, first: Int64Array, last: Int64Array, passed: int | None, until: int
) -> tuple[Int64Array, Int64Array]:
    """Repeats each number at every boundary of its own after `passed` and up to `until`."""
    first = first if passed is None else np.maximum(first, passed + 1)
    counts = np.maximum(np.minimum(last, until) - first + 1, 0)
    rows = np.repeat(np.arange(len(numbers)), counts)
    at = first[rows] + np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return numbers[rows], at
