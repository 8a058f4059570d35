"""The most frequent values of keys in one batch, by code; heavy keys are detected from them.

Limit: a slot reports `FREQUENT` values of each relation, so merged counts lack values that are frequent in no slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

FREQUENT = 8
"""The number of key values that a slot reports, for each relation."""


@dataclass(frozen=True)
class KeyCounts:
    """The counts of one key in one batch."""

    distinct: int = 0
    """Distinct values in the relation that has the most."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """Rows by relation."""
    frequent: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """Rows with the most frequent values, by code and relation."""

    def to_json(self) -> dict[str, Any]:
        frequent = [[value, dict(rows)] for value, rows in self.frequent.items()]
        return {"distinct": self.distinct, "rows": dict(self.rows), "frequent": frequent}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> KeyCounts:
        return cls(value["distinct"], value["rows"], dict(value["frequent"]))


def merge_keys(several: Iterable[Mapping[str, KeyCounts]]) -> dict[str, KeyCounts]:
    """Merges the counts of several slots; values that a slot did not report are missing from its part."""
    found: dict[str, KeyCounts] = {}
    for keys in several:
        for code, counts in keys.items():
            before = found.get(code, KeyCounts())
            frequent = {value: dict(rows) for value, rows in before.frequent.items()}
            for value, rows in counts.frequent.items():
                frequent[value] = _added(frequent.get(value, {}), rows)
            found[code] = KeyCounts(before.distinct + counts.distinct, _added(before.rows, counts.rows), frequent)
    return found


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}
