"""The table of functions and their spellings; binding of calls, casts and aggregates to types."""

from __future__ import annotations

import pyarrow as pa

from anabranch.functions.arguments import Arguments, Rule, fixed
from anabranch.functions.conditions import (
    case,
    comparison,
    connective,
    if_else,
    membership,
    null_safe_equal,
    null_test,
    nullif,
    of_one_type,
)
from anabranch.functions.json_path import json_value
from anabranch.functions.nested import element, size, struct_field
from anabranch.functions.numbers import additive, multiplicative, rounded, sign
from anabranch.functions.patterns import extraction, matching, substitution
from anabranch.functions.texts import concat, date_part, date_trunc, pattern, replacement, substring
from anabranch.functions.types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    STRING,
    kind_of,
)
from anabranch.lang.expr import Call, Cast, Column, Expr, Literal
from anabranch.lang.schema import TIMESTAMP, is_decimal, is_float, type_name


def bind_call(name: str, arguments: Arguments) -> Expr:
    """Binds a function, given by canonical name or by any spelling, to its arguments."""
    lowered = name.lower()
    canonical = lowered if lowered in FUNCTIONS or lowered in _SUGAR else SPELLINGS.get(lowered, "")
    rule = FUNCTIONS.get(canonical) or _SUGAR.get(canonical)
    if rule is None:
        raise ValueError(f"unknown function '{name}'")
    return rule(canonical, arguments)


def bind_cast(expr: Expr, type_: pa.DataType) -> Expr:
    """Casts an expression; allows the same pairs of types as Spark's ANSI mode."""
    if expr.type == type_:
        return expr
    if isinstance(expr, Literal) and expr.value is None:
        return Literal(None, type_)
    source, target = kind_of(expr.type), kind_of(type_)
    if target != source and target not in _CASTS.get(source, frozenset()):
        raise ValueError(f"{type_name(expr.type)} cannot be cast to {type_name(type_)}")
    return Cast(expr, type_)


def makes_null(cast: Cast) -> bool:
    """True if the cast returns NULL for some value: a float that is not finite has no decimal."""
    return is_float(cast.argument.type) and is_decimal(cast.type)


def below_casts(expr: Expr) -> Expr:
    """Strips the casts that do not change on which rows the expression is NULL.

    Most casts fail or return a value; a cast that may return NULL is kept.
    """
    return below_casts(expr.argument) if isinstance(expr, Cast) and not makes_null(expr) else expr


def is_nullable(expr: Expr) -> bool:
    """False only if the expression cannot be NULL on any row."""
    match expr:
        case Column():
            return expr.nullable
        case Literal():
            return expr.value is None
        case Cast():
            return is_nullable(expr.argument) or makes_null(expr)
        case Call(function="is_null" | "is_not_null"):
            return False
        case Call(own=own) if own is not None:
            return True
        case Call(function="coalesce" | "greatest" | "least"):
            return all(is_nullable(argument) for argument in expr.arguments)
        case Call(function="case"):
            return any(is_nullable(value) for value in (*expr.arguments[1::2], expr.arguments[-1]))
        case Call(function=function):
            return function in _NULL_FROM_VALUES or any(is_nullable(argument) for argument in expr.arguments)


