"""The loops of the engine, compiled by numba: linking rows into hash chains and probing them.

An index is two arrays. `entries` is a ring of records (code, newest, deadline, previous), addressed by row number
modulo its capacity (a power of two); `heads` maps a hashed code to the newest row number linked under it. Chains run
from new rows to old ones, so a chain ends at the first row number below the oldest live one: dropping a prefix of
rows costs nothing here, and stale heads need no cleaning.

The window test is fused into the probe: two partial combinations fit together iff max(newest) <= min(deadline). All
times are int64 microseconds.
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
_AHEAD = 64


@numba.njit("int64(int64, int64)", inline="always", cache=True)
def _slot_of(code: Any, shift: Any) -> Any:
    return np.int64((np.uint64(code) * _GOLDEN) >> np.uint64(shift))


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
    mask = entries.shape[0] - 1
    for i in range(codes.shape[0]):
        row = first + i
        place = row & mask
        slot = _slot_of(codes[i], shift)
        entries[place, 0] = codes[i]
        entries[place, 1] = newest[i]
        entries[place, 2] = deadline[i]
        entries[place, 3] = heads[slot]
        heads[slot] = row


@numba.njit("void(int64[:, ::1], int64[::1], int64, int64, int64)", cache=True, nogil=True)
def relink(entries: Int64Array, heads: Int64Array, shift: int, first: int, stop: int) -> None:
    """Rebuilds all chains of the rows [first, stop) after the ring has moved."""
    mask = entries.shape[0] - 1
    heads[:] = -1
    for row in range(first, stop):
        place = row & mask
        slot = _slot_of(entries[place, 0], shift)
        entries[place, 3] = heads[slot]
        heads[slot] = row


@numba.njit(
    "UniTuple(int64, 4)(int64[:, ::1], int64[::1], int64, int64, int64[::1], int64[::1], int64[::1], int64, int64,"
    " int64[::1], int64[::1], int64[::1], int64[::1])",
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
    start_row: int,
    out_probe: Int64Array,
    out_row: Int64Array,
    out_newest: Int64Array,
    out_deadline: Int64Array,
) -> tuple[int, int, int, int]:
    """Pairs of probing rows and live rows of equal code that fit in time.

    Fills the outputs and returns (pairs, next probe, next row, rows visited). When the outputs are full the two
    positions say where to go on; the probe is complete when the next probe equals the number of codes. `start_row` is
    -2 to begin at the head of the chain of `start`.
    """
    mask = entries.shape[0] - 1
    room = out_probe.shape[0]
    probes = codes.shape[0]
    starts = np.empty(_AHEAD, dtype=np.int64)
    touched = np.empty(_AHEAD, dtype=np.int64)
    count = 0
    visited = 0
    row = start_row
    i = start
    ahead = start
    base = start
    while i < probes:
        if i == ahead:
            # Walking chains one by one would wait for memory at every probe. The heads of the next probes, and the
            # rows they point to, are loaded in loops without branches first, so that the waits overlap.
            ahead = min(i + _AHEAD, probes)
            for k in range(i, ahead):
                starts[k - i] = heads[_slot_of(codes[k], shift)]
            for k in range(i, ahead):
                touched[k - i] = entries[starts[k - i] & mask, 0]
            base = i
        code = codes[i]
        if row == -2:
            row = starts[i - base]
        while row >= first:
            if count == room:
                return count, i, row, visited
            place = row & mask
            visited += 1
            if entries[place, 0] == code:
                newer = max(newest[i], entries[place, 1])
                sooner = min(deadline[i], entries[place, 2])
                if newer <= sooner:
                    out_probe[count] = i
                    out_row[count] = row
                    out_newest[count] = newer
                    out_deadline[count] = sooner
                    count += 1
            row = entries[place, 3]
        row = -2
        i += 1
    return count, i, -2, visited


@numba.njit("int64(int64[:, ::1], int64, int64, int64)", cache=True, nogil=True)
def first_alive(entries: Int64Array, first: int, stop: int, low: int) -> int:
    """The first row number in [first, stop) whose deadline is not before `low`."""
    mask = entries.shape[0] - 1
    row = first
    while row < stop and entries[row & mask, 2] < low:
        row += 1
    return row
