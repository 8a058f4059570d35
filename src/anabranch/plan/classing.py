"""Which columns of streams travel as classes: those that the meshes of a run test and that its queries do not carry.

The columns that travel are fixed for a run, so this is decided at its start, from the plans that it begins with and
from those that it may change to. Whoever knows rows may ask for finer classes than a mesh tests (`carrying`), so that a
later search of the same run can move thresholds.

Law: the queries mean what they meant: classes are no part of a fingerprint.

Limit: a query that runs alone and reads streams only. Queries together share relations whose rows travel once for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

import pyarrow as pa

from anabranch.errors import UnknownAttribute
from anabranch.plan.classes import ClassColumn, merged
from anabranch.plan.classifier import (
    Assign,
    CategoryTest,
    Classifier,
    NumberTest,
    attributes,
    column_of,
    hour_of,
    is_classifiable,
    walk,
)
from anabranch.plan.join_graph import JoinGraph, Relation
from anabranch.plan.mesh import Mesh, Plan, attributes_of
from anabranch.plan.query import Query
from anabranch.plan.query_set import ALONE, QuerySet, alone
from anabranch.schema import TIMESTAMP, Field, Schema

MOST_COLUMNS = 64
"""Columns of a stream that are sampled beyond those that a query carries."""

Finer = Callable[[str, ClassColumn], ClassColumn]
"""Gives the classes that a column of a relation is to have, at least those given."""


def classes_for(plan: Plan, graph: JoinGraph) -> dict[str, tuple[ClassColumn, ...]]:
    """The class columns of each relation that a plan tests and the engine would not have: only meshes test any.

    A mesh that tests a column which the stream does not have is an UnknownAttribute. A relation of whose stream no
    columns are known has none; whether its classifier fits is seen where the mesh is checked.
    """
    found: dict[str, tuple[ClassColumn, ...]] = {}
    for way in plan.ways if isinstance(plan, Mesh) else ():
        if way.relation not in graph.names:
            continue
        relation = graph.relation(way.relation)
        if not relation.source.fields:
            continue
        engines = replace(graph, relations=tuple(replace(each, classes=()) for each in graph.relations))
        known = attributes_of(engines, way.relation).names
        lacking = [name for name in attributes(way.classifier) if name not in known]
        found[way.relation] = tuple(_tested(name, _type(relation, name), way.classifier) for name in lacking)
    return found


def with_classes(query: Query, classes: Mapping[str, tuple[ClassColumn, ...]]) -> Query:
    """The query with class columns, beside those that it has."""
    relations = tuple(
        replace(each, classes=_together(each.classes, classes.get(each.name, ()))) for each in query.graph.relations
    )
    return replace(query, graph=replace(query.graph, relations=relations))


def carrying(queries: QuerySet, plans: Iterable[Plan], finer: Finer = lambda _, column: column) -> QuerySet:
    """The queries with the class columns that meshes among the plans of a query that runs alone test."""
    if queries.names != (ALONE,) or queries.member(ALONE).query.inputs:
        return queries
    query = queries.member(ALONE).query
    for plan in plans:
        wanted = classes_for(plan, query.graph)
        classes = {name: tuple(finer(name, each) for each in several) for name, several in wanted.items()}
        query = with_classes(query, classes)
    return alone(query)


def without_sources(queries: QuerySet) -> QuerySet:
    """The queries as they travel to slots: what their streams have beside what they read is no matter there."""
    if queries.names != (ALONE,) or queries.member(ALONE).query.inputs:
        return queries
    query = queries.member(ALONE).query
    relations = tuple(replace(each, source=Schema(())) for each in query.graph.relations)
    return alone(replace(query, graph=replace(query.graph, relations=relations)))


def widened(query: Query, is_there: Callable[[Relation, Field], bool]) -> Query:
    """The query as if it carried the columns of its streams that a classifier can test and that are there."""
    relations = tuple(
        replace(each, schema=Schema((*each.schema, *_others(each, partial(is_there, each)))))
        for each in query.graph.relations
    )
    return replace(query, graph=replace(query.graph, relations=relations))


def _others(relation: Relation, is_there: Callable[[Field], bool]) -> list[Field]:
    found = [
        each
        for each in relation.source
        if is_classifiable(each.type)
        and relation.schema.find(each.name) is None
        and each.name != relation.event_time
        and is_there(each)
    ]
    return found[:MOST_COLUMNS]


def _type(relation: Relation, attribute: str) -> pa.DataType:
    """The type of an attribute that is computed from a column of the stream."""
    field = next((each for each in relation.source if each.name == column_of(attribute)), None)
    fits = field is not None and (hour_of(attribute) is None or field.type == TIMESTAMP)
    if field is None or not fits:
        what = "not a column" if field is None else f"of type {field.type}, not a timestamp,"
        raise UnknownAttribute(
            f"attribute '{attribute}' of relation '{relation.name}': '{column_of(attribute)}' is {what} of stream "
            f"'{relation.stream}'",
            detail=f"it has {', '.join(relation.source.names)}",
            hint="test another column, register the stream with it, or write another 'plan'",
        )
    return field.type if hour_of(attribute) is None else pa.int64()


def _tested(attribute: str, kind: pa.DataType, classifier: Classifier) -> ClassColumn:
    """The classes that a classifier tells apart by an attribute."""
    tests = [node for node in walk(classifier) if not isinstance(node, Assign) and node.attribute == attribute]
    return ClassColumn(
        attribute,
        kind,
        tuple(test.threshold for test in tests if isinstance(test, NumberTest)),
        tuple(text for test in tests if isinstance(test, CategoryTest) for text in test.values),
    )


def _together(some: tuple[ClassColumn, ...], more: tuple[ClassColumn, ...]) -> tuple[ClassColumn, ...]:
    """Class columns, one for each attribute; what a later one tests is kept first."""
    found = {each.attribute: each for each in some}
    for each in more:
        known = found.get(each.attribute)
        found[each.attribute] = each if known is None else merged(each, known)
    return tuple(found.values())
