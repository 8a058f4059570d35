"""Type rules of arithmetic on numbers, times and intervals."""

from __future__ import annotations

import datetime
import decimal
from dataclasses import replace

from anabranch.functions.arguments import CAST_HINT, SYMBOLS, Arguments, found, spelled_decimals, two, widened, wrong
from anabranch.functions.types import (
    BIGINT,
    DOUBLE,
    NULL,
    as_decimal,
    canonical,
    coerce,
    decimal_type,
    kind_of,
    quotient_type,
)
from anabranch.lang.expr import Call, Expr, Literal
from anabranch.lang.schema import INTERVAL, TIMESTAMP

MOST_DIGITS = 22
"""The maximum number of digits of ROUND: powers of ten up to this one are exact in a double."""


def additive(name: str, arguments: Arguments) -> Expr:
    left, right = two(name, arguments)
    kinds = kind_of(left.type), kind_of(right.type)
    if name == "add" and kinds == ("interval", "timestamp"):
        left, right, kinds = right, left, ("timestamp", "interval")
    if kinds == ("timestamp", "interval"):
        return Call(name, (coerce(left, TIMESTAMP), coerce(right, INTERVAL)), TIMESTAMP)
    if kinds == ("interval", "interval"):
        return Call(name, (left, right), INTERVAL)
    if name == "subtract" and set(kinds) <= {"timestamp", "date"} and "timestamp" in kinds:
        return Call(name, (coerce(left, TIMESTAMP), coerce(right, TIMESTAMP)), INTERVAL)
    if "date" in kinds:
        raise ValueError(
            f"'{SYMBOLS[name]}' does not take a date, found ({found(arguments)})",
            "CAST the date AS TIMESTAMP first",
        )
    return _arithmetic(name, (left, right))


def multiplicative(name: str, arguments: Arguments) -> Expr:
    left, right = two(name, arguments)
    kinds = kind_of(left.type), kind_of(right.type)
    if name == "multiply" and kinds == ("integer", "interval"):
        left, right, kinds = right, left, ("interval", "integer")
    if name == "multiply" and kinds == ("interval", "integer"):
        return Call(name, (coerce(left, INTERVAL), coerce(right, BIGINT)), INTERVAL)
    return _arithmetic(name, (left, right))


def _arithmetic(name: str, arguments: Arguments) -> Expr:
    left, right = spelled_decimals(arguments)
    kinds = {kind_of(left.type), kind_of(right.type)}
    if not kinds <= {"integer", "float", "decimal", NULL}:
        raise wrong(name, "two numbers", arguments, CAST_HINT)
    if kinds == {NULL}:
        left, right, kinds = coerce(left, BIGINT), coerce(right, BIGINT), {"integer"}
    if "float" in kinds or (name == "divide" and "decimal" not in kinds):
        return Call(name, (coerce(left, DOUBLE), coerce(right, DOUBLE)), DOUBLE)
    if "decimal" not in kinds:
        return Call(name, (coerce(left, BIGINT), coerce(right, BIGINT)), BIGINT)
    one = as_decimal(right.type if kind_of(left.type) == NULL else left.type)
    other = as_decimal(left.type if kind_of(right.type) == NULL else right.type)
    if name == "divide":
        type_ = quotient_type(one, other)
    elif name == "modulo":
        scale = max(one.scale, other.scale)
        type_ = decimal_type(min(one.precision - one.scale, other.precision - other.scale) + scale, scale)
    elif name == "multiply":
        type_ = decimal_type(one.precision + other.precision + 1, one.scale + other.scale)
    else:
        scale = max(one.scale, other.scale)
        type_ = decimal_type(max(one.precision - one.scale, other.precision - other.scale) + scale + 1, scale)
    return Call(name, (coerce(left, one), coerce(right, other)), type_)


def sign(name: str, arguments: Arguments) -> Expr:
    kinds = {"integer", "float", "decimal", NULL} | ({"interval"} if name == "negate" else set())
    if len(arguments) != 1 or kind_of(arguments[0].type) not in kinds:
        between = "for times, write x BETWEEN y - INTERVAL 5 SECONDS AND y + INTERVAL 5 SECONDS"
        raise wrong(name, "one number", arguments, between if name == "abs" else "")
    argument = arguments[0]
    if name == "negate" and isinstance(argument, Literal) and argument.value is not None:
        assert isinstance(argument.value, int | float | decimal.Decimal | datetime.timedelta)
        return replace(argument, value=-argument.value)
    type_ = BIGINT if kind_of(argument.type) == NULL else canonical(argument.type)
    return Call(name, (coerce(argument, type_),), type_)


def rounded(name: str, arguments: Arguments) -> Expr:
    expected = "(double) or (double, an integer literal)"
    digits: Expr = arguments[1] if len(arguments) == 2 else Literal(0, BIGINT)
    if len(arguments) not in {1, 2} or not isinstance(digits, Literal):
        raise wrong(name, expected, arguments)
    if isinstance(digits.value, int) and abs(digits.value) > MOST_DIGITS:
        raise ValueError(f"'ROUND' keeps at most {MOST_DIGITS} digits, not {digits.value}")
    return Call(name, widened(name, expected, (arguments[0], digits), (DOUBLE, BIGINT)), DOUBLE)
