"""Kernels of structs, arrays and maps."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.engine.evaluate.numbers import numbers, on_arrays, validity


@on_arrays
def field(values: pa.Array, name: pa.Array) -> pa.Array:
    """A field of each struct; NULL where the struct is."""
    return pc.struct_field(values, [name[0].as_py()])


@on_arrays
def window(start: pa.Array, end: pa.Array) -> pa.Array:
    """A struct of the bounds of each window."""
    return pa.StructArray.from_arrays([start, end], names=["start", "end"])


@on_arrays
def element(values: pa.Array, place: pa.Array) -> pa.Array:
    """The element of each array at a position from 0, or the value of each map at a key; NULL where there is none."""
    if pa.types.is_map(values.type):
        return pc.map_lookup(values, place[0], "first")
    offsets = np.asarray(values.offsets.to_numpy(zero_copy_only=False), dtype=np.int64)
    positions = np.asarray(numbers(place), dtype=np.int64)
    inside = validity(values, place) & (positions >= 0) & (positions < np.diff(offsets))
    return values.values.take(pa.array(np.where(inside, offsets[:-1] + positions, 0), mask=~inside))


@on_arrays
def size(values: pa.Array) -> pa.Array:
    return pc.list_value_length(values)
