"""ASOF JOIN: each row of the first stream with the latest row of another one at or before it.

`a ASOF JOIN b ON a.k = b.k AND b.ts <= a.ts` is `a [NOW] JOIN b [PARTITION BY k ROWS 1] ON a.k = b.k`, and LEFT ASOF
JOIN is the LEFT JOIN of these: the last row of a partition at the event time of a row of `a`. Invariant: all rows wait
for the watermark, so no earlier row of `b` can arrive later. `JOIN b FOR SYSTEM_TIME AS OF a.ts` is the same join in
the words of the SQL standard. Limit: only the first stream of FROM can be on the left, and ON has equalities with
columns of `b` and the comparison of event times, nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from anabranch.cql.ast import (
    ColumnName,
    Count,
    Duration,
    Expression,
    FromItem,
    Identifier,
    JoinKind,
    Operation,
    Statement,
    WindowClause,
    walk,
)
from anabranch.errors import BindError, Span, Unsupported
from anabranch.lang.catalog import Catalog

_PLAIN = {JoinKind.ASOF: JoinKind.INNER, JoinKind.LEFT_ASOF: JoinKind.LEFT}
_AS_OF = {plain: asof for asof, plain in _PLAIN.items()}
_EXAMPLE = "ON b.key = a.key AND b.ts <= a.ts"


def with_asof(statement: Statement, catalog: Catalog) -> Statement:
    """Returns the statement with count windows instead of ASOF joins."""
    sources = tuple(_standard(statement, item, catalog) for item in statement.sources)
    statement = replace(statement, sources=sources)
    if not any(item.kind in _PLAIN for item in statement.sources):
        return statement
    first, *others = statement.sources
    for item in others:
        if item.kind not in _PLAIN and (item.subquery is not None or catalog.table(item.stream.name) is None):
            raise _unsupported(
                statement,
                item.join or item.span,
                "ASOF JOIN beside another join of streams is not supported",
                "give every stream a window, and write [NOW] and [PARTITION BY key ROWS 1] instead of ASOF JOIN",
            )
    if first.window is not None and not first.window.is_now:
        raise BindError(
            "the stream on the left of ASOF JOIN takes no window",
            text=statement.text,
            span=first.window.span,
            hint="leave it out: a row meets the latest row of the other stream at its own event time",
        )
    now = WindowClause(None, True, None, first.span)
    found = [_asof(statement, first, item, catalog) if item.kind in _PLAIN else item for item in others]
    return replace(statement, sources=(replace(first, window=now), *found))


def _standard(statement: Statement, item: FromItem, catalog: Catalog) -> FromItem:
    """Returns the ASOF join that FOR SYSTEM_TIME AS OF means; any other item as it is."""
    if item.as_of is None:
        return item
    if catalog.table(item.stream.name) is not None:
        raise _unsupported(
            statement,
            item.as_of.span,
            f"table '{item.stream.name}' keeps only the version that the batch uses",
            "register its changes as a stream, or leave FOR SYSTEM_TIME out to join the version of the batch",
        )
    if item.kind not in _AS_OF or item.condition is None or item.subquery is not None:
        raise _unsupported(
            statement,
            item.as_of.span,
            "FOR SYSTEM_TIME AS OF needs a stream on the right of JOIN or LEFT JOIN, and ON",
            f"write JOIN {item.stream.name} FOR SYSTEM_TIME AS OF a.ts AS b ON b.key = a.key",
        )
    first = statement.sources[0]
    left = _time(catalog, first, _name(first))
    if not _reads(item.as_of, left):
        raise _unsupported(
            statement,
            item.as_of.span,
            "FOR SYSTEM_TIME AS OF takes the event time of the first stream of FROM",
            f"write FOR SYSTEM_TIME AS OF {'.'.join(left)}",
        )
    time, name = _time(catalog, item, _name(item))[1], item.alias or item.stream
    own = ColumnName(name, Identifier(time, item.as_of.span), item.as_of.span)
    compared = Operation("less_equal", (own, item.as_of), item.as_of.span)
    condition = Operation("and", (compared, item.condition), item.condition.span)
    return replace(item, kind=_AS_OF[item.kind], condition=condition, as_of=None)


def _asof(statement: Statement, first: FromItem, item: FromItem, catalog: Catalog) -> FromItem:
    assert item.condition is not None
    own, left = _name(item), _name(first)
    keys: list[Expression] = []
    partition: list[Identifier] = []
    compared = False
    for condition in _conjuncts(item.condition):
        column = _key(condition, own)
        if column is not None:
            keys.append(condition)
            partition.append(column)
        elif not compared and _compares(condition, _time(catalog, item, own), _time(catalog, first, left)):
            compared = True
        else:
            raise _unsupported(
                statement,
                condition.span,
                "ASOF JOIN takes equalities with columns of the joined stream, and one comparison of the event times",
                f"write {_EXAMPLE}, and other conditions in WHERE, which is checked after the join",
            )
    if not compared:
        raise BindError(
            "ASOF JOIN needs a comparison of the event times",
            text=statement.text,
            span=item.condition.span,
            hint=f"write {own}.{_time(catalog, item, own)[1]} <= {left}.{_time(catalog, first, left)[1]}",
        )
    if item.window is not None and (item.window.rows is not None or item.window.range is None or item.window.slide):
        raise BindError(
            "the stream on the right of ASOF JOIN takes no window but [RANGE …]",
            text=statement.text,
            span=item.window.span,
            hint="write [RANGE 1 HOUR] to ignore rows that are older, or no window",
        )
    length: Duration | None = None if item.window is None else item.window.range
    span = item.window.span if item.window is not None else item.span
    window = WindowClause(length, False, None, span, rows=Count(1, span), partition=tuple(partition))
    on = None if not keys else keys[0] if len(keys) == 1 else Operation("and", tuple(keys), item.condition.span)
    return replace(item, kind=_PLAIN[item.kind], window=window, condition=on)


def _name(item: FromItem) -> str:
    return (item.alias or item.stream).name.lower()


def _time(catalog: Catalog, item: FromItem, name: str) -> tuple[str, str]:
    """Returns the event time of a stream, qualified by its alias."""
    stream = catalog.find(item.stream.name)
    return name, "" if stream is None else stream.event_time.lower()


def _conjuncts(condition: Expression) -> Iterator[Expression]:
    if isinstance(condition, Operation) and condition.function == "and":
        for part in condition.arguments:
            yield from _conjuncts(part)
    else:
        yield condition


def _key(condition: Expression, own: str) -> Identifier | None:
    """Returns the column of the joined stream that a condition equates with an expression over the others."""
    if not isinstance(condition, Operation) or condition.function != "equal":
        return None
    for one, other in (condition.arguments, condition.arguments[::-1]):
        reads_own = any(isinstance(n, ColumnName) and (n.relation is None or _is_of(n, own)) for n in walk(other))
        if isinstance(one, ColumnName) and _is_of(one, own) and not reads_own:
            return one.name
    return None


def _is_of(column: ColumnName, relation: str) -> bool:
    return column.relation is not None and column.relation.name.lower() == relation


def _compares(condition: Expression, own: tuple[str, str], left: tuple[str, str]) -> bool:
    """True for `own.ts <= left.ts` and `left.ts >= own.ts`, of the event times."""
    if not isinstance(condition, Operation) or condition.function not in ("less_equal", "greater_equal"):
        return False
    one, other = condition.arguments if condition.function == "less_equal" else condition.arguments[::-1]
    return _reads(one, own) and _reads(other, left)


def _reads(node: Expression, column: tuple[str, str]) -> bool:
    return isinstance(node, ColumnName) and _is_of(node, column[0]) and node.name.name.lower() == column[1]


def _unsupported(statement: Statement, span: Span, message: str, hint: str) -> Unsupported:
    return Unsupported(message, text=statement.text, span=span, hint=hint)
