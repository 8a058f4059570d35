"""The figures of a run over its last minute, and its curve.

Batches that end within one second of the wall clock are folded into a `Second`, so a run with hundreds of batches per
second costs a viewer no more than a run with one. A `Minute` covers the minute that ended with the latest batch; each
sample of the curve has the rates of its own minute, so the last sample equals the figures. Limit: rows are taken to be
spread evenly over their second, or over their trigger if it took longer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from anabranch.balance.loads import skew
from anabranch.console.points import BatchPoint

MINUTE = 60.0


@dataclass(frozen=True, kw_only=True)
class Second:
    """The batches that ended within one second of the wall clock."""

    number: int
    """Whole seconds since the Unix epoch."""
    start: float
    """When the first of its triggers began."""
    latest: BatchPoint
    batches: int
    first: int
    """The number of its first batch."""
    trigger: float
    """Seconds of its triggers together."""
    longest: float
    """Seconds of its longest trigger."""
    own: float
    rows_in: Mapping[str, float]
    rows_out: Mapping[str, float]
    """By query; a query that runs alone has no name."""
    late: Mapping[str, int]
    cpu: Mapping[int, float]
    """CPU seconds by slot."""

    @classmethod
    def of(cls, point: BatchPoint, number: int) -> Second:
        return cls(
            number=number,
            start=point.at,
            latest=point,
            batches=1,
            first=point.batch,
            trigger=point.trigger,
            longest=point.trigger,
            own=point.own,
            rows_in=point.rows_in,
            rows_out=point.rows_by_query,
            late=point.late,
            cpu={slot.slot: slot.cpu for slot in point.slots},
        )

    def plus(self, later: Second) -> Second:
        """Adds a later second, or a part of this one."""
        return replace(
            later,
            number=self.number,
            start=self.start,
            batches=self.batches + later.batches,
            first=self.first,
            trigger=self.trigger + later.trigger,
            longest=max(self.longest, later.longest),
            own=self.own + later.own,
            rows_in=_sum(self.rows_in, later.rows_in),
            rows_out=_sum(self.rows_out, later.rows_out),
            late=_sum(self.late, later.late),
            cpu=_sum(self.cpu, later.cpu),
        )

    def share(self, start: float) -> float:
        """Returns the part of its rows and work that lies after a time."""
        length = self.latest.end - self.start
        return 1.0 if self.start >= start or length <= 0 else max(0.0, (self.latest.end - start) / length)


@dataclass(frozen=True)
class Minute:
    """The figures of the minute that ended with the latest batch, per second of the wall clock."""

    whole: Second
    """All batches of the minute as one; rows and CPU of a batch that began earlier count in part."""
    seconds: float
    """The length of the minute; less than 60 for a run that is younger."""

    @classmethod
    def of(cls, seconds: Sequence[Second], began: float) -> Minute:
        """Sums the seconds that ended in the last minute; `began` is when the first known trigger began."""
        end = seconds[-1].latest.end
        start = max(began, end - MINUTE)
        parts = [_scaled(each, each.share(start)) for each in seconds]
        return cls(reduce(Second.plus, parts), max(end - start, 0.001))

    @property
    def rows_in(self) -> float:
        return sum(self.whole.rows_in.values()) / self.seconds

    @property
    def rows_out(self) -> float:
        return sum(self.whole.rows_out.values()) / self.seconds

    def to_json(self, totals_late: Mapping[str, int], totals_out: Mapping[str, int]) -> dict[str, Any]:
        """Returns the figures for the page; `totals_late` and `totals_out` count since the console first looked."""
        whole, latest = self.whole, self.whole.latest
        used = [slot for slot in latest.slots if slot.groups]
        return {
            "seconds": round(self.seconds, 3),
            "end": latest.end,
            "batch": latest.batch,
            "batches": whole.batches,
            "in": self.rows_in,
            "out": self.rows_out,
            "trigger": whole.trigger / whole.batches,
            "longest": whole.longest,
            "own": whole.own / whole.batches,
            "lag": latest.lag,
            "stateRows": latest.state_rows,
            "stateBytes": latest.state_bytes,
            "backlog": latest.backlog,
            "skew": skew([whole.cpu.get(slot.slot, 0.0) for slot in used]),
            "plan": latest.plan,
            "migrating": list(latest.migrating),
            "streams": [
                {
                    "stream": name,
                    "rate": rows / self.seconds,
                    "lag": latest.at - latest.newest[name] if name in latest.newest else None,
                    "late": whole.late.get(name, 0),
                    "lateTotal": totals_late.get(name, 0),
                    "idle": name in latest.idle,
                }
                for name, rows in whole.rows_in.items()
            ],
            "slots": [
                {
                    "slot": slot.slot,
                    "load": whole.cpu.get(slot.slot, 0.0) / self.seconds,
                    "bytes": slot.bytes,
                    "groups": slot.groups,
                    "rebuilt": bool(slot.groups) and not slot.was_hot,
                }
                for slot in latest.slots
            ],
            "queries": [
                {
                    "query": name,
                    "rate": whole.rows_out.get(name, 0) / self.seconds,
                    "total": totals_out.get(name, 0),
                    "plan": each["plan"],
                }
                for name, each in latest.queries.items()
            ],
        }


@dataclass(frozen=True)
class Sample:
    """A point of the curve: the second of its batches and the rates of the minute that ended with them.

    A minute without batches ends with a sample that has no second and no rows.
    """

    number: int
    batch: int
    """The latest batch at that time; of a sample without a second, the batch that came after it."""
    second: Second | None = None
    rows_in: float = 0.0
    rows_out: float = 0.0

    def to_json(self) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "number": self.number,
            "batch": self.batch,
            "in": round(self.rows_in, 3),
            "out": round(self.rows_out, 3),
        }
        if self.second is None:
            return entry
        second, latest = self.second, self.second.latest
        return {
            **entry,
            "first": second.first,
            "batches": second.batches,
            "trigger": round(second.trigger / second.batches, 4),
            "own": round(second.own / second.batches, 4),
            "cpu": round(sum(second.cpu.values()) / second.batches, 6),
            "stateBytes": latest.state_bytes,
            "skew": latest.skew,
            "lag": latest.lag,
        }


class Curve:
    """The samples of a run, oldest first, and the figures of its last minute."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._began: float | None = None
        self._seconds: list[Second] = []
        """Those of the last minute."""
        self.samples: list[Sample] = []
        self.minute: Minute | None = None
        """None before the first batch."""

    def add(self, points: Iterable[BatchPoint]) -> None:
        """Adds batches, in their order."""
        for point in points:
            self._began = point.at if self._began is None else self._began
            last = self._seconds[-1] if self._seconds else None
            # A clock that is set back ends no second a second time.
            number = math.floor(point.end) if last is None else max(last.number, math.floor(point.end))
            added = Second.of(point, number)
            if last is not None and last.number == number:
                self._seconds[-1] = last.plus(added)
                continue
            self._sample()
            if last is not None and point.at > last.latest.end + MINUTE:
                self.samples.append(Sample(math.floor(last.latest.end + MINUTE), point.batch))
            self._seconds.append(added)
        self._sample()

    def _sample(self) -> None:
        """Makes or replaces the sample of the latest second, unless it has all its batches."""
        if not self._seconds or self._began is None:
            return
        last = self._seconds[-1]
        if self.samples and self.samples[-1].second is last:
            return
        self._seconds = [each for each in self._seconds if each.latest.end > last.latest.end - MINUTE]
        self.minute = Minute.of(self._seconds, self._began)
        if self.samples and self.samples[-1].number == last.number:
            self.samples.pop()
        made = Sample(last.number, last.latest.batch, last, self.minute.rows_in, self.minute.rows_out)
        self.samples = [*self.samples, made][-self._most :]


def _scaled(second: Second, share: float) -> Second:
    """Returns a second with a part of its rows and CPU."""
    if share >= 1:
        return second
    return replace(
        second,
        rows_in={name: rows * share for name, rows in second.rows_in.items()},
        rows_out={name: rows * share for name, rows in second.rows_out.items()},
        cpu={slot: spent * share for slot, spent in second.cpu.items()},
    )


def _sum(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> dict[Any, Any]:
    found = dict(one)
    for key, amount in other.items():
        found[key] = found.get(key, 0) + amount
    return found
