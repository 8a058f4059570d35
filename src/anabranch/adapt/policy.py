"""When to look for a better plan: four policies, which only suggest (Zhu 2006, 26.1).

- *periodic*: at every interval.
- *data-driven*: when rates or selectivities have moved away from what the last decision rested on; at the end of an
  interval, or at once when eager. The first decision does not wait for the interval if the first batches have rows
  enough: what the first plan rested on may have been a guess.
- *memory-driven*: when the state comes near to the memory there is, or the rows that wait at the inputs have become
  more and more. A batch takes the rows that have waited for it; where its source lets it take only some, the others
  show in how far the query falls behind the time of day. A jump in a single batch is not a trend: it may be gone before
  a new plan helps.
- *refined memory-driven*: watches the rows inside the plan as well, where a wrong join order shows first. The
  dissertation means the queues between operators; this engine drains those in every batch, so what counts here are the
  intermediate combinations that a batch made.

Policies compare with the situation at the last decision, so a slow drift is not lost in small steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Protocol


@dataclass(frozen=True)
class Interval:
    """A stretch of batches, of event time in seconds, or of both; it has passed when both have."""

    batches: int = 0
    seconds: float = 0.0

    def has_passed(self, batches: int, seconds: float) -> bool:
        return batches >= self.batches and seconds >= self.seconds

    def times(self, count: int) -> Interval:
        return Interval(self.batches * count, self.seconds * count)


TEN_BATCHES = Interval(batches=10)


@dataclass(frozen=True)
class Trend:
    """The definition of a steady increase."""

    batches: int = 5
    growth: float = 1.3
    """The factor between the first and the last of the batches."""

    def holds(self, values: Sequence[float]) -> bool:
        """True when the latest values never fell, grew enough, and did not grow mostly in one jump.

        >>> Trend(4, 1.3).holds([9, 10, 12, 14, 16]), Trend(4, 1.3).holds([10, 10, 10, 40])
        (True, False)
        """
        recent = values[-self.batches :]
        if len(recent) < max(2, self.batches):
            return False
        steps = [after - before for before, after in pairwise(recent)]
        rise = recent[-1] - recent[0]
        if min(steps) < 0 or rise <= 0 or recent[-1] < self.growth * recent[0]:
            return False
        return len(steps) == 1 or max(steps) <= 0.7 * rise


STEADY = Trend()


@dataclass(frozen=True)
class Situation:
    """The query as a policy sees it: the time since the last decision, and the measures of that time.

    The functions are asked only by the policies that need them, because they cost more than a look.
    """

    batches: int
    seconds: float
    memory: Callable[[], int]
    """Bytes of state after the latest batch."""
    change: Callable[[], float | None]
    """The largest factor by which a rate or selectivity differs from what the last decision rested on; None when
    nothing has been decided yet."""
    waiting: tuple[float, ...] = ()
    """Rows that waited at the inputs, batch by batch since the last decision; batches that do not know are left out."""
    between: Callable[[], Sequence[float]] = tuple
    """Intermediate combinations that each of these batches made."""
    is_telling: Callable[[], bool] = lambda: False
    """Whether nothing has been decided yet, and a few batches have rows enough to decide by."""
    allowed: float = math.inf
    """Bytes of state that the limits leave."""
    patience: int = 1
    """How many intervals a change has to wait: the more, the more changes in a row led to no other plan."""


class Policy(Protocol):
    """A rule that says when to look for a better plan."""

    @property
    def name(self) -> str:
        """The name in settings and decisions."""

    def suggestion(self, seen: Situation) -> str | None:
        """The reason to look for a better plan now, or None."""

    @property
    def is_strict(self) -> bool:
        """Whether only its own suggestions count, not that the plan has become dear."""


@dataclass(frozen=True)
class Periodic:
    every: Interval = TEN_BATCHES
    name: ClassVar[str] = "periodic"
    is_strict: ClassVar[bool] = True

    def suggestion(self, seen: Situation) -> str | None:
        return "the interval has passed" if self.every.has_passed(seen.batches, seen.seconds) else None


@dataclass(frozen=True)
class DataDriven:
    every: Interval = TEN_BATCHES
    threshold: float = 1.5
    """The factor by which a rate or selectivity must have changed."""
    eager: bool = False
    name: ClassVar[str] = "data-driven"

    @property
    def is_strict(self) -> bool:
        """Who is eager decides on every change, whatever that costs."""
        return self.eager

    def suggestion(self, seen: Situation) -> str | None:
        has_passed = self.every.times(seen.patience).has_passed(seen.batches, seen.seconds)
        if not self.eager and not has_passed and not seen.is_telling():
            return None
        factor = seen.change()
        if factor is None:
            return "the first statistics are in"
        return f"statistics changed by a factor of {factor:.3g}" if factor >= self.threshold else None


@dataclass(frozen=True)
class MemoryDriven:
    memory: float | None = None
    """Bytes of state that there may be; without it, what the limit on memory leaves."""
    share: float = 0.9
    """How near the state may come to it."""
    trend: Trend = STEADY
    name: ClassVar[str] = "memory-driven"
    is_strict: ClassVar[bool] = True

    def suggestion(self, seen: Situation) -> str | None:
        return _short_of_memory(seen, self.memory, self.share) or _waiting(seen, self.trend)


@dataclass(frozen=True)
class RefinedMemoryDriven:
    memory: float | None = None
    share: float = 0.9
    trend: Trend = STEADY
    name: ClassVar[str] = "refined memory-driven"
    is_strict: ClassVar[bool] = True

    def suggestion(self, seen: Situation) -> str | None:
        reason = _short_of_memory(seen, self.memory, self.share) or _waiting(seen, self.trend)
        if reason is None and self.trend.holds(between := seen.between()):
            return f"intermediate rows rose to {between[-1]:g} a batch over {self.trend.batches} batches"
        return reason


def _short_of_memory(seen: Situation, memory: float | None, share: float) -> str | None:
    memory = seen.allowed if memory is None else memory
    if memory == math.inf or (taken := seen.memory()) < share * memory:
        return None
    return f"the state takes {taken:,} of {memory:,.0f} bytes"


def _waiting(seen: Situation, trend: Trend) -> str | None:
    if not trend.holds(seen.waiting):
        return None
    return f"rows waiting at the inputs rose to {seen.waiting[-1]:g} over {trend.batches} batches"
