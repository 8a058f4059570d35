"""Policies: four rules that say when to search for a better plan (Zhu 2006, 26.1).

- *periodic*: at every interval.
- *data-driven*: when rates or selectivities differ from those of the last decision; at the end of an interval, or
  immediately if eager. The first decision does not wait for the interval if the first batches have enough rows, because
  the first plan may rest on assumed statistics.
- *memory-driven*: when the state approaches the available memory, or the number of waiting rows grows steadily. A batch
  takes the rows that have waited for it. If the source limits the batch, the remaining rows show as growing lag behind
  the time of day. A jump in a single batch is not a trend, because it may be over before a new plan helps.
- *refined memory-driven*: also when the number of rows inside the plan grows, where a wrong join order shows first. In
  the dissertation these are the queues between operators. This engine empties the queues in every batch, so it counts
  the intermediate combinations of a batch.

Invariant: policies only suggest. They compare with the last decision, so a slow drift is not lost in small steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal, Protocol, TypeAlias


@dataclass(frozen=True)
class Interval:
    """A number of batches and of seconds of event time; it has passed when both have passed."""

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
    """The minimum factor between the first and the last of the batches."""

    def holds(self, values: Sequence[float]) -> bool:
        """Returns True if the latest values never fell, grew enough, and did not grow mostly in one jump.

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


Cause: TypeAlias = Literal[
    "first", "interval", "statistics", "cost", "memory", "backlog", "intermediate", "lasting", "schedule", "routes"
]
"""The cause of a search, in this order: first statistics, end of the interval, changed statistics, changed cost of a
row, memory pressure, growing backlog, growing intermediate rows, a phase long enough for a postponed change, the
schedule of mesh searches, or drift of the routes of a mesh."""


@dataclass(frozen=True)
class Reason:
    """A reason to search for a better plan."""

    cause: Cause
    text: str

    def __str__(self) -> str:
        return self.text

    @property
    def is_change(self) -> bool:
        """True if the cause is a change of the streams."""
        return self.cause in ("statistics", "cost", "routes")


class Situation(Protocol):
    """The part of a query's history (`adapt.history`) that policies use; everything is computed on demand."""

    @property
    def batches(self) -> int:
        """Batches since the last decision."""

    @property
    def seconds(self) -> float:
        """Event time since the last decision."""

    @property
    def state_bytes(self) -> int:
        """Bytes of state after the latest batch."""

    @property
    def change(self) -> float | None:
        """The largest factor by which a rate or selectivity differs from the last decision; None before the first."""

    @property
    def waiting(self) -> Sequence[float]:
        """Rows that waited at the inputs, for each batch since the last decision for which they are known."""

    @property
    def between(self) -> Sequence[float]:
        """Intermediate rows of each batch since the last decision."""

    @property
    def is_telling(self) -> bool:
        """True if there was no decision yet and the first batches have enough rows for one."""

    @property
    def patience(self) -> int:
        """The number of intervals to wait, which grows with consecutive decisions that kept the plan."""


class Policy(Protocol):
    """A rule that says when to search for a better plan."""

    @property
    def name(self) -> str:
        """The name in settings and decisions."""

    def suggestion(self, seen: Situation, allowed: float) -> Reason | None:
        """Returns the reason to search now, or None; `allowed` is the number of bytes of state within the limits."""

    @property
    def is_strict(self) -> bool:
        """True if only its own suggestions count, and a cost regression of the plan does not."""


@dataclass(frozen=True)
class Periodic:
    every: Interval = TEN_BATCHES
    name: ClassVar[str] = "periodic"
    is_strict: ClassVar[bool] = True

    def suggestion(self, seen: Situation, allowed: float) -> Reason | None:
        return (
            Reason("interval", "the interval has passed") if self.every.has_passed(seen.batches, seen.seconds) else None
        )


@dataclass(frozen=True)
class DataDriven:
    every: Interval = TEN_BATCHES
    threshold: float = 1.5
    """The factor by which a rate or selectivity must have changed."""
    eager: bool = False
    name: ClassVar[str] = "data-driven"

    @property
    def is_strict(self) -> bool:
        """True if eager: then every change of statistics leads to a decision, whatever it costs."""
        return self.eager

    def suggestion(self, seen: Situation, allowed: float) -> Reason | None:
        has_passed = self.every.times(seen.patience).has_passed(seen.batches, seen.seconds)
        if not self.eager and not has_passed and not seen.is_telling:
            return None
        factor = seen.change
        if factor is None:
            return Reason("first", "the first statistics are in")
        if factor < self.threshold:
            return None
        if math.isinf(factor):
            # Some number is new or missing, because the plan counts other joins than the previous one.
            return Reason("interval", "the plan measures other statistics than at the last decision")
        return Reason("statistics", f"statistics changed by a factor of {factor:.3g}")


@dataclass(frozen=True)
class MemoryDriven:
    memory: float | None = None
    """The available bytes of state; None to use the limits of the query."""
    share: float = 0.9
    """The fraction of the available memory above which memory is short."""
    trend: Trend = STEADY
    name: ClassVar[str] = "memory-driven"
    is_strict: ClassVar[bool] = True

    def suggestion(self, seen: Situation, allowed: float) -> Reason | None:
        memory = allowed if self.memory is None else self.memory
        if memory < math.inf and (taken := seen.state_bytes) >= self.share * memory:
            return Reason("memory", f"the state takes {taken:,} of {memory:,.0f} bytes")
        if not self.trend.holds(seen.waiting):
            return None
        rows, batches = seen.waiting[-1], self.trend.batches
        return Reason("backlog", f"rows waiting at the inputs rose to {rows:g} over {batches} batches")


@dataclass(frozen=True)
class RefinedMemoryDriven(MemoryDriven):
    name: ClassVar[str] = "refined memory-driven"

    def suggestion(self, seen: Situation, allowed: float) -> Reason | None:
        reason = super().suggestion(seen, allowed)
        if reason is None and self.trend.holds(between := seen.between):
            rows, batches = between[-1], self.trend.batches
            return Reason("intermediate", f"intermediate rows rose to {rows:g} a batch over {batches} batches")
        return reason
