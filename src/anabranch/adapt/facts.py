"""Facts about a committed batch, from the driver to the steering, as values.

Invariant: a fact that the driver does not know is None, never zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class BatchFacts:
    """A committed batch as measured by the driver."""

    batch: int
    seconds: float | None
    """Seconds of event time that the batch covers; None if unknown, as for the first batch."""
    waiting: int | None = None
    """The rows of the batch."""
    behind: float | None = None
    """Seconds from the newest event time to the time of day."""
    period: float | None = None
    """Wall-clock seconds from the previous batch to this one; None if unknown."""
    trigger: float | None = None
    """Seconds of the whole trigger, including the host's work outside the slots; None if unknown."""
    cores: int | None = None
    """The number of tasks that can run concurrently; None if unknown."""
    backlog: float | None = None
    """Rows that waited in the sources at the end of the previous batch; None if no source reports them."""

    def rows_waiting(self, first: float | None) -> float | None:
        """Returns the rows that waited at the inputs when the batch began; None if unknown.

        `first` is the lag behind the time of day, in seconds, in the first batch of the comparison.
        """
        return rows_waiting(self.waiting, self.backlog, self.behind, first, self.seconds)


def rows_waiting(
    taken: int | None, backlog: float | None, behind: float | None, first: float | None, seconds: float | None
) -> float | None:
    """Returns the rows of a batch and those that still wait in the sources.

    If the sources do not report the latter, they are estimated from the increase of the lag since the first batch.
    """
    if taken is None:
        return backlog
    if backlog is not None:
        return taken + backlog
    if behind is None or first is None or not seconds:
        return float(taken)
    return taken + max(0.0, behind - first) * taken / seconds


@dataclass(frozen=True)
class Moment:
    """The event times that are known between two batches."""

    newest: int | None = None
    """The largest event time of any row so far; None before the first row."""
    is_over: Callable[[int], bool] = lambda _: False
    """Returns True for an event time if no row before it can be part of a further result."""


AT_START = Moment()
