"""Rows of a query with session windows, whose sessions are still open.

A session is a run of rows of one partition, each at most `gap` after the one before it; it ends `gap` after its last
row. Rows enter when the watermark has passed them, in order of time, so a session can only grow at its end. Once the
watermark has passed the end, its rows get that end as their deadline, and the groups count them there, once.

Invariant: rows of open sessions stay in their base state, so nothing here is durable; sessions that were answered
before a restart are left out. Limit: a step scans every open row, a few nanoseconds each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.engine.batch import Combinations
from anabranch.engine.counting import part_codes, refuse_equal_codes
from anabranch.engine.kernels import Int64Array
from anabranch.engine.state.arena import Arena
from anabranch.engine.state.base import BaseState
from anabranch.engine.state.ring import DEADLINE
from anabranch.lang.window import SessionWindow
from anabranch.plan.join_graph import Relation

_NONE = np.empty(0, dtype=np.int64)


class OpenSessions:
    """The rows of open sessions, sorted by the code of their partition and by time."""

    def __init__(self, arena: Arena, relation: Relation, base: BaseState) -> None:
        assert isinstance(relation.window, SessionWindow)
        self.arena = arena
        self.relation = relation
        self.window = relation.window
        self.base = base
        self.passed: int | None = None
        """The watermark up to which sessions have been answered."""
        self._open: tuple[Int64Array, Int64Array, Int64Array] = (_NONE, _NONE, _NONE)
        """Codes, event times and row numbers."""
        self._entered: list[tuple[Int64Array, Int64Array, Int64Array]] = []
        self._written = 0
        self._file: str | None = None

    def __len__(self) -> int:
        return len(self._open[0]) + sum(len(codes) for codes, _, _ in self._entered)

    @property
    def bytes(self) -> int:
        return 24 * len(self)

    def enter(self, found: Combinations) -> None:
        """Adds rows that the watermark has passed."""
        if len(found):
            rows = found.rows[self.relation.name]
            columns = [self.base.column(name, rows) for name in self.window.partition]
            keys = pa.RecordBatch.from_arrays(columns, names=list(self.window.partition))
            codes = part_codes(self.window, self.relation.schema, keys)
            self._entered.append((np.zeros(len(rows), np.int64) if codes is None else codes, found.newest, rows))

    def settle(self, watermark: int) -> Iterator[Combinations]:
        """Yields the rows of the sessions that the watermark has closed, each with the end of its session."""
        codes, times, rows = self._sorted()
        passed = self.passed
        self.passed = watermark if passed is None else max(watermark, passed)
        if not len(rows):
            return
        begins = np.append(True, (codes[1:] != codes[:-1]) | (times[1:] - times[:-1] > self.window.gap))
        starts = np.flatnonzero(begins)
        lengths = np.diff(np.append(starts, len(rows)))
        ends = times[starts + lengths - 1] + self.window.gap
        closed = np.repeat(ends < watermark, lengths)
        if not closed.any():
            return
        ends, done = np.repeat(ends, lengths)[closed], rows[closed]
        inside = ~begins[closed]
        read = self.base.column
        refuse_equal_codes(
            self.relation,
            self.window.partition,
            lambda name: read(name, done[inside]),
            lambda name: read(name, done[np.append(inside[1:], False)]),
        )
        self._open = codes[~closed], times[~closed], rows[~closed]
        self.base.ring.lower(DEADLINE, done, ends)
        found = Combinations({self.relation.name: done}, ends, ends)
        # After a restart, rows of sessions that had been answered may come back.
        new = np.ones(len(done), np.bool_) if passed is None else ends >= passed
        if new.any():
            yield found if new.all() else Combinations({self.relation.name: done[new]}, ends[new], ends[new])

    def _sorted(self) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Returns all open rows in order; rows that entered are not older than the others of their partition."""
        if self._entered:
            blocks = [self._open, *self._entered]
            codes, times, rows = (np.concatenate([block[i] for block in blocks]) for i in range(3))
            # Stable, and linear for runs that are sorted already.
            order = np.argsort(codes, kind="stable")
            self._open, self._entered = (codes[order], times[order], rows[order]), []
        return self._open

    def layout(self) -> dict[str, Any]:
        """Writes the open rows to the arena and returns their location."""
        if self._file is not None:
            self.arena.release(self._file)
            self._file = None
        columns = self._sorted()
        if len(columns[0]):
            self._file = f"open.{self._written}"
            self._written += 1
            batch = pa.RecordBatch.from_arrays([pa.array(each) for each in columns], names=["code", "time", "row"])
            self.arena.keep_batch(self._file, batch)
        return {"passed": self.passed, "written": self._written, "file": self._file}

    def reopen(self, layout: Mapping[str, Any]) -> None:
        self.passed, self._written, self._file = layout["passed"], layout["written"], layout["file"]
        self._open, self._entered = (_NONE, _NONE, _NONE), []
        if self._file is not None:
            kept = self.arena.open_batch(self._file)
            codes, times, rows = (np.array(column) for column in kept.columns)
            self._open = codes, times, rows
