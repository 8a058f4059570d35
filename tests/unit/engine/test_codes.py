"""Codes: equality, known hashes, and the invariant of bands."""

from __future__ import annotations

import datetime
import math
import sys
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.engine.evaluate.codes import (
    band_codes,
    combine_codes,
    equal_values,
    key_codes,
    xxhash64_long,
    xxhash64_remainders,
)
from anabranch.lang.schema import INTERVAL, TIMESTAMP

LONG = pa.int64()
FLOAT = pa.float64()
WIDE = pa.decimal128(38, 4)
KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): st.text(max_size=40),
    FLOAT: st.floats() | st.sampled_from([0.0, -0.0, math.nan]),
    pa.decimal128(10, 2): st.decimals("-9999.99", "9999.99", places=2),
    WIDE: st.decimals("-1e30", "1e30", places=4),
    LONG: st.integers(-(2**63), 2**63 - 1),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(),
    TIMESTAMP: st.integers(-(2**60), 2**60),
}


@given(st.data())
def test_codes_agree_exactly_where_values_do(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(list(KINDS)))
    values = data.draw(st.lists(KINDS[kind], min_size=2, max_size=8))
    left = pa.array(values, kind)
    right = pa.array([values[0], *reversed(values)], kind)[1:]
    same_codes = key_codes(left, kind) == key_codes(right, kind)
    assert same_codes.tolist() == equal_values(left, right).tolist()


def test_exact_types_are_their_own_code() -> None:
    assert key_codes(pa.array([7, -7], pa.int32()), LONG).tolist() == [7, -7]
    assert key_codes(pa.array([True, False]), pa.bool_()).tolist() == [1, 0]
    assert key_codes(pa.array([datetime.date(1970, 1, 11)]), pa.date32()).tolist() == [10]
    moment = pa.array([5], pa.timestamp("ms", tz="Europe/Rome"))
    assert key_codes(moment, TIMESTAMP).tolist() == [5_000]
    assert len(key_codes(pa.array([None, 4], LONG), LONG)) == 2


def test_codes_do_not_depend_on_encoding_or_slicing() -> None:
    texts = ["x", "", "a longer text than the thirty-two bytes of a stripe", "é", "ab"]
    plain = key_codes(pa.array(texts), pa.string())
    large = pa.array(["before", *texts], pa.large_string())[1:]
    assert key_codes(large, pa.string()).tolist() == plain.tolist()
    decimals = pa.array([Decimal("0"), Decimal("-1.5"), Decimal("1e20")], WIDE)
    assert key_codes(decimals[1:], WIDE).tolist() == key_codes(decimals, WIDE)[1:].tolist()


def test_floats_that_compare_equal_have_one_code() -> None:
    other_nan = np.array([0x7FF8000000000123], dtype=np.uint64).view(np.float64)
    zeros = key_codes(pa.array([0.0, -0.0]), FLOAT)
    assert zeros[0] == zeros[1]
    assert key_codes(pa.array(other_nan), FLOAT)[0] == key_codes(pa.array([math.nan]), FLOAT)[0]


def test_null_equals_nothing() -> None:
    left, right = pa.array([None, 1.0, math.nan, 0.0]), pa.array([None, None, math.nan, -0.0])
    assert equal_values(left, right).tolist() == [False, False, True, True]


def test_the_hash_is_sparks() -> None:
    # Values of SELECT xxhash64(0L), xxhash64(1L), xxhash64(1L, 2L) in Spark 4.3.
    assert xxhash64_long(np.array([0, 1])).tolist() == [-5252525462095825812, -7001672635703045582]
    assert combine_codes([np.array([1]), np.array([2])])[0] != combine_codes([np.array([2]), np.array([1])])[0]


LONGS = st.integers(-(2**63), 2**63 - 1) | st.integers(-1000, 1000)
BOUNDS = (
    st.floats(-(2.0**64), 2.0**64)
    | st.integers(-(2**64), 2**64).map(float)
    | st.integers(-1000, 1000).map(float)
    | st.floats(-50, 50)
)


