"""String kernels. Positions count characters (code points), comparisons are by bytes, only U+0020 is a space.

Arrow does most of the work; substring with positions per row and searching for a text per row are loops over its
buffers. Letter case follows the full Unicode mappings (one letter may become two, sigma depends on its position), which
Arrow lacks: texts with non-ASCII letters are mapped once per distinct value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit
from numpy.typing import NDArray

from anabranch.engine.evaluate.codes import text_buffers
from anabranch.engine.evaluate.compare import Datum
from anabranch.engine.evaluate.numbers import numbers, on_arrays, validity


@on_arrays
def lower(values: pa.Array) -> pa.Array:
    return _change_case(values, "lower")


@on_arrays
def upper(values: pa.Array) -> pa.Array:
    return _change_case(values, "upper")


def _change_case(values: pa.Array, case: str) -> pa.Array:
    if pc.all(pc.string_is_ascii(values), min_count=0).as_py():
        return pc.call_function(f"ascii_{case}", [values])
    encoded = values.dictionary_encode()
    mapped = [getattr(text, case)() for text in encoded.dictionary.to_pylist()]
    return pa.array(mapped, values.type).take(encoded.indices)


def trim(value: Datum) -> Datum:
    return pc.utf8_trim(value, characters=" ")


def ltrim(value: Datum) -> Datum:
    return pc.utf8_ltrim(value, characters=" ")


def rtrim(value: Datum) -> Datum:
    return pc.utf8_rtrim(value, characters=" ")


def concat(*values: Datum) -> Datum:
    separator = pa.scalar("", values[0].type)
    return pc.binary_join_element_wise(*values, separator, null_handling="emit_null")


def like(value: Datum, pattern: pa.Scalar) -> Datum:
    if not pattern.is_valid:
        return pa.scalar(None, pa.bool_())
    return pc.match_like(value, pattern.as_py())


def replace(value: Datum, searched: pa.Scalar, replacement: pa.Scalar) -> Datum:
    if not searched.is_valid or not replacement.is_valid:
        return pa.scalar(None, value.type)
    if searched.as_py() == "":
        return value
    return pc.replace_substring(value, pattern=searched.as_py(), replacement=replacement.as_py())


@on_arrays
def substring(values: pa.Array, starts: pa.Array, lengths: pa.Array) -> pa.Array:
    """Returns characters from a start that counts from 1, or from the end when negative; 0 is taken as 1.

    A negative start before the first character still consumes length, and both are clipped to 32 bits, as in Spark.
    """
    valid = validity(values, starts, lengths)
    offsets, data = text_buffers(values)
    bounds = [np.clip(numbers(bound), -(2**31), 2**31 - 1) for bound in (starts, lengths)]
    begins, ends = _substring_bounds(offsets, data, valid, *bounds)
    cut_offsets, cut_data = _cut(data, begins, ends)
    return text_array(cut_offsets, cut_data, valid, values.type)


@on_arrays
def starts_with(values: pa.Array, parts: pa.Array) -> pa.Array:
    return _find(values, parts, _AT_START)


@on_arrays
def ends_with(values: pa.Array, parts: pa.Array) -> pa.Array:
    return _find(values, parts, _AT_END)


@on_arrays
def contains(values: pa.Array, parts: pa.Array) -> pa.Array:
    return _find(values, parts, _ANYWHERE)


_AT_START, _AT_END, _ANYWHERE = 0, 1, 2


def _find(values: pa.Array, parts: pa.Array, where: int) -> pa.Array:
    valid = validity(values, parts)
    found = _find_parts(*text_buffers(values), *text_buffers(parts), where)
    return pa.array(found, pa.bool_(), mask=None if valid.all() else ~valid)


def text_array(
    offsets: NDArray[np.int64], data: NDArray[np.uint8], valid: NDArray[np.bool_], kind: pa.DataType
) -> pa.Array:
    """A string array over the given bytes, NULL where not valid."""
    length = len(offsets) - 1
    bits = None if valid.all() else pa.array(valid).buffers()[1]
    buffers = [bits, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_string(), length, buffers).cast(kind)


@njit(cache=True, nogil=True)
def _substring_bounds(offsets: Any, data: Any, valid: Any, starts: Any, lengths: Any) -> Any:
    count = len(starts)
    begins = np.zeros(count, dtype=np.int64)
    ends = np.zeros(count, dtype=np.int64)
    for row in range(count):
        first, last = offsets[row], offsets[row + 1]
        if not valid[row] or lengths[row] <= 0:
            continue
        start = starts[row] - 1 if starts[row] > 0 else np.int64(0)
        if starts[row] < 0:
            characters = 0
            for at in range(first, last):
                if data[at] & 0xC0 != 0x80:
                    characters += 1
            start = characters + starts[row]
        stop = start + lengths[row]
        begin, end, position = last, last, -1
        for at in range(first, last):
            if data[at] & 0xC0 != 0x80:
                position += 1
                if position >= start and begin == last:
                    begin = at
                if position >= stop:
                    end = at
                    break
        begins[row] = min(begin, end)
        ends[row] = end
    return begins, ends


@njit(cache=True, nogil=True)
def _cut(data: Any, begins: Any, ends: Any) -> Any:
    offsets = np.zeros(len(begins) + 1, dtype=np.int64)
    for row in range(len(begins)):
        offsets[row + 1] = offsets[row] + ends[row] - begins[row]
    cut = np.empty(offsets[-1], dtype=np.uint8)
    for row in range(len(begins)):
        for step in range(ends[row] - begins[row]):
            cut[offsets[row] + step] = data[begins[row] + step]
    return offsets, cut


@njit(cache=True, nogil=True)
def _find_parts(offsets: Any, data: Any, part_offsets: Any, part_data: Any, where: int) -> Any:
    found = np.zeros(len(offsets) - 1, dtype=np.bool_)
    for row in range(len(found)):
        first, last = offsets[row], offsets[row + 1]
        part_first = part_offsets[row]
        size = part_offsets[row + 1] - part_first
        low = last - size if where == 1 else first
        high = first if where == 0 else last - size
        if size > last - first:
            continue
        for begin in range(low, high + 1):
            step = 0
            while step < size and data[begin + step] == part_data[part_first + step]:
                step += 1
            if step == size:
                found[row] = True
                break
    return found
