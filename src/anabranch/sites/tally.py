"""Counts the work of an operator since it was started here: rows, late rows, and progress in event time.

Invariant: rows and progress are counted together, batch by batch, so their ratio is the rate of a stream. The first
batch only sets the beginning. Only rows end a silence; ticks from the controller do not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from anabranch.sites.root import now

Announce: TypeAlias = Callable[[str, str, int], None]
"""Called with the operator, the phase and the batch; a test may end the process there."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds before a failed operator is restarted; each failure doubles them."""


@dataclass
class Tally:
    """The counts of one operator."""

    rows: int = 0
    late: int = 0
    first: int | None = None
    reached: int | None = None
    """The watermark after the first and the last counted batch."""
    heard: float | None = None
    """The wall-clock time at which the operator last had rows, or was not ready for any."""
    newest: int | None = None
    """The newest event time when it last had rows."""

    def add(self, rows: int, late: int, watermark: int | None, newest: int | None) -> None:
        """Counts a batch."""
        self.late += late
        if self.first is None:
            self.first = watermark
        else:
            self.rows += rows
        self.reached = self.reached if watermark is None else watermark
        if rows:
            self.hear()
        if rows or self.newest is None:
            self.newest = newest

    def hear(self) -> None:
        """Records that the operator is not silent."""
        self.heard = now()

    @property
    def rate(self) -> float | None:
        """Returns the rows per second of event time since the first batch of this run."""
        if self.reached is None or self.first is None or self.reached <= self.first:
            return None
        return self.rows / ((self.reached - self.first) / 1e6)

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "late": self.late,
            "first": self.first,
            "reached": self.reached,
            "rate": self.rate,
            "heard": self.heard,
            "heard_newest": self.newest,
        }
