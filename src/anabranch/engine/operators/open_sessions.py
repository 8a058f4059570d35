"""Rows of a query with session windows, whose sessions are still open.

A session is a run of rows of one partition, each at most `gap` after the one before it; it ends `gap` after its last
row. Rows enter when the watermark has passed them, in order of time, so a session can only grow at its end. Once the
watermark has passed the end, its rows get that end as their deadline, and the groups count them there, once.

Invariant: rows of open sessions stay in their base state, so nothing here is durable; sessions that were answered
before a restart are left out. Limit: a step looks at every open row, a few nanoseconds each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numba
import numpy as np
import pyarrow as pa

from anabranch.engine.batch import Combinations
from anabranch.engine.counting import part_codes, refuse_equal_codes
from anabranch.engine.evaluate.codes import key_codes
from anabranch.engine.kernels import BoolArray, Int64Array
from anabranch.engine.state.arena import Arena
from anabranch.engine.state.base import BaseState
from anabranch.engine.state.columns import validity
from anabranch.engine.state.ring import DEADLINE
from anabranch.lang.window import SessionWindow
from anabranch.plan.join_graph import Relation, fits_code

_NONE = np.empty(0, dtype=np.int64)
_FIRST = -1
"""In place of the previous row of a session's first row."""
_NULL = -(0x5555_5555_5555_5555)
"""The code of NULL where values are codes."""
_ROWS, _SESSIONS = ("session", "row", "previous"), ("code", "last", "row")
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class OpenSessions:
    """The open sessions, and their rows in the order in which they entered."""

    def __init__(self, arena: Arena, relation: Relation, base: BaseState) -> None:
        assert isinstance(relation.window, SessionWindow)
        self.arena = arena
        self.relation = relation
        self.window = relation.window
        self.base = base
        kinds = [relation.schema.find(name) for name in self.window.partition]
        self._is_exact = len(kinds) == 1 and kinds[0] is not None and fits_code(kinds[0].type)
        """Whether the code of a partition is its value, or `_NULL`."""
        self.passed: int | None = None
        """The watermark up to which sessions have been answered."""
        self._rows: tuple[Int64Array, ...] = (_NONE, _NONE, _NONE)
        """The position of its session, the number of a row, and that of the row before it in the session."""
        self._sessions: tuple[Int64Array, ...] = (_NONE, _NONE, _NONE)
        """The code of the partition, the event time and the number of the last row; older sessions first."""
        self._entered: list[tuple[Int64Array, Int64Array, Int64Array]] = []
        """Codes, event times and row numbers."""
        self._written = 0
        self._files: list[str] = []

    def __len__(self) -> int:
        return len(self._rows[0]) + sum(len(codes) for codes, _, _ in self._entered)

    @property
    def bytes(self) -> int:
        return 24 * (len(self) + len(self._sessions[0]))

    def enter(self, found: Combinations) -> None:
        """Adds rows that the watermark has passed."""
        if len(found):
            rows = found.rows[self.relation.name]
            self._entered.append((self._codes_of(rows), found.newest, rows))

    def _codes_of(self, rows: Int64Array) -> Int64Array:
        columns = [self.base.column(name, rows) for name in self.window.partition]
        if self._is_exact:
            (values,) = columns
            codes = key_codes(values, values.type)
            return np.where(validity(values) != 0, codes, _NULL) if values.null_count else codes
        keys = pa.RecordBatch.from_arrays(columns, names=list(self.window.partition))
        found = part_codes(self.window, self.relation.schema, keys)
        return np.zeros(len(rows), np.int64) if found is None else found

    def settle(self, watermark: int) -> Iterator[Combinations]:
        """Yields the rows of the sessions that the watermark has closed, each with the end of its session."""
        self._join()
        session, rows, previous = self._rows
        passed = self.passed
        self.passed = watermark if passed is None else max(watermark, passed)
        ends = self._sessions[1] + self.window.gap
        over = ends < watermark
        if not over.any():
            return
        may_clash = not self._is_exact or bool((self._sessions[0][over] == _NULL).any())
        self._sessions = tuple(column[~over] for column in self._sessions)
        *left, done, before, ends = _split(session, rows, previous, over, ends)
        self._rows = tuple(left)
        if may_clash:
            inside = before != _FIRST
            one, other = done[inside], before[inside]
            read = self.base.column
            refuse_equal_codes(
                self.relation, self.window.partition, lambda name: read(name, one), lambda name: read(name, other)
            )
        self.base.ring.lower(DEADLINE, done, ends)
        found = Combinations({self.relation.name: done}, ends, ends)
        # After a restart, rows of sessions that had been answered may come back.
        new = np.ones(len(done), np.bool_) if passed is None else ends >= passed
        if new.any():
            yield found if new.all() else Combinations({self.relation.name: done[new]}, ends[new], ends[new])

    def _join(self) -> None:
        """Gives the rows that entered their sessions; they are not older than the others of their partition."""
        if not self._entered:
            return
        codes, times, rows = (_together([block[i] for block in self._entered]) for i in range(3))
        self._entered = []
        known, code_of, last_of, row_of = _longer(self._sessions, len(codes))
        before, joined, numbers, previous = _longer(self._rows, len(codes))
        numbers[before:] = rows
        count = _assign(
            codes, times, rows, self.window.gap, known, code_of, last_of, row_of, joined[before:], previous[before:]
        )
        self._sessions = code_of[:count], last_of[:count], row_of[:count]
        self._rows = joined, numbers, previous

    def layout(self) -> dict[str, Any]:
        """Writes the open sessions to the arena and returns their location."""
        for file in self._files:
            self.arena.release(file)
        self._files = []
        self._join()
        if len(self._rows[0]):
            for columns, names in ((self._rows, _ROWS), (self._sessions, _SESSIONS)):
                file = f"open.{self._written}"
                self._written += 1
                self.arena.keep_batch(file, pa.RecordBatch.from_arrays(list(map(pa.array, columns)), names=list(names)))
                self._files.append(file)
        return {"passed": self.passed, "written": self._written, "files": self._files}

    def reopen(self, layout: Mapping[str, Any]) -> None:
        self.passed, self._written, self._files = layout["passed"], layout["written"], list(layout["files"])
        self._rows, self._sessions, self._entered = (_NONE, _NONE, _NONE), (_NONE, _NONE, _NONE), []
        if self._files:
            # Copies: the memory of a file is read-only, and compiled code does not accept such arrays.
            self._rows, self._sessions = (
                tuple(np.array(column) for column in self.arena.open_batch(file).columns) for file in self._files
            )


