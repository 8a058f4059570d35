"""Constant folding: computes constant conditions once, not per row.

Folds only operations that every evaluator computes identically: three-valued logic, comparisons of literals, NULL
tests, and sums, differences and products of integers and times. Anything that could fail or round is left to the
kernels. A join keeps its other predicates beside a FALSE, because its keys still determine the partitioning.
"""

from __future__ import annotations

import datetime
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from anabranch.functions import is_nullable
from anabranch.lang.expr import Call, Expr, Literal, conjunction, conjuncts, transform
from anabranch.plan.logical import Filter, Join, LogicalPlan, OuterJoin

_TRUE, _FALSE, _UNKNOWN = (Literal(value, pa.bool_()) for value in (True, False, None))
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
}
_EXACT = int | datetime.datetime | datetime.timedelta


def fold_constants(plan: LogicalPlan) -> LogicalPlan | None:
    """Folds the constant parts of the predicates of a Filter, Join or OuterJoin; drops TRUE."""
    match plan:
        case Filter(input=below, predicate=predicate):
            parts = _folded(conjuncts(predicate))
            if any(part in (_FALSE, _UNKNOWN) for part in parts):
                parts = (_FALSE,)
            condition = conjunction(parts)
            if condition is None:
                return below
            return None if condition == predicate else Filter(below, condition)
        case Join(inputs=inputs, predicates=predicates):
            parts = _folded(predicates)
            return None if parts == predicates else Join(inputs, parts)
        case OuterJoin(predicates=predicates):
            parts = _folded(predicates)
            return None if parts == predicates else replace(plan, predicates=parts)
    return None


def _folded(predicates: tuple[Expr, ...]) -> tuple[Expr, ...]:
    parts = (part for predicate in predicates for part in conjuncts(transform(predicate, _fold)))
    return tuple(part for part in dict.fromkeys(parts) if part != _TRUE)


def _fold(expr: Expr) -> Expr:
    match expr:
        case Call(function="and"):
            return _connective(expr, absorbing=_FALSE, neutral=_TRUE)
        case Call(function="or"):
            return _connective(expr, absorbing=_TRUE, neutral=_FALSE)
        case Call(function="not", arguments=(Literal(value=value),)):
            return _UNKNOWN if value is None else (_FALSE if value else _TRUE)
        case Call(function="is_null" | "is_not_null", arguments=(argument,)):
            return _null_test(expr, argument)
        case Call(function=function, arguments=(Literal(value=left), Literal(value=right))):
            if function in _COMPARISONS:
                if left is None or right is None:
                    return _UNKNOWN
                return _TRUE if _COMPARISONS[function](left, right) else _FALSE
            if function in _ARITHMETIC:
                return _arithmetic(expr, left, right)
    return expr


def _connective(expr: Call, *, absorbing: Literal, neutral: Literal) -> Expr:
    parts = tuple(part for part in dict.fromkeys(expr.arguments) if part != neutral)
    if absorbing in parts:
        return absorbing
    if len(parts) < 2:
        return parts[0] if parts else neutral
    return expr if parts == expr.arguments else replace(expr, arguments=parts)


def _null_test(expr: Call, argument: Expr) -> Expr:
    if isinstance(argument, Literal):
        return _TRUE if (argument.value is None) == (expr.function == "is_null") else _FALSE
    if not is_nullable(argument):
        return _FALSE if expr.function == "is_null" else _TRUE
    return expr


def _arithmetic(expr: Call, left: Any, right: Any) -> Expr:
    if left is None or right is None:
        return Literal(None, expr.type)
    if not (isinstance(left, _EXACT) and isinstance(right, _EXACT)):
        return expr
    try:
        value = _ARITHMETIC[expr.function](left, right)
    except OverflowError:
        return expr
    size = value // datetime.timedelta(microseconds=1) if isinstance(value, datetime.timedelta) else value
    if isinstance(size, int) and not -(2**63) <= size < 2**63:
        return expr
    return Literal(value, expr.type)
