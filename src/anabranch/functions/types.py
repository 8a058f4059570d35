"""The types of CQL: families, names, common types and coercion.

Invariant: see `anabranch.functions`; coercion widens, it never narrows.
"""

from __future__ import annotations

import datetime
import decimal

import pyarrow as pa

from anabranch.lang.expr import Cast, Expr, Literal
from anabranch.lang.schema import INTERVAL, TIMESTAMP, is_decimal, is_float, is_integer, is_nested, is_text, type_name

BIGINT = pa.int64()
DOUBLE = pa.float64()
STRING = pa.string()
BOOLEAN = pa.bool_()
DATE = pa.date32()
MAX_DIGITS = 38
NULL, OTHER = "null", "other"

_DIGITS_OF_INTEGER = {"int8": 3, "int16": 5, "int32": 10, "int64": 20, "uint8": 3, "uint16": 5, "uint32": 10}
TYPES: dict[str, pa.DataType] = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": BIGINT,
    "long": BIGINT,
    "float": pa.float32(),
    "real": pa.float32(),
    "double": DOUBLE,
    "string": STRING,
    "varchar": STRING,
    "char": STRING,
    "text": STRING,
    "boolean": BOOLEAN,
    "date": DATE,
    "timestamp": TIMESTAMP,
}


def kind_of(type_: pa.DataType) -> str:
    """Returns the type family: integer, float, decimal, text, boolean, date, timestamp, interval, null, or other."""
    families = (
        (is_integer, "integer"),
        (is_float, "float"),
        (is_decimal, "decimal"),
        (is_text, "text"),
        (pa.types.is_boolean, "boolean"),
        (pa.types.is_date32, "date"),
        (pa.types.is_timestamp, "timestamp"),
        (pa.types.is_duration, "interval"),
        (pa.types.is_null, NULL),
    )
    return next((name for belongs, name in families if belongs(type_)), OTHER)


def common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """Returns the type in which two values are compared.

    >>> str(common_type(pa.int32(), pa.float32()))
    'double'
    """
    kinds = {kind_of(left), kind_of(right)}
    if NULL in kinds:
        return canonical(right if kind_of(left) == NULL else left)
    if OTHER in kinds:
        raise not_computable(left if kind_of(left) == OTHER else right)
    if len(kinds) == 1 and kinds != {"decimal"}:
        return canonical(left)
    if kinds <= {"integer", "decimal"}:
        one, other = as_decimal(left), as_decimal(right)
        scale = max(one.scale, other.scale)
        return decimal_type(max(one.precision - one.scale, other.precision - other.scale) + scale, scale)
    if kinds <= {"integer", "decimal", "float"}:
        return DOUBLE
    if kinds == {"date", "timestamp"}:
        return TIMESTAMP
    raise ValueError(
        f"types {type_name(left)} and {type_name(right)} cannot be compared or combined", _conversion_hint(kinds)
    )


def coerce(expr: Expr, type_: pa.DataType) -> Expr:
    """Coerces an expression to a wider type; literals are converted at once."""
    if expr.type == type_:
        return expr
    if isinstance(expr, Literal):
        if expr.value is None:
            return Literal(None, type_)
        if is_float(type_) and isinstance(expr.value, int | decimal.Decimal):
            return Literal(float(expr.value), type_)
        if is_integer(type_) and isinstance(expr.value, int):
            return Literal(expr.value, type_)
        if is_decimal(type_) and isinstance(expr.value, int | decimal.Decimal):
            return Literal(scaled(decimal.Decimal(expr.value), type_.scale), type_)
        if kind_of(type_) == "timestamp" and kind_of(expr.type) == "date":
            assert isinstance(expr.value, datetime.date)
            midnight = datetime.time(tzinfo=datetime.UTC)
            return Literal(datetime.datetime.combine(expr.value, midnight), type_)
    return Cast(expr, type_)


def without_widening(expr: Expr) -> Expr:
    """Strips casts that keep distinct values distinct, such as int to bigint or date to timestamp."""
    while isinstance(expr, Cast) and _is_lossless(expr.argument.type, expr.type):
        expr = expr.argument
    return expr


