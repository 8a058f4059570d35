"""Arithmetic kernels. Integer, decimal and interval overflow is an error; division by zero and bad domains are NULL."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anabranch.engine.evaluate.compare import Datum
from anabranch.lang.schema import is_integer

EXACT_BELOW = 1e15
"""ROUND leaves larger scaled numbers unchanged: a double has no digits left to round."""


def on_arrays(kernel: Callable[..., pa.Array]) -> Callable[..., Datum]:
    """Makes a kernel over arrays accept constants too."""

    def applied(*values: Datum) -> Datum:
        length = next((len(value) for value in values if isinstance(value, pa.Array)), None)
        rows = 1 if length is None else length
        result = kernel(*[as_array(value, rows) for value in values])
        return result[0] if length is None else result

    return applied


def as_array(value: Datum, length: int) -> pa.Array:
    return value if isinstance(value, pa.Array) else pa.repeat(value, length)


def validity(*values: pa.Array) -> NDArray[np.bool_]:
    """True where no value is NULL."""
    valid = np.ones(len(values[0]), dtype=np.bool_)
    for value in values:
        if value.null_count:
            valid &= value.is_valid().to_numpy(zero_copy_only=False)
    return valid


def numbers(values: pa.Array) -> NDArray[np.generic]:
    """An integer or float array as numpy, NULL as zero."""
    filled = values.fill_null(0) if values.null_count else values
    return np.asarray(filled.to_numpy(zero_copy_only=False))


def from_numbers(values: NDArray[np.generic], valid: NDArray[np.bool_], kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind, mask=None if valid.all() else ~valid)


def divide(left: Datum, right: Datum) -> Datum:
    zero = pc.equal(right, pa.scalar(0.0))
    return pc.if_else(pc.fill_null(zero, False), pa.scalar(None, pa.float64()), pc.divide(left, right))


@on_arrays
def modulo(left: pa.Array, right: pa.Array) -> pa.Array:
    """The remainder with the sign of the dividend."""
    divisors = numbers(right)
    valid = validity(left, right) & (divisors != 0)
    with np.errstate(invalid="ignore"):
        remainders = np.fmod(numbers(left), np.where(divisors == 0, 1, divisors))
    return from_numbers(remainders, valid, left.type)


def floor(value: Datum) -> Datum:
    return pc.add(pc.floor(value), pa.scalar(0.0))  # adding zero turns -0.0 into 0.0, as conversion to integers would


def ceil(value: Datum) -> Datum:
    return pc.add(pc.ceil(value), pa.scalar(0.0))


@on_arrays
def round_half_away(values: pa.Array, digits: pa.Array) -> pa.Array:
    """Rounds the number as it is written, so 2.675 to two digits is 2.68.

    A number of up to 15 digits is written as the shortest decimal that reads back as itself, so it is at or above the
    decimal midpoint exactly when it is at or above the float nearest to that midpoint.
    """
    valid = validity(values, digits)
    if not valid.any():
        return pa.nulls(len(values), values.type)
    places = int(numbers(digits)[int(np.argmax(valid))])
    given = np.asarray(numbers(values), dtype=np.float64)
    scale = 10.0 ** abs(places)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = np.abs(given) * scale if places >= 0 else np.abs(given) / scale
        whole = np.floor(scaled)
        middle = (whole + 0.5) / scale if places >= 0 else (whole + 0.5) * scale
        whole = whole + (np.abs(given) >= middle)
        rounded = np.copysign(whole / scale if places >= 0 else whole * scale, given) + 0.0
    return from_numbers(np.where(scaled < EXACT_BELOW, rounded, given), valid, values.type)


def sqrt(value: Datum) -> Datum:
    return _inside(pc.greater_equal(value, pa.scalar(0.0)), value, pc.sqrt(value))


def ln(value: Datum) -> Datum:
    return _inside(pc.greater(value, pa.scalar(0.0)), value, pc.ln(value))


def _inside(domain: Datum, value: Datum, result: Datum) -> Datum:
    allowed = pc.or_(domain, pc.is_nan(value))
    return pc.if_else(pc.fill_null(allowed, False), result, pa.scalar(None, pa.float64()))


def power(base: Datum, exponent: Datum) -> Datum:
    """Java's rule where C's differs: 1 to the NaN, and 1 or -1 to an infinity, are NaN."""
    unit = pc.equal(pc.abs(base), pa.scalar(1.0))
    undefined = pc.or_(pc.is_nan(exponent), pc.and_(unit, pc.is_inf(exponent)))
    return pc.if_else(undefined, pa.scalar(float("nan")), pc.power(base, exponent))


def absolute(value: Datum) -> Datum:
    return pc.abs_checked(value) if is_integer(value.type) else pc.abs(value)
