"""Triggers: when the batches of a run begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class AvailableNow:
    """Read all available data in several batches, then stop."""

    seconds: float = 0.0
    """The seconds between two batches; zero if the trigger has no interval."""

    def for_spark(self) -> dict[str, Any]:
        """Returns the arguments of Spark's `DataStreamWriter.trigger`."""
        return {"availableNow": True}


@dataclass(frozen=True)
class Every:
    """Begin a batch at every interval of processing time, in microseconds, until stopped; 0 for as fast as possible."""

    interval: int

    @property
    def seconds(self) -> float:
        """The seconds between two batches; zero if the trigger has no interval."""
        return self.interval / 1e6

    def for_spark(self) -> dict[str, Any]:
        """Returns the arguments of Spark's `DataStreamWriter.trigger`."""
        return {"processingTime": f"{self.interval // 1000} milliseconds"}


@dataclass(frozen=True)
class RealTime:
    """Begin a batch as soon as rows arrive, in slots that are long-running Spark tasks, until stopped."""

    seconds: float = 0.0
    """The seconds between two batches; zero if the trigger has no interval."""

    def for_spark(self) -> dict[str, Any]:
        """Returns no arguments: Spark runs no batches of its own."""
        return {}


Trigger = AvailableNow | Every | RealTime
AS_FAST_AS_POSSIBLE = Every(0)
ALL_AND_END = AvailableNow()
REAL_TIME = RealTime()
