"""Statistics for placement: rates, row widths, distinct values and unit costs, given in the network file.

The rate of a windowed join follows the usual model: with rate λ, window w and predicates of selectivity σ, a row of
input i meets λj·wj rows of every other input j, so λ = ∏λi · Σi ∏j≠i wj · ∏σ. An equality over columns with d1 ≤ d2 ≤ …
distinct values keeps 1 / (d2·d3·…) of the combinations: values of a smaller set occur in the larger ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from anabranch.cost.units import ENGINE, UnitCosts
from anabranch.errors import StatisticsError, TopologyError
from anabranch.settings.entries import LARGEST, Entry, optional
from anabranch.stats.view import FixedStatistics

COMPARISON_SELECTIVITY = 1 / 3
"""The assumed selectivity of a predicate without statistics (System R's guess)."""

EVENT_TIME_BYTES = 8


@dataclass(frozen=True)
class StreamStatistics:
    """A stream: its site, its rate in rows per second, and the width of a row.

    Without `column_bytes` a row is `row_bytes` wide regardless of projection, as in the paper's experiments.
    """

    site: str
    rate: float
    row_bytes: float = 100.0
    column_bytes: Mapping[str, float] = field(default_factory=dict)
    distinct: Mapping[str, float] = field(default_factory=dict)
    stays_at: frozenset[str] | None = None
    """The only sites where rows of the stream may be, alone or joined; None for all."""

    def width(self, columns: Iterable[str]) -> float:
        """Returns the bytes of a row reduced to some columns; the event time is always included."""
        if not self.column_bytes:
            return self.row_bytes
        return EVENT_TIME_BYTES + sum(self.column_bytes.get(column, 8.0) for column in columns)


@dataclass(frozen=True, eq=False)
class Statistics:
    """All streams by name, and given selectivities by predicate text; compared by identity."""

    streams: Mapping[str, StreamStatistics]
    selectivities: Mapping[str, float] = field(default_factory=dict)
    units: UnitCosts = ENGINE
    batch: float = 1.0
    """Seconds between the micro-batches of a site."""
    record_bytes: float | None = None
    """If given, the width of every row, joined or not, as the paper assumes for its airline example."""
    slide: float | None = None
    """If given, joins emit all combinations in their windows at this interval in seconds, as in the paper.

    Our joins emit each combination once. For experiments; a network file cannot set it.
    """
    shares: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Measured selectivities of filters, by stream and text; they replace given ones."""
    factors: Mapping[str, float] = field(default_factory=dict)
    """Measured over modelled rows of joins, by the signature of their view."""

    def __post_init__(self) -> None:
        if not (self.batch > 0 and math.isfinite(self.batch)):
            raise StatisticsError(f"'batch' is {self.batch}", hint="write the seconds between two batches")
        if self.slide is not None and not 0 < self.slide < math.inf:
            raise StatisticsError(f"'slide' is {self.slide}", hint="write a number of seconds above 0")
        if self.record_bytes is not None and not 0 < self.record_bytes < math.inf:
            raise StatisticsError(f"'record_bytes' is {self.record_bytes}", hint="write a number of bytes above 0")
        for name, stream in self.streams.items():
            if not (0 <= stream.rate < math.inf and 0 < stream.row_bytes < math.inf):
                raise StatisticsError(f"stream '{name}' has rate {stream.rate} and rows of {stream.row_bytes} bytes")
            for column, size in stream.column_bytes.items():
                if not 0 <= size < math.inf:
                    raise StatisticsError(f"column '{name}.{column}' has {size} bytes", hint="at least 0")
            for column, count in stream.distinct.items():
                if not count >= 1:
                    raise StatisticsError(f"column '{name}.{column}' has {count} distinct values", hint="at least 1")
        for text, share in self.selectivities.items():
            if not 0 <= share <= 1:
                raise StatisticsError(f"predicate '{text}' has selectivity {share}", hint="between 0 and 1")

    def stream(self, name: str) -> StreamStatistics:
        """Returns the statistics of an advertised stream; raises TopologyError if there is none."""
        if name not in self.streams:
            known = ", ".join(sorted(self.streams)) or "none"
            raise TopologyError(
                f"stream '{name}' is not advertised by any site",
                detail=f"advertised are {known}",
                hint="give its site and rate under 'streams' of the network file",
            )
        return self.streams[name]

    def distinct(self, stream: str, column: str) -> float:
        """Returns the number of distinct values of a column; if unknown, the rows of one second."""
        known = self.stream(stream)
        return float(known.distinct.get(column, max(1.0, known.rate)))

    def filter_selectivity(self, stream: str, column: str | None, operator: str, text: str) -> float:
        """Returns the selectivity of one comparison on a stream."""
        if (stream, text) in self.shares:
            return self.shares[stream, text]
        if text in self.selectivities:
            return self.selectivities[text]
        if column is not None and operator == "equal":
            return 1.0 / self.distinct(stream, column)
        if operator == "is_not_null":
            return 1.0
        return COMPARISON_SELECTIVITY


def equality_selectivity(distinct: Iterable[float]) -> float:
    """Returns the selectivity of an equality over columns with these numbers of distinct values.

    >>> equality_selectivity([1500, 120])
    0.0006666666666666666
    """
    return 1.0 / math.prod(sorted(distinct)[1:])


def from_dict(entry: Any) -> Statistics:
    """Reads statistics from a mapping; see `read`."""
    return read(Entry("", entry, TopologyError, "the network"))


def read(network: Entry) -> Statistics:
    """Reads the statistics of a network file.

    They are `streams` with site, rate, row_bytes, column_bytes and distinct; `selectivities`; `costs`, by the names of
    a query's `stats.costs`; `batch` and `record_bytes`.
    """
    entries = network.require({"streams": "streams: {flights: {site: n1, rate: 5, columns: num bigint, ts timestamp}}"})
    costs = optional(entries, "costs", _costs, {})
    return Statistics(
        {name.lower(): _stream(entry) for name, entry in entries["streams"].filled().items()},
        optional(entries, "selectivities", lambda entry: _numbers(entry, 0.0, 1.0), {}),
        UnitCosts.from_names(costs) if costs else ENGINE,
        optional(entries, "batch", _positive, 1.0),
        optional(entries, "record_bytes", _positive, None),
    )


def _stream(block: Entry) -> StreamStatistics:
    entries = block.require({"site": "site: n1", "rate": "rate: 5, in rows a second"})
    return StreamStatistics(
        site=entries["site"].label(),
        rate=entries["rate"].number(0.0),
        row_bytes=optional(entries, "row_bytes", _positive, 100.0),
        column_bytes=optional(entries, "column_bytes", lambda entry: _numbers(entry, 0.0), {}),
        distinct=optional(entries, "distinct", lambda entry: _numbers(entry, 1.0), {}),
    )


def _costs(entry: Entry) -> Mapping[str, float]:
    return FixedStatistics.read(Entry("stats", {"costs": entry.value})).costs


def _positive(entry: Entry) -> float:
    return entry.number(above=0.0, hint="write a number above 0")


def _numbers(block: Entry, low: float, high: float = LARGEST) -> dict[str, float]:
    hint = f"write a number of {low:g} or more" if high == LARGEST else f"write a number between {low:g} and {high:g}"
    return {name: entry.number(low, high, hint=hint) for name, entry in block.filled(hint).items()}
