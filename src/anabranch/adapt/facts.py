"""What the driver knows of a batch, as values that the steering is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class BatchFacts:
    """A committed batch as the driver saw it."""

    batch: int
    seconds: float | None
    """Event time that passed with the batch; None when it is not known, as with the first batch."""
    waiting: int | None = None
    """Rows that the batch took."""
    behind: float | None = None
    """Seconds from its newest event time to the time of day."""
    period: float | None = None
    """Seconds of wall clock from the batch before to this one; None when it is not known."""
    trigger: float | None = None
    """Seconds of the whole trigger, with what the host does around the slots; None when it is not known."""
    cores: int | None = None
    """Tasks that can run at once; None when it is not known."""
    backlog: float | None = None
    """Rows that waited in the sources when the batch before had ended, as they say; None where none says."""

    def rows_waiting(self, first: float | None) -> float | None:
        """Rows that waited at the inputs when the batch began; None where that is not known.

        `first` is how far behind the time of day the query was in the first batch that counts.
        """
        return rows_waiting(self.waiting, self.backlog, self.behind, first, self.seconds)


def rows_waiting(
    taken: int | None, backlog: float | None, behind: float | None, first: float | None, seconds: float | None
) -> float | None:
    """Rows that a batch took, and those that wait in the sources.

    Where the sources do not say, these are what came in the time by which the query has fallen further behind.
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
    """Event time between two batches."""

    newest: int | None = None
    """The largest event time that any row has had; None while there was no row."""
    is_over: Callable[[int], bool] = lambda _: False
    """True of an event time once no row before it can be part of a result any more."""


AT_START = Moment()
