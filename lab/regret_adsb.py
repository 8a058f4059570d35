"""Airplanes over Switzerland: 139,000 positions received by ADS-B in four hours, a sample of the package `traffic`.

The package is looked for and not loaded: its file is all that is needed. Positions are three streams, of airplanes that
climb, that stay level and that descend. A climbing airplane meets level ones in the same part of the sky (a tenth of a
degree), and these meet descending ones within the same hundred feet. Two minutes pass in one batch.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from anabranch.lang.schema import TIMESTAMP
from lab.regret_real import RealWorkload, Recorded, in_batches

NAMES = ("airplanes",)
SAMPLE = Path("data", "samples", "collections", "switzerland.json.gz")
STREAMS = dict.fromkeys(
    ("climbing", "level", "descending"),
    pa.schema([("ts", TIMESTAMP), ("craft", pa.string()), ("cell", pa.int64()), ("layer", pa.int64())]),
)
BATCH = 0.02
"""Seconds in which two minutes pass."""
LENGTH = round(BATCH * 1e6)
MINUTES = 2
STEEP = 500.0
"""Feet per minute from which on an airplane climbs or descends."""


def airplanes() -> tuple[RealWorkload, ...]:
    """The workload over positions; none where the package with the rows is not installed."""
    if _file() is None:
        return ()
    window = f"[RANGE {5 * LENGTH} MICROSECONDS]"
    text = (
        f"SELECT u.craft AS up, l.craft AS level, d.craft AS down FROM climbing {window} AS u, level {window} AS l, "
        f"descending {window} AS d WHERE u.cell = l.cell AND l.layer = d.layer"
    )
    return (RealWorkload(NAMES[0], "three streams whose rates change over the hours", text, STREAMS, _recorded, BATCH),)


def _file() -> Path | None:
    found = importlib.util.find_spec("traffic")
    folders = [] if found is None or found.submodule_search_locations is None else found.submodule_search_locations
    return next((path for folder in folders if (path := Path(folder) / SAMPLE).exists()), None)


@cache
def _recorded() -> Recorded:
    """The positions, two minutes in a batch."""
    path = _file()
    assert path is not None
    with gzip.open(path) as file:
        positions = pa.Table.from_pylist(json.load(file))
    needed = ("timestamp", "icao24", "altitude", "latitude", "longitude", "vertical_rate")
    known = positions.select(needed).drop_null()
    values = {name: known[name].to_numpy() for name in needed}
    cells = np.floor(values["latitude"] * 10) * 10_000 + np.floor(values["longitude"] * 10)
    columns = {
        "craft": values["icao24"],
        "cell": cells.astype(np.int64),
        "layer": (values["altitude"] // 100).astype(np.int64),
    }
    millis = values["timestamp"] - values["timestamp"].min()
    passed = (millis * (LENGTH / (MINUTES * 60_000))).astype(np.int64)
    count = int(passed.max()) // LENGTH + 1
    steep = values["vertical_rate"]
    masks = {"climbing": steep > STEEP, "level": np.abs(steep) <= STEEP, "descending": steep < -STEEP}
    parts = {
        name: in_batches(
            passed[mask], {column: rows[mask] for column, rows in columns.items()}, STREAMS[name], LENGTH, count
        )
        for name, mask in masks.items()
    }
    return [{name: batches[number] for name, batches in parts.items()} for number in range(count)]
