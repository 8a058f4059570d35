"""The statistics of a running query: the numbers of its latest batches, over those of earlier ones.

The latest batches are measured together, so each counts by the evidence it brings. A number that they could not measure
keeps the value it had; one that was never measured is absent. Neither is zero.

Limit: a selectivity that the plan in force never looks up stays at what an earlier plan saw, however old that is.
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
        """The knowledge after some batches were measured.

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
        """The numbers as optimizers read them."""
        return FixedStatistics(
            self.rates, self.filters, self.selectivities, groups=self.groups, rows=self.rows, provenance="measured"
        )

    def distance(self, other: Knowledge) -> float:
        """The largest factor by which a rate, selectivity or number of groups differs, infinite where one is unknown.

        >>> Knowledge({"a": 8.0}).distance(Knowledge({"a": 10.0}))
        1.25
        """
        both = ((getattr(self, what), getattr(other, what)) for what in ("rates", "selectivities", "groups", "rows"))
        return max((factor for mine, theirs in both for factor in _factors(mine, theirs)), default=1.0)

    def drift(self, other: Knowledge) -> float:
        """Like `distance`, over the numbers that both sides know."""
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
        """Reads knowledge that was written; raises an error where the value is not one."""
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
