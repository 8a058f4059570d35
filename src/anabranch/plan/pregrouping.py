"""Pre-grouping: which rows may be merged below a join of a grouped query, and the contents of a merged row.

A grouped query needs the boundaries at which a combination counts, its group, and the arguments of the aggregates. A
row counts at the boundaries from its event time to its deadline, a combination at those that all its rows share. So
rows of one input, or combinations of a sub-join, are interchangeable above it if they agree in

- the first and the last boundary at which they count,
- their codes in the key classes that reach outside the input (and the keys themselves, if codes are hashes),
- the columns that group keys, thetas and aggregates read, if these reach outside the input.

Interchangeable rows become one row with a *weight*, their number, and with the *parts* of the aggregates over the input
alone. A join multiplies weights; COUNT and SUM of one input are multiplied by the weights of the others, MIN and MAX
are unchanged, AVG is a sum and a count. This is the two-stage group-by of Part II of the migration paper (Section
14.1), for many-to-many joins, without restriction to distributive aggregates.

Invariant: no expression that might fail for a row without matches is computed here. It is left to the operators above,
and rows must agree in the columns it reads.

Limit: an aggregate whose parts have no fixed width (the minimum of texts) is not carried. Rows must agree in the
columns it reads instead, so fewer rows merge.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from anabranch.lang.expr import AggregateCall, Column, Expr, Ranking, can_fail, columns, relations
from anabranch.lang.schema import is_decimal, is_fixed_width, is_float, is_integer
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.query import Grouping

WHOLE_SUM = pa.decimal128(38, 0)
"""The type of sums of integers: a decimal, because Arrow's sums of integers wrap silently."""
_LONGEST = 38
"""The largest precision of a decimal whose sums cannot wrap."""


@dataclass(frozen=True)
class Part:
    """One mergeable part of an aggregate: its name, the aggregate's position, the merging function, its type."""

    name: str
    aggregate: int
    function: str
    type: pa.DataType
    word: int | None = None
    """For a sum of long decimals: 0 for the sum of the lower 64 bits, 1 for the upper."""
    ranking: Ranking | None = None
    """The order and the number of items of a `ranked` part."""


def parts_of(position: int, aggregate: AggregateCall) -> tuple[Part, ...]:
    """Returns the parts of an aggregate of a grouping, by position: AVG is a sum and a count, most others have one."""
    name = f"part{position}"
    match aggregate.function:
        case "avg" if is_decimal(aggregate.type):
            assert aggregate.argument is not None
            kind = aggregate.argument.type
            summed = AggregateCall(
                "sum", aggregate.argument, pa.decimal128(min(_LONGEST, kind.precision + 10), kind.scale)
            )
            return *parts_of(position, summed), Part(f"{name}.count", position, "count", pa.int64())
        case "stddev_samp" | "stddev_pop" | "var_samp" | "var_pop":
            return (
                Part(f"{name}.count", position, "count", pa.int64()),
                Part(f"{name}.mean", position, "mean", pa.float64()),
                Part(f"{name}.squares", position, "squares", pa.float64()),
            )
        case ("count_distinct" | "min_by" | "max_by" | "collect_list" | "percentile") as listed:
            return (Part(f"{name}.items", position, _ITEMS[listed], pa.list_(_item(aggregate))),)
        case "ranked":
            kind = pa.list_(_ranked_row(aggregate))
            return (Part(f"{name}.items", position, "ranked", kind, ranking=aggregate.ranking),)
        case "avg":
            total = Part(f"{name}.sum", position, "sum", pa.float64())
            return total, Part(f"{name}.count", position, "count", pa.int64())
        case "count":
            return (Part(f"{name}.count", position, "count", pa.int64()),)
        case "sum" if is_integer(aggregate.type):
            return (Part(f"{name}.sum", position, "sum", WHOLE_SUM),)
        case "sum" if is_decimal(aggregate.type) and aggregate.type.precision == _LONGEST:
            return tuple(Part(f"{name}.word{word}", position, "sum", WHOLE_SUM, word) for word in (0, 1))
        case ("min" | "max") as least if is_float(aggregate.type) or pa.types.is_duration(aggregate.type):
            # Arrow has no minimum or maximum for intervals, and ignores NaN.
            return (Part(f"{name}.{least}", position, least, pa.int64()),)
        case other:
            return (Part(f"{name}.{other}", position, other, aggregate.type),)


