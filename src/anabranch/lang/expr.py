"""Typed scalar expressions, as immutable values.

A `Column` belongs to a relation (the alias of a FROM item, unique in its query). Every computation is a `Call` of a
function in `functions.FUNCTIONS`; operators are functions too (`a + b` is `add`). Expressions are typed and coerced: an
evaluator needs no type rules, only one kernel per function. `AggregateCall` occurs only in the list of aggregates of a
grouped query; above it, the aggregate is a `Column` of the relation `GROUPED`.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import pyarrow as pa

from anabranch.lang.schema import is_counted, is_float, is_integer, is_wider, type_name
from anabranch.lang.window import duration_text

OWN = "own"
"""The value of `Call.function` for user-defined functions."""
GROUPED = "#grouped"
"""The relation whose columns are a grouped query's keys (`key0`…) and aggregates (`aggregate0`…)."""

LiteralValue: TypeAlias = (
    bool | int | float | str | decimal.Decimal | datetime.date | datetime.datetime | datetime.timedelta | None
)


@dataclass(frozen=True)
class Column:
    """A column of a relation."""

    relation: str
    name: str
    type: pa.DataType
    nullable: bool = True

    def __str__(self) -> str:
        return self.name if self.relation == GROUPED else f"{self.relation}.{self.name}"


@dataclass(frozen=True)
class Literal:
    """A constant; None is NULL of the literal's type."""

    value: LiteralValue
    type: pa.DataType

    def __str__(self) -> str:
        match self.value:
            case None:
                return "NULL"
            case bool():
                return "TRUE" if self.value else "FALSE"
            case str():
                return "'" + self.value.replace("'", "''") + "'"
            case datetime.datetime():
                return f"TIMESTAMP '{self.value.isoformat(sep=' ')}'"
            case datetime.date():
                return f"DATE '{self.value.isoformat()}'"
            case datetime.timedelta():
                return f"INTERVAL {duration_text(round(self.value / datetime.timedelta(microseconds=1)))}"
            case _:
                return str(self.value)


@dataclass(frozen=True)
class OwnFunction:
    """A user-defined function; two are equal if everything but their code is equal.

    It must be deterministic: a batch may be repeated, and a plan may evaluate it twice.
    """

    name: str
    returns: pa.DataType
    takes: tuple[pa.DataType, ...] | None
    """The types of the arguments; None for any."""
    kind: str
    """The calling convention: with `arrow` arrays, with `pandas` series, or row by row (`scalar`)."""
    skips_nulls: bool
    """True if a NULL argument gives NULL without a call of the function."""
    version: str
    """Must change when the meaning of the function changes; it is part of a query's fingerprint."""
    never_fails: bool
    code: Callable[..., object] = field(compare=False, repr=False)

    @property
    def title(self) -> str:
        return f"{self.name}@{self.version}" if self.version else self.name


@dataclass(frozen=True)
class Call:
    """A function applied to arguments that have exactly the types of its kernel."""

    function: str
    arguments: tuple[Expr, ...]
    type: pa.DataType
    own: OwnFunction | None = field(default=None, repr=False)
    """The user-defined function that is called; `function` is then OWN."""

    def __str__(self) -> str:
        if self.own is not None:
            return f"{self.own.title}({', '.join(map(str, self.arguments))})"
        return _call_text(self.function, [_nested_text(argument) for argument in self.arguments])


@dataclass(frozen=True)
class Cast:
    """Converts the argument to another type; a value that does not fit raises an ExpressionError."""

    argument: Expr
    type: pa.DataType

    def __str__(self) -> str:
        return f"CAST({self.argument} AS {type_name(self.type).upper()})"


Expr: TypeAlias = Column | Literal | Call | Cast


@dataclass(frozen=True)
class Ranking:
    """The first `rows` rows of a group by its sort keys: for each, whether it descends and whether NULLs are first."""

    rows: int
    is_descending: tuple[bool, ...]
    nulls_first: tuple[bool, ...]

    def __str__(self) -> str:
        keys = zip(self.is_descending, self.nulls_first, strict=True)
        listed = [f"{'DESC' if down else 'ASC'} NULLS {'FIRST' if first else 'LAST'}" for down, first in keys]
        return f"{self.rows} BY {', '.join(listed)}"


@dataclass(frozen=True)
class AggregateCall:
    """COUNT, SUM, MIN, MAX, AVG and others over the combinations of a group; COUNT(*) has no argument.

    The first rows of a group (`ranked`) are an aggregate too: its arguments are the values of a row and the sort keys.
    """

    function: str
    argument: Expr | None
    type: pa.DataType
    others: tuple[Expr, ...] = field(default=(), repr=False)
    """Additional arguments: the sort key of MIN_BY, the fraction of PERCENTILE, the limit of COLLECT_LIST."""
    ranking: Ranking | None = field(default=None, repr=False)
    """The order and the number of a group's rows; None for all aggregates but `ranked`."""

    @property
    def arguments(self) -> tuple[Expr, ...]:
        return self.others if self.argument is None else (self.argument, *self.others)

    def __str__(self) -> str:
        if self.ranking is not None:
            return f"RANKED({', '.join(map(str, self.arguments))}; {self.ranking})"
        if self.function == "count_distinct":
            return f"COUNT(DISTINCT {self.argument})"
        return f"{self.function.upper()}({', '.join(map(str, self.arguments)) or '*'})"


