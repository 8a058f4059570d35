"""The loops of the engine, compiled by numba: linking rows into hash chains and probing them.

An index is two arrays. `entries` is a ring of records (code, newest, deadline, previous), addressed by row number
modulo its capacity (a power of two); `heads` maps a hashed code to the newest row number linked under it. Chains run
from new rows to old ones, so a chain ends at the first row number below the oldest live one: dropping a prefix of
rows costs nothing here, and stale heads need no cleaning.

The window test is fused into the probe: two partial combinations fit together iff max(newest) <= min(deadline). All
times are int64 microseconds.

Every loop takes `WAITING` rows at a time and first loads, without branches, the memory that the work on them will need,
so that the waits overlap; walking chain after chain would wait at every step. What survives a step is kept by writing
it always and counting it conditionally, because whether a chain goes on cannot be predicted.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numba
import numpy as np
import numpy.typing as npt

Int64Array: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

CODE, NEWEST, DEADLINE, PREVIOUS = 0, 1, 2, 3
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
WAITING = 256
"""Lookups under way at once: many enough to hide the memory's latency, few enough for the nearest cache."""


@numba.njit("uint64(int64, int64)", inline="always", cache=True)
def _slot_of(code: Any, shift: Any) -> Any:
    return (np.uint64(code) * _GOLDEN) >> np.uint64(shift)


@numba.njit(
    "void(int64[:, ::1], int64[::1], int64, int64, int64[::1], int64[::1], int64[::1])",
    cache=True,
    nogil=True,
)
def link(
    entries: Int64Array,
    heads: Int64Array,
    shift: int,
    first: int,
    codes: Int64Array,
    newest: Int64Array,
    deadline: Int64Array,
) -> None:
    """Rows numbered from `first` enter the ring and their chains."""
    mask = np.uint64(entries.shape[0] - 1)
    touched = np.empty(WAITING, dtype=np.int64)
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
            entries[place, 2] = deadline[i]
            entries[place, 3] = heads[slot]
            heads[slot] = row


@numba.njit("void(int64[:, ::1], int64[::1], int64, int64, int64)", cache=True, nogil=True)
def relink(entries: Int64Array, heads: Int64Array, shift: int, first: int, stop: int) -> None:
    """Rebuilds all chains of the rows [first, stop) after the ring has moved."""
    mask = np.uint64(entries.shape[0] - 1)
    touched = np.empty(WAITING, dtype=np.int64)
    heads[:] = -1
    for start in range(first, stop, WAITING):
        end = min(start + WAITING, stop)
        for row in range(start, end):
            touched[row - start] = heads[_slot_of(entries[np.uint64(row) & mask, 0], shift)]
        for row in range(start, end):
            place = np.uint64(row) & mask
            slot = _slot_of(entries[place, 0], shift)
            entries[place, 3] = heads[slot]
            heads[slot] = row


@numba.njit(
    "UniTuple(int64, 4)(int64[:, ::1], int64[::1], int64, int64, int64[::1], int64[::1], int64[::1], int64, int64,"
    " int64[:, ::1], int64[::1], int64[::1], int64[::1], int64[::1])",
    cache=True,
    nogil=True,
)
def probe(
    entries: Int64Array,
    heads: Int64Array,
    shift: int,
    first: int,
    codes: Int64Array,
    newest: Int64Array,
    deadline: Int64Array,
    start: int,
    pending: int,
    waiting: Int64Array,
    out_probe: Int64Array,
    out_row: Int64Array,
    out_newest: Int64Array,
    out_deadline: Int64Array,
) -> tuple[int, int, int, int]:
    """Pairs of probing rows and live rows of equal code that fit in time.

    Fills the outputs and returns (pairs, next probe, pending, rows visited). The first `pending` columns of `waiting`
    are the lookups under way: the probing row, and the row it visits next. When the outputs are full they and the next
    probe say where to go on; the probe is complete when nothing is pending and the next probe equals the number of
    codes. Rows below `first` are not found.
    """
    mask = np.uint64(entries.shape[0] - 1)
    room = out_probe.shape[0]
    probes = codes.shape[0]
    met = np.empty(WAITING, dtype=np.int64)
    count = 0
    visited = 0
    i = start
    while True:
        if pending == 0:
            if i == probes:
                break
            ahead = min(i + WAITING, probes)
            for k in range(i, ahead):
                met[k - i] = heads[_slot_of(codes[k], shift)]
            for k in range(i, ahead):
                waiting[0, pending] = k
                waiting[1, pending] = met[k - i]
                pending += int(met[k - i] >= first)
            i = ahead
            continue
        going = min(pending, room - count)
        if going == 0:
            break
        for j in range(going):
            met[j] = entries[np.uint64(waiting[1, j]) & mask, 0]
        left = 0
        for j in range(going):
            k = waiting[0, j]
            row = waiting[1, j]
            place = np.uint64(row) & mask
            newer = max(newest[k], entries[place, 1])
            sooner = min(deadline[k], entries[place, 2])
            out_probe[count] = k
            out_row[count] = row
            out_newest[count] = newer
            out_deadline[count] = sooner
            count += int((met[j] == codes[k]) & (newer <= sooner))
            older = entries[place, 3]
            waiting[0, left] = k
            waiting[1, left] = older
            left += int(older >= first)
        for j in range(going, pending):
            waiting[0, left] = waiting[0, j]
            waiting[1, left] = waiting[1, j]
            left += 1
        visited += going
        pending = left
    return count, i, pending, visited


@numba.njit("int64[::1](int64[::1], int64[::1])", cache=True, nogil=True)
def gather(column: Int64Array, rows: Int64Array) -> Int64Array:
    """The values of the rows of those numbers, out of a column that is a ring."""
    mask = np.uint64(column.shape[0] - 1)
    values = np.empty(rows.shape[0], dtype=np.int64)
    for i in range(rows.shape[0]):
        values[i] = column[np.uint64(rows[i]) & mask]
    return values


@numba.njit("int64(int64[:, ::1], int64, int64, int64)", cache=True, nogil=True)
def first_alive(entries: Int64Array, first: int, stop: int, low: int) -> int:
    """The first row number in [first, stop) whose deadline is not before `low`."""
    mask = entries.shape[0] - 1
    row = first
    while row < stop and entries[row & mask, 2] < low:
        row += 1
    return row
