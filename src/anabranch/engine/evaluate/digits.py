"""Numbers as decimal digits: the loops behind casts between strings, floats and decimals.

Decimals are 128-bit integers of unscaled units, as two words; rounding is half away from zero. Floats are written as
Java writes them (`1.0`, `1.0E10`, `NaN`), with the shortest digits that read back as the same float. Limit: Java before
19 sometimes writes more digits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from anabranch.engine.evaluate.codes import decimal_words, text_buffers
from anabranch.engine.evaluate.numbers import validity
from anabranch.engine.evaluate.text import text_array


def decimals_from_text(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Parses numbers such as `-1.5e3` into decimals, rounded to the scale of the type; callers check the form first."""
    valid = validity(texts)
    words, fits = _parse_decimals(*text_buffers(texts), valid, _powers(kind.precision), kind.scale)
    if not fits.all():
        bad = texts[int(np.argmin(fits))].as_py()
        raise pa.ArrowInvalid(f"{bad} does not fit decimal({kind.precision},{kind.scale})")
    bits = None if valid.all() else pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(kind, len(texts), [bits, pa.py_buffer(words)])


def decimals_to_text(values: pa.Array) -> pa.Array:
    """Writes decimals with all digits of the scale and without an exponent."""
    scale = values.type.scale
    whole = pa.Array.from_buffers(pa.decimal128(38, 0), len(values), values.buffers(), offset=values.offset)
    digits = whole.cast(pa.string())
    if scale <= 0:
        return digits
    sign = pc.if_else(pc.starts_with(digits, "-"), "-", "")
    padded = pc.utf8_lpad(pc.utf8_ltrim(digits, characters="-"), width=scale + 1, padding="0")
    units = pc.utf8_slice_codeunits(padded, 0, -scale)
    return pc.binary_join_element_wise(sign, units, ".", pc.utf8_slice_codeunits(padded, -scale), "")


def decimals_to_floats(values: pa.Array) -> pa.Array:
    """The nearest float of each decimal."""
    words = decimal_words(values)
    low, high = words[:, 0], words[:, 1]
    small = (np.abs(low) < 2**53) & (high == (low >> 63))
    valid = validity(values)
    if values.type.scale <= 22 and bool((small | ~valid).all()):
        # Both operands are exact, so there is only one rounding.
        quotients = low.astype(np.float64) / 10.0**values.type.scale
        return pa.array(quotients, pa.float64(), mask=None if valid.all() else ~valid)
    return decimals_to_text(values).cast(pa.float64())


def floats_to_text(values: pa.Array) -> pa.Array:
    valid = validity(values)
    offsets, data = _write_floats(*text_buffers(values.cast(pa.string())), valid)
    return text_array(offsets, data, valid, pa.string())


def _powers(precision: int) -> Any:
    """10**(precision-1) and 10**precision as words."""
    return np.array(
        [[power & (2**64 - 1), power >> 64] for power in (10 ** (precision - 1), 10**precision)], dtype=np.uint64
    )


@njit(inline="always", cache=True)
def _reaches(low: Any, high: Any, bound: Any) -> Any:
    return high > bound[1] or (high == bound[1] and low >= bound[0])


