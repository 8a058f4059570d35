"""Time windows of CQL, in microseconds.

With `[RANGE r]` a row joins while the newest row of the combination is at most r newer, both ends included. `[NOW]` is
a range of 0; `[UNBOUNDED]` has no range. With a slide, a grouped query emits results at every multiple of the slide
since the Unix epoch.

The engine uses only the deadlines that a window assigns to rows: a combination is valid while its newest row is not
after the deadline of any of its rows. A new kind of window is a subclass of `Window` with its own `deadline`, `span`
and `__str__`; `range` is then an upper bound on the distance from a row to its deadline, for cost estimates.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

UNITS: dict[str, int] = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
FOREVER = 2**62
"""The deadline of a row that never expires; added to a time it still fits an int64. No duration is longer."""


@dataclass(frozen=True)
class Window:
    """The lifetime of a row; `range` is None for an unbounded window."""

    range: int | None
    slide: int | None = None

    @property
    def is_bounded(self) -> bool:
        return self.range is not None

    @property
    def is_counted(self) -> bool:
        """True if later rows decide when a row expires (`CountWindow`, `SessionWindow`)."""
        return False

    @property
    def reach(self) -> int:
        """The maximum distance in microseconds from a row's event time to its deadline; `FOREVER` if unbounded."""
        return FOREVER if self.range is None else self.range

    @property
    def span(self) -> int | None:
        """The distance in microseconds from every row's event time to its deadline; None if it differs between rows."""
        return self.reach

    def deadline(self, time: Any) -> Any:
        """Returns the deadline of a row by its event time, at most `reach` later; accepts arrays."""
        return time + self.reach

    def earliest(self, deadline: int) -> int:
        """Returns the earliest event time of a row whose deadline is not before the given one."""
        if self.span is not None:
            return deadline - self.span
        # A deadline is not before its row, and is monotonic in event time.
        start = deadline - self.reach
        return start + bisect_left(range(start, deadline), deadline, key=self.deadline)

    def __str__(self) -> str:
        if self.range is None:
            return "[UNBOUNDED]"
        if self.range == 0 and self.slide is None:
            return "[NOW]"
        slide = f" SLIDE {duration_text(self.slide)}" if self.slide is not None else ""
        return f"[RANGE {duration_text(self.range)}{slide}]"


@dataclass(frozen=True)
class Always(Window):
    """The window of a table: its rows are older than every event time, and never expire."""

    range: int | None = None

    @property
    def span(self) -> int:
        return 2 * FOREVER - 1

    def deadline(self, time: Any) -> Any:
        return time + self.span

    def __str__(self) -> str:
        return "[TABLE]"


ALWAYS = Always()
BEFORE_ALL = -FOREVER
"""The event time of the rows of a table, and of a stream that has had no row."""


@dataclass(frozen=True)
class Hop(Window):
    """Windows of one size that begin every slide since the Unix epoch, and do not include their end.

    `range` is one microsecond less than the size: a row is in the windows that end at most its size after it.
    """

    def __str__(self) -> str:
        assert self.range is not None
        slide = f" SLIDE {duration_text(self.slide)}" if self.slide is not None else ""
        return f"[HOP {duration_text(self.range + 1)}{slide}]"


@dataclass(frozen=True)
class Tumble(Hop):
    """Consecutive windows of one size: a row is in exactly one of them, until it ends."""

    @property
    def span(self) -> int | None:
        return None

    def deadline(self, time: Any) -> Any:
        assert self.range is not None
        size = self.range + 1
        return time // size * size + self.range

    def __str__(self) -> str:
        assert self.range is not None
        return f"[TUMBLE {duration_text(self.range + 1)}]"


@dataclass(frozen=True)
class _Counted(Window):
    """A window that a row leaves when others have come or failed to come: its deadline is not known from its time."""

    @property
    def is_bounded(self) -> bool:
        return True

    @property
    def is_counted(self) -> bool:
        return True

    @property
    def span(self) -> int | None:
        return None


@dataclass(frozen=True)
class CountWindow(_Counted):
    """The last `rows` rows of the stream, or of each partition by the columns of `partition`.

    Rows are counted in order of event time, and rows with equal times in order of their values. A row expires when
    `rows` rows have followed it: its deadline is one microsecond before the event time of the last of these. With a
    `range` it expires at the end of the range, if this is sooner.
    """

    rows: int = 1
    partition: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [f"PARTITION BY {', '.join(self.partition)}"] if self.partition else []
        parts += [f"RANGE {duration_text(self.range)}"] if self.range is not None else []
        parts += [f"ROWS {self.rows}"]
        parts += [f"SLIDE {duration_text(self.slide)}"] if self.slide is not None else []
        return f"[{' '.join(parts)}]"


@dataclass(frozen=True)
class SessionWindow(_Counted):
    """Runs of rows of each partition, each row at most `gap` after the one before it.

    A row leaves its window at the end of its session, `gap` after the last row.
    """

    gap: int = 0
    partition: tuple[str, ...] = ()

    def __str__(self) -> str:
        by = f"PARTITION BY {', '.join(self.partition)} " if self.partition else ""
        return f"[{by}SESSION {duration_text(self.gap)}]"


def instant_text(micros: int) -> str:
    """Formats an event time in the format of Spark's progress.

    >>> instant_text(1_700_000_000_250_000)
    '2023-11-14T22:13:20.250Z'
    """
    try:
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    except OverflowError:  # before the year 1 or after 9999
        return str(micros)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def duration_text(micros: int) -> str:
    """Formats a duration in the largest unit that divides it.

    >>> duration_text(90_000_000)
    '90 SECONDS'
    >>> duration_text(60_000_000)
    '1 MINUTE'
    """
    for unit in ("week", "day", "hour", "minute", "second", "millisecond", "microsecond"):
        size = UNITS[unit]
        if micros % size == 0 and (micros >= size or unit == "microsecond"):
            count = micros // size
            return f"{count} {unit.upper()}{'' if count == 1 else 'S'}"
    raise AssertionError(micros)


def parse_duration(text: str) -> int:
    """Parses a text such as `10 seconds` or `1 minute 30 seconds` to microseconds; raises ValueError otherwise."""
    words = text.split()
    if not words or len(words) % 2:
        raise ValueError(f"expected a duration such as '10 seconds', found '{text}'")
    total = 0
    for number, unit in zip(words[::2], words[1::2], strict=True):
        size = UNITS.get(unit.lower().removesuffix("s"))
        if size is None:
            raise ValueError(f"unknown time unit '{unit}'; known are {', '.join(UNITS)}")
        total += scaled(number, unit, size)
    return bounded(total, text)


def scaled(number: str, unit: str, size: int) -> int:
    """Converts a number of units to microseconds, rounded; raises ValueError if it is not a number or too large.

    >>> scaled("1.5", "seconds", UNITS["second"])
    1500000
    """
    try:
        count = Decimal(number)
    except InvalidOperation:
        count = Decimal("NaN")
    if count.is_nan():
        raise ValueError(f"expected a number before '{unit}', found '{number}'")
    # Compared before multiplying: a power of ten may be too large to expand.
    if not -FOREVER <= count <= FOREVER:
        raise _too_long(f"{number} {unit}")
    return bounded(round(count * size), f"{number} {unit}")


def bounded(micros: int, text: str) -> int:
    """Returns the duration; raises ValueError if it is too long to be added to a time."""
    if abs(micros) > FOREVER:
        raise _too_long(text)
    return micros


def _too_long(text: str) -> ValueError:
    return ValueError(f"'{text}' is longer than {FOREVER // UNITS['day']:,} days")
