"""Cutting new rows by route, compiled: a counting sort that carries row numbers and times along in one pass."""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

from anabranch.engine.kernels import Int64Array

Routes = npt.NDArray[np.int16]


@numba.njit("int64[::1](int16[::1], int64)", cache=True, nogil=True)
def count(labels: Routes, routes: int) -> Int64Array:
    """How many rows take each route."""
    counts = np.zeros(routes, np.int64)
    for i in range(labels.shape[0]):
        counts[labels[i]] += 1
    return counts


@numba.njit(
    "void(int16[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])",
    cache=True,
    nogil=True,
)
def scatter(
    labels: Routes,
    places: Int64Array,
    rows: Int64Array,
    newest: Int64Array,
    deadline: Int64Array,
    out_rows: Int64Array,
    out_newest: Int64Array,
    out_deadline: Int64Array,
) -> None:
    """Rows of one route next to one another, in the order they had; `places` is where each route's next row goes."""
    for i in range(labels.shape[0]):
        place = places[labels[i]]
        places[labels[i]] = place + 1
        out_rows[place] = rows[i]
        out_newest[place] = newest[i]
        out_deadline[place] = deadline[i]
