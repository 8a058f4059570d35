"""Keys and band positions as int64 codes, which the join kernels look up instead of typed values.

Invariants: equal values of one type have equal codes, whatever the slicing of the array. For types that fit 64 bits the
code is the value itself, so equal codes also mean equal values. Hashed codes are those of Spark SQL's `xxhash64`, so
that both hosts send a key to the same partition group. The band code of a left value minus that of a right value is 0
or 1 (modulo 2**64) whenever the comparisons that form the band hold for the two, rounding included.

Limit: codes of NULL are arbitrary; callers drop NULL keys first. The hash is XXH64 (Y. Collet, the xxHash
specification), seed 42 as in Spark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit
from numpy.typing import NDArray

from anabranch.engine.evaluate.compare import equal
from anabranch.lang.schema import INTERVAL, TIMESTAMP, is_decimal, is_float, is_integer, is_text

Codes = NDArray[np.int64]

_SEED = 42
_EXACT_DIGITS = 18
"""Decimals of up to this many digits fit an int64."""
_WIDEST_BUCKET = 2**62
_OFF = 2.0**-46
"""The error that a comparison of doubles may have, relative to its largest intermediate value: 128 roundings."""
_LEAST_ERROR = 2.0**-500
"""The least error, far above denormal doubles; smaller values share one bucket."""
_SPARE = 1 + 2.0**-7
"""Extra width of every bucket, for the relative shift of the right side."""
_EVEN_BITS = 36
_EVEN_BUCKETS = 2.0**_EVEN_BITS
"""Buckets on each side of zero that have one size; beyond them the size doubles with each power of two."""
_FARTHEST = 2.0**1020
"""Larger values share the outermost buckets: their sums may be infinite. Bounds are below 2**960, negligible here."""


def key_codes(values: pa.Array, kind: pa.DataType) -> Codes:
    """One code per value, read as type `kind`; exact for every type that fits an int64."""
    if is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        return _integers(values, kind)
    if pa.types.is_duration(kind):
        return _integers(values, INTERVAL)
    if is_float(kind):
        floats = _floats(values) + 0.0  # adding zero turns -0.0 into 0.0
        bits = np.where(np.isnan(floats), np.nan, floats).view(np.int64)
        return xxhash64_long(bits)
    if is_decimal(kind):
        words = decimal_words(values if values.type == kind else values.cast(kind))
        if kind.precision <= 18:
            return xxhash64_long(np.ascontiguousarray(words[:, 0]))
        return _hash_decimals(words, np.int64(_SEED))  # type: ignore[no-any-return]
    if is_text(kind):
        offsets, data = text_buffers(values)
        return _hash_texts(offsets, data, np.int64(_SEED))  # type: ignore[no-any-return]
    raise AssertionError(f"no key code for type {kind}")


def equal_values(left: pa.Array, right: pa.Array) -> NDArray[np.bool_]:
    """True where both values are present and equal by Spark's rules (NaN equals NaN, -0.0 equals 0.0)."""
    return np.asarray(pc.fill_null(equal(left, right), False).to_numpy(zero_copy_only=False), dtype=np.bool_)


def xxhash64_long(codes: Codes) -> Codes:
    """Spark SQL's `xxhash64(bigint)` of each code."""
    return combine_codes([codes])


def xxhash64_remainders(codes: Codes, divisor: int) -> Codes:
    """Spark SQL's `pmod(xxhash64(bigint), divisor)` of each code."""
    return _remainders(np.ascontiguousarray(codes, dtype=np.int64), np.int64(divisor))  # type: ignore[no-any-return]


def combine_codes(columns: Sequence[Codes]) -> Codes:
    """One hash per row over several codes: Spark SQL's `xxhash64(bigint, bigint, …)`."""
    hashes = np.full(len(columns[0]), _SEED, dtype=np.int64)
    for column in columns:
        _fold_longs(np.ascontiguousarray(column, dtype=np.int64), hashes)
    return hashes


def band_codes(values: pa.Array, low: float, high: float, *, is_left: bool) -> Codes:
    """Returns the bucket numbers of one side of the band low <= left - right <= high.

    A left value is in the bucket of its match or in the next one. Integers, times and decimals of up to 18 digits have
    exact buckets. Other numbers are treated as doubles, in buckets that exceed the band by more than the rounding
    error.
    """
    kind = values.type
    if is_decimal(kind):
        if kind.precision > _EXACT_DIGITS:
            return _float_buckets(_floats(values), low, high, is_left)
        whole, unit = np.ascontiguousarray(decimal_words(values)[:, 0]), 10**kind.scale
    elif is_float(kind):
        return _float_buckets(_floats(values), low, high, is_left)
    else:
        whole, unit = _integers(values, INTERVAL if pa.types.is_duration(kind) else kind), 1
    # Differences are whole numbers, so the bounds may be rounded inwards.
    return _integer_buckets(whole, math.ceil(Fraction(low) * unit), math.floor(Fraction(high) * unit), is_left)