_ITEMS = {
    "count_distinct": "distinct",
    "min_by": "least_by",
    "max_by": "greatest_by",
    "collect_list": "first_n",
    "percentile": "histogram",
}
"""The merging of item lists, by aggregate; see `engine.operators.aggregates`."""


def _item(aggregate: AggregateCall) -> pa.DataType:
    """Returns the item type of an aggregate that keeps a list of items."""
    assert aggregate.argument is not None
    value = aggregate.argument.type
    match aggregate.function:
        case "count_distinct":
            return value
        case "percentile":
            return pa.struct([pa.field("value", pa.float64()), pa.field("count", pa.int64())])
        case _:
            by = aggregate.others[0].type
            counted = is_float(by) or pa.types.is_timestamp(by) or pa.types.is_duration(by)
            return pa.struct([pa.field("by", pa.int64() if counted else by), pa.field("value", value)])


def _ranked_row(aggregate: AggregateCall) -> pa.DataType:
    """Returns the type of a ranked row: its values and its sort keys."""
    assert aggregate.ranking is not None
    count = len(aggregate.arguments) - len(aggregate.ranking.is_descending)
    values, keys = aggregate.arguments[:count], aggregate.arguments[count:]
    fields = [pa.field(f"value{number}", each.type) for number, each in enumerate(values)]
    return pa.struct([*fields, *(pa.field(f"key{number}", each.type) for number, each in enumerate(keys))])


@dataclass(frozen=True)
class Agreement:
    """The values that rows must share to be merged, and the aggregates that a merged row carries."""

    relations: frozenset[str]
    codes: tuple[str, ...]
    """Key classes that reach outside the input."""
    values: tuple[Expr, ...]
    """Expressions over the input, equal in all merged rows."""
    carried: tuple[Part, ...]
    """The parts of the aggregates over the input alone."""


def agreement(graph: JoinGraph, grouping: Grouping, merged: Iterable[str]) -> Agreement:
    """Returns how the rows of these relations, one input of a join of a grouped query, may be merged."""
    inside = frozenset(merged)
    reaching = [key for key in graph.keys_of(inside) if not key.relations <= inside]
    values: dict[Expr, None] = {}
    for key in reaching:
        if not key.is_exact:
            values[next(member for relation, member in key.members if relation in inside)] = None
    for expression in grouping.keys:
        values |= dict.fromkeys([expression] if _is_safe(expression, inside) else _columns_in(expression, inside))
    for theta in graph.thetas:
        # A deferred filter of a merged relation is checked above, like a theta that reaches outside.
        if not theta.relations <= inside or len(inside) == 1:
            values |= dict.fromkeys(_columns_in(theta.predicate, inside))
    carried: list[Part] = []
    for position, aggregate in enumerate(grouping.aggregates):
        if aggregate.argument is None:
            continue
        parts = parts_of(position, aggregate)
        is_simple = not aggregate.others and all(is_fixed_width(part.type) for part in parts)
        if is_simple and _is_safe(aggregate.argument, inside):
            carried += parts
        else:
            values |= dict.fromkeys(column for each in aggregate.arguments for column in _columns_in(each, inside))
    for key in reaching:
        if key.is_exact:
            # If the code is the key itself, rows with equal codes have equal keys.
            for relation, member in key.members:
                if relation in inside:
                    values.pop(member, None)
    return Agreement(inside, tuple(key.name for key in reaching), tuple(values), tuple(carried))


def _is_safe(expression: Expr, inside: frozenset[str]) -> bool:
    """True if the expression reads only these relations and cannot fail."""
    read = relations(expression)
    return bool(read) and read <= inside and not can_fail(expression)


def _columns_in(expression: Expr, inside: frozenset[str]) -> list[Column]:
    return [column for column in columns(expression) if column.relation in inside]
