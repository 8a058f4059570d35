"""Divides new rows by route, compiled: a counting sort that moves row numbers and times in one pass.

Invariant: rows of one route keep their order. Limit: at most 65,536 routes.
"""

from __future__ import annotations

import numba
import numpy as np

from anabranch.engine.kernels import Int64Array
from anabranch.plan.classify import Routes

FEW = 8
"""The number of routes that are counted together."""


@numba.njit(
    "int64[::1](uint16[::1], int64, int64, int64[::1], int64[::1], int64[::1], int64[:, ::1])", cache=True, nogil=True
)
def cut(
    labels: Routes,
    routes: int,
    smallest: int,
    rows: Int64Array,
    newest: Int64Array,
    deadline: Int64Array,
    out: Int64Array,
) -> Int64Array:
    """Sorts rows by route, stable: their numbers, newest times and deadlines.

    Returns the number of rows of each route; a route with fewer than `smallest` rows is merged into the largest. If all
    rows have one route, nothing is written.
    """
    counts = np.zeros(routes, np.int64)
    if routes <= FEW:
        # More passes, but each without branches and without a dependence on the previous row's memory access.
        for route in range(routes):
            taking = 0
            for i in range(labels.shape[0]):
                taking += int(labels[i] == route)
            counts[route] = taking
    else:
        for i in range(labels.shape[0]):
            counts[labels[i]] += 1
    largest = np.argmax(counts)
    goes = np.arange(routes).astype(np.uint16)
    for route in range(routes):
        if route != largest and counts[route] < smallest:
            counts[largest] += counts[route]
            counts[route] = 0
            goes[route] = largest
    if counts[largest] == labels.shape[0]:
        return counts
    # Positions are unsigned: numba tests a signed index for a negative value, three times per row.
    places = np.zeros(routes, np.uint64)
    for route in range(1, routes):
        places[route] = places[route - 1] + np.uint64(counts[route - 1])
    for i in range(np.uint64(labels.shape[0])):
        taken = goes[labels[i]]
        place = places[taken]
        places[taken] = place + np.uint64(1)
        out[0, place] = rows[i]
        out[1, place] = newest[i]
        out[2, place] = deadline[i]
    return counts