def _integer_buckets(values: Codes, low: int, high: int, is_left: bool) -> Codes:
    size = max(1, high - low)
    if size > _WIDEST_BUCKET:
        return np.zeros(len(values), dtype=np.int64)  # at most four buckets would be left
    quotients, remainders = np.divmod(values, np.int64(size))
    if is_left:
        return np.asarray(quotients, dtype=np.int64)
    # Adding `low` to a value could overflow. A bucket number may wrap, because both sides wrap alike.
    buckets, rest = divmod(low, size)
    wrapped = np.int64((buckets + 2**63) % 2**64 - 2**63)
    with np.errstate(over="ignore"):
        return np.asarray(quotients + wrapped + (remainders >= np.int64(size - rest)), dtype=np.int64)


def _float_buckets(values: NDArray[np.float64], low: float, high: float, is_left: bool) -> Codes:
    """Returns bucket numbers that allow for rounding, here and in the comparisons that form the band.

    A comparison of left - right in doubles has an error of a few ulps of its largest intermediate value: a bound, or
    one of the values. For bounds, buckets are wider than the band by four errors, and the right side is shifted down by
    one. For values, buckets grow with the distance from zero, and the right side is shifted down by a share of it. NaN
    and the largest values share the outermost buckets.
    """
    error = max(-low, high, _LEAST_ERROR / _OFF) * _OFF
    bucket = (high - low + 4 * error) * _SPARE
    farthest = _FARTHEST * min(1.0, bucket)
    shift, share = (0.0, 0.0) if is_left else (low - error, _OFF)
    return _number_buckets(values, farthest, shift, 1 / bucket, share)  # type: ignore[no-any-return]


@njit(cache=True, nogil=True)
def _number_buckets(values: Any, farthest: float, shift: float, per_unit: float, share: float) -> Any:
    numbers = np.empty(len(values), dtype=np.int64)
    for index in range(len(values)):
        # NaN maps to the least value on both sides.
        value = min(values[index], farthest) if values[index] >= -farthest else -farthest
        place = (value + shift) * per_unit
        place -= abs(place) * share
        distance = abs(place)
        number = np.int64(min(distance, _EVEN_BUCKETS))
        if distance >= _EVEN_BUCKETS:
            fraction, exponent = math.frexp(distance)  # the fraction is at least one half
            number += np.int64((2 * fraction - 1) * _EVEN_BUCKETS) + ((exponent - 1 - _EVEN_BITS) << _EVEN_BITS)
        numbers[index] = ~number if place < 0 else number
    return numbers


def _integers(values: pa.Array, kind: pa.DataType) -> Codes:
    if pa.types.is_timestamp(kind):
        values = values.cast(TIMESTAMP)
    elif pa.types.is_date32(kind):
        values = values.cast(kind).cast(pa.int32())
    elif pa.types.is_duration(kind):
        values = values.cast(INTERVAL)
    whole = values.cast(pa.int64())
    return np.asarray((whole.fill_null(0) if whole.null_count else whole).to_numpy(), dtype=np.int64)


def _floats(values: pa.Array) -> NDArray[np.float64]:
    return np.asarray(pc.fill_null(values.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False), dtype=np.float64)


