"""Counts the rows of one batch by the values of keys, so that heavy keys can be found.

Invariant: a row that is sent to several slots is counted once. Limit: each slot reports only its `FREQUENT` most
frequent values of each relation.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from anabranch.balance.loads import Floats
from anabranch.engine.batch import RelationBatch
from anabranch.engine.kernels import Int64Array
from anabranch.engine.ownership import first_cells, own_cells
from anabranch.plan.partitioning import ROW, Partitioning
from anabranch.stats.keys import FREQUENT, KeyCounts


def count_keys(table: Partitioning, slot: int, rows: Mapping[str, RelationBatch]) -> dict[str, KeyCounts]:
    """Returns the counts of the most frequent values of each key that is an axis of the grid.

    A row that was sent to several slots counts in the first of them.
    """
    found = {}
    first = {name: _first_copies(table, slot, name, batch) for name, batch in rows.items()}
    for dimension in table.dimensions:
        if dimension.share > 1 and not dimension.code.startswith(ROW):
            codes = {
                name: batch.codes[dimension.code].take(first[name])
                for name, batch in rows.items()
                if name in dimension.relations
            }
            found[dimension.code] = _counted(codes)
    return found


def cells_of_sample(
    grid: Partitioning, sample: Mapping[str, RelationBatch], traffic: Mapping[str, float]
) -> dict[str, Floats] | None:
    """Returns the traffic in each cell of each relation, estimated from a sample; None if a relation has no rows."""
    if not all(len(sample.get(name, ())) for name in grid.relations):
        return None
    found: dict[str, Floats] = {}
    for name in sorted(grid.relations):
        cells = np.bincount(own_cells(grid, name, sample[name]), minlength=grid.cells(name))
        found[name] = cells.astype(np.float64) * (traffic.get(name, 1.0) / len(sample[name]))
    return found


def _first_copies(table: Partitioning, slot: int, name: str, batch: RelationBatch) -> Int64Array:
    if table.is_partition:
        return np.arange(len(batch))
    return np.flatnonzero(first_cells(table, name, slot).take(own_cells(table, name, batch)))


def _counted(codes: Mapping[str, Int64Array]) -> KeyCounts:
    counted = {name: np.unique(each, return_counts=True) for name, each in codes.items()}
    named: set[int] = set()
    for values, counts in counted.values():
        named |= set(values[np.argsort(-counts, kind="stable")[:FREQUENT]].tolist())
    frequent = {value: {name: _count_of(value, *counted[name]) for name in counted} for value in sorted(named)}
    distinct = max((len(values) for values, _ in counted.values()), default=0)
    return KeyCounts(distinct, {name: len(each) for name, each in codes.items()}, frequent)


def _count_of(value: int, values: Int64Array, counts: Int64Array) -> int:
    place = int(np.searchsorted(values, value))
    return int(counts[place]) if place < len(values) and values[place] == value else 0
