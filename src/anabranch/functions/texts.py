"""Type rules of text and date functions."""

from __future__ import annotations

import re

from anabranch.functions.arguments import Arguments, widened, wrong
from anabranch.functions.types import BIGINT, BOOLEAN, DATE, NULL, STRING, coerce, kind_of
from anabranch.lang.expr import Call, Expr, Literal
from anabranch.lang.schema import TIMESTAMP
from anabranch.lang.window import UNITS

WHOLE_TEXT = 2**31 - 1
"""The default length of SUBSTRING."""


def pattern(name: str, arguments: Arguments) -> Expr:
    expected = "(string, a string literal)"
    if len(arguments) != 2 or not isinstance(arguments[1], Literal):
        raise wrong(name, expected, arguments)
    written = arguments[1].value
    # Remove every valid escape; a remaining backslash is invalid.
    if isinstance(written, str) and "\\" in re.sub(r"\\[%_\\]", "", written):
        raise ValueError(f"the pattern '{written}' has a backslash that escapes nothing", "write \\\\, \\% or \\_")
    return Call(name, widened(name, expected, arguments, (STRING, STRING)), BOOLEAN)


def replacement(name: str, arguments: Arguments) -> Expr:
    expected = "(string, a string literal, a string literal)"
    if len(arguments) != 3 or not all(isinstance(argument, Literal) for argument in arguments[1:]):
        raise wrong(name, expected, arguments)
    return Call(name, widened(name, expected, arguments, (STRING,) * 3), STRING)


def concat(name: str, arguments: Arguments) -> Expr:
    if not arguments:
        raise wrong(name, "at least one string", arguments)
    return Call(name, widened(name, "strings", arguments, (STRING,) * len(arguments)), STRING)


def substring(name: str, arguments: Arguments) -> Expr:
    expected = "(string, bigint start) or (string, bigint start, bigint length)"
    if len(arguments) == 2:
        arguments = (*arguments, Literal(WHOLE_TEXT, BIGINT))
    if len(arguments) != 3:
        raise wrong(name, expected, arguments)
    return Call(name, widened(name, expected, arguments, (STRING, BIGINT, BIGINT)), STRING)


TRUNCATED: dict[str, int | None] = {
    **UNITS,
    "month": None,
    "quarter": None,
    "year": None,
}
"""The units of DATE_TRUNC in microseconds; None for calendar units."""
_UNIT_NAMES = {"dd": "day", "mon": "month", "mm": "month", "yyyy": "year", "yy": "year"}


def date_trunc(name: str, arguments: Arguments) -> Expr:
    expected = "(a string literal such as 'minute', timestamp)"
    if len(arguments) != 2 or not isinstance(arguments[0], Literal) or not isinstance(arguments[0].value, str):
        raise wrong(name, expected, arguments)
    written = arguments[0].value.lower()
    unit = _UNIT_NAMES.get(written, written)
    if unit not in TRUNCATED:
        raise ValueError(
            f"DATE_TRUNC does not know the unit '{arguments[0].value}'", f"the units are {', '.join(TRUNCATED)}"
        )
    if kind_of(arguments[1].type) not in {"timestamp", "date", NULL}:
        raise wrong(name, expected, arguments)
    return Call(name, (Literal(unit, STRING), coerce(arguments[1], TIMESTAMP)), TIMESTAMP)


def date_part(name: str, arguments: Arguments) -> Expr:
    if len(arguments) != 1 or kind_of(arguments[0].type) not in {"timestamp", "date", NULL}:
        raise wrong(name, "(timestamp) or (date)", arguments)
    type_ = DATE if kind_of(arguments[0].type) == "date" else TIMESTAMP
    return Call(name, (coerce(arguments[0], type_),), BIGINT)
