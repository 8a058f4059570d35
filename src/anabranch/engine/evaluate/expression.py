"""Evaluates expressions over Arrow columns: one kernel per function of the language, whole columns at a time.

Invariant: the engine, Spark SQL and the naive interpreter of `testing.interpreter` agree on the value of every
expression. Expressions arrive typed and coerced, so this module has no type rules. Constants remain scalars until the
end. A part that can fail is evaluated only on rows that need it: `CASE WHEN k < 10 THEN k * k END` cannot overflow on
other rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anabranch.engine.evaluate import compare, decimals, nested, patterns, text, times
from anabranch.engine.evaluate import numbers as arithmetic
from anabranch.engine.evaluate.casts import cast
from anabranch.engine.evaluate.compare import Datum
from anabranch.engine.evaluate.numbers import as_array, on_arrays
from anabranch.engine.evaluate.own import call_own
from anabranch.errors import ExpressionError, FunctionError
from anabranch.lang.expr import (
    Call,
    Cast,
    Column,
    Expr,
    Literal,
    OwnFunction,
    can_fail,
    compares_exactly,
    conjuncts,
    relations,
)
from anabranch.lang.schema import is_counted, is_decimal, is_integer
from anabranch.plan.cost_rank import is_costly

ColumnLookup: TypeAlias = Callable[[Column], pa.Array]
Mask: TypeAlias = NDArray[np.bool_]


def evaluate(expr: Expr, columns: ColumnLookup, length: int) -> pa.Array:
    """Evaluates the expression for each of `length` rows; the array has exactly the expression's type."""
    if length == 0:
        # Without rows, not even a constant may fail.
        return pa.nulls(0, expr.type)
    return as_array(_value(expr, columns, length), length)


def evaluate_mask(expr: Expr, columns: ColumnLookup, length: int) -> Mask:
    """True for the rows where the predicate is true; NULL is not true.

    Evaluates each part of a conjunction only on rows that pass the parts before it, as Spark's filters do. So an
    earlier part guards the later ones when it is NULL as well as when it is false.
    """
    mask: Mask = np.ones(length, dtype=np.bool_)
    for part in conjuncts(expr):
        left = int(np.count_nonzero(mask))
        # Gathering the remaining rows costs as much as a few ordinary checks.
        if can_fail(part) or not left or (2 * left < length and is_costly(part)):
            mask &= _true(_on_rows(part, columns, mask))
        else:
            value = _value(part, columns, length)
            mask &= np.bool_(value.as_py() is True) if isinstance(value, pa.Scalar) else _true(value)
    return mask


def _value(expr: Expr, columns: ColumnLookup, length: int) -> Datum:
    try:
        match expr:
            case Column():
                return _retyped(columns(expr), expr.type)
            case Literal():
                return pa.scalar(expr.value, expr.type)
            case Cast():
                return on_arrays(lambda values: cast(values, expr.type))(_value(expr.argument, columns, length))
            case Call(function="and"):
                return _connect(expr, columns, length, pc.and_kleene, settled=False)
            case Call(function="or"):
                return _connect(expr, columns, length, pc.or_kleene, settled=True)
            case Call(function="case"):
                return _case(expr, columns, length)
            case Call(function="coalesce"):
                return _coalesce(expr, columns, length)
            case Call(own=own) if own is not None:
                return _own(expr, own, columns, length)
            case Call(function="divide" | "modulo") if is_decimal(expr.type):
                return _decimal_quotient(expr, columns, length)
            case Call() if compares_exactly(expr):
                return _comparison(expr, columns, length)
            case Call():
                return _retyped(KERNELS[expr.function](*_arguments(expr, columns, length)), expr.type)
    except pa.ArrowInvalid as error:
        raise ExpressionError(
            f"expression '{expr}' failed on a row",
            detail=str(error),
            hint="filter such rows out before, or cast to a wider type",
        ) from error