@njit(cache=True, nogil=True)
def _parse_decimals(offsets: Any, data: Any, valid: Any, powers: Any, scale: int) -> Any:
    count = len(offsets) - 1
    words = np.zeros((count, 2), dtype=np.uint64)
    fits = np.ones(count, dtype=np.bool_)
    for row in range(count):
        if not valid[row]:
            continue
        at, last = offsets[row], offsets[row + 1]
        negative = data[at] == ord("-")
        if negative or data[at] == ord("+"):
            at += 1
        mantissa = at
        total = 0
        before_point = -1
        while at < last and data[at] != ord("e") and data[at] != ord("E"):
            if data[at] == ord("."):
                before_point = total
            else:
                total += 1
            at += 1
        mantissa_end = at
        if before_point < 0:
            before_point = total
        exponent = 0
        if at < last:
            at += 1
            down = data[at] == ord("-")
            if down or data[at] == ord("+"):
                at += 1
            while at < last:
                exponent = min(exponent * 10 + (data[at] - ord("0")), 1_000_000)
                at += 1
            if down:
                exponent = -exponent
        kept = before_point + exponent + scale
        low, high = np.uint64(0), np.uint64(0)
        taken = 0
        at = mantissa
        round_up = False
        # The digits to keep, then zeros up to the scale.
        while taken < kept and fits[row]:
            digit = np.uint64(0)
            if at < mantissa_end:
                if data[at] == ord("."):
                    at += 1
                    continue
                digit = np.uint64(data[at] - ord("0"))
                at += 1
            elif low == 0 and high == 0:
                break
            taken += 1
            if _reaches(low, high, powers[0]):
                fits[row] = False
                break
            bottom = (low & np.uint64(0xFFFFFFFF)) * np.uint64(10) + digit
            top = (low >> np.uint64(32)) * np.uint64(10) + (bottom >> np.uint64(32))
            low = (top << np.uint64(32)) | (bottom & np.uint64(0xFFFFFFFF))
            high = high * np.uint64(10) + (top >> np.uint64(32))
        if fits[row] and kept >= 0 and at < mantissa_end:
            if data[at] == ord("."):
                at += 1
            round_up = at < mantissa_end and data[at] >= ord("5")
        if round_up:
            low += np.uint64(1)
            if low == 0:
                high += np.uint64(1)
            fits[row] = not _reaches(low, high, powers[1])
        if negative:
            low = ~low + np.uint64(1)
            high = ~high + (np.uint64(1) if low == 0 else np.uint64(0))
        words[row, 0] = low
        words[row, 1] = high
    return words, fits


@njit(inline="always", cache=True)
def _write(out: Any, at: int, text: Any) -> Any:
    for character in text:
        out[at] = ord(character)
        at += 1
    return at


@njit(cache=True, nogil=True)
def _write_floats(offsets: Any, data: Any, valid: Any) -> Any:
    count = len(offsets) - 1
    out = np.empty(32 * count + 1, dtype=np.uint8)
    ends = np.zeros(count + 1, dtype=np.int64)
    digits = np.empty(32, dtype=np.uint8)
    at = 0
    for row in range(count):
        if valid[row]:
            at = _write_float(data, offsets[row], offsets[row + 1], out, at, digits)
        ends[row + 1] = at
    return ends, out[:at]


@njit(cache=True, nogil=True)
def _write_float(data: Any, first: int, last: int, out: Any, at: int, digits: Any) -> Any:
    if data[first] == ord("n"):
        return _write(out, at, "NaN")
    if data[first] == ord("-"):
        at = _write(out, at, "-")
        first += 1
    if data[first] == ord("i"):
        return _write(out, at, "Infinity")
    count = 0  # significant digits so far
    exponent = 0  # of the first significant digit
    seen_point = False
    while first < last and data[first] != ord("e"):
        character = data[first]
        first += 1
        if character == ord("."):
            seen_point = True
        elif count == 0 and character == ord("0"):
            if seen_point:
                exponent -= 1
        else:
            if count == 0:
                exponent = exponent - 1 if seen_point else 0
            elif not seen_point:
                exponent += 1
            digits[count] = character
            count += 1
    if count == 0:
        return _write(out, at, "0.0")
    if first < last:
        down = data[first + 1] == ord("-")
        written = 0
        for position in range(first + 2, last):
            written = written * 10 + (data[position] - ord("0"))
        exponent += -written if down else written
    while count > 1 and digits[count - 1] == ord("0"):
        count -= 1
    scientific = exponent < -3 or exponent >= 7
    units = 1 if scientific else max(exponent + 1, 0)
    if units == 0:
        at = _write(out, at, "0.")
        for _ in range(-exponent - 1):
            at = _write(out, at, "0")
        units = count
        for position in range(count):
            out[at] = digits[position]
            at += 1
        return at
    for position in range(units):
        out[at] = digits[position] if position < count else ord("0")
        at += 1
    at = _write(out, at, ".")
    if count <= units:
        at = _write(out, at, "0")
    for position in range(units, count):
        out[at] = digits[position]
        at += 1
    if scientific:
        at = _write(out, at, "E")
        if exponent < 0:
            at = _write(out, at, "-")
        size = abs(exponent)
        if size >= 100:
            out[at] = ord("0") + size // 100
            at += 1
        if size >= 10:
            out[at] = ord("0") + size // 10 % 10
            at += 1
        out[at] = ord("0") + size % 10
        at += 1
    return at
