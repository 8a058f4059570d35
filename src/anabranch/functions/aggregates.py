"""The aggregates: their names, argument and result types.

COUNT, SUM, MIN, MAX and AVG take one argument. FIRST, LAST and COLLECT_LIST order by the event time of their argument,
which the binder adds. Ties are broken by the value.

Invariant: the value of an aggregate does not depend on the order of arrival.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from anabranch.functions.table import bind_call
from anabranch.functions.types import (
    BIGINT,
    DOUBLE,
    MAX_DIGITS,
    NULL,
    OTHER,
    average_type,
    canonical,
    coerce,
    kind_of,
    not_computable,
)
from anabranch.lang.expr import AggregateCall, Expr, Literal
from anabranch.lang.schema import type_name

_SPREADS = {
    "stddev": "stddev_samp",
    "stddev_samp": "stddev_samp",
    "stddev_pop": "stddev_pop",
    "variance": "var_samp",
    "var_samp": "var_samp",
    "var_pop": "var_pop",
}
BY_TIME = {"first": "min_by", "last": "max_by", "collect_list": "collect_list"}
"""Aggregates that order by event time, and the aggregate that implements each."""
AGGREGATES = frozenset(
    {"count", "count_if", "sum", "min", "max", "avg", "min_by", "max_by", "percentile", "median", *_SPREADS, *BY_TIME}
)
APPROXIMATE = {
    "approx_percentile": "PERCENTILE(x, share)",
    "percentile_approx": "PERCENTILE(x, share)",
    "approx_quantile": "PERCENTILE(x, share)",
    "approx_count_distinct": "COUNT(DISTINCT x)",
    "collect_set": "COLLECT_LIST(x, limit) of distinct rows, or COUNT(DISTINCT x)",
}
"""Unsupported aggregates, whose value depends on the order of merging, and what to use instead."""
MOST_COLLECTED = 100_000


def bind_aggregate(name: str, arguments: tuple[Expr, ...], time: Expr | None = None) -> AggregateCall:
    """Binds an aggregate; `time` is the event time of its argument, for aggregates that order by it.

    COUNT(DISTINCT x) is called `count_distinct`.
    """
    function = name.lower()
    if function == "count" and len(arguments) <= 1:
        return AggregateCall("count", arguments[0] if arguments else None, BIGINT)
    expected = {"min_by": 2, "max_by": 2, "percentile": 2, "collect_list": 2}.get(function, 1)
    if len(arguments) != expected:
        if function == "count_distinct":
            raise ValueError(
                f"COUNT(DISTINCT …) takes one argument, found {len(arguments)}",
                "count the rows of a query of the distinct rows: FROM (SELECT DISTINCT a, b FROM s [TUMBLE 1 MINUTE]) "
                "[NOW SLIDE 1 MINUTE] AS d",
            )
        hint = {"collect_list": "write the most elements that a list may have: COLLECT_LIST(x, 100)"}.get(function, "")
        hint = "only COUNT takes *" if not arguments and function in _ONE_NUMBER else hint
        raise ValueError(f"'{name.upper()}' takes {_COUNTS[expected]}, found {len(arguments)}", hint)
    argument = arguments[0]
    kind = kind_of(argument.type)
    if function not in {"sum", "avg", "percentile", "median", *_SPREADS} and kind in {OTHER, NULL}:
        raise not_computable(argument.type)
    match function:
        case "min" | "max":
            return AggregateCall(function, argument, argument.type)
        case "count_distinct":
            return AggregateCall(function, argument, BIGINT)
        case "min_by" | "max_by":
            if kind_of(arguments[1].type) in {OTHER, NULL, "boolean"}:
                raise ValueError(
                    f"'{name.upper()}' cannot compare values of type {type_name(arguments[1].type)}",
                    "compare by a number, a text or a time",
                )
            return AggregateCall(function, argument, argument.type, (arguments[1],))
        case "first" | "last":
            assert time is not None
            return AggregateCall(BY_TIME[function], argument, argument.type, (time,))
        case "collect_list":
            assert time is not None
            return AggregateCall(function, argument, pa.list_(argument.type), (time, _limit(arguments[1])))
    if kind not in _NUMBERS:
        hint = "of the time between a and b, take UNIX_MICROS(b) - UNIX_MICROS(a)" if kind == "interval" else ""
        raise ValueError(f"'{name.upper()}' expects a number, found {type_name(argument.type)}", hint)
    match function:
        case "percentile" | "median":
            share = _share(arguments[1]) if function == "percentile" else Literal(0.5, DOUBLE)
            return AggregateCall("percentile", coerce(argument, DOUBLE), DOUBLE, (share,))
        case "avg" if kind == "decimal":
            return AggregateCall("avg", argument, average_type(argument.type))
        case "avg":
            return AggregateCall("avg", coerce(argument, DOUBLE), DOUBLE)
        case spread if spread in _SPREADS:
            return AggregateCall(_SPREADS[spread], coerce(argument, DOUBLE), DOUBLE)
    argument = coerce(argument, canonical(argument.type))
    if kind == "decimal":
        digits = min(MAX_DIGITS, argument.type.precision + 10)
        return AggregateCall("sum", argument, pa.decimal128(digits, argument.type.scale))
    return AggregateCall("sum", argument, argument.type)


def filtered(call: AggregateCall, condition: Expr) -> AggregateCall:
    """Returns the aggregate over the rows that satisfy a condition: the others give NULL, which aggregates skip."""

    def if_true(value: Expr) -> Expr:
        return bind_call("case", (condition, value, Literal(None, value.type)))

    argument = if_true(Literal(True, pa.bool_()) if call.argument is None else call.argument)
    if call.function in {"min_by", "max_by"}:
        # They skip rows by the value that they compare.
        return replace(call, argument=argument, others=tuple(map(if_true, call.others)))
    return replace(call, argument=argument)


_NUMBERS = frozenset({"integer", "float", "decimal"})
_ONE_NUMBER = frozenset({"sum", "min", "max", "avg", "median", *_SPREADS})
_COUNTS = {1: "one argument", 2: "two arguments"}


def _share(expr: Expr) -> Literal:
    value = expr.value if isinstance(expr, Literal) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError("the share of PERCENTILE is a number from 0 to 1", "write for example PERCENTILE(x, 0.95)")
    return Literal(float(value), DOUBLE)


def _limit(expr: Expr) -> Literal:
    value = expr.value if isinstance(expr, Literal) else None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_COLLECTED:
        raise ValueError(
            f"the limit of COLLECT_LIST is a whole number from 1 to {MOST_COLLECTED:,}",
            "write for example COLLECT_LIST(x, 100)",
        )
    return Literal(value, BIGINT)
