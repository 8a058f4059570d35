"""Streams in which a column that the query does not select decides which join order is cheap.

Rows of `h` have matches by separate keys in `a` and in `b`. In one region almost no pair with `a` passes its predicate,
in the other almost no pair with `b`. Only the region determines which or, with `by_day`, the half of the day.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from anabranch.cql import compile_query
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.schema import TIMESTAMP, Schema
from anabranch.plan.query import Query

ROWS = 1_200
"""Rows of `h` in a batch; `a` and `b` have a quarter as many."""
REGIONS = ("north", "south")
KEYS, PASSING = 150, 0.02
SECONDS, DAY = 1_000_000, 86_400 * 1_000_000
COLUMNS = pa.schema(
    [
        ("ts", TIMESTAMP),
        ("k0", pa.int64()),
        ("k1", pa.int64()),
        ("v", pa.int64()),
        ("region", pa.string()),
        ("number", pa.int64()),
        ("moment", TIMESTAMP),
    ]
)
MESH = "mesh(h: a>b, b>a by (region in {'south'} ? 1 : 0); a: h>b; b: h>a)"


def regional_text(window: str = "100 SECONDS") -> str:
    """The query; it selects neither the region nor the event time."""
    windows = ", ".join(f"{name} [RANGE {window}]" for name in "hab")
    conditions = "h.k0 = a.k0 AND h.v > a.v AND h.k1 = b.k0 AND h.v > b.v"
    return f"SELECT h.v AS x, a.v AS y FROM {windows} WHERE {conditions}"


def regional_catalog(columns: pa.Schema = COLUMNS) -> Catalog:
    catalog = Catalog()
    for name in "hab":
        catalog.register(StreamDeclaration(name, Schema.from_arrow(columns), "ts"))
    return catalog


def regional_query(columns: pa.Schema = COLUMNS, window: str = "100 SECONDS") -> Query:
    return compile_query(regional_text(window), regional_catalog(columns))


def regional_batch(
    number: int, rng: np.random.Generator, length: int = 10 * SECONDS, *, by_day: bool = False
) -> dict[str, pa.Table]:
    """Returns the rows of a span of `length` microseconds."""
    tables = {}
    for name in "hab":
        count = ROWS if name == "h" else ROWS // 4
        times = length * number + np.sort(rng.integers(0, length, count))
        region = times % DAY // (DAY // 2) if by_day else rng.integers(0, 2, count)
        keys = [rng.integers(0, KEYS, count) * 2 + region for _ in range(2)]
        values = rng.integers(1_000, 2_000, count)
        if name != "h":
            is_lost = (region == "ab".index(name)) & (rng.random(count) >= PASSING)
            values = np.where(is_lost, 2_000, values - 1_000)
        instants = pa.array(times).cast(pa.timestamp("us")).cast(TIMESTAMP)
        tables[name] = pa.table(
            {
                "ts": instants,
                "k0": keys[0],
                "k1": keys[1],
                "v": values,
                "region": pa.array(np.array(REGIONS)[region], mask=rng.random(count) < 0.02),
                "number": np.arange(count) + ROWS * number,
                "moment": instants,
            },
            schema=COLUMNS,
        )
    return tables
