"""Kernels of dates and timestamps; all use UTC."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.engine.evaluate.compare import Datum
from anabranch.engine.evaluate.numbers import from_numbers, numbers, on_arrays, validity
from anabranch.functions.texts import TRUNCATED
from anabranch.lang.schema import TIMESTAMP

_MONDAY = 3 * 86_400_000_000
"""1970 began on a Thursday."""


def moment(value: Datum) -> Datum:
    """Removes the zone of a time, so that Arrow reads its fields in UTC."""
    return value.cast(pa.int64()).cast(pa.timestamp("us")) if pa.types.is_timestamp(value.type) else value


def date_trunc(unit: pa.Scalar, value: Datum) -> Datum:
    """The start of the unit that a time is in; weeks begin on Monday."""
    name = unit.as_py()
    size = TRUNCATED[name]
    if size is None:
        return pc.floor_temporal(moment(value), unit=name).cast(pa.int64()).cast(TIMESTAMP)
    return _floored(value, size, _MONDAY if name == "week" else 0)


def _floored(value: Datum, size: int, offset: int) -> Datum:
    @on_arrays
    def floor(times: pa.Array) -> pa.Array:
        micros = np.asarray(numbers(times.cast(pa.int64())), dtype=np.int64)
        return from_numbers(micros - (micros + offset) % size, validity(times), pa.int64()).cast(TIMESTAMP)

    return floor(value)


def from_count(size: int) -> Callable[[Datum], Datum]:
    """Converts a count of units of `size` microseconds since the epoch to a time; overflow is an error."""

    def moment_of(value: Datum) -> Datum:
        return pc.multiply_checked(value, size).cast(TIMESTAMP)

    return moment_of


def day_of_week(value: Datum) -> Datum:
    """1 for Sunday to 7 for Saturday."""
    return pc.day_of_week(moment(value), count_from_zero=False, week_start=7)
