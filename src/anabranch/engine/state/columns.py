"""Converts fixed-width Arrow columns to numpy arrays and back, without per-value work.

A boolean takes one byte, a decimal two int64 words; NULLs are a byte array beside the values. Gathering is then one
numpy `take`, and the result becomes an Arrow array around the same memory.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.engine.state.arena import Array


def numpy_form(kind: pa.DataType) -> tuple[str, int]:
    """The numpy kind, and values per row, that hold a fixed-width type."""
    if pa.types.is_boolean(kind):
        return "|u1", 1
    if pa.types.is_decimal128(kind):
        return "<i8", 2
    if pa.types.is_float32(kind):
        return "<f4", 1
    if pa.types.is_float64(kind):
        return "<f8", 1
    return f"<i{kind.bit_width // 8}", 1


def to_numpy(array: pa.Array) -> Array:
    """Returns the values of a fixed-width array; values at NULL positions are unspecified."""
    if pa.types.is_boolean(array.type):
        array = pc.cast(pc.fill_null(array, False), pa.uint8())
    kind, width = numpy_form(array.type) if not pa.types.is_uint8(array.type) else ("|u1", 1)
    data = array.buffers()[1]
    if data is None:
        return np.zeros((len(array), width) if width > 1 else len(array), dtype=kind)
    values = np.frombuffer(data, dtype=kind)[array.offset * width : (array.offset + len(array)) * width]
    return values.reshape(-1, width) if width > 1 else values


def validity(array: pa.Array) -> npt.NDArray[np.uint8]:
    """One byte per value: 0 where it is NULL."""
    if array.null_count == 0:
        return np.ones(len(array), dtype=np.uint8)
    valid: npt.NDArray[np.uint8] = to_numpy(array.is_valid())
    return valid


def to_arrow(values: Array, valid: npt.NDArray[np.uint8] | None, kind: pa.DataType) -> pa.Array:
    """Wraps gathered values in an Arrow array."""
    length = len(values)
    bitmap = None
    if valid is not None and not valid.all():
        bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
    if pa.types.is_boolean(kind):
        values = np.packbits(values, bitorder="little")
    return pa.Array.from_buffers(kind, length, [bitmap, pa.py_buffer(np.ascontiguousarray(values))])
