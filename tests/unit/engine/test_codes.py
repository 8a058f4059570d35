"""Codes: equality, known hashes, and the law of bands."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
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
from anabranch.schema import INTERVAL, TIMESTAMP

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


@given(st.integers(-(2**62), 2**62), st.integers(-(2**40), 2**40), st.integers(0, 2**40), st.floats(0, 1))
def test_integers_in_a_band_are_in_the_same_or_the_next_bucket(right: int, low: int, width: int, part: float) -> None:
    left = right + low + round(part * width)
    mine = band_codes(pa.array([left], LONG), 0.0, float(width))
    theirs = band_codes(pa.array([right], LONG), float(low), float(width))
    assert int(mine[0]) - int(theirs[0]) in (0, 1)


@given(st.integers(-1000, 1000), st.integers(-1000, 1000), st.floats(-50, 50), st.floats(0, 50))
def test_fractional_bounds_hold_for_integers(left: int, right: int, low: float, width: float) -> None:
    high = low + width
    mine = band_codes(pa.array([left], INTERVAL), 0.0, high - low)
    theirs = band_codes(pa.array([right], INTERVAL), low, high - low)
    if low <= left - right <= high:
        assert int(mine[0]) - int(theirs[0]) in (0, 1)


FLOATS = st.floats(-1e18, 1e18) | st.integers(-10_000, 10_000).map(lambda number: number / 10)


@given(FLOATS, FLOATS, st.floats(0, 1e6) | st.sampled_from([0.0, 0.1, 0.3, 1.0]), st.floats(0, 1))
def test_floats_in_a_band_are_in_the_same_or_the_next_bucket(
    right: float, low: float, width: float, part: float
) -> None:
    high = low + width
    left = right + low + part * width
    mine = band_codes(pa.array([left]), 0.0, high - low)
    theirs = band_codes(pa.array([right]), low, high - low)
    in_band = 0 <= left - (right + low) <= high - low or low <= left - right <= high
    if in_band:
        assert int(mine[0]) - int(theirs[0]) in (0, 1)


@given(st.integers(-(10**6), 10**6), st.integers(-100, 100), st.integers(0, 100), st.floats(0, 1))
def test_decimals_in_a_band_are_in_the_same_or_the_next_bucket(right: int, low: int, width: int, part: float) -> None:
    kind = pa.decimal128(12, 1)
    left = right + low + round(part * width)
    mine = band_codes(pa.array([Decimal(left).scaleb(-1)], kind), 0.0, (low + width) / 10 - low / 10)
    theirs = band_codes(pa.array([Decimal(right).scaleb(-1)], kind), low / 10, (low + width) / 10 - low / 10)
    assert int(mine[0]) - int(theirs[0]) in (0, 1)


def test_floats_outside_the_numbers_stay_at_the_edge() -> None:
    codes = band_codes(pa.array([math.nan, math.inf, -math.inf, 1e300]), 0.0, 1.0)
    assert codes.tolist() == [2**48, 2**48, -(2**48), 2**48]


@pytest.mark.parametrize("kind", [LONG, TIMESTAMP, INTERVAL, pa.date32()])
def test_buckets_are_exact_for_whole_numbers(kind: pa.DataType) -> None:
    values = pa.array([-11, -10, -1, 0, 9, 10], pa.int32() if kind == pa.date32() else LONG).cast(kind)
    assert band_codes(values, 0.0, 10.0).tolist() == [-2, -1, -1, 0, 0, 1]
    assert band_codes(values, 1.0, 10.0).tolist() == [-1, -1, 0, 0, 1, 1]
    assert band_codes(values, 0.0, 0.0).tolist() == [-11, -10, -1, 0, 9, 10]


@given(codes=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20), divisor=st.integers(1, 70))
def test_remainders_are_never_negative_whatever_the_divisor(codes: list[int], divisor: int) -> None:
    rows = np.array(codes, dtype=np.int64)
    assert xxhash64_remainders(rows, divisor).tolist() == [int(each) % divisor for each in xxhash64_long(rows)]