def _are_neighbours(kind: pa.DataType, left: object, right: object, low: float, high: float) -> bool:
    mine = band_codes(pa.array([left], kind), low, high, is_left=True)
    theirs = band_codes(pa.array([right], kind), low, high, is_left=False)
    return (int(mine[0]) - int(theirs[0])) % 2**64 in (0, 1)


@given(LONGS, BOUNDS, BOUNDS | st.none(), st.floats(0, 1), st.sampled_from([LONG, TIMESTAMP, INTERVAL]))
def test_integers_in_a_band_are_in_the_same_or_the_next_bucket(
    right: int, low: float, other: float | None, part: float, kind: pa.DataType
) -> None:
    low, high = sorted((low, low if other is None else other))
    first, last = math.ceil(low), math.floor(high)
    left = right + min(last, first + round(part * (last - first)))
    left = max(-(2**63), min(left, 2**63 - 1))
    if low <= left - right <= high:
        assert _are_neighbours(kind, left, right, low, high)


FLOATS = st.floats(-1e18, 1e18) | st.integers(-10_000, 10_000).map(lambda number: number / 10) | st.floats()
OFFSETS = st.floats(-(2.0**900), 2.0**900) | st.floats(-1e18, 1e18) | st.sampled_from([0.0, 1e9, -1e9, 1e-300])
WIDTHS = st.floats(0, 1e6) | st.sampled_from([0.0, 0.1, 0.3, 1.0, 5e-324, 1e-300, 1e30, 1e280])
NEAR = st.integers(-4, 4)


@given(FLOATS, OFFSETS, WIDTHS, st.floats(0, 1) | st.sampled_from([0.0, 1.0]), NEAR)
def test_floats_in_a_band_are_in_the_same_or_the_next_bucket(
    right: float, low: float, width: float, part: float, ulps: int
) -> None:
    high = low + width
    left = right + low + part * width
    for _ in range(abs(ulps)):
        left = math.nextafter(left, math.copysign(math.inf, ulps))
    ways = (
        low <= left - right <= high,
        right + low <= left <= right + high,
        left - high <= right <= left - low,
        right + low <= left and left - high <= right,
        abs(left - right - low) <= width and width < 1e290,
    )
    if any(ways) or (math.isnan(left) and math.isnan(right)):
        assert _are_neighbours(FLOAT, left, right, low, high)


@pytest.mark.parametrize("is_left", [True, False])
@pytest.mark.parametrize("start", [0.0, -1.0, 1e9, -1e15, 1.5e11, 1e40])
@pytest.mark.parametrize(
    ("low", "width"),
    [
        (0.0, 0.0),
        (1e9, 0.0),
        (-1e9, 0.0),
        (0.0, 1.0),
        (1e9, 1e-7),
        (-1.0, 2.0),
        (3e-5, 1e-12),
        (1e15, 1e15),
        (-0.1, 0.1),
    ],
)
def test_rounding_moves_no_match_over_the_edge_of_a_bucket(
    low: float, width: float, start: float, is_left: bool
) -> None:
    high = low + width
    for own in _edge_of_a_bucket(low, high, start, is_left):
        for bound in (low, high):
            other = own - bound if is_left else own + bound
            largest = max(abs(own), abs(other), abs(low), abs(high))
            for ulps in range(-6, 7):
                near = other + ulps * math.ulp(largest)
                left, right = (own, near) if is_left else (near, own)
                # Five roundings of the largest number: more than any of the ways to write the band.
                slack = 5 * Fraction(math.ulp(largest)) / 2
                if Fraction(low) - slack <= Fraction(left) - Fraction(right) <= Fraction(high) + slack:
                    assert _are_neighbours(FLOAT, left, right, low, high)


