"""The loops of the engine, compiled by numba: they link rows into hash chains and probe them.

An index is three arrays. `entries` is a ring of records (code, newest) and `previous` a ring of links, both addressed
by row number modulo their capacity (a power of two); `heads` maps a hashed code to the newest row number linked under
it. Chains run from new rows to old ones, so a chain ends at the first row number below the oldest live one. Therefore
dropping a prefix of rows costs nothing here, and stale heads need no cleaning.

Links hold the low 32 bits of a row number. A link is completed to the nearest number below the row that it leads from,
so row numbers on a chain always descend and the walk ends. A link that is stale by 2**32 rows may be completed to a
live row of another chain, which has another code: this costs a visit and never adds a match.

The probe includes the window test: two partial combinations match iff max(newest) <= min(deadline). All times are int64
microseconds. If all rows of a state have the same window, a deadline is `span` after the newest time; else the ring
`deadlines` holds it. That ring is empty in the first case.

Every loop works on `WAITING` rows at a time and first loads their memory without branches, so that cache misses
overlap; following one chain after another would wait for each miss. Survivors of a step are written unconditionally and
counted conditionally, because the end of a chain cannot be predicted. The counters are unsigned, because numba tests
every signed index for a negative value.

Invariant: the pairs found do not depend on `WAITING`. Limit: fewer than 2**32 live rows.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numba
import numpy as np
import numpy.typing as npt

Int64Array: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

LinkArray: TypeAlias = npt.NDArray[np.uint32]
ByteArray: TypeAlias = npt.NDArray[np.uint8]

NEWEST = 1
"""The column of an index entry that has the newest time."""
NO_ROW = np.uint32(0xFFFFFFFF)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_LOW = np.int64(0xFFFFFFFF)
_ANY_TIME = -(2**63)
WAITING = 256
"""The number of concurrent lookups: enough to hide memory latency, few enough for the first-level cache."""
_OVERDUE = 4 * WAITING
"""The number of expired rows that are skipped before each `WAITING` lookups; a larger number would cost the window."""


@numba.njit("uint64(int64, int64)", inline="always", cache=True)
def _slot_of(code: Any, shift: Any) -> Any:
    return (np.uint64(code) * _GOLDEN) >> np.uint64(shift)


@numba.njit("int64(uint32, int64)", inline="always", cache=True)
def _below(link: Any, row: Any) -> Any:
    """Returns the largest number below `row` with these low bits."""
    return row - 1 - ((row - 1 - np.int64(link)) & _LOW)


@numba.njit(
    "void(int64[:, ::1], uint32[::1], uint32[::1], int64, int64, int64[::1], int64[::1])",
    cache=True,
    nogil=True,
)
def link(
    entries: Int64Array,
    previous: LinkArray,
    heads: LinkArray,
    shift: int,
    first: int,
    codes: Int64Array,
    newest: Int64Array,
) -> None:
    """Adds the rows numbered from `first` to the ring and to their chains."""
    mask = np.uint64(entries.shape[0] - 1)
    touched = np.empty(WAITING, dtype=np.uint32)
    for start in range(0, codes.shape[0], WAITING):
        stop = min(start + WAITING, codes.shape[0])
        for i in range(start, stop):
            touched[i - start] = heads[_slot_of(codes[i], shift)]
        for i in range(start, stop):
            row = first + i
            place = np.uint64(row) & mask
            slot = _slot_of(codes[i], shift)
            entries[place, 0] = codes[i]
            entries[place, 1] = newest[i]
            previous[place] = heads[slot]
            heads[slot] = np.uint32(row)


@numba.njit("void(int64[:, ::1], uint32[::1], uint32[::1], int64, int64, int64)", cache=True, nogil=True)
def relink(entries: Int64Array, previous: LinkArray, heads: LinkArray, shift: int, first: int, stop: int) -> None:
    """Rebuilds all chains of the rows [first, stop) after the ring has moved."""
    mask = np.uint64(entries.shape[0] - 1)
    touched = np.empty(WAITING, dtype=np.uint32)
    heads[:] = NO_ROW
    for start in range(first, stop, WAITING):
        end = min(start + WAITING, stop)
        for row in range(start, end):
            touched[row - start] = heads[_slot_of(entries[np.uint64(row) & mask, 0], shift)]
        for row in range(start, end):
            place = np.uint64(row) & mask
            slot = _slot_of(entries[place, 0], shift)
            previous[place] = heads[slot]
            heads[slot] = np.uint32(row)


@numba.njit("int64(int64[:, ::1], int64[::1], int64, int64, int64, int64, int64)", cache=True, nogil=True)
def first_alive(
    entries: Int64Array, deadlines: Int64Array, span: int, first: int, stop: int, low: int, oldest: int
) -> int:
    """Returns the first row number in [first, stop) with a deadline >= `low` and a newest time >= `oldest`."""
    mask = np.uint64(entries.shape[0] - 1)
    row = first
    if deadlines.shape[0]:
        while row < stop and (deadlines[np.uint64(row) & mask] < low or entries[np.uint64(row) & mask, 1] < oldest):
            row += 1
    else:
        # Not `low - span`, which may underflow an int64.
        while row < stop and (
            entries[np.uint64(row) & mask, 1] + span < low or entries[np.uint64(row) & mask, 1] < oldest
        ):
            row += 1
    return row


@numba.njit(
    "UniTuple(int64, 4)(int64[:, ::1], uint32[::1], uint32[::1], int64[::1], int64, int64, int64, int64, int64[::1],"
    " int64[::1], int64[::1], int64, int64, int64[:, ::1], int64[::1], int64[::1], int64[::1], int64[::1])",
    cache=True,
    nogil=True,
)
def probe(
    entries: Int64Array,
    previous: LinkArray,
    heads: LinkArray,
    deadlines: Int64Array,
    span: int,
    shift: int,
    first: int,
    stop: int,
    codes: Int64Array,
    newest: Int64Array,
    deadline: Int64Array,
    start: int,
    pending: Any,
    waiting: Int64Array,
    out_probe: Int64Array,
    out_row: Int64Array,
    out_newest: Int64Array,
    out_deadline: Int64Array,
) -> tuple[int, int, int, int]:
    """Finds the pairs of probing rows and rows [first, stop) with equal codes and overlapping times.

    Fills the outputs and returns (pairs, next probe, pending, rows visited). The first `pending` columns of `waiting`
    are the lookups in progress: the probing row, and the row that it visits next. If the outputs are full, call again
    with the returned values; the probe is complete when nothing is pending and the next probe equals the number of
    codes. Rows that have expired for all lookups in progress are not visited.
    """
    mask = np.uint64(entries.shape[0] - 1)
    room = out_probe.shape[0]
    probes = codes.shape[0]
    varies = deadlines.shape[0] > 0
    met = np.empty(WAITING, dtype=np.int64)
    times = np.empty(WAITING, dtype=np.int64)
    ends = np.empty(WAITING, dtype=np.int64)
    links = np.empty(WAITING, dtype=np.uint32)
    alive = first
    reached = newest[0]
    count: Any = 0
    visited = 0
    i = start
    while True:
        if pending == 0:
            if i == probes:
                break
            ahead = min(i + WAITING, probes)
            least = newest[i]
            for k in range(i, ahead):
                least = min(least, newest[k])
            if least < reached:
                alive = first
            reached = least
            alive = first_alive(entries, deadlines, span, alive, min(alive + _OVERDUE, stop), least, _ANY_TIME)
            for k in range(i, ahead):
                links[k - i] = heads[_slot_of(codes[k], shift)]
            left = np.uint64(0)
            for k in range(i, ahead):
                row = _below(links[k - i], stop)
                waiting[0, left] = k
                waiting[1, left] = row
                left += np.uint64(row >= alive)
            pending = np.int64(left)
            i = ahead
            continue
        going = min(pending, room - count)
        if going == 0:
            break
        for j in range(going):
            place = np.uint64(waiting[1, j]) & mask
            met[j] = entries[place, 0]
            times[j] = entries[place, 1]
            links[j] = previous[place]
        if varies:
            for j in range(going):
                ends[j] = deadlines[np.uint64(waiting[1, j]) & mask]
        else:
            for j in range(going):
                ends[j] = times[j] + span
        left = np.uint64(0)
        found = np.uint64(count)
        for j in range(going):
            probing = np.uint64(waiting[0, j])
            row = waiting[1, j]
            newer = max(newest[probing], times[j])
            sooner = min(deadline[probing], ends[j])
            out_probe[found] = probing
            out_row[found] = row
            out_newest[found] = newer
            out_deadline[found] = sooner
            found += np.uint64((met[j] == codes[probing]) & (newer <= sooner))
            older = _below(links[j], row)
            waiting[0, left] = probing
            waiting[1, left] = older
            left += np.uint64(older >= alive)
        for j in range(going, pending):
            waiting[0, left] = waiting[0, j]
            waiting[1, left] = waiting[1, j]
            left += np.uint64(1)
        count = np.int64(found)
        visited += going
        pending = np.int64(left)
    return count, i, pending, visited


@numba.njit(
    "int64(int64[:, ::1], uint32[::1], uint32[::1], int64[::1], int64, int64, int64, int64, int64[::1], int64[::1],"
    " int64[::1], boolean[::1])",
    cache=True,
    nogil=True,
)
def mark_met(
    entries: Int64Array,
    previous: LinkArray,
    heads: LinkArray,
    deadlines: Int64Array,
    span: int,
    shift: int,
    first: int,
    stop: int,
    codes: Int64Array,
    newest: Int64Array,
    deadline: Int64Array,
    is_met: BoolArray,
) -> int:
    """Marks the codes that some of the rows [first, stop) matches in time; returns the number of visited rows.

    A lookup ends at the first match. Codes that are already marked are skipped. Rows that have expired for all lookups
    in progress are not visited.
    """
    mask = np.uint64(entries.shape[0] - 1)
    varies = deadlines.shape[0] > 0
    probing = np.empty(WAITING, dtype=np.int64)
    rows = np.empty(WAITING, dtype=np.int64)
    links = np.empty(WAITING, dtype=np.uint32)
    met = np.empty(WAITING, dtype=np.int64)
    times = np.empty(WAITING, dtype=np.int64)
    ends = np.empty(WAITING, dtype=np.int64)
    alive = first
    reached = newest[0]
    visited = 0
    for start in range(0, codes.shape[0], WAITING):
        ahead = min(start + WAITING, codes.shape[0])
        least = newest[start]
        for i in range(start, ahead):
            least = min(least, newest[i])
        if least < reached:
            alive = first
        reached = least
        alive = first_alive(entries, deadlines, span, alive, min(alive + _OVERDUE, stop), least, _ANY_TIME)
        for i in range(start, ahead):
            links[i - start] = heads[_slot_of(codes[i], shift)]
        left = np.uint64(0)
        for i in range(start, ahead):
            row = _below(links[i - start], stop)
            probing[left] = i
            rows[left] = row
            left += np.uint64((row >= alive) & (not is_met[i]))
        while left > 0:
            pending = int(left)
            for j in range(pending):
                place = np.uint64(rows[j]) & mask
                met[j] = entries[place, 0]
                times[j] = entries[place, 1]
                links[j] = previous[place]
            if varies:
                for j in range(pending):
                    ends[j] = deadlines[np.uint64(rows[j]) & mask]
            else:
                for j in range(pending):
                    ends[j] = times[j] + span
            left = np.uint64(0)
            for j in range(pending):
                prober = np.uint64(probing[j])
                fits = (met[j] == codes[prober]) & (max(newest[prober], times[j]) <= min(deadline[prober], ends[j]))
                is_met[prober] |= fits
                older = _below(links[j], rows[j])
                probing[left] = probing[j]
                rows[left] = older
                left += np.uint64((older >= alive) & (not fits))
            visited += pending
    return visited


@numba.njit(
    "int64[::1](int64[:, ::1], uint32[::1], uint32[::1], int64, int64, int64, int64[::1])", cache=True, nogil=True
)
def latest(
    entries: Int64Array,
    previous: LinkArray,
    heads: LinkArray,
    shift: int,
    first: int,
    stop: int,
    codes: Int64Array,
) -> Int64Array:
    """Returns the newest of the rows [first, stop) for each code; -1 if there is none."""
    mask = np.uint64(entries.shape[0] - 1)
    found = np.empty(codes.shape[0], dtype=np.int64)
    for i in range(codes.shape[0]):
        row = _below(heads[_slot_of(codes[i], shift)], stop)
        while row >= first and entries[np.uint64(row) & mask, 0] != codes[i]:
            row = _below(previous[np.uint64(row) & mask], row)
        found[i] = row if row >= first else -1
    return found


@numba.njit("int64[::1](int64[::1], int64[::1])", cache=True, nogil=True)
def gather(column: Int64Array, rows: Int64Array) -> Int64Array:
    """Returns the values of some row numbers from a column that is a ring."""
    mask = np.uint64(column.shape[0] - 1)
    values = np.empty(rows.shape[0], dtype=np.int64)
    for i in range(rows.shape[0]):
        values[i] = column[np.uint64(rows[i]) & mask]
    return values


@numba.njit("int64[::1](int64[::1], boolean[::1])", cache=True, nogil=True)
def places(cells: Int64Array, wanted: BoolArray) -> Int64Array:
    """Returns the positions of the wanted cells, in order."""
    found = np.empty(cells.shape[0] + 1, dtype=np.int64)
    count = np.uint64(0)
    for i in range(cells.shape[0]):
        found[count] = i
        count += np.uint64(wanted[np.uint64(cells[i])])
    return found[:count]


@numba.njit("UniTuple(int64[::1], 2)(int64[:, ::1], int32[:, ::1], int64, int64[::1])", cache=True, nogil=True)
def text_spans(
    starts: Int64Array, lengths: npt.NDArray[np.int32], column: int, rows: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Returns where the texts of some rows start, and their offsets in the output."""
    mask = np.uint64(starts.shape[0] - 1)
    found = np.empty(rows.shape[0], dtype=np.int64)
    offsets = np.zeros(rows.shape[0] + 1, dtype=np.int64)
    for i in range(rows.shape[0]):
        place = np.uint64(rows[i]) & mask
        found[i] = starts[place, column]
        offsets[i + 1] = offsets[i] + lengths[place, column]
    return found, offsets


