"""The first rows of each window and partition: the ways to write them, as one form.

`QUALIFY ROW_NUMBER() OVER (…) <= n`, a condition `WHERE rn <= n` around a subquery that selects `ROW_NUMBER() OVER (…)
AS rn`, and `SELECT DISTINCT ON (…) … ORDER BY …` become a statement whose groups are the partitions, with `numbered`.
Invariant: a number without an upper limit has no such form, because all rows of a window would be kept and sorted; it
remains in the statement, and the binder refuses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from anabranch.cql.ast import (
    ColumnName,
    Constant,
    Expression,
    FunctionCall,
    Numbered,
    Operation,
    RowNumber,
    SelectItem,
    Statement,
    walk,
)
from anabranch.errors import BindError, Span, Unsupported
from anabranch.functions import AGGREGATES
from anabranch.functions.aggregates import MOST_COLLECTED

_FLIPPED = {"greater_equal": "less_equal", "greater": "less", "equal": "equal"}


def with_ranking(statement: Statement) -> Statement:
    """Returns the statement with `numbered` if it selects the first rows of partitions."""
    if statement.distinct_on:
        return _distinct_on(statement)
    if statement.qualify is not None:
        return _ranked(statement, statement.qualify, None)
    around = _around(statement)
    return statement if around is None else _ranked(*around)


def _distinct_on(statement: Statement) -> Statement:
    assert statement.distinct is not None
    number = RowNumber("", statement.distinct_on, statement.order_by, statement.distinct)
    return _numbered(statement, Numbered(number, 1, None, None))


def _around(statement: Statement) -> tuple[Statement, Expression, Statement] | None:
    """Returns a subquery with a row number, the condition on its rows, and the statement around it."""
    if len(statement.sources) != 1 or statement.where is None or statement.group_by or statement.having is not None:
        return None
    (item,) = statement.sources
    if item.subquery is None or item.window is not None or item.subquery.distinct_on or item.subquery.qualify:
        return None
    if not any(_is_number(each) for each in item.subquery.items) or statement.distinct is not None:
        return None
    return item.subquery, statement.where, statement


def _is_number(item: object) -> bool:
    return isinstance(item, SelectItem) and isinstance(item.expression, RowNumber)


def _ranked(inner: Statement, condition: Expression, around: Statement | None) -> Statement:
    """Returns the subquery (or the statement itself) with the limit that the condition sets."""
    named = {_name(item): item.expression for item in inner.items if isinstance(item, SelectItem) and _is_number(item)}
    conditions = [_resolved(each, named, around is not None) for each in _conjuncts(condition)]
    limits = [(limit, each) for each in conditions if (limit := _limit(each)) is not None]
    numbers = {node for each in [*conditions, *named.values()] for node in walk(each) if isinstance(node, RowNumber)}
    if len(numbers) != 1 or not limits:
        raise _no_limit(inner, condition.span, len(numbers))
    rows = min(limit for limit, _ in limits)
    (number,) = numbers
    if not 1 <= rows <= MOST_COLLECTED:
        raise BindError(
            f"ROW_NUMBER() may be limited to 1 to {MOST_COLLECTED:,} rows, found {rows}",
            text=inner.text,
            span=condition.span,
            hint="the first rows of every partition are kept until its window ends",
        )
    rest = [each for each in conditions if not any(each is limit and _is_upper(each) for _, limit in limits)]
    whole = None if not rest else rest[0] if len(rest) == 1 else Operation("and", tuple(rest), condition.span)
    return _numbered(inner, Numbered(number, rows, whole, around))


def _numbered(statement: Statement, numbered: Numbered) -> Statement:
    """Returns the statement with the partitions as groups."""
    calls = [n for item in statement.items if isinstance(item, SelectItem) for n in walk(item.expression)]
    aggregates = [
        n for n in calls if isinstance(n, FunctionCall) and n.own is None and n.name.name.lower() in AGGREGATES
    ]
    for what, span in (
        *(("GROUP BY", node.span) for node in statement.group_by),
        *(("HAVING", node.span) for node in ([statement.having] if statement.having is not None else [])),
        *(("an aggregate", node.span) for node in aggregates),
    ):
        raise Unsupported(
            f"{what} beside {'DISTINCT ON' if statement.distinct_on else 'ROW_NUMBER()'} is not supported",
            text=statement.text,
            span=span,
            hint="rank the results of the grouped query: SELECT … FROM (SELECT … GROUP BY …) [NOW SLIDE 1 MINUTE] AS g "
            "QUALIFY ROW_NUMBER() OVER (…) <= 10",
        )
    partition = numbered.number.partition
    return replace(
        statement, numbered=numbered, group_by=partition, qualify=None, distinct=None, distinct_on=(), order_by=()
    )


def _name(item: SelectItem) -> str:
    return item.alias.name.lower() if item.alias is not None else "row_number"


def _conjuncts(condition: Expression) -> Iterator[Expression]:
    if isinstance(condition, Operation) and condition.function == "and":
        for part in condition.arguments:
            yield from _conjuncts(part)
    else:
        yield condition


def _resolved(node: Expression, named: dict[str, Expression], is_around: bool) -> Expression:
    """Replaces the names of row numbers by the row numbers."""
    match node:
        case ColumnName() if node.name.name.lower() in named and (node.relation is None or is_around):
            return named[node.name.name.lower()]
        case Operation() | FunctionCall():
            return replace(node, arguments=tuple(_resolved(each, named, is_around) for each in node.arguments))
        case _:
            return node


def _limit(condition: Expression) -> int | None:
    """Returns the largest row number that a condition allows, if it compares one with a constant."""
    if not isinstance(condition, Operation) or len(condition.arguments) != 2:
        return None
    left, right = condition.arguments
    function = condition.function
    if isinstance(right, RowNumber):
        left, right, function = right, left, _FLIPPED.get(function, "")
    if not isinstance(left, RowNumber) or not isinstance(right, Constant):
        return None
    if not isinstance(right.value, int) or isinstance(right.value, bool):
        return None
    return {"less_equal": right.value, "equal": right.value, "less": right.value - 1}.get(function)


def _is_upper(condition: Expression) -> bool:
    """True for a condition that says no more than the limit; `rn = 2` does."""
    return not isinstance(condition, Operation) or condition.function != "equal" or _limit(condition) == 1


def _no_limit(statement: Statement, span: Span, numbers: int) -> Unsupported:
    if numbers > 1:
        return Unsupported(
            "a query takes one ROW_NUMBER()",
            text=statement.text,
            span=span,
            hint="rank the results of a ranking: SELECT … FROM (SELECT … QUALIFY …) [NOW SLIDE 1 MINUTE] AS x",
        )
    return no_limit(statement.text, span)


def no_limit(text: str, span: Span) -> Unsupported:
    """Returns the error for a row number that no condition limits."""
    return Unsupported(
        "ROW_NUMBER() needs a limit",
        text=text,
        span=span,
        detail="all rows of a window would be kept and sorted",
        hint="write QUALIFY ROW_NUMBER() OVER (…) <= 10, or WHERE rn <= 10 around a subquery that selects it AS rn",
    )
