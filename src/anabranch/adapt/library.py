"""Which plan served which statistics: tried before an optimizer is asked (query logging, Zhu 2006, 26.1.4).

Streams that swing between a few states bring the same statistics again and again; the plan that was chosen for them
once is then at hand without a search. An entry fits when every rate and selectivity is within `tolerance` of what it
was chosen for and the same ones are known. At most `size` entries are kept; the one unused for longest goes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from anabranch.adapt.knowledge import Knowledge
from anabranch.plan.physical import PhysicalPlan
from anabranch.plan.text import parse


@dataclass(frozen=True)
class Entry:
    """A plan and the statistics it was chosen for."""

    statistics: Knowledge
    plan: PhysicalPlan


@dataclass(frozen=True)
class Library:
    """Entries, the latest used last."""

    entries: tuple[Entry, ...] = ()
    tolerance: float = 1.25
    size: int = 64

    def find(self, seen: Knowledge) -> Entry | None:
        """The entry nearest to the statistics, or None when none is near enough."""
        near = [(entry.statistics.distance(seen), -position) for position, entry in enumerate(self.entries)]
        distance, position = min(near, default=(float("inf"), 0))
        return self.entries[-position] if distance <= self.tolerance else None

    def used(self, entry: Entry) -> Library:
        """The library after an entry proved useful."""
        return self._with((*(other for other in self.entries if other is not entry), entry))

    def learn(self, seen: Knowledge, plan: PhysicalPlan) -> Library:
        """The library with one more plan; it takes the place of what was chosen for about the same statistics."""
        others = tuple(entry for entry in self.entries if entry.statistics.distance(seen) > self.tolerance)
        return self._with((*others, Entry(seen, plan)))

    def to_json(self) -> list[dict[str, object]]:
        return [{"statistics": entry.statistics.to_json(), "plan": str(entry.plan)} for entry in self.entries]

    @classmethod
    def from_json(cls, entries: Iterable[Mapping[str, Any]]) -> Library:
        """Reads a library that was written; raises an error where the value is not one."""
        known = (Entry(Knowledge.from_json(entry["statistics"]), parse(entry["plan"])) for entry in entries)
        return cls()._with(tuple(known))

    def _with(self, entries: tuple[Entry, ...]) -> Library:
        return Library(entries[-self.size :], self.tolerance, self.size)