def _arguments(expr: Call, columns: ColumnLookup, length: int) -> list[Datum]:
    """Evaluates the arguments; one that can fail is evaluated only where the arguments before it are not NULL.

    As in Spark, a divisor is evaluated before the dividend, which is evaluated only where the divisor is not zero.
    """
    first, *others = expr.arguments
    if expr.function in ("divide", "modulo") and can_fail(first):
        divisor = _value(others[0], columns, length)
        return [
            _on_rows(first, columns, _true(as_array(pc.not_equal(divisor, pa.scalar(0, divisor.type)), length))),
            divisor,
        ]
    values = [_value(first, columns, length)]
    for argument in others:
        sees_nulls = expr.own is not None and not expr.own.skips_nulls
        if expr.function in _LENIENT or sees_nulls or not can_fail(argument):
            values.append(_value(argument, columns, length))
        else:
            needed = np.ones(length, dtype=np.bool_)
            for value in values:
                needed &= as_array(value, length).is_valid().to_numpy(zero_copy_only=False)
            values.append(_on_rows(argument, columns, needed))
    return values


def _comparison(expr: Call, columns: ColumnLookup, length: int) -> Datum:
    """Compares integers without overflow; takes longer only where a value overflows."""
    try:
        values = _arguments(expr, columns, length)
    except ExpressionError:
        values = [_unlimited(argument, columns, length) for argument in expr.arguments]
    return KERNELS[expr.function](*values)


def _unlimited(expr: Expr, columns: ColumnLookup, length: int) -> Datum:
    """Evaluates integer sums as 256-bit decimals, and converts these to double where needed."""
    match expr:
        case Call(function="add" | "subtract" | "negate" | "abs"):
            values = [_unlimited(each, columns, length) for each in expr.arguments]
            return getattr(pc, expr.function)(*values) if is_counted(expr.type) else KERNELS[expr.function](*values)
        case Cast() if is_integer(expr.argument.type) and is_integer(expr.type):
            return _unlimited(expr.argument, columns, length)
        case Cast() if is_integer(expr.argument.type):
            whole = _unlimited(expr.argument, columns, length)
            least, most = (pa.scalar(limit, pa.decimal256(19)) for limit in (-(2**63), 2**63 - 1))
            fits = pc.and_(pc.greater_equal(whole, least), pc.less_equal(whole, most))
            short = pc.if_else(fits, whole, pa.scalar(None, whole.type)).cast(pa.int64())
            return pc.if_else(fits, cast(short, expr.type), whole.cast(expr.type))
    value = _value(expr, columns, length)
    return value.cast(pa.int64()).cast(pa.decimal256(19)) if is_counted(expr.type) else value


def _decimal_quotient(expr: Call, columns: ColumnLookup, length: int) -> Datum:
    left, right = _arguments(expr, columns, length)
    kernel = decimals.divide if expr.function == "divide" else decimals.modulo
    return kernel(left, right, expr.type)


def _own(expr: Call, own: OwnFunction, columns: ColumnLookup, length: int) -> Datum:
    values = [as_array(value, length) for value in _arguments(expr, columns, length)]
    try:
        return call_own(own, values, length)
    except FunctionError as error:
        error.relations = tuple(sorted(relations(expr)))
        raise


def _retyped(value: Datum, kind: pa.DataType) -> Datum:
    return value if value.type == kind else value.cast(kind)


def _true(values: pa.Array) -> Mask:
    filled = values.fill_null(False) if values.null_count else values
    return np.asarray(filled.to_numpy(zero_copy_only=False), dtype=np.bool_)


# --- functions that skip rows ----------------------------------------------------------------------------------------


def _connect(expr: Call, columns: ColumnLookup, length: int, connective: Callable[..., Datum], settled: bool) -> Datum:
    result = _value(expr.arguments[0], columns, length)
    for argument in expr.arguments[1:]:
        if can_fail(argument):
            decided = _true(as_array(pc.equal(result, pa.scalar(settled)), length))
            following = _on_rows(argument, columns, ~decided)
        else:
            following = _value(argument, columns, length)
        result = connective(result, following)
    return result


def _case(expr: Call, columns: ColumnLookup, length: int) -> Datum:
    open_rows = np.ones(length, dtype=np.bool_)
    conditions: list[pa.Array] = []
    values: list[pa.Array] = []
    *branches, otherwise = expr.arguments
    for condition, value in zip(branches[::2], branches[1::2], strict=True):
        chosen = _true(_on_rows(condition, columns, open_rows)) & open_rows
        conditions.append(pa.array(chosen))
        values.append(_on_rows(value, columns, chosen))
        open_rows &= ~chosen
    names = [str(index) for index in range(len(conditions))]
    picked = pa.StructArray.from_arrays(conditions, names)
    return pc.case_when(picked, *values, _on_rows(otherwise, columns, open_rows))


