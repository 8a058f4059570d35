"""Which slots need a row, and which slot a finished combination belongs to, computed for whole batches.

The coordinate of a code along a dimension is Spark's `pmod(xxhash64(code), share)`, computed here bit for bit the
same, so that rows placed by Spark SQL and combinations tested here agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from anabranch.engine.batch import Combinations
from anabranch.engine.codes import xxhash64_remainders
from anabranch.engine.kernels import BoolArray, Int64Array
from anabranch.engine.operators.join import read_code
from anabranch.engine.state.base import BaseState
from anabranch.plan.partitioning import Partitioning


def coordinates(codes: Int64Array, share: int) -> Int64Array:
    return xxhash64_remainders(codes, share)


def needed_in(partitioning: Partitioning, relation: str, codes: Mapping[str, Int64Array], count: int) -> BoolArray:
    """One row of slots per row of the relation: True where the row is needed."""
    own = np.zeros(count, dtype=np.int64)
    for dimension in partitioning.members(relation):
        own = own * dimension.share + coordinates(codes[dimension.code], dimension.share)
    slots = partitioning.slots_of(relation)
    table = np.zeros((partitioning.slots, len(slots)), dtype=np.bool_)
    for place, several in enumerate(slots):
        table[list(several), place] = True
    # Slot by slot, which is several times quicker than gathering a few flags for every row.
    needed: BoolArray = np.stack([flags.take(own) for flags in table])
    return needed.T


def owner_test(
    partitioning: Partitioning, slot: int
) -> Callable[[Combinations, Mapping[str, BaseState]], BoolArray] | None:
    """The test that keeps the combinations of one slot; None when no other slot can find them."""
    if partitioning.finds_once:
        return None
    owners = np.array(partitioning.table, dtype=np.int64)

    def owns(found: Combinations, bases: Mapping[str, BaseState]) -> BoolArray:
        group = np.zeros(len(found), dtype=np.int64)
        for dimension in partitioning.dimensions:
            group *= dimension.share
            if dimension.share > 1:
                group += coordinates(read_code(bases, dimension.code, found), dimension.share)
        mine: BoolArray = owners[group] == slot
        return mine

    return owns
