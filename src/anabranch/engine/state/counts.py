"""Counts the rows of a count window as they enter their base state, and closes the rows that they push out.

Rows enter in counting order. If all rows are counted together, the row number is the position: row i expires when row i
+ n arrives. With PARTITION BY each row has an ordinal in its part. One index finds the newest row of a part, and so the
next ordinal; another finds a row by its part and ordinal. So the cost of counting is that of the new rows.

Invariant: before any probe of a step, every row whose n-th successor has arrived has its deadline. The deadlines of the
others are not before the watermark, below which no more rows will be counted.

Limit: parts are identified by a 64-bit code. Two keys with the same code stop the query; they are never mixed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from anabranch.engine.batch import RelationBatch
from anabranch.engine.counting import Parts, count_deadlines, parts_of, refuse_equal_codes
from anabranch.engine.evaluate.codes import combine_codes
from anabranch.engine.evaluate.expression import evaluate_mask
from anabranch.engine.kernels import Int64Array
from anabranch.engine.state.arena import Array
from anabranch.engine.state.ring import DEADLINE, Index, Ring
from anabranch.lang.window import BEFORE_ALL, CountWindow
from anabranch.plan.join_graph import Relation

ReadColumn = Callable[[str, Int64Array], pa.Array]
"""Reads a column of the rows with some numbers."""
PART, ORDINAL = "+part", "+ordinal"
"""No key class can have these names."""


@dataclass(frozen=True)
class Counted:
    """The deadlines of new rows, and the columns by which later rows will find them."""

    deadline: Int64Array
    columns: Mapping[str, Array] = field(default_factory=dict)


class Counts:
    """The counter of one relation, over the ring of its base state."""

    def __init__(self, relation: Relation) -> None:
        assert isinstance(relation.window, CountWindow)
        self.relation = relation
        self.window = relation.window
        parts = (PART, ORDINAL) if self.window.partition else ()
        self.columns: dict[str, tuple[str, int]] = {f"code.{name}": ("<i8", 1) for name in parts}
        self.indexes: tuple[Index, ...] = ((PART,), (PART, ORDINAL)) if parts else ()

    def count(self, ring: Ring, batch: RelationBatch, read: ReadColumn) -> Counted:
        """Counts rows to be appended next, and sets the deadlines of the rows that they push out.

        `read` reads the columns of rows in the ring.
        """
        parts = parts_of(self.window, self.relation.schema, batch.payload)
        until = count_deadlines(self.window, batch.times, parts)
        columns: dict[str, Array] = {}
        if parts is None:
            self._close(ring, batch.times)
        else:
            columns = {f"code.{PART}": parts.codes, f"code.{ORDINAL}": self._close_parts(ring, batch, parts, read)}
        if self.relation.condition is not None:
            payload = batch.payload
            passes = evaluate_mask(self.relation.condition, lambda column: payload.column(column.name), len(batch))
            # Counted, but part of no result.
            until = np.where(passes, until, BEFORE_ALL)
        return Counted(until, columns)

    def _close(self, ring: Ring, times: Int64Array) -> None:
        """Closes, for each new row, the row that is one window length before it."""
        closing = times[: self.window.rows]
        rows = ring.next - self.window.rows + np.arange(len(closing))
        alive = rows >= ring.first
        if alive.any():
            ring.lower(DEADLINE, rows[alive], closing[alive] - 1)

    def _close_parts(self, ring: Ring, batch: RelationBatch, parts: Parts, read: ReadColumn) -> Int64Array:
        """Does the same part by part; returns the ordinals of the new rows."""
        times, order = batch.times, parts.order
        sorted_parts = parts.codes[order]
        same = sorted_parts[1:] == sorted_parts[:-1]
        self._refuse_equal_codes(batch, order[1:][same], lambda name: batch.payload.column(name).take(order[:-1][same]))
        starts = np.flatnonzero(np.append(True, sorted_parts[1:] != sorted_parts[:-1]))
        newest = ring.latest((PART,), sorted_parts[starts])
        known = newest >= 0
        base = np.zeros(len(starts), dtype=np.int64)
        if known.any():
            self._refuse_equal_codes(batch, order[starts][known], lambda name: read(name, newest[known]))
            base[known] = ring.get(f"code.{ORDINAL}", newest[known]) + 1
        lengths = np.diff(np.append(starts, len(order)))
        rank = np.arange(len(order)) - np.repeat(starts, lengths)
        ordinal = np.repeat(base, lengths) + rank
        # Rows of this batch close each other by their deadlines; the first rows of a part close earlier ones.
        closes = (rank < self.window.rows) & (ordinal >= self.window.rows)
        if closes.any():
            wanted = combine_codes([sorted_parts[closes], ordinal[closes] - self.window.rows])
            rows = ring.latest((PART, ORDINAL), wanted)
            found = rows >= 0
            ring.lower(DEADLINE, rows[found], times[order][closes][found] - 1)
        ordinals = np.empty(len(order), dtype=np.int64)
        ordinals[order] = ordinal
        return ordinals

    def _refuse_equal_codes(self, batch: RelationBatch, rows: Int64Array, others: Callable[[str], pa.Array]) -> None:
        """Raises an error for rows with the same code but different values."""
        if len(rows):
            taken = pa.array(rows)
            refuse_equal_codes(
                self.relation, self.window.partition, lambda name: batch.payload.column(name).take(taken), others
            )