FUNCTIONS: dict[str, Rule] = {
    "add": additive,
    "subtract": additive,
    "multiply": multiplicative,
    "divide": multiplicative,
    "modulo": multiplicative,
    "negate": sign,
    "abs": sign,
    "equal": comparison,
    "not_equal": comparison,
    "less": comparison,
    "less_equal": comparison,
    "greater": comparison,
    "greater_equal": comparison,
    "and": connective,
    "or": connective,
    "not": fixed(BOOLEAN, BOOLEAN),
    "is_null": null_test,
    "is_not_null": null_test,
    "in": membership,
    "like": pattern,
    "case": case,
    "coalesce": of_one_type,
    "greatest": of_one_type,
    "least": of_one_type,
    "floor": fixed(DOUBLE, DOUBLE),
    "ceil": fixed(DOUBLE, DOUBLE),
    "round": rounded,
    "sqrt": fixed(DOUBLE, DOUBLE),
    "exp": fixed(DOUBLE, DOUBLE),
    "ln": fixed(DOUBLE, DOUBLE),
    "power": fixed(DOUBLE, DOUBLE, DOUBLE),
    "lower": fixed(STRING, STRING),
    "upper": fixed(STRING, STRING),
    "trim": fixed(STRING, STRING),
    "ltrim": fixed(STRING, STRING),
    "rtrim": fixed(STRING, STRING),
    "length": fixed(BIGINT, STRING),
    "substring": substring,
    "concat": concat,
    "starts_with": fixed(BOOLEAN, STRING, STRING),
    "ends_with": fixed(BOOLEAN, STRING, STRING),
    "contains": fixed(BOOLEAN, STRING, STRING),
    "replace": replacement,
    "year": date_part,
    "month": date_part,
    "day": date_part,
    "hour": fixed(BIGINT, TIMESTAMP),
    "minute": fixed(BIGINT, TIMESTAMP),
    "second": fixed(BIGINT, TIMESTAMP),
    "quarter": date_part,
    "dayofweek": date_part,
    "dayofyear": date_part,
    "weekofyear": date_part,
    "date_trunc": date_trunc,
    "rlike": matching,
    "regexp_extract": extraction,
    "regexp_replace": substitution,
    "field": struct_field,
    "element": element,
    "size": size,
    "unix_micros": fixed(BIGINT, TIMESTAMP),
    "timestamp_seconds": fixed(TIMESTAMP, BIGINT),
    "timestamp_millis": fixed(TIMESTAMP, BIGINT),
    "timestamp_micros": fixed(TIMESTAMP, BIGINT),
    "date": fixed(DATE, TIMESTAMP),
}
_SUGAR: dict[str, Rule] = {
    "nullif": nullif,
    "if": if_else,
    "null_safe_equal": null_safe_equal,
    "get_json_object": json_value,
}

SPELLINGS: dict[str, str] = {
    **{
        name: name
        for name in (
            "abs", "ceil", "coalesce", "concat", "contains", "date", "day", "ends_with", "exp", "floor", "greatest",
            "hour", "if", "least", "length", "ln", "lower", "ltrim", "minute", "month", "nullif", "power", "replace",
            "round", "rtrim", "second", "sqrt", "starts_with", "substring", "trim", "unix_micros", "upper", "year",
            "quarter", "dayofweek", "dayofyear", "weekofyear", "date_trunc", "rlike", "regexp_extract",
            "regexp_replace", "size", "get_json_object", "timestamp_seconds", "timestamp_millis", "timestamp_micros",
        )
    },
    "ceiling": "ceil",
    "char_length": "length",
    "character_length": "length",
    "len": "length",
    "substr": "substring",
    "pow": "power",
    "log": "ln",
    "lcase": "lower",
    "ucase": "upper",
    "startswith": "starts_with",
    "endswith": "ends_with",
    "ifnull": "coalesce",
    "nvl": "coalesce",
    "mod": "modulo",
    "dayofmonth": "day",
    "week": "weekofyear",
    "regexp": "rlike",
    "regexp_like": "rlike",
    "cardinality": "size",
    "get": "element",
}  # fmt: skip
"""Maps the lower-case names of call syntax to the canonical function (or sugar)."""

_CASTS: dict[str, frozenset[str]] = {
    "integer": frozenset({"float", "decimal", "text", "boolean", "timestamp"}),
    "float": frozenset({"integer", "decimal", "text", "boolean", "timestamp"}),
    "decimal": frozenset({"integer", "float", "text", "boolean", "timestamp"}),
    "text": frozenset({"integer", "float", "decimal", "boolean", "date", "timestamp"}),
    "boolean": frozenset({"integer", "float", "decimal", "text"}),
    "date": frozenset({"text", "timestamp"}),
    "timestamp": frozenset({"integer", "float", "decimal", "text", "date"}),
}
_NULL_FROM_VALUES = frozenset({"divide", "modulo", "sqrt", "ln", "field", "element"})
