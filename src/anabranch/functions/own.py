"""User-defined functions: their registration, and the type rule of a call.

A function computes whole columns (`arrow`), pandas series (`pandas`) or single values (`scalar`). It is typed:
`returns` names its result type, and `takes` its argument types, to which the arguments of a call are widened.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pyarrow as pa

from anabranch.errors import CatalogError
from anabranch.functions.aggregates import AGGREGATES, APPROXIMATE
from anabranch.functions.arguments import Arguments, found, widened
from anabranch.functions.table import SPELLINGS
from anabranch.functions.types import NULL, OTHER, coerce, kind_of
from anabranch.lang.ddl import parse_type
from anabranch.lang.expr import OWN, Call, Expr, Literal, OwnFunction
from anabranch.lang.schema import type_name

KINDS = ("arrow", "pandas", "scalar")
_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_TAKEN = frozenset(
    {"window_end", "window_start", "window", "istream", "rstream", "dstream", *AGGREGATES, *APPROXIMATE, *SPELLINGS}
)


def own_function(
    name: str,
    code: Callable[..., object],
    returns: str,
    *,
    takes: Sequence[str] | None = None,
    kind: str = "arrow",
    nulls: str = "skip",
    version: str = "",
    never_fails: bool = False,
) -> OwnFunction:
    """Returns a user-defined function; raises CatalogError if its description is invalid."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise CatalogError(f"'{name}' is not a valid function name", hint="use letters, digits and _, a letter first")
    if name.lower() in _TAKEN:
        raise CatalogError(f"'{name}' is a function of the language", hint="register yours under another name")
    if not callable(code):
        raise CatalogError(f"function '{name}' cannot be called", detail=f"it is {code!r}", hint="give a function")
    for what, value, known in (("kind", kind, KINDS), ("nulls", nulls, ("skip", "pass"))):
        if value not in known:
            raise CatalogError(f"'{what}' of function '{name}' is '{value}'", hint=f"write one of {', '.join(known)}")
    types = None if takes is None else tuple(_type(name, "takes", each) for each in takes)
    return OwnFunction(
        name, _type(name, "returns", returns), types, kind, nulls == "skip", str(version), never_fails, code
    )


def _type(function: str, what: str, text: str) -> pa.DataType:
    try:
        kind = parse_type(text)
    except ValueError as error:
        raise CatalogError(
            f"'{what}' of function '{function}' is '{text}', which is not a type",
            detail=str(error),
            hint="write for example double, bigint, string, timestamp or decimal(10, 2)",
        ) from None
    if kind_of(kind) in {OTHER, NULL}:
        raise CatalogError(
            f"'{what}' of function '{function}' is {type_name(kind)}, which expressions cannot compute with",
            hint="use a number, text, boolean, date or timestamp",
        )
    return kind


def bind_own(own: OwnFunction, arguments: Arguments) -> Expr:
    """Binds a call; a function without argument types takes its arguments unchanged."""
    if own.takes is not None:
        expected = f"({', '.join(type_name(each) for each in own.takes)})"
        if len(arguments) != len(own.takes):
            raise ValueError(f"'{own.name}' expects {expected}, found ({found(arguments)})")
        return Call(OWN, widened(own.name, expected, arguments, own.takes), own.returns, own)
    for argument in arguments:
        if kind_of(argument.type) == NULL:
            raise ValueError(f"'{own.name}' cannot tell the type of a bare NULL", "write CAST(NULL AS type)")
    if not arguments or all(isinstance(argument, Literal) for argument in arguments):
        raise ValueError(
            f"'{own.name}' needs a column among its arguments", "compute a constant before the query is written"
        )
    return Call(OWN, tuple(coerce(argument, argument.type) for argument in arguments), own.returns, own)