def _coalesce(expr: Call, columns: ColumnLookup, length: int) -> Datum:
    open_rows = np.ones(length, dtype=np.bool_)
    values: list[pa.Array] = []
    for argument in expr.arguments:
        values.append(_on_rows(argument, columns, open_rows))
        open_rows &= values[-1].is_null().to_numpy(zero_copy_only=False)
    return pc.coalesce(*values)


def _on_rows(expr: Expr, columns: ColumnLookup, rows: Mask) -> pa.Array:
    """Evaluates the expression where `rows` is true; other rows hold NULL or arbitrary values."""
    if not rows.any():
        return pa.nulls(len(rows), expr.type)
    if not can_fail(expr) or rows.all():
        return evaluate(expr, columns, len(rows))
    chosen = pa.array(rows)
    values = evaluate(expr, lambda column: columns(column).filter(chosen), int(rows.sum()))
    return values.take(pa.array(np.cumsum(rows) - 1, pa.int64(), mask=~rows))


# --- the table -------------------------------------------------------------------------------------------------------


def _field(kernel: Callable[[Datum], Datum]) -> Callable[[Datum], Datum]:
    return lambda value: kernel(times.moment(value))


def _on_numbers(kernel: Callable[..., Datum]) -> Callable[..., Datum]:
    """Applies the kernel to times as int64: Arrow's kernels for times and intervals also read the values under NULL."""

    def applied(*values: Datum) -> Datum:
        kinds = [value.type for value in values]
        timed = [pa.types.is_timestamp(kind) or pa.types.is_duration(kind) for kind in kinds]
        return kernel(
            *[value.cast(pa.int64()) if is_time else value for value, is_time in zip(values, timed, strict=True)]
        )

    return applied


_LENIENT = frozenset({"greatest", "least"})
"""Functions that can return a value although one argument is NULL."""

KERNELS: dict[str, Callable[..., Any]] = {
    "add": _on_numbers(pc.add_checked),
    "subtract": _on_numbers(pc.subtract_checked),
    "multiply": _on_numbers(pc.multiply_checked),
    "divide": arithmetic.divide,
    "modulo": arithmetic.modulo,
    "negate": _on_numbers(pc.negate_checked),
    "abs": arithmetic.absolute,
    "equal": compare.equal,
    "not_equal": compare.not_equal,
    "less": compare.less,
    "less_equal": compare.less_equal,
    "greater": compare.greater,
    "greater_equal": compare.greater_equal,
    "not": pc.invert,
    "is_null": pc.is_null,
    "is_not_null": compare.is_not_null,
    "in": compare.is_in,
    "like": text.like,
    "floor": arithmetic.floor,
    "ceil": arithmetic.ceil,
    "round": arithmetic.round_half_away,
    "sqrt": arithmetic.sqrt,
    "exp": pc.exp,
    "ln": arithmetic.ln,
    "power": arithmetic.power,
    "greatest": compare.greatest,
    "least": compare.least,
    "lower": text.lower,
    "upper": text.upper,
    "trim": text.trim,
    "ltrim": text.ltrim,
    "rtrim": text.rtrim,
    "length": pc.utf8_length,
    "substring": text.substring,
    "concat": text.concat,
    "starts_with": text.starts_with,
    "ends_with": text.ends_with,
    "contains": text.contains,
    "replace": text.replace,
    "year": _field(pc.year),
    "month": _field(pc.month),
    "day": _field(pc.day),
    "hour": _field(pc.hour),
    "minute": _field(pc.minute),
    "second": _field(pc.second),
    "quarter": _field(pc.quarter),
    "dayofweek": times.day_of_week,
    "dayofyear": _field(pc.day_of_year),
    "weekofyear": _field(pc.iso_week),
    "date_trunc": times.date_trunc,
    "rlike": patterns.rlike,
    "regexp_extract": patterns.regexp_extract,
    "regexp_replace": patterns.regexp_replace,
    "field": nested.field,
    "window": nested.window,
    "element": nested.element,
    "size": nested.size,
    "unix_micros": lambda value: value.cast(pa.int64()),
    "timestamp_seconds": times.from_count(1_000_000),
    "timestamp_millis": times.from_count(1_000),
    "timestamp_micros": times.from_count(1),
    "date": lambda value: times.moment(value).cast(pa.date32()),
}
"""Kernel by function; `and`, `or`, `case` and `coalesce`, which skip rows, have separate functions above."""
