"""Quotients and remainders of decimals, exact and rounded half away from zero as in Spark.

Unscaled values of up to 38 digits are Python integers in object arrays, because an intermediate value may need 77
digits.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anabranch.engine.evaluate.codes import decimal_words
from anabranch.engine.evaluate.numbers import on_arrays, validity

Whole: TypeAlias = NDArray[np.object_]
"""Unscaled values."""


def divide(left: Any, right: Any, kind: pa.DataType) -> Any:
    """The quotient; NULL where the divisor is zero."""
    return on_arrays(lambda one, other: _divide(one, other, kind))(left, right)


def modulo(left: Any, right: Any, kind: pa.DataType) -> Any:
    """The remainder with the sign of the dividend; NULL where the divisor is zero."""
    return on_arrays(lambda one, other: _modulo(one, other, kind))(left, right)


def quotients(dividend: Whole, divisor: Whole, shift: int) -> Whole:
    """dividend * 10**shift / divisor, rounded half away from zero; no divisor is zero."""
    top, below = np.abs(dividend), np.abs(divisor)
    top, below = (top * 10**shift, below) if shift >= 0 else (top, below * 10**-shift)
    size = (2 * top + below) // (2 * below)
    signed: Whole = np.where((dividend < 0) != (divisor < 0), -size, size)
    return signed


def _divide(left: pa.Array, right: pa.Array, kind: pa.DataType) -> pa.Array:
    one, other = unscaled(left), unscaled(right)
    valid = validity(left, right) & (other != 0)
    shift = kind.scale - left.type.scale + right.type.scale
    return from_unscaled(quotients(one, np.where(valid, other, 1), shift), valid, kind)


def _modulo(left: pa.Array, right: pa.Array, kind: pa.DataType) -> pa.Array:
    one = unscaled(left) * 10 ** (kind.scale - left.type.scale)
    other = unscaled(right) * 10 ** (kind.scale - right.type.scale)
    valid = validity(left, right) & (other != 0)
    rest = np.abs(one) % np.abs(np.where(valid, other, 1))
    return from_unscaled(np.where(one < 0, -rest, rest), valid, kind)


def unscaled(values: pa.Array) -> Whole:
    """The unscaled values, NULL as zero."""
    words = decimal_words(values)
    whole: Whole = (words[:, 1].astype(object) << 64) + words[:, 0].astype(np.uint64).astype(object)
    return np.where(validity(values), whole, 0)


def from_unscaled(whole: Whole, valid: NDArray[np.bool_], kind: pa.DataType) -> pa.Array:
    """Returns decimals of the type; raises ArrowInvalid if a value does not fit."""
    whole = np.where(valid, whole, 0)
    beyond = np.abs(whole) >= 10**kind.precision
    if beyond.any():
        raise pa.ArrowInvalid(f"a quotient does not fit decimal({kind.precision},{kind.scale})")
    words = np.empty((len(whole), 2), dtype=np.int64)
    words[:, 1] = (whole >> 64).astype(np.int64)
    words[:, 0] = (whole & 0xFFFF_FFFF_FFFF_FFFF).astype(np.uint64).view(np.int64)
    bits = None if valid.all() else pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(kind, len(whole), [bits, pa.py_buffer(words)])