def _longer(columns: tuple[Int64Array, ...], by: int) -> tuple[int, Int64Array, Int64Array, Int64Array]:
    """Returns the length of three columns, and copies with room for more values."""
    length = len(columns[0])
    found = np.empty((3, length + by), dtype=np.int64)
    found[:, :length] = columns
    return length, found[0], found[1], found[2]


def _together(blocks: Sequence[Int64Array]) -> Int64Array:
    filled = [block for block in blocks if len(block)]
    # Compiled code does not accept the read-only memory of Arrow.
    return np.require(filled[0], requirements=["C", "W"]) if len(filled) == 1 else np.concatenate(blocks)


@numba.njit(
    "int64(int64[::1], int64[::1], int64[::1], int64, int64, int64[::1], int64[::1], int64[::1], int64[::1],"
    " int64[::1])",
    cache=True,
    nogil=True,
)
def _assign(
    codes: Int64Array,
    times: Int64Array,
    rows: Int64Array,
    gap: int,
    known: int,
    code_of: Int64Array,
    last_of: Int64Array,
    row_of: Int64Array,
    joined: Int64Array,
    previous: Int64Array,
) -> int:
    """Writes the session of each row and the row before it; returns the number of sessions, old and new ones."""
    shift = 62
    size = 4
    while size < 2 * (known + len(codes)):
        size *= 2
        shift -= 1
    # The newest session of each partition, by open addressing.
    table = np.full(size, -1, dtype=np.int64)
    count = known
    for session in range(known):
        place = np.int64((np.uint64(code_of[session]) * _GOLDEN) >> np.uint64(shift))
        while table[place] >= 0 and code_of[table[place]] != code_of[session]:
            place = (place + 1) & (size - 1)
        table[place] = session
    for row in range(len(codes)):
        code = codes[row]
        place = np.int64((np.uint64(code) * _GOLDEN) >> np.uint64(shift))
        while table[place] >= 0 and code_of[table[place]] != code:
            place = (place + 1) & (size - 1)
        session = table[place]
        if session >= 0 and times[row] - last_of[session] <= gap:
            previous[row] = row_of[session]
            last_of[session] = max(last_of[session], times[row])
        else:
            session = count
            count += 1
            table[place] = session
            code_of[session] = code
            last_of[session] = times[row]
            previous[row] = _FIRST
        row_of[session] = rows[row]
        joined[row] = session
    return count


@numba.njit(
    "UniTuple(int64[::1], 6)(int64[::1], int64[::1], int64[::1], boolean[::1], int64[::1])", cache=True, nogil=True
)
def _split(
    session: Int64Array, rows: Int64Array, previous: Int64Array, over: BoolArray, ends: Int64Array
) -> tuple[Int64Array, ...]:
    """Returns the rows of open sessions, their sessions renumbered, and of those that are over: each with its end."""
    position = np.empty(len(over), dtype=np.int64)
    count = 0
    for each in range(len(over)):
        position[each] = count
        count += not over[each]
    closed = 0
    for row in range(len(rows)):
        closed += over[session[row]]
    left = np.empty((3, len(rows) - closed), dtype=np.int64)
    done = np.empty((3, closed), dtype=np.int64)
    first, last = 0, 0
    for row in range(len(rows)):
        own = session[row]
        if over[own]:
            done[0, last], done[1, last], done[2, last] = rows[row], previous[row], ends[own]
            last += 1
        else:
            left[0, first], left[1, first], left[2, first] = position[own], rows[row], previous[row]
            first += 1
    return left[0], left[1], left[2], done[0], done[1], done[2]
