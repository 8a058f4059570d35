"""`JOIN … USING (column)` as a join with ON: names of merged columns are qualified, and `*` has them once.

A merged column is that of the left side, of a RIGHT JOIN that of the right side; the other one is read by its qualified
name. Invariant: the statement that results has no USING. Limit: not in a FULL JOIN, where neither side has the value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from anabranch.cql.ast import (
    CastTo,
    ColumnName,
    Expression,
    FromItem,
    FunctionCall,
    Identifier,
    InQuery,
    JoinKind,
    Operation,
    RowNumber,
    SelectItem,
    SortItem,
    Star,
    Statement,
)
from anabranch.errors import BindError, Unsupported
from anabranch.plan.logical import Source

Items = Sequence[tuple[FromItem, Source]]
_HALF = (JoinKind.SEMI, JoinKind.ANTI)


def with_using(statement: Statement, items: Items) -> Statement:
    """Returns the statement with ON in place of USING; `items` are its sources in the order of FROM."""
    if not any(item.using for item, _ in items):
        return statement
    owners: dict[str, str] = {}
    hidden: set[tuple[str, str]] = set()
    sources: list[FromItem] = []
    for position, (item, source) in enumerate(items):
        condition = None if item.condition is None else _qualified(item.condition, owners)
        equalities = []
        for name in item.using:
            key = name.name.lower()
            left = owners.get(key) or _owner(statement, name, items[:position])
            equalities.append(_equality(statement, item, name, left, source))
            if item.kind is JoinKind.RIGHT:
                hidden.add((left, key))
                owners[key] = source.relation
            else:
                hidden.add((source.relation, key))
                owners[key] = left
        if item.using:
            assert item.using_span is not None
            condition = _all(equalities, item)
        sources.append(replace(item, condition=condition, using=()))
    visible = [source for item, source in items if item.kind not in _HALF]
    return _rewritten(replace(statement, sources=tuple(sources)), owners, hidden, visible)


def _owner(statement: Statement, name: Identifier, before: Items) -> str:
    """Returns the relation of the left side that has the column."""
    having = [
        source.relation
        for item, source in before
        if item.kind not in _HALF and source.schema.find(name.name) is not None
    ]
    if len(having) != 1:
        raise BindError(
            f"column '{name.name}' of USING is in {len(having)} relations on the left of the join",
            text=statement.text,
            span=name.span,
            detail=f"they are {', '.join(having)}" if having else "",
            hint="write ON left.column = right.column",
        )
    return having[0]


def _equality(statement: Statement, item: FromItem, name: Identifier, left: str, source: Source) -> Operation:
    if item.kind is JoinKind.FULL:
        raise Unsupported(
            "USING in a FULL JOIN is not supported",
            text=statement.text,
            span=name.span,
            hint=f"write ON {left}.{name.name} = {source.relation}.{name.name}, and select "
            f"COALESCE({left}.{name.name}, {source.relation}.{name.name})",
        )
    if source.schema.find(name.name) is None:
        raise BindError(
            f"column '{name.name}' of USING does not exist in '{source.relation}'",
            text=statement.text,
            span=name.span,
            detail=f"relation '{source.relation}' has {', '.join(source.schema.names)}",
        )
    sides = tuple(ColumnName(Identifier(each, name.span), name, name.span) for each in (left, source.relation))
    return Operation("equal", sides, name.span)


def _all(equalities: list[Operation], item: FromItem) -> Expression:
    assert item.using_span is not None
    if len(equalities) == 1:
        return replace(equalities[0], span=item.using_span)
    return Operation("and", tuple(equalities), item.using_span)


def _rewritten(
    statement: Statement, owners: Mapping[str, str], hidden: set[tuple[str, str]], visible: Sequence[Source]
) -> Statement:
    def of(node: Expression | None) -> Expression | None:
        return None if node is None else _qualified(node, owners)

    is_starred = statement.distinct is None and (statement.numbered is not None or not statement.group_by)
    items: list[SelectItem | Star] = []
    for item in statement.items:
        if isinstance(item, SelectItem):
            items.append(replace(item, expression=_qualified(item.expression, owners)))
        elif item.relation is None and is_starred:
            items += _starred(item, owners, hidden, visible)
        else:
            items.append(item)
    numbered = statement.numbered
    if numbered is not None:
        around = numbered.around is not None
        condition = numbered.condition if around else of(numbered.condition)
        number = _qualified(numbered.number, owners)
        assert isinstance(number, RowNumber)
        numbered = replace(numbered, number=number, condition=condition)
    return replace(
        statement,
        items=tuple(items),
        where=of(statement.where),
        group_by=tuple(_qualified(each, owners) for each in statement.group_by),
        having=of(statement.having),
        numbered=numbered,
    )


def _starred(
    star: Star, owners: Mapping[str, str], hidden: set[tuple[str, str]], visible: Sequence[Source]
) -> list[SelectItem]:
    """Returns the columns of `*`: the merged ones first, as in Spark, then the others by relation."""
    excluded = {each.name.lower() for each in star.excluded}
    shown = [
        (source.relation, field.name)
        for source in visible
        for field in source.schema
        if (source.relation, field.name.lower()) not in hidden and field.name.lower() not in excluded
    ]
    places = {(owner, name): place for place, (name, owner) in enumerate(owners.items())}
    shown.sort(key=lambda each: places.get((each[0], each[1].lower()), len(places)))
    names = [name.lower() for _, name in shown]
    found = []
    for relation, name in shown:
        column = ColumnName(Identifier(relation, star.span), Identifier(name, star.span), star.span)
        alias = Identifier(f"{relation}_{name}", star.span) if names.count(name.lower()) > 1 else None
        found.append(SelectItem(column, alias))
    return found


def _qualified(node: Expression, owners: Mapping[str, str]) -> Expression:
    """Returns the expression with the relation of each merged column before its name."""

    def of(each: Expression) -> Expression:
        return _qualified(each, owners)

    match node:
        case ColumnName(relation=None) if (owner := owners.get(node.name.name.lower())) is not None:
            return replace(node, relation=Identifier(owner, node.span))
        case FunctionCall():
            condition = None if node.filter is None else of(node.filter)
            return replace(node, arguments=tuple(map(of, node.arguments)), filter=condition)
        case Operation():
            return replace(node, arguments=tuple(map(of, node.arguments)))
        case CastTo():
            return replace(node, argument=of(node.argument))
        case InQuery():
            return replace(node, value=of(node.value))
        case RowNumber():
            order = tuple(SortItem(of(each.expression), each.is_descending, each.nulls_first) for each in node.order)
            return replace(node, partition=tuple(map(of, node.partition)), order=order)
        case _:
            return node