def children(expr: Expr) -> tuple[Expr, ...]:
    match expr:
        case Call(arguments=arguments):
            return arguments
        case Cast(argument=argument):
            return (argument,)
        case Column() | Literal():
            return ()


def walk(expr: Expr) -> Iterator[Expr]:
    """Yields the expression and all its descendants, parents first."""
    yield expr
    for child in children(expr):
        yield from walk(child)


def transform(expr: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """Applies `change` to every node, leaves first."""
    match expr:
        case Call(arguments=arguments):
            expr = replace(expr, arguments=tuple(transform(argument, change) for argument in arguments))
        case Cast(argument=argument):
            expr = replace(expr, argument=transform(argument, change))
        case Column() | Literal():
            pass
    return change(expr)


def columns(expr: Expr) -> tuple[Column, ...]:
    """Returns the distinct columns of an expression, in order of first appearance."""
    return tuple(dict.fromkeys(node for node in walk(expr) if isinstance(node, Column)))


def relations(expr: Expr) -> frozenset[str]:
    """Returns the relations whose columns an expression reads."""
    return frozenset(column.relation for column in columns(expr))


_FALLIBLE = frozenset(
    {"add", "subtract", "multiply", "divide", "negate", "abs", "timestamp_seconds", "timestamp_millis"}
)


def can_fail(expr: Expr) -> bool:
    """True if the expression may raise on some row; evaluate it only on rows whose value is needed."""
    match expr:
        case Cast(type=type_, argument=argument) if not is_wider(type_, argument.type):
            return True
        case Call(function=function, type=type_) if function in _FALLIBLE and not is_float(type_):
            return True
        case Call(own=own) if own is not None and not own.never_fails:
            return True
    return any(map(can_fail, children(expr)))


def compares_exactly(expr: Expr) -> bool:
    """True for a comparison of several relations by sums of their integers, timestamps or intervals.

    Such a comparison cannot overflow for any values. If it bounds a distance, a plan may look up matches by bucket and
    never compute the sums of pairs that are far apart. Another plan, which computes them, must not fail on them.
    """
    return (
        isinstance(expr, Call)
        and expr.function in _COMPARISONS
        and len(relations(expr)) > 1
        and all(_is_counted(each) or not can_fail(each) for each in expr.arguments)
    )


def can_fail_in_join(expr: Expr) -> bool:
    """True if the expression may raise on some combination of rows of its relations, whatever plan computes it."""
    return can_fail(expr) and not compares_exactly(expr)


_SUMS = frozenset({"add", "subtract", "negate", "abs"})
_COMPARISONS = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})


def _is_counted(expr: Expr) -> bool:
    """True if nothing but sums of integers can fail, including sums with doubles."""
    match expr:
        case Call() if expr.function in _SUMS and (is_counted(expr.type) or expr.type == pa.float64()):
            return all(map(_is_counted, expr.arguments))
        case Cast() if is_integer(expr.argument.type) and (expr.type == pa.int64() or expr.type == pa.float64()):
            return _is_counted(expr.argument)
    return not can_fail(expr)


def own_functions(expr: Expr) -> tuple[OwnFunction, ...]:
    """Returns the distinct user-defined functions that an expression calls."""
    return tuple(dict.fromkeys(node.own for node in walk(expr) if isinstance(node, Call) and node.own is not None))


def conjuncts(expr: Expr) -> tuple[Expr, ...]:
    """Splits a conjunction; a filter passes a row if every part is true.

    NULL is not true, so the parts may be applied one after another.
    """
    if isinstance(expr, Call) and expr.function == "and":
        return tuple(part for argument in expr.arguments for part in conjuncts(argument))
    return (expr,)


def conjunction(parts: tuple[Expr, ...]) -> Expr | None:
    """Joins the parts with AND; returns None if there is none."""
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else Call("and", parts, pa.bool_())


_INFIX = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
    "modulo": "%",
    "equal": "=",
    "not_equal": "<>",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
    "and": "AND",
    "or": "OR",
    "like": "LIKE",
}


def _call_text(function: str, arguments: list[str]) -> str:
    if function in _INFIX:
        return f" {_INFIX[function]} ".join(arguments)
    match function:
        case "not":
            return f"NOT {arguments[0]}"
        case "negate":
            return f"-{arguments[0]}"
        case "is_null":
            return f"{arguments[0]} IS NULL"
        case "is_not_null":
            return f"{arguments[0]} IS NOT NULL"
        case "in":
            return f"{arguments[0]} IN ({', '.join(arguments[1:])})"
        case "case":
            pairs = zip(arguments[:-1:2], arguments[1::2], strict=True)
            whens = " ".join(f"WHEN {condition} THEN {value}" for condition, value in pairs)
            return f"CASE {whens} ELSE {arguments[-1]} END"
        case _:
            return f"{function.upper()}({', '.join(arguments)})"


def _nested_text(expr: Expr) -> str:
    infix = isinstance(expr, Call) and (expr.function in _INFIX or expr.function in {"not", "negate", "in"})
    return f"({expr})" if infix else str(expr)
