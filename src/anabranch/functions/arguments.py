"""Helpers for type rules: coerce arguments to one type, and build the error if they do not fit."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa

from anabranch.functions.types import (
    MAX_DIGITS,
    NULL,
    OTHER,
    canonical,
    coerce,
    common_type,
    kind_of,
    not_computable,
    scaled,
)
from anabranch.lang.expr import Call, Expr, Literal
from anabranch.lang.schema import is_decimal, type_name

Arguments: TypeAlias = tuple[Expr, ...]
Rule: TypeAlias = Callable[[str, Arguments], Expr]

CAST_HINT = "use CAST(… AS type)"
SYMBOLS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "modulo": "%", "negate": "-"}


def fixed(result: pa.DataType, *types: pa.DataType) -> Rule:
    """Makes the rule of a function with fixed argument types; numbers are widened."""

    def rule(name: str, arguments: Arguments) -> Expr:
        expected = f"({', '.join(type_name(type_) for type_ in types)})"
        if len(arguments) != len(types):
            raise wrong(name, expected, arguments)
        return Call(name, widened(name, expected, arguments, types), result)

    return rule


def widened(name: str, expected: str, arguments: Arguments, types: tuple[pa.DataType, ...]) -> Arguments:
    """Coerces the arguments to the given types; the error says what was expected."""
    for argument, wanted in zip(arguments, types, strict=True):
        source, target = kind_of(argument.type), kind_of(wanted)
        if source == OTHER:
            raise not_computable(argument.type)
        number_to_double = target == "float" and source in {"integer", "decimal"}
        if source not in {target, NULL} and not number_to_double:
            raise wrong(name, expected, arguments, CAST_HINT)
    return tuple(coerce(argument, wanted) for argument, wanted in zip(arguments, types, strict=True))


def two(name: str, arguments: Arguments) -> tuple[Expr, Expr]:
    """Returns both arguments of a binary function; raises if one cannot be used in an expression."""
    if len(arguments) != 2:
        raise wrong(name, "two values", arguments)
    for argument in arguments:
        if kind_of(argument.type) == OTHER:
            raise not_computable(argument.type)
    return arguments[0], arguments[1]


def unify(arguments: Arguments) -> Arguments:
    """Coerces all arguments to their common type; identical types stay as they are."""
    arguments = spelled_decimals(arguments)
    first, *others = (argument.type for argument in arguments)
    if all(other == first for other in others) and kind_of(first) != OTHER:
        return arguments
    type_ = canonical(first)
    for other in others:
        type_ = common_type(type_, other)
    return tuple(coerce(argument, type_) for argument in arguments)


def spelled_decimals(arguments: Arguments) -> Arguments:
    """Turns number literals beside a decimal into exact decimals, so that `price > 0.1` is exact."""
    if not any(is_decimal(argument.type) for argument in arguments):
        return arguments
    return tuple(_spelled_decimal(argument) for argument in arguments)


def _spelled_decimal(expr: Expr) -> Expr:
    if not isinstance(expr, Literal) or isinstance(expr.value, bool) or not isinstance(expr.value, int | float):
        return expr
    value = decimal.Decimal(repr(expr.value))
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "literals are finite"
    precision = max(len(digits) + max(exponent, 0), -exponent)
    if precision > MAX_DIGITS:
        return expr
    scale = max(-exponent, 0)
    return Literal(scaled(value, scale), pa.decimal128(precision, scale))


def wrong(name: str, expected: str, arguments: Arguments, hint: str = "") -> ValueError:
    """Returns the error for arguments that a function does not accept."""
    written = SYMBOLS.get(name, name.upper())
    return ValueError(f"'{written}' expects {expected}, found ({found(arguments)})", hint)


def found(arguments: Arguments) -> str:
    """Lists the types of the arguments."""
    return ", ".join(type_name(argument.type) for argument in arguments) or "nothing"
