"""Rewrites the expressions and relations of a query everywhere they occur; renames relations.

Invariant: the renamed query has the same meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from anabranch.lang.expr import Column, Expr, transform
from anabranch.plan.join_graph import Band, JoinGraph, KeyClass, Relation, Theta
from anabranch.plan.query import Grouping, Query
from anabranch.plan.sides import Side


def renamed(query: Query, names: Mapping[str, str], streams: Mapping[str, str]) -> Query:
    """Returns the query with new names for some relations and for some queries that it reads."""

    def in_column(expr: Expr) -> Expr:
        return replace(expr, relation=names.get(expr.relation, expr.relation)) if isinstance(expr, Column) else expr

    def changed(expr: Expr) -> Expr:
        return transform(expr, in_column)

    def of(name: str) -> str:
        return names.get(name, name)

    def relation(each: Relation) -> Relation:
        stream = streams.get(each.stream, each.stream) if each.is_result else each.stream
        branches = tuple(streams.get(branch, branch) for branch in each.branches)
        own_filter = None if each.filter is None else changed(each.filter)
        return replace(each, name=of(each.name), stream=stream, branches=branches, filter=own_filter)

    return rewritten(query, changed, relation, of)


def rewritten(
    query: Query,
    changed: Callable[[Expr], Expr],
    relation: Callable[[Relation], Relation],
    of: Callable[[str], str] = str,
) -> Query:
    """Returns the query with other expressions and relations; `of` returns the new name of a relation.

    The filter of a relation is part of the relation.
    """

    def optional(expr: Expr | None) -> Expr | None:
        return None if expr is None else changed(expr)

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
            replace(call, argument=optional(call.argument), others=tuple(map(changed, call.others)))
            for call in each.aggregates
        )
        return replace(each, keys=tuple(map(changed, each.keys)), aggregates=aggregates)

    def graph(each: JoinGraph) -> JoinGraph:
        return JoinGraph(
            tuple(map(relation, each.relations)), tuple(map(key, each.keys)), tuple(map(theta, each.thetas))
        )

    def side(each: Side) -> Side:
        return replace(
            each,
            before=tuple(map(of, each.before)),
            names=tuple(map(of, each.names)),
            graph=graph(each.graph),
            ready=optional(each.ready),
            residual=optional(each.residual),
        )

    return replace(
        query,
        graph=graph(query.graph),
        outputs=tuple(replace(output, expression=changed(output.expression)) for output in query.outputs),
        grouping=None if query.grouping is None else grouping(query.grouping),
        sides=tuple(map(side, query.sides)),
        condition=optional(query.condition),
    )
