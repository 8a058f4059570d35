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
        return Knowledge(
            {**self.rates, **measured.rates},
            {**self.selectivities, **measured.selectivities},
            {**self.filters, **measured.filters},
            batch,
            {**self.groups, **measured.groups},
            {**self.rows, **measured.rows},
        )

    @property
    def view(self) -> FixedStatistics:
        """The numbers as a view for optimizers."""
        return FixedStatistics(
            self.rates, self.filters, self.selectivities, groups=self.groups, rows=self.rows, provenance="measured"
        )

    def distance(self, other: Knowledge) -> float:
        """Returns the largest factor between two values of a number; infinity if one side lacks a number.

        >>> Knowledge({"a": 8.0}).distance(Knowledge({"a": 10.0}))
        1.25
        """
        both = ((getattr(self, what), getattr(other, what)) for what in ("rates", "selectivities", "groups", "rows"))
        return max((factor for mine, theirs in both for factor in _factors(mine, theirs)), default=1.0)

    def drift(self, other: Knowledge) -> float:
        """Returns the distance over the numbers that both sides have."""
        return self._shared_with(other).distance(other._shared_with(self))

    def _shared_with(self, other: Knowledge) -> Knowledge:
        return Knowledge(
            {name: value for name, value in self.rates.items() if name in other.rates},
            {name: value for name, value in self.selectivities.items() if name in other.selectivities},
            groups={name: value for name, value in self.groups.items() if name in other.groups},
            rows={name: value for name, value in self.rows.items() if name in other.rows},
        )

    def to_json(self) -> dict[str, object]:
        return {**{name: dict(getattr(self, name)) for name in _SECTIONS}, "batch": self.batch}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Knowledge:
        """Reads statistics written by `to_json`; raises an error for any other value."""
        rates, filters, selectivities, groups = (dict(value[name]) for name in _SECTIONS[:-1])
        rows = dict(value.get("rows", {}))
        known = FixedStatistics(rates, filters, selectivities, groups=groups, rows=rows)
        return cls().renewed(known, float(value["batch"]))


_SECTIONS = ("rates", "filters", "selectivities", "groups", "rows")


def _factors(mine: Mapping[str, float], theirs: Mapping[str, float]) -> list[float]:
    return [_factor(mine.get(name), theirs.get(name)) for name in {*mine, *theirs}]


def _factor(one: float | None, other: float | None) -> float:
    if one is None or other is None:
        return math.inf
    low, high = sorted((one, other))
    if high == low:
        return 1.0
    return high / low if low > 0 else math.inf
