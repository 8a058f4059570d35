"""Renames relations throughout a query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from anabranch.lang.expr import Column, Expr, transform
from anabranch.plan.join_graph import Band, JoinGraph, KeyClass, Relation, Theta
from anabranch.plan.query import Grouping, Query


def renamed(query: Query, names: Mapping[str, str]) -> Query:
    """Returns the query with new names for some relations; its results are the same."""

    def in_column(expr: Expr) -> Expr:
        return replace(expr, relation=names.get(expr.relation, expr.relation)) if isinstance(expr, Column) else expr

    def changed(expr: Expr) -> Expr:
        return transform(expr, in_column)

    def of(name: str) -> str:
        return names.get(name, name)

    def relation(each: Relation) -> Relation:
        return replace(each, name=of(each.name), filter=None if each.filter is None else changed(each.filter))

    def key(each: KeyClass) -> KeyClass:
        return replace(each, members=tuple((of(name), changed(member)) for name, member in each.members))

    def band(each: Band) -> Band:
        return replace(
            each,
            left_relation=of(each.left_relation),
            left=changed(each.left),
            right_relation=of(each.right_relation),
            right=changed(each.right),
        )

    def theta(each: Theta) -> Theta:
        return replace(
            each,
            predicate=changed(each.predicate),
            relations=frozenset(map(of, each.relations)),
            band=None if each.band is None else band(each.band),
        )

    def grouping(each: Grouping) -> Grouping:
        aggregates = tuple(
            call if call.argument is None else replace(call, argument=changed(call.argument))
            for call in each.aggregates
        )
        return replace(each, keys=tuple(map(changed, each.keys)), aggregates=aggregates)

    graph = JoinGraph(
        tuple(map(relation, query.graph.relations)),
        tuple(map(key, query.graph.keys)),
        tuple(map(theta, query.graph.thetas)),
    )
    return replace(
        query,
        graph=graph,
        outputs=tuple(replace(output, expression=changed(output.expression)) for output in query.outputs),
        grouping=None if query.grouping is None else grouping(query.grouping),
    )
