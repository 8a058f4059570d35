"""The counts of a reader: sent to the slots and, with the reports of the slots, to the driver.

Invariant: merging counts does not depend on the order of readers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Intake:
    """The rows that one or several readers read, by relation."""

    delivered: Mapping[str, int] = field(default_factory=dict)
    """Rows with an event time: admitted, late, ahead, or rejected by a filter."""
    late: Mapping[str, int] = field(default_factory=dict)
    """Late rows, if there were any."""
    ahead: Mapping[str, int] = field(default_factory=dict)
    """Rows too far in the future, if there were any."""
    newest: Mapping[str, int] = field(default_factory=dict)
    """The largest event time; includes late and rejected rows but not rows too far in the future."""
    ticks: Mapping[str, int] = field(default_factory=dict)
    """The last tick of each derived relation that had one."""
    diverted: tuple[str, ...] = ()
    """The files with rows for the side output."""
    shed: Mapping[str, int] = field(default_factory=dict)
    """The rows of shed keys, if there were any."""
    undated: Mapping[str, int] = field(default_factory=dict)
    """Rows without an event time, if there were any."""

    @property
    def times(self) -> Intake:
        """Returns the event times alone, for slots that do not count."""
        return Intake(newest=self.newest, ticks=self.ticks)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Intake:
        return cls(**{**value, "diverted": tuple(value["diverted"])})


NOTHING_READ = Intake()


def merged_intakes(several: Iterable[Intake]) -> Intake:
    """Adds counts, and keeps the largest event times."""
    found = list(several)
    if len(found) == 1:
        return found[0]
    return Intake(
        added(each.delivered for each in found),
        added(each.late for each in found),
        added(each.ahead for each in found),
        largest(each.newest for each in found),
        largest(each.ticks for each in found),
        tuple(name for each in found for name in each.diverted),
        added(each.shed for each in found),
        added(each.undated for each in found),
    )


def added(several: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Sums counts by name."""
    found = Counter[str]()
    for counts in several:
        found.update(counts)
    return dict(found)


def largest(several: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Returns the largest value by name."""
    found: dict[str, int] = {}
    for values in several:
        for name, value in values.items():
            found[name] = max(value, found.get(name, value))
    return found
