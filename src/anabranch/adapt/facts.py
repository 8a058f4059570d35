"""Facts about committed batches, from the driver to the steering, as values.

Invariant: a fact that the driver does not know is None, never zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise


@dataclass(frozen=True)
class Interval:
    """A number of batches and of seconds of event time; it has passed when both have passed."""

    batches: int = 0
    seconds: float = 0.0

    def times(self, count: int) -> Interval:
        return Interval(self.batches * count, self.seconds * count)


TEN_BATCHES = Interval(batches=10)
"""The usual time between two decisions, and after a change."""
REMEMBERED = 8
"""The number of batches that are measured together, of known phases, and of intervals between decisions at most."""
RATIO = 1.2
"""The factor from which on a cost or a load is clearly higher than another."""
NEAR = 0.9
"""The fraction of a limit from which on it is near."""
WATCHED = 5
"""The number of batches in which a trend shows."""


def is_rising(values: Sequence[float]) -> bool:
    """Returns True if the latest values never fell, grew enough, and did not grow mostly in one jump.

    >>> is_rising([9, 10, 12, 14, 16]), is_rising([10, 10, 10, 10, 40])
    (True, False)
    """
    recent = values[-WATCHED:]
    steps = [after - before for before, after in pairwise(recent)]
    rise = recent[-1] - recent[0] if len(recent) == WATCHED else 0
    return rise > 0 and min(steps) >= 0 and recent[-1] >= RATIO * recent[0] and max(steps) <= 0.7 * rise


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


@dataclass(frozen=True)
class Waiting:
    """The rows that waited at the inputs when each batch began; batches for which they are unknown are left out."""

    rows: tuple[float, ...] = ()
    behind: float | None = None
    """Seconds by which the first of the batches was behind the time of day."""

    def after(self, facts: BatchFacts) -> Waiting:
        """Returns the rows with those of a batch and those that still wait in the sources.

        If the sources do not report the latter, they are estimated from the increase of the lag since the first batch.
        """
        first, backlog = facts.behind if self.behind is None else self.behind, facts.backlog
        if backlog is None and facts.waiting is not None:
            late = 0.0 if facts.behind is None or first is None else max(0.0, facts.behind - first)
            backlog = late * facts.waiting / facts.seconds if facts.seconds else 0.0
        if backlog is None:
            return Waiting(self.rows, first)
        return Waiting((*self.rows, (facts.waiting or 0) + backlog)[-64:], first)


@dataclass(frozen=True)
class Since:
    """Counts since the last decision or change, and whether its cool-down lasts."""

    batches: int = 0
    seconds: float = 0.0
    waiting: Waiting = field(default_factory=Waiting)
    is_cooling: bool = False
    """Whether a cool-down has begun and not passed."""

    def after(self, facts: BatchFacts, cool_down: Interval = TEN_BATCHES) -> Since:
        now = Since(self.batches + 1, self.seconds + (facts.seconds or 0.0), self.waiting.after(facts))
        return replace(now, is_cooling=self.is_cooling and not now.has_passed(cool_down))

    def has_passed(self, interval: Interval) -> bool:
        return self.batches >= interval.batches and self.seconds >= interval.seconds


@dataclass(frozen=True)
class Moment:
    """The event times that are known between two batches."""

    newest: int | None = None
    """The largest event time of any row so far; None before the first row."""
    is_over: Callable[[int], bool] = lambda _: False
    """Returns True for an event time if no row before it can be part of a further result."""


COOLING = Since(is_cooling=True)
AT_START = Moment()
