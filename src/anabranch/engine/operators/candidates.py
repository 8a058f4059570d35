"""Rows that may be among the first of their group, found in one pass before anything is sorted or copied.

For each group and boundary the pass keeps the first sort keys, as many as the group has results; a row behind all of
them cannot be a result. Invariant: no result is left out, because rows with equal keys pass together. Limit: it is
skipped for more than 64 rows of a group, where most rows are results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numba
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.engine.evaluate.expression import evaluate
from anabranch.engine.kernels import BoolArray, Int64Array
from anabranch.engine.operators.aggregates import order_of, sort_codes
from anabranch.lang.expr import Column
from anabranch.lang.schema import is_float
from anabranch.plan.query import Grouping

MOST = 64
USELESS, REST = 0.75, 15
"""After a pass that more than this share of the rows passed, as many blocks are taken without one."""
_LEAST, _GREATEST = -(2**63), 2**63 - 1


class Candidates:
    """The pass over the new rows of one query; it rests where most rows pass."""

    def __init__(self, grouping: Grouping) -> None:
        self.grouping = grouping
        self._resting = 0

    def among(self, newest: Int64Array, deadline: Int64Array, read: Callable[[Column], pa.Array]) -> BoolArray | None:
        """Returns which combinations may be among the first rows of their groups; None if all of them may."""
        if self._resting:
            self._resting -= 1
            return None
        found = candidates(self.grouping, newest, deadline, read)
        if found is not None and np.count_nonzero(found) > USELESS * len(found):
            self._resting = REST
        return found


def candidates(
    grouping: Grouping, newest: Int64Array, deadline: Int64Array, read: Callable[[Column], pa.Array]
) -> BoolArray | None:
    """Returns which combinations may be among the first rows of their groups; None if all of them may."""
    call = grouping.ranked
    if call is None or call.ranking is None or call.ranking.rows > MOST or not len(newest):
        return None
    ranking = call.ranking
    begin, end = grouping.first_boundary(newest), grouping.last_boundary(deadline)
    members = [pa.array(begin)] + ([] if np.array_equal(begin, end) else [pa.array(end)])
    members += [evaluate(key, read, len(newest)) for key in grouping.keys]
    groups, count = _numbers(members)
    first = call.arguments[-len(ranking.is_descending)]
    *missing, keys = sort_codes(evaluate(first, read, len(newest)), ranking.is_descending[0], ranking.nulls_first[0])
    if missing:
        # In its place or beside the values there.
        ends = (_LEAST, 1) if ranking.nulls_first[0] else (_GREATEST, 0)
        keys = np.where(missing[0] == ends[1], keys, ends[0])
    # Compiled code does not accept the read-only memory of Arrow.
    found: BoolArray = _pass(groups, np.require(keys, requirements=["C", "W"]), count, ranking.rows)
    return found


def _numbers(members: Sequence[pa.Array]) -> tuple[Int64Array, int]:
    """Returns a number for each row, equal where all members are equal, and one more than the largest number."""
    numbers, count = np.zeros(len(members[0]), dtype=np.int64), 1
    for member in members:
        own, size = _distinct(member)
        numbers = own if count == 1 else numbers * size + own
        count *= size
        if count > 4 * len(numbers):
            # Numbers that occur, so that the product stays small.
            numbers, count = _encoded(pa.array(numbers))
    return numbers, count


def _distinct(member: pa.Array) -> tuple[Int64Array, int]:
    """Returns a number for each value, equal for equal values, and one more than the largest number."""
    if pa.types.is_integer(member.type) and not member.null_count:
        ends = pc.min_max(member)
        least, most = ends["min"].as_py(), ends["max"].as_py()
        if most - least < 4 * len(member):
            values = member.to_numpy(zero_copy_only=False)
            return values.astype(np.int64) - least, most - least + 1
    return _encoded(order_of(member) if is_float(member.type) else member)


def _encoded(values: pa.Array) -> tuple[Int64Array, int]:
    found = values.dictionary_encode(null_encoding="encode")
    return found.indices.to_numpy().astype(np.int64), len(found.dictionary)


@numba.njit("boolean[::1](int64[::1], int64[::1], int64, int64)", cache=True, nogil=True)
def _pass(groups: Int64Array, keys: Int64Array, count: int, rows: int) -> BoolArray:
    """Returns which rows have one of the first `rows` keys of their group; `groups` are numbers below `count`."""
    best = np.empty((count, rows), dtype=np.int64)
    filled = np.zeros(count, dtype=np.int64)
    for row in range(len(keys)):
        group, key = groups[row], keys[row]
        place = filled[group]
        if place == rows:
            if key >= best[group, rows - 1]:
                continue
            place = rows - 1
        else:
            filled[group] += 1
        while place and best[group, place - 1] > key:
            best[group, place] = best[group, place - 1]
            place -= 1
        best[group, place] = key
    found = np.empty(len(keys), dtype=np.bool_)
    for row in range(len(keys)):
        group = groups[row]
        found[row] = filled[group] < rows or keys[row] <= best[group, rows - 1]
    return found
