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
    cores: int | None = None
    """Tasks that can run at once; None when it is not known."""


@dataclass(frozen=True)
class Moment:
    """Event time between two batches."""

    newest: int | None = None
    """The largest event time that any row has had; None while there was no row."""
    is_over: Callable[[int], bool] = lambda _: False
    """True of an event time once no row before it can be part of a result any more."""


AT_START = Moment()
