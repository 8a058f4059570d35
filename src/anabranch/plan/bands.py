"""Recognises band predicates: conjunctions that bound the difference of two expressions on both sides.

    ABS(x - y) <= c        x BETWEEN y - c AND y + d        x >= y - c AND x <= y + d

Each comparison is read as a sum of terms and constants. If one term of one relation and one term of another remain,
with opposite signs, the comparison bounds their difference. The bounds of one pair are intersected over all predicates,
and the first of these predicates carries the band.

Invariant: every pair of rows that passes the predicates lies within the band. The predicates are still checked, so a
band may be too wide but never too narrow: its bounds are closed and rounded outwards. Three cases need care:

- *Rounding.* A comparison of doubles is off by a few ulps of the largest intermediate value. If that value is a bound
  or a column value, `engine.evaluate.codes.band_codes` allows for it. If it is a constant that others cancel, the
  bounds are widened here.
- *NaN* is greater than every number, so `x - y >= c` is true for it. A pair of doubles is a band only if some predicate
  is false when only x is NaN, and some predicate is false when only y is NaN.
- *Failure.* Buckets are computed before any predicate. A term that can fail, and that an earlier predicate may guard,
  is not used.

Limit: bounds beyond 2**960 and sums of more than 16 constants are not bands.
"""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import pyarrow as pa

from anabranch.functions import coerce, common_type, kind_of, without_widening
from anabranch.lang.expr import Call, Cast, Expr, Literal, relations
from anabranch.plan.join_graph import Band, Theta
from anabranch.plan.selections import guarded_by

_MEASURABLE = frozenset({"integer", "float", "decimal", "timestamp"})
_MIRRORED = {"less": "greater", "less_equal": "greater_equal", "greater": "less", "greater_equal": "less_equal"}
_EXACT_IN_DOUBLE = 2**53
_ROUNDING = Fraction(1, 2**49)
"""Sixteen roundings to the nearest double."""
_MOST_CONSTANTS = 16
_WIDEST = Fraction(2**960)
"""A sum with a larger constant may be infinite for values that are not among the largest doubles."""


@dataclass(frozen=True)
class Bounds:
    """low <= left - right <= high; None for a side without a bound."""

    left: Expr
    right: Expr
    low: Fraction | None
    high: Fraction | None
    without_nan: frozenset[Expr]
    """Terms that, where the predicates hold, are not NaN unless the other term is."""

    def mirrored(self) -> Bounds:
        low, high = (None if self.high is None else -self.high), (None if self.low is None else -self.low)
        return Bounds(self.right, self.left, low, high, self.without_nan)

    def within(self, other: Bounds) -> Bounds:
        lows = [bound for bound in (self.low, other.low) if bound is not None]
        highs = [bound for bound in (self.high, other.high) if bound is not None]
        known = self.without_nan | other.without_nan
        return replace(self, low=max(lows, default=None), high=min(highs, default=None), without_nan=known)


@dataclass(frozen=True)
class _Sum:
    """Terms added, terms subtracted, and constants."""

    added: tuple[Expr, ...]
    subtracted: tuple[Expr, ...]
    constants: tuple[Fraction, ...] = ()

    @property
    def terms(self) -> frozenset[Expr]:
        return frozenset((*self.added, *self.subtracted))

    @property
    def constant(self) -> Fraction:
        return sum(self.constants, Fraction(0))

    def minus(self, other: _Sum) -> _Sum:
        return self.plus(_Sum(other.subtracted, other.added, tuple(-constant for constant in other.constants)))

    def plus(self, other: _Sum) -> _Sum:
        added, subtracted = self.added + other.added, self.subtracted + other.subtracted
        return _Sum(added, subtracted, self.constants + other.constants)


def thetas_with_bands(predicates: Sequence[Expr]) -> tuple[Theta, ...]:
    """Returns the predicates as thetas, in order; the first of each bounded pair carries its band."""
    found: dict[tuple[Expr, Expr], tuple[int, Bounds]] = {}
    for position, predicate in enumerate(predicates):
        bound = bounds(predicate)
        if bound is None:
            continue
        if (bound.right, bound.left) in found:
            bound = bound.mirrored()
        pair = bound.left, bound.right
        first, known = found.get(pair, (position, bound))
        found[pair] = first, known.within(bound)
    bands = {
        first: band
        for first, bound in found.values()
        if (band := _band(bound)) is not None and not _may_be_guarded(bound, predicates[:first])
    }
    return tuple(
        Theta(predicate, relations(predicate), bands.get(position)) for position, predicate in enumerate(predicates)
    )


def _may_be_guarded(bound: Bounds, before: Sequence[Expr]) -> bool:
    """True if an earlier predicate may keep a term from failing: buckets are computed before any predicate."""
    terms = without_widening(bound.left), without_widening(bound.right)
    return any(guarded_by(predicate, terms) is not None for predicate in before)


