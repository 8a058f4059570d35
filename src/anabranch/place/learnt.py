"""Measured statistics that replace given or assumed ones: rates, selectivities, and widths of columns.

Invariant: `applied` changes only what was measured; everything else stays as the network file says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from anabranch.place.statistics import Statistics


@dataclass(frozen=True)
class Learnt:
    """The measurements of a running deployment."""

    rates: Mapping[str, float] = field(default_factory=dict)
    """Rows per second of each stream."""
    shares: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """The selectivity of a filter, by stream and text."""
    factors: Mapping[str, float] = field(default_factory=dict)
    """Measured over modelled rows of a join, by the signature of its view."""
    widths: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Bytes of a column, by stream."""

    def updated(self, later: Learnt) -> Learnt:
        """Returns these measurements, replaced by later ones where there are any."""
        return Learnt(
            {**self.rates, **{name: rate for name, rate in later.rates.items() if rate > 0}},
            {**self.shares, **later.shares},
            {**self.factors, **later.factors},
            {**self.widths, **later.widths},
        )

    def applied(self, statistics: Statistics) -> Statistics:
        """Returns the statistics with the measured values."""
        streams = {
            name: replace(
                stream,
                rate=self.rates.get(name, stream.rate),
                column_bytes={**stream.column_bytes, **self.widths.get(name, {})},
            )
            for name, stream in statistics.streams.items()
        }
        return replace(
            statistics,
            streams=streams,
            shares={**statistics.shares, **self.shares},
            factors={**statistics.factors, **self.factors},
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "rates": dict(self.rates),
            "shares": [[stream, text, share] for (stream, text), share in self.shares.items()],
            "factors": dict(self.factors),
            "widths": {stream: dict(columns) for stream, columns in self.widths.items()},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Learnt:
        shares = {(stream, text): share for stream, text, share in value["shares"]}
        return cls(value["rates"], shares, value["factors"], value["widths"])
