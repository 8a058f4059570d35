"""Combinations of a grouped query with count windows, whose deadlines are still open.

A group counts a combination at every boundary from its newest row to its deadline. The deadline of a row in a count
window is open until enough later rows have arrived. So combinations are kept here, and each time the watermark advances
the groups get the time span between the watermarks in which a combination was valid. A combination is removed once the
watermark has passed its deadline.

Invariant: a span ends before the watermark, and deadlines before the watermark are final (`state.counts`). The
combinations can be recomputed from the base rows, so nothing here is durable.

Limit: a step that passes a boundary scans every open combination.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.engine.batch import Combinations, concatenated
from anabranch.engine.operators.join import keep
from anabranch.engine.state.arena import Arena
from anabranch.engine.state.base import BaseState
from anabranch.plan.query import Grouping

_NEWEST, _DEADLINE = "+newest", "+deadline"


class OpenCombinations:
    """The combinations that groups will still count, by the numbers of their rows."""

    def __init__(
        self, arena: Arena, grouping: Grouping, bases: Mapping[str, BaseState], counted: Iterable[str]
    ) -> None:
        self.arena = arena
        self.grouping = grouping
        self.bases = bases
        self.counted = tuple(counted)
        self.passed: int | None = None
        """The watermark up to which the groups have counted."""
        self._blocks: list[Combinations] = []
        self._written = 0
        self._file: str | None = None

    def __len__(self) -> int:
        return sum(map(len, self._blocks))

    @property
    def bytes(self) -> int:
        return len(self) * 8 * (2 + len(self.bases))

    def enter(self, found: Combinations) -> None:
        """Adds combinations that the plan has finished."""
        if len(found):
            self._blocks.append(found)

    def settle(self, watermark: int) -> Iterator[Combinations]:
        """Yields the combinations that were valid since the last watermark, each with its time span."""
        if not self._blocks or (self.passed is not None and watermark <= self.passed):
            self.passed = watermark if self.passed is None else max(watermark, self.passed)
            return
        found = concatenated(self._blocks, self.bases)
        deadline = found.deadline
        for name in self.counted:
            deadline = np.minimum(deadline, self.bases[name].deadlines(found.rows[name]))
        found = replace(found, deadline=deadline)
        begin = found.newest if self.passed is None else np.maximum(found.newest, self.passed)
        stretch = replace(found, newest=begin, deadline=np.minimum(deadline, watermark - 1))
        first, last = self.grouping.first_boundary(stretch.newest), self.grouping.last_boundary(stretch.deadline)
        counts = first <= last
        left = keep(found, deadline >= watermark)
        self._blocks = [left] if len(left) else []
        self.passed = watermark
        if counts.any():
            yield keep(stretch, counts)

    def layout(self) -> dict[str, Any]:
        """Writes the combinations to the arena and returns their location."""
        if self._file is not None:
            self.arena.release(self._file)
            self._file = None
        if self._blocks:
            found = concatenated(self._blocks, self.bases)
            self._file = f"open.{self._written}"
            self._written += 1
            columns = {_NEWEST: pa.array(found.newest), _DEADLINE: pa.array(found.deadline)}
            columns |= {name: pa.array(rows) for name, rows in found.rows.items()}
            self.arena.keep_batch(self._file, pa.RecordBatch.from_pydict(columns))
        return {"passed": self.passed, "written": self._written, "file": self._file}

    def reopen(self, layout: Mapping[str, Any]) -> None:
        self.passed, self._written, self._file = layout["passed"], layout["written"], layout["file"]
        self._blocks = []
        if self._file is not None:
            kept = self.arena.open_batch(self._file)
            # Copies: the memory of a file is read-only, and compiled code does not accept such arrays.
            found = {name: np.array(kept.column(name)) for name in (*self.bases, _NEWEST, _DEADLINE)}
            newest, deadline = found.pop(_NEWEST), found.pop(_DEADLINE)
            self._blocks = [Combinations(found, newest, deadline)]
