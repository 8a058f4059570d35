"""The search for jtrees, compiled by numba: the functions of `jtrees` and `lookups` over arrays instead of lists.

Importing this module compiles nothing; the first call does, and numba caches the code on disk. `anabranch prepare`
calls `warm_up.compile_searches` so that no query has to wait for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numba.extending import overload, register_jitable

from anabranch.optimize import jtrees, lookups

meeting = register_jitable(lookups.meeting)
looked_up = register_jitable(lookups.looked_up)
for helper in (
    jtrees.order_probes,
    jtrees.count_indexes,
    jtrees.first_above,
    jtrees.is_beaten,
    jtrees.is_hopeless,
    jtrees.cuts_needed,
    jtrees.least_probing,
    jtrees.open_place,
):
    register_jitable(helper)


@overload(jtrees.floats, strict=False)
def _floats(size: Any) -> Any:
    return lambda size: np.zeros(size)


@overload(jtrees.integers, strict=False)
def _integers(size: Any) -> Any:
    return lambda size: np.zeros(size, np.int64)


@overload(jtrees.longer_floats, strict=False)
def _longer_floats(values: Any, size: Any) -> Any:
    return lambda values, size: np.concatenate((values, np.zeros(size - values.size)))


@overload(jtrees.longer_integers, strict=False)
def _longer_integers(values: Any, size: Any) -> Any:
    return lambda values, size: np.concatenate((values, np.zeros(size - values.size, np.int64)))


price_lookups = njit(cache=True, nogil=True)(jtrees.price_lookups)
search = njit(cache=True, nogil=True)(jtrees.search)
order_probes = njit(cache=True, nogil=True)(jtrees.order_probes)
count_indexes = njit(cache=True, nogil=True)(jtrees.count_indexes)