def _band(bound: Bounds) -> Band | None:
    if bound.low is None or bound.high is None or bound.low > bound.high:
        return None
    if max(-bound.low, bound.high, bound.high - bound.low) > _WIDEST:
        return None
    if kind_of(bound.left.type) == "float" and not {bound.left, bound.right} <= bound.without_nan:
        return None
    (left,), (right,) = relations(bound.left), relations(bound.right)
    low, high = float(bound.low), float(bound.high)
    low = math.nextafter(low, -math.inf) if Fraction(low) > bound.low else low
    high = math.nextafter(high, math.inf) if Fraction(high) < bound.high else high
    return Band(left, bound.left, right, bound.right, low, high)


def bounds(predicate: Expr) -> Bounds | None:
    """Returns the bounds that a comparison sets on the difference of two terms; None if it sets none."""
    if not isinstance(predicate, Call) or predicate.function not in _MIRRORED:
        return None
    function, (left, right) = predicate.function, predicate.arguments
    distance = _absolute(left), _absolute(right)
    if distance[1] is not None:
        function, left, right, distance = _MIRRORED[function], right, left, (distance[1], distance[0])
    is_rounded = kind_of(left.type) == "float"
    is_less = function in {"less", "less_equal"}
    if distance[0] is None:
        one, other = _sum(left), _sum(right)
        total = one.minus(other)
        slack = _slack(total.constants) if is_rounded else Fraction(0)
        return _pair(total, function, None, slack, (one if is_less else other).terms)
    limit = _sum(right)
    if limit.terms or not is_less:
        return None
    total = _sum(distance[0])
    slack = _slack(total.constants + limit.constants) if is_rounded else Fraction(0)
    return _pair(total, function, limit.constant, slack, total.terms)


def _slack(constants: tuple[Fraction, ...]) -> Fraction:
    """Returns the rounding error of a sum of doubles due to its constants, beyond a few ulps of its bounds and values.

    A single constant is the bound. Several constants may cancel, so the bound does not show their size. A difference of
    integers is exact until it is cast to double; this matters for bounds beyond 2**53.
    """
    largest = sum(map(abs, constants), Fraction(0))
    if len(constants) < 2 and largest < _EXACT_IN_DOUBLE:
        return Fraction(0)
    return largest * len(constants) * _ROUNDING


def _pair(
    total: _Sum, function: str, distance: Fraction | None, slack: Fraction, without_nan: frozenset[Expr]
) -> Bounds | None:
    """Returns the bounds that `total function 0` or `|total| function distance` sets on the two terms' difference."""
    if len(total.added) != 1 or len(total.subtracted) != 1 or len(total.constants) > _MOST_CONSTANTS:
        return None
    left, right = total.added[0], total.subtracted[0]
    one, other = relations(left), relations(right)
    if len(one) != 1 or len(other) != 1 or one == other:
        return None
    kinds = {kind_of(left.type), kind_of(right.type)}
    if not kinds <= _MEASURABLE or (len(kinds) > 1 and "timestamp" in kinds):
        return None
    # Both sides use the same buckets, so they must have the same type.
    type_ = common_type(left.type, right.type)
    known = frozenset(coerce(term, type_) for term in without_nan)
    left, right = coerce(left, type_), coerce(right, type_)
    if distance is not None:
        return Bounds(left, right, -distance - total.constant - slack, distance - total.constant + slack, known)
    if function in {"less", "less_equal"}:
        return Bounds(left, right, None, slack - total.constant, known)
    return Bounds(left, right, -total.constant - slack, None, known)


def _absolute(expr: Expr) -> Expr | None:
    expr = _uncast(expr)
    return expr.arguments[0] if isinstance(expr, Call) and expr.function == "abs" else None


def _sum(expr: Expr) -> _Sum:
    expr = _uncast(expr)
    match expr:
        case Literal():
            constant = _constant(expr)
            if constant is not None:
                return _Sum((), (), (constant,) if constant else ())
        case Call(function="add", arguments=(left, right)):
            return _sum(left).plus(_sum(right))
        case Call(function="subtract", arguments=(left, right)):
            return _sum(left).minus(_sum(right))
        case Call(function="negate", arguments=(argument,)):
            return _Sum((), ()).minus(_sum(argument))
    return _Sum((expr,), ())


def _uncast(expr: Expr) -> Expr:
    """Strips widening casts, and the cast to double of an integer computation.

    Rounding to a double preserves order, so a bound on the double of a sum of integers also bounds the sum. `_slack`
    covers bounds that other sums are rounded to.
    """
    expr = without_widening(expr)
    match expr:
        case Cast(argument=Call(function="add" | "subtract" | "negate" | "abs") as inner):
            if kind_of(inner.type) == "integer" and pa.types.is_float64(expr.type):
                return inner
    return expr


def _constant(literal: Literal) -> Fraction | None:
    match literal.value:
        case bool() | None:
            return None
        case int() | float() | decimal.Decimal():
            return Fraction(literal.value)
        case datetime.timedelta():
            return Fraction(literal.value // datetime.timedelta(microseconds=1))
        case _:
            return None
