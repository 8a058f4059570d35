"""Columns survive numpy and back, for every fixed-width type, with NULLs, slices and any gather."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.engine.state.columns import numpy_form, to_arrow, to_numpy, validity
from anabranch.lang.schema import INTERVAL, TIMESTAMP, is_fixed_width

FIXED: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint8(): st.integers(0, 255),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.date32(): st.dates(),
    TIMESTAMP: st.datetimes(timezones=st.just(datetime.UTC)),
    pa.timestamp("ms"): st.datetimes().map(lambda moment: moment.replace(microsecond=1000)),
    INTERVAL: st.timedeltas(datetime.timedelta(days=-9999), datetime.timedelta(days=9999)),
    pa.decimal128(5, 2): st.decimals("-999.99", "999.99", places=2),
    pa.decimal128(38, 10): st.decimals("-1e27", "1e27", places=10),
}


@pytest.mark.parametrize("kind", FIXED, ids=str)
@settings(max_examples=20)
@given(data=st.data())
def test_values_come_back(kind: pa.DataType, data: st.DataObject) -> None:
    assert is_fixed_width(kind)
    values = data.draw(st.lists(FIXED[kind] | st.none(), max_size=20))
    array = pa.array([None, *values, None], kind).slice(1, len(values))
    form, width = numpy_form(kind)
    ring = np.empty((len(values), width) if width > 1 else len(values), dtype=form)
    ring[:] = to_numpy(array)
    gathered = np.array(data.draw(st.lists(st.integers(0, len(values) - 1)) if values else st.just([])), dtype=np.int64)
    back = to_arrow(ring.take(gathered, axis=0), validity(array).take(gathered), kind)
    back.validate(full=True)
    assert back.type == kind
    assert back.to_pylist() == [array[int(i)].as_py() for i in gathered]


@given(st.lists(st.booleans() | st.none()))
def test_validity_is_one_byte_a_value(values: list[bool | None]) -> None:
    array = pa.array([True, *values], pa.bool_())[1:]
    assert validity(array).tolist() == [int(value is not None) for value in values]


def test_a_column_of_nulls_alone_has_values_to_carry() -> None:
    for kind in (pa.int64(), pa.decimal128(9, 2), pa.bool_()):
        array = pa.nulls(3, kind)
        assert to_arrow(to_numpy(array), validity(array), kind).to_pylist() == [None] * 3


def test_decimals_take_two_words() -> None:
    array = pa.array([Decimal("-1.25"), Decimal("9e20")], pa.decimal128(30, 2))
    words = [[number % 2**64, number // 2**64 % 2**64] for number in (-125, 9 * 10**22)]
    assert to_numpy(array).view(np.uint64).tolist() == words


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.list_(pa.int64()), pa.null(), pa.decimal256(50, 2)])
def test_other_types_are_not_for_numpy(kind: pa.DataType) -> None:
    assert not is_fixed_width(kind)