def type_named(name: str, parameters: tuple[int, ...] = ()) -> pa.DataType:
    """Returns the type for an SQL type name, such as BIGINT or DECIMAL(10, 2)."""
    lowered = name.lower()
    if lowered in {"decimal", "numeric", "dec"}:
        precision, scale = (*parameters, *(10, 0)[len(parameters) :])[:2]
        if len(parameters) > 2 or not (1 <= precision <= MAX_DIGITS and 0 <= scale <= precision):
            raise ValueError(
                f"'{name.upper()}' expects a precision from 1 to {MAX_DIGITS} and a scale up to the precision"
            )
        return pa.decimal128(precision, scale)
    if lowered not in TYPES:
        raise ValueError(f"unknown type '{name}'", f"known types are {', '.join(TYPES)}, decimal(precision, scale)")
    if parameters and lowered not in {"varchar", "char"}:
        raise ValueError(f"type '{name.upper()}' takes no parameters")
    return TYPES[lowered]


def canonical(type_: pa.DataType) -> pa.DataType:
    """Returns the type in which kernels compute values of this type."""
    match kind_of(type_):
        case "integer":
            return BIGINT
        case "float":
            return DOUBLE
        case "text":
            return STRING
        case "timestamp":
            return TIMESTAMP
        case "interval":
            return INTERVAL
        case _:
            return type_


def as_decimal(type_: pa.DataType) -> pa.DataType:
    """Returns the decimal type that holds every value of an integer or decimal type."""
    return type_ if is_decimal(type_) else pa.decimal128(_DIGITS_OF_INTEGER.get(str(type_), 20), 0)


def decimal_type(precision: int, scale: int) -> pa.DataType:
    """Returns a decimal type; raises ValueError if it has too many digits."""
    if precision > MAX_DIGITS:
        raise ValueError(
            f"the result would need decimal({precision},{scale}), more than {MAX_DIGITS} digits",
            "CAST an operand to a smaller decimal or to DOUBLE",
        )
    return pa.decimal128(precision, scale)


def quotient_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Returns the type of a quotient of decimals, as in Spark: at least six fractional digits, at most 38 in all."""
    scale = max(6, one.scale + other.precision + 1)
    return _within_digits(one.precision - one.scale + other.scale + scale, scale)


def average_type(kind: pa.DataType) -> pa.DataType:
    """Returns the type of an average of decimals, as in Spark: four more digits before and after the point."""
    return pa.decimal128(min(MAX_DIGITS, kind.precision + 4), min(MAX_DIGITS, kind.scale + 4))


def _within_digits(precision: int, scale: int) -> pa.DataType:
    """Drops fractional digits, down to six, if there are more than 38 digits in all."""
    if precision <= MAX_DIGITS:
        return pa.decimal128(precision, scale)
    whole = precision - scale
    return pa.decimal128(MAX_DIGITS, max(MAX_DIGITS - whole, min(scale, 6)))


def not_computable(type_: pa.DataType) -> ValueError:
    """Returns the error for a type that can only pass through a query."""
    if is_nested(type_) or kind_of(type_) == OTHER:
        return ValueError(
            f"a value of type {type_name(type_)} cannot be used in an expression",
            "select the column itself, or use one of its fields (x.name) or elements (x[0])",
        )
    return ValueError(f"a value of type {type_name(type_)} cannot be used here")


def scaled(value: decimal.Decimal, scale: int) -> decimal.Decimal:
    """Rounds the value to this many digits after the point."""
    # The default context of 28 digits would reject longer decimals, which are valid up to 38.
    return value.quantize(decimal.Decimal(1).scaleb(-scale), context=decimal.Context(prec=2 * MAX_DIGITS))


def _is_lossless(source: pa.DataType, target: pa.DataType) -> bool:
    kinds = kind_of(source), kind_of(target)
    if kinds == ("integer", "integer") or kinds == ("float", "float"):
        return bool(source.bit_width <= target.bit_width)
    if kinds in {("decimal", "decimal"), ("integer", "decimal")}:
        exact = as_decimal(source)
        return bool(target.scale >= exact.scale and target.precision - target.scale >= exact.precision - exact.scale)
    return kinds in {("date", "timestamp"), ("text", "text")} or (kinds == ("timestamp", "timestamp"))


def _conversion_hint(kinds: set[str]) -> str:
    if kinds == {"text", "timestamp"}:
        return "write the time as TIMESTAMP '2026-01-31 12:00:00'"
    if kinds == {"text", "date"}:
        return "write the date as DATE '2026-01-31'"
    return "use CAST(… AS type) on one side"
