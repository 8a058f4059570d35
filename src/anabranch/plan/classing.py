"""Decides which stream columns are sent as classes: those that the meshes of a run test and its queries do not carry.

These columns are fixed for a run, so they are chosen at its start, from the initial plans and those that the run may
change to. Callers that have a sample of rows may request finer classes than a mesh tests (`carrying`), so that a later
search of the same run can move thresholds. In a set of queries, a relation has the classes of all plans, one class
column per attribute, and any query may route by it.

Invariant: classes never change the meaning of a query; they are not part of a fingerprint.

Limit: only relations of streams. Tables and results of other queries have no classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import pyarrow as pa

from anabranch.errors import UnknownAttribute
from anabranch.lang.schema import TIMESTAMP, Field, Schema
from anabranch.plan.classes import MOST_CLASSES, MOST_CODES, ClassColumn, merged
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
from anabranch.plan.query_set import QuerySet

MOST_COLUMNS = 64
"""The maximum number of a stream's columns that are sampled beyond those that a query carries."""

Classes: TypeAlias = dict[str, tuple[ClassColumn, ...]]
"""Class columns, by relation."""
Finer = Callable[[str, str, ClassColumn], ClassColumn]
"""Returns the classes of a column of a query's relation (both by name), including the given ones."""


def classes_for(plan: Plan, graph: JoinGraph) -> Classes:
    """Returns the class columns that a plan tests and that the engine would lack, by relation; only meshes test any.

    Raises UnknownAttribute if a mesh tests a column that the stream lacks. A relation whose stream columns are unknown
    is skipped; its classifier is checked with the mesh.
    """
    found: Classes = {}
    for way in plan.ways if isinstance(plan, Mesh) else ():
        if way.relation not in graph.names:
            continue
        relation = graph.relation(way.relation)
        if not relation.source.fields:
            continue
        engines = _each(graph, lambda each: replace(each, classes=()))
        known = attributes_of(engines, way.relation).names
        lacking = [name for name in attributes(way.classifier) if name not in known]
        found[way.relation] = tuple(_tested(name, _type(relation, name), way.classifier) for name in lacking)
    return found


def with_classes(graph: JoinGraph, classes: Mapping[str, Iterable[ClassColumn]]) -> JoinGraph:
    """Returns the graph with additional class columns, by relation."""
    return _each(graph, lambda each: replace(each, classes=_together(each.classes, classes.get(each.name, ()))))


def carrying(
    queries: QuerySet, plans: Iterable[tuple[str, Plan]], finer: Finer = lambda query, relation, column: column
) -> QuerySet:
    """Returns the queries with the class columns that meshes among the plans test.

    Each plan comes with the name of its query. Classes that the plans test take precedence; finer classes and those
    that the queries already carry fill the rest.
    """
    tested: Classes = {}
    wanted: Classes = {}
    for name, plan in plans:
        for relation, several in classes_for(plan, queries.member(name).query.graph).items():
            tested[relation] = _together(tested.get(relation, ()), several, MOST_CODES - 1)
            more = tuple(finer(name, relation, each) for each in several)
            wanted[relation] = _together(more, wanted.get(relation, ()))
    classes = {relation: _together(wanted[relation], several) for relation, several in tested.items()}
    return _over(queries, lambda graph: with_classes(graph, classes)) if any(classes.values()) else queries


def without_sources(queries: QuerySet) -> QuerySet:
    """Returns the queries as sent to slots, without the stream columns that they do not read."""
    return _over(queries, lambda graph: _each(graph, lambda each: replace(each, source=Schema(()))))


def _over(queries: QuerySet, change: Callable[[JoinGraph], JoinGraph]) -> QuerySet:
    """Applies a change to the relations of all queries; the change must keep the meaning of the queries."""

    def changed(query: Query) -> Query:
        sides = tuple(replace(side, graph=change(side.graph)) for side in query.sides)
        return replace(query, graph=change(query.graph), sides=sides)

    members = tuple(replace(each, query=changed(each.query)) for each in queries.members)
    return replace(queries, members=members, graph=change(queries.graph))


def _each(graph: JoinGraph, change: Callable[[Relation], Relation]) -> JoinGraph:
    return replace(graph, relations=tuple(map(change, graph.relations)))


def widened(query: Query, is_there: Callable[[Relation, Field], bool]) -> Query:
    """Returns the query as if it carried all available columns of its streams that a classifier can test."""

    def wide(each: Relation) -> Relation:
        return replace(each, schema=Schema((*each.schema, *_further(each, partial(is_there, each)))))

    return replace(query, graph=_each(query.graph, wide))


def _further(relation: Relation, is_there: Callable[[Field], bool]) -> list[Field]:
    """Returns the available columns of a relation's stream that it does not carry and that a classifier can test."""
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
    """Returns the type of an attribute that is computed from a column of the stream."""
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
    """Returns the classes that a classifier distinguishes by an attribute."""
    tests = [node for node in walk(classifier) if not isinstance(node, Assign) and node.attribute == attribute]
    return ClassColumn(
        attribute,
        kind,
        tuple(test.threshold for test in tests if isinstance(test, NumberTest)),
        tuple(text for test in tests if isinstance(test, CategoryTest) for text in test.values),
    )


def _together(
    some: Iterable[ClassColumn], first: Iterable[ClassColumn], most: int = MOST_CLASSES
) -> tuple[ClassColumn, ...]:
    """Merges class columns, one per attribute, with at most `most` bounds or texts each; `first` takes precedence."""
    found = {each.attribute: each for each in some}
    for each in first:
        known = found.get(each.attribute)
        found[each.attribute] = each if known is None else merged(each, known, most)
    return tuple(found.values())
