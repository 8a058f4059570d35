"""The event time of a running query: the progress of each stream, its cutoff for late rows, and the watermark.

The *floor* of a stream is the event time below which none of its rows is admitted any more: its largest event time so
far minus its allowed disorder. The floor of a derived stream is the last tick of its producer instead. A floor never
decreases. The watermark of the query is the lowest floor. A stream that has been silent for the idle timeout would hold
the watermark back; its floor is then raised to the watermark of the streams that are not idle. Rows below the floor of
their stream are late: they are dropped and counted, never joined in part. Only silence while the query runs counts: a
stream does not become idle while the query is stopped.

Invariant: equal event times give equal clocks, on the driver and in every slot. Limit: idle timeouts use the processing
time of the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from anabranch.lang.window import BEFORE_ALL

IDLE_TIMEOUT = "10 minutes"
"""The timeout of a stream without its own setting."""


@dataclass(frozen=True)
class StreamClock:
    """One stream's progress; `heard` is the processing time (microseconds) of its last row (or of the start)."""

    floor: int = BEFORE_ALL
    newest: int | None = None
    heard: int = 0
    is_idle: bool = False


@dataclass(frozen=True)
class Clocks:
    """The clocks of all streams of a query."""

    streams: Mapping[str, StreamClock]

    @property
    def watermark(self) -> int:
        return min(clock.floor for clock in self.streams.values())

    @property
    def known_watermark(self) -> int | None:
        """The watermark as an event time; None while a stream that is not idle has had no row."""
        return self.watermark if self.watermark > BEFORE_ALL else None

    @property
    def newest(self) -> int | None:
        """The newest event time of all streams; None while there is no row."""
        return max((clock.newest for clock in self.streams.values() if clock.newest is not None), default=None)

    def seconds_since(self, before: Clocks) -> float | None:
        """Returns the seconds of event time by which the newest row advanced; None if there was none before."""
        return None if self.newest is None or before.newest is None else (self.newest - before.newest) / 1e6

    def seconds_behind(self, now: int) -> float | None:
        """Returns the seconds from the newest row to the time of day `now`; None while there is no row."""
        return None if self.newest is None else (now - self.newest) / 1e6

    def advance(
        self,
        newest: Mapping[str, int | None],
        disorder: Mapping[str, int],
        now: int,
        idle_timeout: Mapping[str, int | None],
        ticks: Mapping[str, int | None] = MappingProxyType({}),
    ) -> Clocks:
        """Returns the clocks after a batch with these largest event times (None: no rows), at processing time `now`.

        `ticks` has the derived streams, with the tick of the batch if there was one; they are never idle.
        """
        clocks = {}
        for name, clock in self.streams.items():
            seen = newest.get(name)
            if name in ticks:
                tick, tops = ticks[name], [top for top in (seen, clock.newest) if top is not None]
                floor = clock.floor if tick is None else max(clock.floor, tick)
                clocks[name] = StreamClock(floor, max(tops, default=None), now, is_idle=False)
            elif seen is not None:
                top = seen if clock.newest is None else max(seen, clock.newest)
                clocks[name] = StreamClock(max(clock.floor, top - disorder[name]), top, now, is_idle=False)
            else:
                timeout = idle_timeout.get(name)
                clocks[name] = replace(clock, is_idle=timeout is not None and now - clock.heard >= timeout)
        awake = [clock.floor for clock in clocks.values() if not clock.is_idle]
        if awake:
            watermark = min(awake)
            for name, clock in clocks.items():
                if clock.is_idle and clock.floor < watermark:
                    clocks[name] = replace(clock, floor=watermark)
        return Clocks(clocks)

    def resumed(self, now: int) -> Clocks:
        """Returns the clocks of a restarted query, with new idle timeouts for all streams."""
        return Clocks({name: replace(clock, heard=now) for name, clock in self.streams.items()})

    def to_json(self) -> dict[str, Any]:
        return {
            name: {"floor": c.floor, "newest": c.newest, "heard": c.heard, "is_idle": c.is_idle}
            for name, c in self.streams.items()
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Clocks:
        return cls({name: StreamClock(**clock) for name, clock in value.items()})

    @classmethod
    def at_start(cls, streams: Iterable[str], now: int) -> Clocks:
        return cls({name: StreamClock(heard=now) for name in streams})


@dataclass(frozen=True)
class ClockRule:
    """The clocks before a batch, and the settings by which the batch advances them.

    The driver and the slots of a batch apply one rule to equal event times, so they get equal clocks.
    """

    before: Clocks
    disorder: Mapping[str, int]
    now: int
    """The processing time at which the batch begins."""
    idle_timeouts: Mapping[str, int | None]

    def after(self, newest: Mapping[str, int | None], ticks: Mapping[str, int | None]) -> Clocks:
        """Returns the clocks after the batch."""
        return self.before.advance(newest, self.disorder, self.now, self.idle_timeouts, ticks)
