"""The shape of a derived stream for one reader: its columns, a filter, and the ranges within which combinations count.

The producer applies the shape before it writes, so that only rows and columns that the reader needs are sent. Every
derived row has the event times of its parts as columns; a shape has a range for each of these columns.

Invariant: the shape decides each row on its own, so its result does not depend on the division of rows among workers.
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
    """The columns for a reader, including event times, and the filter and ranges that select its rows."""

    columns: tuple[str, ...]
    parts: tuple[Part, ...]
    filter: Expr | None = None
    """A condition on columns of the producer's rows; the relations of its columns are ignored."""

    def of(self, rows: pa.Table, until: int = 2 * FOREVER - 1) -> tuple[pa.Table, int | None]:
        """Returns the reader's rows with a newest time below `until`, and the largest of their newest times."""
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
    """Returns the newest time of each combination, and whether it lies within all ranges."""
    inside = [to_numpy(_flat(rows.column(part.time))) for part in parts]
    newest: Int64Array = np.maximum.reduce(inside)
    deadline = np.minimum.reduce([time + part.range for time, part in zip(inside, parts, strict=True)])
    return newest, newest <= deadline


def oldest(rows: pa.Table, parts: tuple[Part, ...]) -> Int64Array:
    """Returns the oldest time in each combination."""
    found: Int64Array = np.minimum.reduce([to_numpy(_flat(rows.column(part.time))) for part in parts])
    return found


def _flat(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
