"""Comparisons by Spark's rules: NaN equals NaN and is larger than every number, -0.0 equals 0.0, NULL gives NULL."""

from __future__ import annotations

from functools import reduce
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.lang.schema import is_float

Datum: TypeAlias = pa.Array | pa.Scalar
"""A column, or one value for all rows."""


def equal(left: Datum, right: Datum) -> Datum:
    same = pc.equal(left, right)
    return pc.or_(same, pc.and_(pc.is_nan(left), pc.is_nan(right))) if is_float(left.type) else same


def not_equal(left: Datum, right: Datum) -> Datum:
    return pc.invert(equal(left, right))


def less(left: Datum, right: Datum) -> Datum:
    below = pc.less(left, right)
    if is_float(left.type):
        return pc.or_(below, pc.and_(pc.invert(pc.is_nan(left)), pc.is_nan(right)))
    return below


def less_equal(left: Datum, right: Datum) -> Datum:
    return pc.invert(less(right, left))


def greater(left: Datum, right: Datum) -> Datum:
    return less(right, left)


def greater_equal(left: Datum, right: Datum) -> Datum:
    return pc.invert(less(left, right))


def is_not_null(value: Datum) -> Datum:
    """True where a value is present; for a column without NULL, one value for all rows."""
    has_null = isinstance(value, pa.Scalar) or value.null_count
    return pc.is_valid(value) if has_null else pa.scalar(True)


def is_in(value: Datum, *options: pa.Scalar) -> Datum:
    """SQL's IN: a miss against a list that holds NULL is NULL, and so is a NULL value."""
    present = [option for option in options if option.is_valid]
    known = pa.array(present, value.type)
    if is_float(value.type):
        value, known = pc.add(value, pa.scalar(0.0, value.type)), pc.add(known, pa.scalar(0.0, value.type))
    found = pc.is_in(value, value_set=known)
    decided = pc.is_valid(value) if len(present) == len(options) else found
    return pc.if_else(decided, found, pa.scalar(None, pa.bool_()))


def greatest(*values: Datum) -> Datum:
    """The largest value; ignores NULL."""
    kind = values[0].type
    largest = _extreme("max_element_wise", values)
    if not is_float(kind):
        return largest
    any_nan = reduce(pc.or_, [pc.fill_null(pc.is_nan(value), False) for value in values])
    return pc.if_else(any_nan, pa.scalar(float("nan"), kind), largest)


def least(*values: Datum) -> Datum:
    """The smallest value; ignores NULL. Arrow prefers numbers to NaN, which is right here."""
    return _extreme("min_element_wise", values)


def _extreme(function: str, values: tuple[Datum, ...]) -> Datum:
    kind = values[0].type
    carrier = pa.int64() if pa.types.is_timestamp(kind) else pa.int8() if pa.types.is_boolean(kind) else kind
    carried = [value if carrier == kind else value.cast(carrier) for value in values]
    return pc.call_function(function, carried, pc.ElementWiseAggregateOptions(skip_nulls=True)).cast(kind)
