"""Hypothesis strategies for joins by one comparison: bands and equalities over columns of every pair of types.

An index only approximates a predicate. These draws search for rows that an approximation may lose: values at the edge
of a band or next to it, offsets up to the limits of their types, widths from zero to the whole range, keys that are
equal across types. Each draw is a condition over `a.x` and `b.x` with rows for both streams. Every comparison can be
written in several ways, which round differently; all of them are drawn.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.schema import TIMESTAMP, Field, Schema, is_decimal, is_float, is_integer

_CLOCK = pa.timestamp("us")
_DAY = 86_400_000_000
_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
_EPOCH = datetime.date(1970, 1, 1)


@dataclass(frozen=True)
class Comparison:
    """Streams `a` and `b` with a column `x` each, and a condition that compares the two."""

    condition: str
    types: tuple[pa.DataType, pa.DataType]
    values: tuple[tuple[Any, ...], tuple[Any, ...]]

    @property
    def catalog(self) -> Catalog:
        catalog = Catalog()
        for name, kind in zip("ab", self.types, strict=True):
            schema = Schema((Field("ts", TIMESTAMP), Field("x", kind), Field("p", pa.int64())))
            catalog.register(StreamDeclaration(name, schema, "ts", 0))
        return catalog

    @property
    def rows(self) -> dict[str, pa.Table]:
        """All rows at one event time; `p` numbers them."""
        tables = {}
        for name, kind, values in zip("ab", self.types, self.values, strict=True):
            times = pa.array([0] * len(values), pa.int64()).cast(TIMESTAMP)
            numbers = pa.array(range(len(values)), pa.int64())
            tables[name] = pa.table({"ts": times, "x": pa.array(values, kind), "p": numbers})
        return tables

    @property
    def cql(self) -> str:
        return f"SELECT a.p AS p, b.p AS q FROM a [RANGE 9 SECONDS], b [RANGE 9 SECONDS] WHERE {self.condition}"


# --- bands -----------------------------------------------------------------------------------------------------------

_INT8, _INT16, _INT32, _INT64 = pa.int8(), pa.int16(), pa.int32(), pa.int64()
_FLOAT, _DOUBLE = pa.float32(), pa.float64()
_PRICE, _RATE, _COUNT, _LONG, _FINE = (pa.decimal128(*s) for s in ((12, 2), (20, 4), (18, 0), (36, 10), (18, 18)))
_MEASURED: tuple[tuple[pa.DataType, pa.DataType], ...] = (
    *((kind, kind) for kind in (_INT8, _INT32, _INT64, _FLOAT, _DOUBLE, _PRICE, _COUNT, _LONG, _FINE, TIMESTAMP)),
    (_INT32, _INT64),
    (_INT64, _INT16),
    (_FLOAT, _DOUBLE),
    (_INT64, _DOUBLE),
    (_DOUBLE, _INT8),
    (_PRICE, _RATE),
    (_INT64, _PRICE),
    (_PRICE, _DOUBLE),
    (_DOUBLE, _DOUBLE),
    (_DOUBLE, _DOUBLE),
    (_INT64, _INT64),
)
_TWO_BOUNDS = (
    "a.x - b.x BETWEEN {low} AND {high}",
    "a.x BETWEEN b.x + {low} AND b.x + {high}",
    "a.x >= b.x + {low} AND a.x - {high} <= b.x",
    "a.x - {low} >= b.x AND b.x + {high} >= a.x",
    "a.x - {low} >= b.x AND a.x - {high} <= b.x",
    "a.x - b.x >= {low} AND a.x <= b.x + {high}",
    "a.x - b.x <= {high} AND a.x >= b.x + {low}",
    "{low} <= a.x - b.x AND -{high} <= b.x - a.x",
    "a.x - b.x >= {low} AND b.x - a.x >= -{high}",
    "b.x - a.x <= -{low} AND a.x - b.x <= {high}",
    "a.x - b.x > {low} AND a.x - b.x < {high}",
    "a.x + {other} >= b.x + {low} + {other} AND a.x - {high} <= b.x",
    "a.x - b.x + {other} BETWEEN {other} + {low} AND {other} + {high}",
    "{other} + a.x - b.x - {other} >= {low} AND (a.x - {other}) - (b.x - {other}) <= {high}",
)
_DISTANCES = (
    "ABS(a.x - b.x - {middle}) <= {half}",
    "ABS({middle} - (a.x - b.x)) <= {half}",
    "{half} >= ABS(b.x - a.x + {middle})",
    "ABS(a.x - (b.x + {middle})) <= {half}",
    "ABS(a.x - b.x - {middle}) < {half}",
)


@st.composite
def bands(draw: st.DrawFn) -> Comparison:
    """Draws a band of any offset and width that its types support, with rows at its edges and next to them."""
    types = draw(st.sampled_from(_MEASURED))
    widest = max(types, key=_limit)
    low = draw(_amounts(widest))
    width = draw(st.just(Fraction(0)) | st.just(_unit(widest, low)) | _amounts(widest).map(abs))
    spelled = _literals(types)
    written = {"low": low, "high": low + width, "middle": low + width / 2, "half": width / 2}
    written["other"] = draw(_amounts(widest))
    templates = _TWO_BOUNDS if TIMESTAMP in types else _TWO_BOUNDS + _DISTANCES
    texts = {name: spelled(amount) for name, amount in written.items()}
    condition = draw(st.sampled_from(templates)).format(**texts)
    rights = draw(st.lists(_values(types[1], low), min_size=1, max_size=5))
    lefts = draw(st.lists(_values(types[0], low), max_size=2))
    for right in rights:
        if _is_number(right):
            part = draw(st.sampled_from([Fraction(0), Fraction(1), Fraction(1, 2)]))
            place = _exact(right) + low + part * width
            step = draw(st.integers(-3, 3)) * _unit(types[0], place)
            lefts.append(_nearest(types[0], place + step))
    return Comparison(condition, types, (tuple(lefts), tuple(rights)))


def _amounts(kind: pa.DataType) -> st.SearchStrategy[Fraction]:
    """Numbers of any size in the range of a type, some of them round."""
    limit = _limit(kind)
    small = st.integers(-10, 10).map(Fraction)
    if is_float(kind):
        exponents = st.integers(-320 if kind == _DOUBLE else -40, 305 if kind == _DOUBLE else 37)
        rough = st.builds(lambda digit, power: Fraction(digit) * Fraction(10) ** power, st.integers(-9, 9), exponents)
        return small | rough | st.floats(-1e300, 1e300).map(Fraction) | st.floats(-1e12, 1e12).map(Fraction)
    unit = _unit(kind, Fraction(0))
    whole = st.integers(-int(limit / unit), int(limit / unit)).map(lambda number: number * unit)
    powers = st.builds(
        lambda sign, base, power, less: max(-limit, min(sign * (base**power - less * unit), limit)),
        st.sampled_from([-1, 1]),
        st.sampled_from([Fraction(2), Fraction(10)]),
        st.integers(0, 63),
        st.integers(0, 1),
    )
    return small | whole | powers


def _values(kind: pa.DataType, near: Fraction) -> st.SearchStrategy[Any]:
    """Values of a type: any, its limits, and some near an amount."""
    edges: list[Any] = [None, _nearest(kind, Fraction(0)), _nearest(kind, near), _nearest(kind, -near)]
    limit = _limit(kind)
    edges += [_nearest(kind, limit), _nearest(kind, -limit)]
    if is_float(kind):
        edges += [math.nan, math.inf, -math.inf, -0.0]
    return st.sampled_from(edges) | _amounts(kind).map(lambda amount: _nearest(kind, amount))


def _literals(types: Sequence[pa.DataType]) -> Any:
    """Returns a function that writes an amount as a literal for columns of these types."""

    def write(amount: Fraction) -> str:
        if TIMESTAMP in types:
            micros = round(amount)
            return f"(-INTERVAL {-micros} MICROSECONDS)" if micros < 0 else f"INTERVAL {micros} MICROSECONDS"
        if any(map(is_float, types)):
            number = float(amount) if abs(amount) < Fraction(10) ** 308 else math.copysign(1e308, amount)
            text = repr(abs(number))
        elif amount.denominator == 1:
            text = str(abs(amount))
        else:
            text = repr(abs(float(amount)))
        return f"(-{text})" if amount < 0 else text

    return write


# --- values and their neighbours -------------------------------------------------------------------------------------


def _limit(kind: pa.DataType) -> Fraction:
    """The largest value of a type."""
    if is_integer(kind):
        return Fraction(2 ** (kind.bit_width - 1) - 1)
    if is_decimal(kind):
        return Fraction(10**kind.precision - 1, 10**kind.scale)
    if is_float(kind):
        return Fraction(float(np.finfo(np.float32 if kind == _FLOAT else np.float64).max))
    return Fraction(_LAST)


def _unit(kind: pa.DataType, at: Fraction) -> Fraction:
    """The distance of a value of the type to the next one."""
    if is_decimal(kind):
        return Fraction(1, 10**kind.scale)
    if kind == _FLOAT:
        return Fraction(float(np.spacing(np.float32(min(abs(at), Fraction(10) ** 38)))))
    if is_float(kind):
        return Fraction(math.ulp(float(min(abs(at), Fraction(10) ** 308))))
    return Fraction(1)


def _nearest(kind: pa.DataType, amount: Fraction) -> Any:
    """Returns the value of the type nearest to a number; the largest or smallest for a number out of range."""
    amount = max(-_limit(kind), min(amount, _limit(kind)))
    if is_decimal(kind):
        units = round(amount * 10**kind.scale)
        return Decimal(units).scaleb(-kind.scale, Context(prec=60, rounding=ROUND_HALF_EVEN))
    if kind == _FLOAT:
        return float(np.float32(float(amount)))
    if is_float(kind):
        return float(amount)
    if pa.types.is_timestamp(kind):
        return max(_FIRST, round(amount))
    if pa.types.is_date32(kind):
        days = round(amount) // _DAY
        return _EPOCH + datetime.timedelta(days=max(_FIRST // _DAY, min(days, _LAST // _DAY)))
    return round(amount)


def _is_number(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))


def _exact(value: Any) -> Fraction:
    if isinstance(value, datetime.date):
        return Fraction((value - _EPOCH).days * _DAY)
    return Fraction(value)


# --- keys ------------------------------------------------------------------------------------------------------------

_NUMBERS = (_INT8, _INT16, _INT32, _INT64, _FLOAT, _DOUBLE, _PRICE, pa.decimal128(16, 4), _COUNT, pa.decimal128(30, 2))
_TIMES = (pa.date32(), TIMESTAMP, _CLOCK)
_COMPARABLE: tuple[tuple[pa.DataType, pa.DataType], ...] = (
    *((one, other) for one in _NUMBERS for other in _NUMBERS),
    *((one, other) for one in _TIMES for other in _TIMES),
    (pa.string(), pa.string()),
    (pa.bool_(), pa.bool_()),
    (_LONG, _LONG),
    (_FINE, _FINE),
)
_TEXTS = ("", "a", "a ", "A", "ab", "\u00e9", "e\u0301", "a" * 31, "a" * 32, "a" * 33, "\x00", None)


@st.composite
def keys(draw: st.DrawFn) -> Comparison:
    """Draws an equality of two columns of comparable types, with values that are equal across them, or nearly."""
    types = draw(st.sampled_from(_COMPARABLE))
    if types[0] in (pa.string(), pa.bool_()):
        several = st.sampled_from(_TEXTS if types[0] == pa.string() else (True, False, None))
        values = [draw(st.lists(several, min_size=1, max_size=6)) for _ in types]
    else:
        widest = TIMESTAMP if types[0] in _TIMES else min(types, key=_limit)
        lefts = draw(st.lists(_values(types[0], draw(_amounts(widest))), min_size=1, max_size=5))
        rights = draw(st.lists(_values(types[1], draw(_amounts(widest))), max_size=2))
        for left in filter(_is_number, lefts):
            step = draw(st.sampled_from([0, 0, 0, 1, -1])) * _unit(types[1], _exact(left))
            rights.append(_nearest(types[1], _exact(left) + step))
        values = [lefts, rights]
    condition = draw(st.sampled_from(["a.x = b.x", "b.x = a.x"]))
    return Comparison(condition, types, (tuple(values[0]), tuple(values[1])))