def _edge_of_a_bucket(low: float, high: float, start: float, is_left: bool) -> tuple[float, float]:
    """Two neighbouring doubles, the first of them from `start` on that are in different buckets."""

    def code(value: float) -> int:
        return int(band_codes(pa.array([value], FLOAT), low, high, is_left=is_left)[0])

    step, below = max(math.ulp(start), 1e-160), start
    while code(start + step) == code(start):
        step *= 2
        assert step < 1e300, "all in one bucket"
    above = start + step
    while math.nextafter(below, math.inf) < above:
        middle = below + (above - below) / 2
        below, above = (middle, above) if code(middle) == code(start) else (below, middle)
    return below, above


DECIMALS = [pa.decimal128(*size) for size in ((12, 1), (18, 18), (18, 0), (19, 4), (38, 0), (38, 38), (30, 10))]


@given(st.sampled_from(DECIMALS), st.data())
def test_decimals_in_a_band_are_in_the_same_or_the_next_bucket(kind: pa.DataType, data: st.DataObject) -> None:
    limit = 10**kind.precision - 1
    units = st.integers(-limit, limit) | st.integers(-100, 100) | st.sampled_from([limit, -limit])
    right, first, width = data.draw(units), data.draw(units), data.draw(st.just(0) | units.map(abs))
    left = max(-limit, min(right + first + data.draw(st.integers(0, width)), limit))
    bounds = [Fraction(bound, 10**kind.scale) for bound in (first, first + width)]
    low = math.nextafter(float(bounds[0]), -math.inf) if Fraction(float(bounds[0])) > bounds[0] else float(bounds[0])
    high = math.nextafter(float(bounds[1]), math.inf) if Fraction(float(bounds[1])) < bounds[1] else float(bounds[1])
    if first <= left - right <= first + width:
        one, other = (Decimal(number).scaleb(-kind.scale, Context(prec=50)) for number in (left, right))
        assert _are_neighbours(kind, one, other, low, high)


def test_floats_beyond_the_numbers_share_the_outermost_buckets() -> None:
    values = [math.nan, -math.inf, -sys.float_info.max, math.inf, sys.float_info.max, 0.0]
    codes = band_codes(pa.array(values), 0.0, 1.0, is_left=True)
    assert codes[0] == codes[1] == codes[2] < codes[5] < codes[3] == codes[4]


@pytest.mark.parametrize("scale", [1e-100, 1e-9, 1.0, 1e6, 1e12, 1e18, 1e100])
def test_buckets_tell_floats_apart_whatever_their_size(scale: float) -> None:
    values = pa.array([scale * (1 + number / 1_000_000) for number in range(1000)])
    for low, width in ((0.0, 0.0), (scale, 0.0), (-scale, scale / 1e7)):
        for is_left in (True, False):
            assert len(set(band_codes(values, low, low + width, is_left=is_left).tolist())) > 900


@pytest.mark.parametrize("kind", [LONG, TIMESTAMP, INTERVAL, pa.date32(), pa.decimal128(10, 0)])
def test_buckets_are_exact_for_whole_numbers(kind: pa.DataType) -> None:
    values = pa.array([-11, -10, -1, 0, 9, 10], pa.int32() if kind == pa.date32() else LONG)
    values = values.cast(pa.decimal128(19, 0)).cast(kind) if kind == pa.decimal128(10, 0) else values.cast(kind)
    assert band_codes(values, 0.0, 10.0, is_left=True).tolist() == [-2, -1, -1, 0, 0, 1]
    assert band_codes(values, 1.0, 11.0, is_left=False).tolist() == [-1, -1, 0, 0, 1, 1]
    assert band_codes(values, 0.0, 0.0, is_left=False).tolist() == [-11, -10, -1, 0, 9, 10]
    assert band_codes(values, -(2.0**62), 2.0**62, is_left=False).tolist() == [0] * 6


@given(codes=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20), divisor=st.integers(1, 70))
def test_remainders_are_never_negative_whatever_the_divisor(codes: list[int], divisor: int) -> None:
    rows = np.array(codes, dtype=np.int64)
    assert xxhash64_remainders(rows, divisor).tolist() == [int(each) % divisor for each in xxhash64_long(rows)]
