"""The syntax tree of a query, with the position of every node in the text; names and types are not resolved.

Operators, CASE, IN, BETWEEN, LIKE and IS NULL are `Operation`s of canonical functions. Call syntax remains a
`FunctionCall`, because only the binder can distinguish functions from aggregates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from anabranch.errors import Span
from anabranch.lang.expr import LiteralValue, OwnFunction


@dataclass(frozen=True)
class Identifier:
    """A name as written, without its quotes."""

    name: str
    span: Span


@dataclass(frozen=True)
class ColumnName:
    """`name` or `relation.name`."""

    relation: Identifier | None
    name: Identifier
    span: Span

    def __str__(self) -> str:
        return f"{self.relation.name}.{self.name.name}" if self.relation else self.name.name


@dataclass(frozen=True)
class Constant:
    """A number, text, boolean, date, timestamp, interval or NULL."""

    value: LiteralValue
    span: Span


@dataclass(frozen=True)
class Operation:
    """A canonical function written as an operator or a clause."""

    function: str
    arguments: tuple[Expression, ...]
    span: Span


@dataclass(frozen=True)
class FunctionCall:
    """`name(argument, …)`; `star` for `COUNT(*)`."""

    name: Identifier
    arguments: tuple[Expression, ...]
    star: bool
    span: Span
    own: OwnFunction | None = None
    """The user-defined function with that name."""
    is_distinct: bool = False
    """Whether DISTINCT precedes the arguments."""
    filter: Expression | None = None
    """The condition of FILTER (WHERE …)."""


@dataclass(frozen=True)
class CastTo:
    """`CAST(argument AS type)`."""

    argument: Expression
    type: Identifier
    parameters: tuple[int, ...]
    span: Span


@dataclass(frozen=True)
class Exists:
    """`EXISTS (SELECT …)`."""

    query: Statement
    span: Span


@dataclass(frozen=True)
class InQuery:
    """`value IN (SELECT …)`."""

    value: Expression
    query: Statement
    span: Span


@dataclass(frozen=True)
class SortItem:
    """An expression of ORDER BY, with its direction and the place of NULLs."""

    expression: Expression
    is_descending: bool
    nulls_first: bool


@dataclass(frozen=True)
class RowNumber:
    """`ROW_NUMBER() OVER (PARTITION BY … ORDER BY …)`."""

    text: str
    """Its text with single spaces in lower case, by which two of them are equal."""
    partition: tuple[Expression, ...] = field(compare=False)
    order: tuple[SortItem, ...] = field(compare=False)
    span: Span = field(compare=False)


Expression: TypeAlias = ColumnName | Constant | Operation | FunctionCall | CastTo | Exists | InQuery | RowNumber


@dataclass(frozen=True)
class Star:
    """`*` or `relation.*`."""

    relation: Identifier | None
    span: Span
    excluded: tuple[Identifier, ...] = ()
    """The columns of EXCEPT (…)."""


@dataclass(frozen=True)
class SelectItem:
    """An expression of the select list, with an optional name."""

    expression: Expression
    alias: Identifier | None


@dataclass(frozen=True)
class Duration:
    """A duration in microseconds; it may be zero or negative."""

    micros: int
    span: Span


@dataclass(frozen=True)
class Count:
    """A number of rows."""

    rows: int
    span: Span


@dataclass(frozen=True)
class WindowClause:
    """`[…]` after a stream; `range` is None when unbounded, and zero length only for `[NOW]`."""

    range: Duration | None
    is_now: bool
    slide: Duration | None
    span: Span
    kind: str = "range"
    """`range`, or `session`, or `tumble` or `hop`: windows that do not include their end."""
    rows: Count | None = None
    """The number of rows of a count window."""
    partition: tuple[Identifier, ...] = ()
    """The columns of PARTITION BY."""


class JoinKind(Enum):
    """How a FROM item is joined to the preceding items."""

    COMMA = ","
    INNER = "JOIN"
    LEFT = "LEFT JOIN"
    RIGHT = "RIGHT JOIN"
    FULL = "FULL JOIN"
    SEMI = "LEFT SEMI JOIN"
    ANTI = "LEFT ANTI JOIN"
    ASOF = "ASOF JOIN"
    LEFT_ASOF = "LEFT ASOF JOIN"


@dataclass(frozen=True)
class FromItem:
    """A stream with its window and alias, its kind of join, and its ON condition."""

    stream: Identifier
    window: WindowClause | None
    alias: Identifier | None
    condition: Expression | None
    span: Span
    kind: JoinKind = JoinKind.COMMA
    join: Span | None = None
    """The position of the join keywords; None for the first item and after a comma."""
    subquery: Statement | None = None
    """The subquery in parentheses; `stream` is then the alias."""
    as_of: Expression | None = None
    """The time of FOR SYSTEM_TIME AS OF."""
    using: tuple[Identifier, ...] = ()
    """The columns of USING, in place of a condition."""
    using_span: Span | None = None
    """The position of USING."""


@dataclass(frozen=True)
class Statement:
    """A whole query, or a subquery in FROM; `text` is that of the whole query."""

    text: str
    items: tuple[SelectItem | Star, ...]
    sources: tuple[FromItem, ...]
    where: Expression | None
    group_by: tuple[Expression, ...]
    having: Expression | None
    istream: Span | None
    """The position of ISTREAM around the query, if there is one."""
    distinct: Span | None = None
    """The position of DISTINCT after SELECT, if there is one."""
    span: Span | None = None
    """The position of a subquery in FROM; None for the whole query."""
    distinct_on: tuple[Expression, ...] = ()
    """The expressions of DISTINCT ON."""
    qualify: Expression | None = None
    order_by: tuple[SortItem, ...] = ()
    """ORDER BY of a query with DISTINCT ON."""
    branches: tuple[Statement, ...] = ()
    """The other queries of a UNION ALL."""
    numbered: Numbered | None = None
    """The first rows of each group as results, instead of aggregates; `group_by` has the partitions."""

    @property
    def own_text(self) -> str:
        return self.text if self.span is None else self.text[self.span.start : self.span.end].strip()


@dataclass(frozen=True)
class Numbered:
    """The first rows of each partition, in the order of a row number."""

    number: RowNumber
    rows: int
    condition: Expression | None
    """What else a row must satisfy after it has been numbered: over `around`, or over the rows themselves."""
    around: Statement | None
    """The query around the subquery with the row number, if it is one."""


def children(expression: Expression) -> tuple[Expression, ...]:
    match expression:
        case FunctionCall(arguments=arguments, filter=condition) if condition is not None:
            return (*arguments, condition)
        case Operation(arguments=arguments) | FunctionCall(arguments=arguments):
            return arguments
        case CastTo(argument=argument):
            return (argument,)
        case Exists(query=query):
            return _expressions(query)
        case InQuery(value=value, query=query):
            return (value, *_expressions(query))
        case RowNumber(partition=partition, order=order):
            return (*partition, *(item.expression for item in order))
        case ColumnName() | Constant():
            return ()


def _expressions(query: Statement) -> tuple[Expression, ...]:
    """Returns the expressions of a subquery."""
    found: list[Expression | None] = [item.expression for item in query.items if isinstance(item, SelectItem)]
    found += [*(source.condition for source in query.sources), query.where, *query.group_by, query.having]
    return tuple(each for each in found if each is not None)


def walk(expression: Expression) -> Iterator[Expression]:
    """Yields the expression and all its descendants, parents first."""
    yield expression
    for child in children(expression):
        yield from walk(child)


def depth(expression: Expression) -> int:
    """Returns the largest nesting depth of the expression."""
    level, count = [expression], 0
    while level:
        level, count = [child for parent in level for child in children(parent)], count + 1
    return count
