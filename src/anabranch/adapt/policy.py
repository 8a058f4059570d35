"""Policies: four rules that say when to search for a better plan (Zhu 2006, 26.1).

- *periodic*: at every interval.
- *data-driven*: when rates or selectivities differ from those of the last decision, at the end of an interval; or when
  a row costs clearly more than at the last decision. If eager, immediately, and only when statistics differ. The first
  decision does not wait for the interval if the first batches have enough rows, because the first plan may rest on
  assumed statistics.
- *memory-driven*: when the state approaches the available memory, or the number of waiting rows grows steadily. A jump
  in a single batch is not a trend, because it may be over before a new plan helps.
- *refined memory-driven*: also when the number of rows inside the plan grows, where a wrong join order shows first. In
  the dissertation these are the queues between operators. This engine empties the queues in every batch, so it counts
  the intermediate combinations of a batch.

Invariant: policies only suggest. They compare with the last decision, so a slow drift is not lost in small steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, TypeAlias

from anabranch.adapt.facts import NEAR, TEN_BATCHES, WATCHED, Interval, is_rising
from anabranch.adapt.history import History
from anabranch.adapt.knowledge import CHANGED

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

    @property
    def is_change(self) -> bool:
        """True if the cause is a change of the streams."""
        return self.cause in ("statistics", "cost", "routes")


class Policy(Protocol):
    """A rule that says when to search for a better plan."""

    @property
    def name(self) -> str:
        """The name in settings and decisions."""

    def suggestion(self, seen: History, allowed: float) -> Reason | None:
        """Returns the reason to search now, or None; `allowed` is the number of bytes of state within the limits."""


@dataclass(frozen=True)
class Periodic:
    every: Interval = TEN_BATCHES
    name: ClassVar[str] = "periodic"

    def suggestion(self, seen: History, allowed: float) -> Reason | None:
        has_passed = seen.since.has_passed(self.every)
        return Reason("interval", "the interval has passed") if has_passed else None


@dataclass(frozen=True)
class DataDriven:
    every: Interval = TEN_BATCHES
    threshold: float = CHANGED
    eager: bool = False
    name: ClassVar[str] = "data-driven"

    def suggestion(self, seen: History, allowed: float) -> Reason | None:
        if not self.eager:
            if seen.retry is None and seen.trend.has_risen(seen.patience):
                return Reason("cost", f"the cost of a row changed by a factor of {seen.trend.factor:.3g}")
            if not seen.since.has_passed(self.every.times(seen.patience)) and not seen.is_telling:
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
    name: ClassVar[str] = "memory-driven"

    def suggestion(self, seen: History, allowed: float) -> Reason | None:
        if allowed < math.inf and (taken := seen.state_bytes) >= NEAR * allowed:
            return Reason("memory", f"the state takes {taken:,} of {allowed:,.0f} bytes")
        rows = seen.since.waiting.rows
        if not is_rising(rows):
            return None
        return Reason("backlog", f"rows waiting at the inputs rose to {rows[-1]:g} over {WATCHED} batches")


@dataclass(frozen=True)
class RefinedMemoryDriven(MemoryDriven):
    name: ClassVar[str] = "refined memory-driven"

    def suggestion(self, seen: History, allowed: float) -> Reason | None:
        reason = super().suggestion(seen, allowed)
        if reason is None and is_rising(between := seen.between):
            return Reason("intermediate", f"intermediate rows rose to {between[-1]:g} a batch over {WATCHED} batches")
        return reason
