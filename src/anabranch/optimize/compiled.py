"""The search for jtrees, compiled by numba: its functions over arrays instead of lists (`jtrees`, `probe_orders`,
`dominance` and `lookups`).

Importing this module compiles nothing; the first call does, and numba caches the code on disk. `anabranch prepare`
calls `warm_up.compile_searches`, so that no query waits for the compilation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numba.extending import overload, register_jitable

from anabranch.optimize import dominance, jtrees, lookups, probe_orders

meeting = register_jitable(lookups.meeting)
looked_up = register_jitable(lookups.looked_up)
for helper in (
    dominance.plans_table,
    dominance.longer_plans,
    dominance.copy_plan,
    dominance.first_above,
    dominance.is_beaten,
    dominance.bar_of,
    dominance.is_hopeless,
    dominance.place_for,
    dominance.open_place,
    probe_orders.number_unions,
    probe_orders.order_probes,
    probe_orders.count_indexes,
    probe_orders.mark_index,
    probe_orders.mark_needed,
    probe_orders.least_indexes,
    probe_orders.is_useless,
    probe_orders.search_orders,
    probe_orders.least_probing,
    jtrees.cuts_needed,
    jtrees.least_costs,
    jtrees.with_join,
    jtrees.plans_of_join,
    jtrees.plans_of_set,
):
    register_jitable(helper)


@overload(dominance.floats, strict=False)
def _floats(size: Any) -> Any:
    return lambda size: np.zeros(size)


@overload(dominance.integers, strict=False)
def _integers(size: Any) -> Any:
    return lambda size: np.zeros(size, np.int64)


@overload(dominance.longer_floats, strict=False)
def _longer_floats(values: Any, size: Any) -> Any:
    return lambda values, size: np.concatenate((values, np.zeros(size - values.size)))


@overload(dominance.longer_integers, strict=False)
def _longer_integers(values: Any, size: Any) -> Any:
    return lambda values, size: np.concatenate((values, np.zeros(size - values.size, np.int64)))


price_lookups = njit(cache=True, nogil=True)(probe_orders.price_lookups)
search = njit(cache=True, nogil=True)(jtrees.search)
number_unions = njit(cache=True, nogil=True)(probe_orders.number_unions)
order_probes = njit(cache=True, nogil=True)(probe_orders.order_probes)
count_indexes = njit(cache=True, nogil=True)(probe_orders.count_indexes)
