"""Type rules of comparisons, logic and conditional functions."""

from __future__ import annotations

import pyarrow as pa

from anabranch.functions.arguments import Arguments, unify, wrong
from anabranch.functions.types import BOOLEAN, NULL, OTHER, coerce, kind_of, not_computable
from anabranch.lang.expr import Call, Expr, Literal
from anabranch.lang.schema import type_name


def comparison(name: str, arguments: Arguments) -> Expr:
    if len(arguments) != 2:
        raise wrong(name, "two values", arguments)
    if all(kind_of(argument.type) == NULL for argument in arguments):
        arguments = tuple(coerce(argument, BOOLEAN) for argument in arguments)
    for argument in arguments:
        if kind_of(argument.type) == OTHER:
            raise not_computable(argument.type)
    return Call(name, unify(arguments), BOOLEAN)


def connective(name: str, arguments: Arguments) -> Expr:
    if len(arguments) < 2:
        raise wrong(name, "two or more conditions", arguments)
    for argument in arguments:
        if kind_of(argument.type) not in {"boolean", NULL}:
            raise wrong(name, "conditions", arguments)
    flat: list[Expr] = []
    for argument in arguments:
        same = isinstance(argument, Call) and argument.function == name
        flat += argument.arguments if same and isinstance(argument, Call) else [coerce(argument, BOOLEAN)]
    return Call(name, tuple(flat), BOOLEAN)


def null_test(name: str, arguments: Arguments) -> Expr:
    if len(arguments) != 1:
        raise wrong(name, "one value", arguments)
    return Call(name, arguments, BOOLEAN)


def membership(name: str, arguments: Arguments) -> Expr:
    value, *listed = arguments
    if not listed:
        raise wrong(name, "at least one value in the list", arguments)
    if not all(isinstance(item, Literal) for item in listed):
        equalities = tuple(comparison("equal", (value, item)) for item in listed)
        return equalities[0] if len(equalities) == 1 else Call("or", equalities, BOOLEAN)
    if kind_of(value.type) == OTHER:
        raise not_computable(value.type)
    unified = unify(arguments)
    if kind_of(unified[0].type) == NULL:
        unified = tuple(coerce(argument, BOOLEAN) for argument in unified)
    return Call(name, unified, BOOLEAN)


def case(name: str, arguments: Arguments) -> Expr:
    *pairs, otherwise = arguments
    if not pairs or len(pairs) % 2:
        raise wrong(name, "condition and value pairs, then a value for the rest", arguments)
    for condition in pairs[::2]:
        if kind_of(condition.type) not in {"boolean", NULL}:
            raise ValueError(f"a condition of CASE must be boolean, found {type_name(condition.type)}")
    values = _typed(unify((*pairs[1::2], otherwise)))
    flat = [part for pair in zip(pairs[::2], values, strict=False) for part in (coerce(pair[0], BOOLEAN), pair[1])]
    return Call(name, (*flat, values[-1]), values[-1].type)


def of_one_type(name: str, arguments: Arguments) -> Expr:
    if not arguments:
        raise wrong(name, "at least one value", arguments)
    for argument in arguments:
        if kind_of(argument.type) == OTHER:
            raise not_computable(argument.type)
    unified = _typed(unify(arguments))
    # With one argument each of these is the argument itself; Spark has no GREATEST or LEAST with one argument.
    return unified[0] if len(unified) == 1 else Call(name, unified, unified[0].type)


def null_safe_equal(_name: str, arguments: Arguments) -> Expr:
    """Binds `<=>`: equality that is true if both sides are NULL, and never NULL itself."""
    equality = comparison("equal", arguments)
    assert isinstance(equality, Call)
    left, right = equality.arguments
    missing = tuple(Call("is_null", (argument,), BOOLEAN) for argument in (left, right))
    return case("case", (Call("or", missing, BOOLEAN), Call("and", missing, BOOLEAN), equality))


def nullif(_name: str, arguments: Arguments) -> Expr:
    if len(arguments) != 2:
        raise wrong("nullif", "two values", arguments)
    equality = comparison("equal", arguments)
    return case("case", (equality, Literal(None, pa.null()), arguments[0]))


def if_else(_name: str, arguments: Arguments) -> Expr:
    if len(arguments) != 3:
        raise wrong("if", "(condition, value, other value)", arguments)
    return case("case", arguments)


def _typed(values: Arguments) -> Arguments:
    if kind_of(values[0].type) == NULL:
        raise ValueError("every value is an untyped NULL", "write CAST(NULL AS type)")
    return values
