"""Statistics of filters on single relations: selectivity, and cost of a check.

`run.filters` measures them on sampled rows, before a query starts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SeenFilter:
    """A condition on one relation, the fraction of rows that pass it, and the seconds of a check."""

    relation: str
    condition: str
    share: float
    seconds: float
    """Seconds per row, in the engine."""
    early: float = 1.0
    """The cost of a check before rows are sent, relative to a check in the engine."""
