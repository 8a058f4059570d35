"""The numbers that rows of a state get when only some of them are kept.

Kept rows stay in order and get the last numbers of the state, so that no number is ever given to a newer row twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from anabranch.engine.kernels import BoolArray, Int64Array

GONE = -1


@dataclass(frozen=True)
class Kept:
    """The live rows [first, first + len(wanted)) of a state, of which only the wanted ones are kept."""

    first: int
    wanted: BoolArray

    @property
    def numbers(self) -> Int64Array:
        """The former numbers of the kept rows."""
        return np.flatnonzero(self.wanted) + self.first

    def new(self, rows: Int64Array) -> Int64Array:
        """Returns the new numbers of rows; GONE for rows that are not kept or that had expired."""
        if not len(self.wanted):
            return np.full(len(rows), GONE, dtype=np.int64)
        found: Int64Array = self._new.take(np.maximum(rows - self.first, 0))
        return np.where(rows >= self.first, found, GONE)

    def threshold(self, number: int) -> int:
        """Returns the new number from which the kept rows are that had this number or a larger one."""
        return self._stop - int(np.count_nonzero(self.wanted[max(number - self.first, 0) :]))

    @property
    def _stop(self) -> int:
        return self.first + len(self.wanted)

    @cached_property
    def _new(self) -> Int64Array:
        """The new numbers of all rows that were live."""
        ranks = np.cumsum(self.wanted)
        return np.where(self.wanted, ranks + (self._stop - int(ranks[-1]) - 1), GONE)
