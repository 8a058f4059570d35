"""What a reader takes of its producer's rows: columns, a filter, and the ranges within which combinations count.

The producer applies it before it writes, so that only what the reader needs travels. Every derived row has the event
times of the rows inside as columns; a shape names them with its ranges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from anabranch.engine.evaluate.expression import evaluate_mask
from anabranch.engine.kernels import Int64Array
from anabranch.engine.state.columns import to_numpy
from anabranch.lang.expr import Column, Expr
from anabranch.lang.window import FOREVER
from anabranch.plan.join_graph import Part


@dataclass(frozen=True)
class Shape:
    """The columns that a reader takes, event times included, and the rows: by filter and by range."""

    columns: tuple[str, ...]
    parts: tuple[Part, ...]
    filter: Expr | None = None
    """Over columns of the producer's rows; their relation does not matter."""

    def of(self, rows: pa.Table, until: int = 2 * FOREVER - 1) -> tuple[pa.Table, int | None]:
        """The rows that the reader takes and their largest newest time; none that is as new as `until`."""
        newest, valid = times(rows, self.parts)
        valid &= newest < until
        if self.filter is not None:
            flat = {name: _flat(rows.column(name)) for name in rows.column_names}

            def read(column: Column) -> pa.Array:
                return flat[column.name]

            valid &= evaluate_mask(self.filter, read, rows.num_rows)
        taken = rows.select(self.columns)
        if not valid.all():
            taken, newest = taken.filter(pa.array(valid)), newest[valid]
        return taken, int(newest.max()) if len(newest) else None


def times(rows: pa.Table, parts: tuple[Part, ...]) -> tuple[Int64Array, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """The newest time of each combination, and whether it lies within all ranges."""
    inside = [to_numpy(_flat(rows.column(part.time))) for part in parts]
    newest: Int64Array = np.maximum.reduce(inside)
    deadline = np.minimum.reduce([time + part.range for time, part in zip(inside, parts, strict=True)])
    return newest, newest <= deadline


def oldest(rows: pa.Table, parts: tuple[Part, ...]) -> Int64Array:
    """The oldest time in each combination."""
    found: Int64Array = np.minimum.reduce([to_numpy(_flat(rows.column(part.time))) for part in parts])
    return found


def _flat(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