@numba.njit("void(uint8[::1], int64[::1], int64[::1], uint8[::1])", cache=True, nogil=True)
def copy_texts(heap: ByteArray, starts: Int64Array, offsets: Int64Array, texts: ByteArray) -> None:
    """Copies texts from a ring of bytes to consecutive offsets."""
    size = np.uint64(heap.shape[0])
    mask = size - np.uint64(1)
    for i in range(starts.shape[0]):
        at, length = np.uint64(offsets[i]), np.uint64(offsets[i + 1] - offsets[i])
        place = np.uint64(starts[i]) & mask
        ahead = min(length, size - place)
        # Byte by byte: one slice per text takes two to six times as long.
        for j in range(ahead):
            texts[at + np.uint64(j)] = heap[place + np.uint64(j)]
        for j in range(ahead, length):
            texts[at + np.uint64(j)] = heap[np.uint64(j) - ahead]


@numba.njit(
    "boolean[::1](uint8[::1], int64[:, ::1], int32[:, ::1], int64, int64[::1],"
    " uint8[::1], int64[:, ::1], int32[:, ::1], int64, int64[::1])",
    cache=True,
    nogil=True,
)
def equal_texts(
    left_heap: ByteArray,
    left_starts: Int64Array,
    left_lengths: npt.NDArray[np.int32],
    left_column: int,
    left_rows: Int64Array,
    right_heap: ByteArray,
    right_starts: Int64Array,
    right_lengths: npt.NDArray[np.int32],
    right_column: int,
    right_rows: Int64Array,
) -> BoolArray:
    """Compares the texts of two columns pair by pair, without copying them out of their rings."""
    left_mask, right_mask = np.uint64(left_starts.shape[0] - 1), np.uint64(right_starts.shape[0] - 1)
    left_end, right_end = np.uint64(left_heap.shape[0]), np.uint64(right_heap.shape[0])
    same = np.empty(left_rows.shape[0], dtype=np.bool_)
    for i in range(left_rows.shape[0]):
        left, right = np.uint64(left_rows[i]) & left_mask, np.uint64(right_rows[i]) & right_mask
        length = np.uint64(left_lengths[left, left_column])
        if length != np.uint64(right_lengths[right, right_column]):
            same[i] = False
            continue
        a = np.uint64(left_starts[left, left_column]) & (left_end - np.uint64(1))
        b = np.uint64(right_starts[right, right_column]) & (right_end - np.uint64(1))
        # The codes are equal, so nearly all texts are: stopping at the first difference would take twice as long.
        differences = np.uint8(0)
        if a + length <= left_end and b + length <= right_end:
            for j in range(length):
                differences |= left_heap[a + np.uint64(j)] ^ right_heap[b + np.uint64(j)]
        else:
            for j in range(length):
                at, to = (a + np.uint64(j)) & (left_end - np.uint64(1)), (b + np.uint64(j)) & (right_end - np.uint64(1))
                differences |= left_heap[at] ^ right_heap[to]
        same[i] = differences == 0
    return same