def text_buffers(values: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Byte offsets (one more than values) and bytes of a string array; the span of a NULL is arbitrary."""
    width = np.dtype(np.int64 if pa.types.is_large_string(values.type) else np.int32)
    _, offsets, data = values.buffers()
    if len(values) == 0 or offsets is None:
        return np.zeros(len(values) + 1, dtype=np.int64), np.zeros(0, dtype=np.uint8)
    picked = np.frombuffer(offsets, dtype=width, count=len(values) + 1, offset=values.offset * width.itemsize)
    content = np.zeros(0, dtype=np.uint8) if data is None else np.frombuffer(data, dtype=np.uint8)
    return picked.astype(np.int64), content


def decimal_words(values: pa.Array) -> NDArray[np.int64]:
    """The 128-bit unscaled values as rows of (low word, high word)."""
    _, data = values.buffers()
    if len(values) == 0 or data is None:
        return np.zeros((len(values), 2), dtype=np.int64)
    flat = np.frombuffer(data, dtype=np.int64, count=2 * len(values), offset=16 * values.offset)
    return flat.reshape(-1, 2)


# --- XXH64 -----------------------------------------------------------------------------------------------------------

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)


@njit(inline="always", cache=True)
def _rotate(value: Any, by: int) -> Any:
    return (value << np.uint64(by)) | (value >> np.uint64(64 - by))


@njit(inline="always", cache=True)
def _finish(value: Any) -> Any:
    value = (value ^ (value >> np.uint64(33))) * _P2
    value = (value ^ (value >> np.uint64(29))) * _P3
    return value ^ (value >> np.uint64(32))


@njit(inline="always", cache=True)
def _round(accumulated: Any, word: Any) -> Any:
    return _rotate(accumulated + word * _P2, 31) * _P1


@njit(inline="always", cache=True)
def _merge(value: Any, accumulated: Any) -> Any:
    return (value ^ _round(np.uint64(0), accumulated)) * _P1 + _P4


@njit(inline="always", cache=True)
def _word(data: Any, at: int, size: int) -> Any:
    word = np.uint64(0)
    for index in range(size):
        word |= np.uint64(data[at + index]) << np.uint64(8 * index)
    return word


@njit(inline="always", cache=True)
def _hash_bytes(data: Any, start: int, end: int, seed: Any) -> Any:
    length = end - start
    at = start
    if length >= 32:
        a = seed + _P1 + _P2
        b = seed + _P2
        c = seed
        d = seed - _P1
        while at + 32 <= end:
            a = _round(a, _word(data, at, 8))
            b = _round(b, _word(data, at + 8, 8))
            c = _round(c, _word(data, at + 16, 8))
            d = _round(d, _word(data, at + 24, 8))
            at += 32
        value = _rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(d, 18)
        value = _merge(_merge(_merge(_merge(value, a), b), c), d)
    else:
        value = seed + _P5
    value += np.uint64(length)
    while at + 8 <= end:
        value = _rotate(value ^ _round(np.uint64(0), _word(data, at, 8)), 27) * _P1 + _P4
        at += 8
    if at + 4 <= end:
        value = _rotate(value ^ (_word(data, at, 4) * _P1), 23) * _P2 + _P3
        at += 4
    while at < end:
        value = _rotate(value ^ (np.uint64(data[at]) * _P5), 11) * _P1
        at += 1
    return _finish(value)


@njit(inline="always", cache=True)
def _hash_long(code: Any, seed: Any) -> Any:
    value = np.uint64(seed) + _P5 + np.uint64(8)
    value = _rotate(value ^ _round(np.uint64(0), np.uint64(code)), 27) * _P1 + _P4
    return np.int64(_finish(value))


@njit(cache=True, nogil=True)
def _fold_longs(codes: Any, hashes: Any) -> None:
    for index in range(len(codes)):
        hashes[index] = _hash_long(codes[index], hashes[index])


@njit(cache=True, nogil=True)
def _remainders(codes: Any, divisor: Any) -> Any:
    remainders = np.empty(len(codes), dtype=np.int64)
    if divisor & (divisor - 1) == 0:  # usually a power of two: division takes longer than hashing
        for index in range(len(codes)):
            remainders[index] = _hash_long(codes[index], np.int64(_SEED)) & (divisor - 1)
    else:
        for index in range(len(codes)):
            remainders[index] = _hash_long(codes[index], np.int64(_SEED)) % divisor
    return remainders


@njit(cache=True, nogil=True)
def _hash_texts(offsets: Any, data: Any, seed: Any) -> Any:
    hashes = np.empty(len(offsets) - 1, dtype=np.int64)
    for index in range(len(hashes)):
        hashes[index] = np.int64(_hash_bytes(data, offsets[index], offsets[index + 1], np.uint64(seed)))
    return hashes


@njit(cache=True, nogil=True)
def _hash_decimals(words: Any, seed: Any) -> Any:
    # Spark hashes wide decimals over the shortest big-endian two's complement form of the unscaled value.
    hashes = np.empty(len(words), dtype=np.int64)
    form = np.empty(16, dtype=np.uint8)
    for index in range(len(hashes)):
        low = np.uint64(words[index, 0])
        high = np.uint64(words[index, 1])
        for position in range(8):
            shift = np.uint64(56 - 8 * position)
            form[position] = (high >> shift) & np.uint64(0xFF)
            form[position + 8] = (low >> shift) & np.uint64(0xFF)
        filler = 0xFF if words[index, 1] < 0 else 0
        start = 0
        while start < 15 and form[start] == filler and (form[start + 1] >= 0x80) == (filler == 0xFF):
            start += 1
        hashes[index] = np.int64(_hash_bytes(form, start, 16, np.uint64(seed)))
    return hashes
