"""Measured statistics of a running query: numbers of the latest batches, else of earlier ones.

The latest batches are measured together, so each is weighted by its rows. Invariant: a number that the latest batches
do not determine keeps its last value, and a number that was never measured is absent; neither becomes zero.

Limit: a selectivity that the running plan never evaluates keeps the value that an earlier plan measured, however old.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anabranch.stats.view import FixedStatistics

CHANGED = 1.5
"""The streams have changed if a rate or selectivity differs by this factor."""
_SECTIONS = ("rates", "filters", "selectivities", "groups", "rows")
_COMPARED = ("rates", "selectivities", "groups", "rows")


@dataclass(frozen=True)
class Knowledge:
    """Rates, selectivities and groups of a query, and the event time between its batches in seconds."""

    rates: Mapping[str, float] = field(default_factory=dict)
    selectivities: Mapping[str, float] = field(default_factory=dict)
    filters: Mapping[str, float] = field(default_factory=dict)
    batch: float = 1.0
    groups: Mapping[str, float] = field(default_factory=dict)
    rows: Mapping[str, float] = field(default_factory=dict)
    """Rows of tables."""

    def renewed(self, measured: FixedStatistics, batch: float) -> Knowledge:
        """Returns the statistics updated with those of the latest batches.

        >>> Knowledge({"a": 8.0, "b": 3.0}).renewed(FixedStatistics(rates={"a": 4.0}), 1.0).rates
        {'a': 4.0, 'b': 3.0}
        """
        updated = {name: {**getattr(self, name), **getattr(measured, name)} for name in _SECTIONS}
        return Knowledge(batch=batch, **updated)

    @property
    def view(self) -> FixedStatistics:
        """The numbers as a view for optimizers."""
        return FixedStatistics(**{name: getattr(self, name) for name in _SECTIONS}, provenance="measured")

    def distance(self, other: Knowledge) -> float:
        """Returns the largest factor between two values of a number; infinity if one side lacks a number.

        >>> Knowledge({"a": 8.0}).distance(Knowledge({"a": 10.0}))
        1.25
        """
        lacks = any({*getattr(self, each)} != {*getattr(other, each)} for each in _COMPARED)
        return math.inf if lacks else self.drift(other)

    def drift(self, other: Knowledge) -> float:
        """Returns the distance over the numbers that both sides have."""
        both = [(getattr(self, each), getattr(other, each)) for each in _COMPARED]
        return max((factor(one[name], two[name]) for one, two in both for name in one.keys() & two.keys()), default=1)

    def to_json(self) -> dict[str, object]:
        return {**{name: dict(getattr(self, name)) for name in _SECTIONS}, "batch": self.batch}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Knowledge:
        """Reads statistics written by `to_json`; raises an error for any other value."""
        sections: dict[str, Any] = {name: dict(value[name]) for name in _SECTIONS[:-1]}
        sections["rows"] = dict(value.get("rows", {}))
        return cls().renewed(FixedStatistics(**sections), float(value["batch"]))


def factor(one: float, other: float) -> float:
    """Returns the larger of two numbers divided by the smaller; infinity if only one is 0."""
    low, high = sorted((one, other))
    if high == low:
        return 1.0
    return high / low if low > 0 else math.inf
