"""Meshes: several routes over shared base states, and classifiers that assign rows to routes, as immutable values.

For each relation a mesh has the routes of its new rows and, if there are several, a classifier. A route is a sequence
of operators: a probe of another relation (its name), an existence probe (`b?` is a semi-join: it drops rows without a
match in `b`), or a deferred predicate (`#0` is the first theta of the join graph; a theta that no route names is
checked as early as possible).

    mesh(a: b>c; b: a>c; c: b>a)                           one route each: the mjoin with those probe orders
    mesh(a: b>c, c>b by (k <= 3.5 ? 0 : 1); b: a>c; c: b>a)  two routes for rows of a
    mesh(a: b>c; b: a>c>#0; c: b>a)                        a predicate deferred to the end
    mesh(a: c?>b>c; b: a>c; c: b>a)                        rows of a join only if they also have a match in c

The grammar, which `parse_mesh` reads; `plan.classifier` has that of classifiers:

    mesh      := 'mesh' '(' relation (';' relation)* ')'
    relation  := name ':' route (',' route)* ['by' classifier]
    route     := operator ('>' operator)* | '-'
    operator  := name ['?'] | '#' number

Invariant: a mesh has only base states, so replacing one mesh by another moves no state. The route of a row affects the
cost of its results, never the results. (Nehme et al. 2012, sections 3 and 5.)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import pyarrow as pa

from anabranch.errors import PlanError
from anabranch.lang.expr import Column
from anabranch.lang.schema import TIMESTAMP, Field, Schema
from anabranch.plan.check import require_no_guard, validate
from anabranch.plan.classifier import ONE_ROUTE, Classifier, check_attributes, hour_attribute, parse_classifier
from anabranch.plan.classifier import routes as routes_of
from anabranch.plan.join_graph import (
    JoinGraph,
    KeyClass,
    Relation,
    Theta,
    is_selection,
    position_of,
    selection_name,
)
from anabranch.plan.physical import JoinNode, Leaf, PhysicalPlan, mjoin, probe_order
from anabranch.plan.query import Grouping
from anabranch.plan.reader import TextReader
from anabranch.plan.text import parse


@dataclass(frozen=True)
class Route:
    """The order in which the operators are applied to one subset of a relation's rows."""

    operators: tuple[str, ...]

    def __post_init__(self) -> None:
        taken = self.operators
        if twice := sorted({operator for operator in taken if taken.count(operator) > 1}):
            raise PlanError(f"route '{self}' takes '{twice[0]}' twice")

    def __str__(self) -> str:
        return ">".join(self.operators) or "-"


@dataclass(frozen=True)
class RelationRoutes:
    """The routes of one relation's new rows, by number, and the classifier that assigns them."""

    relation: str
    routes: tuple[Route, ...]
    classifier: Classifier = ONE_ROUTE

    def __post_init__(self) -> None:
        if not self.routes:
            raise PlanError(f"relation '{self.relation}' has no route")
        assigned = routes_of(self.classifier)
        if assigned[-1] >= len(self.routes):
            raise PlanError(
                f"the classifier of relation '{self.relation}' assigns route {assigned[-1]}, "
                f"and there are only {len(self.routes)}",
                hint="routes are numbered from 0",
            )

    @property
    def is_plain(self) -> bool:
        """True for one route without existence probes, which an mjoin can have too."""
        return len(self.routes) == 1 and not any(is_existence_probe(operator) for operator in self.routes[0].operators)

    def __str__(self) -> str:
        listed = ", ".join(str(route) for route in self.routes)
        chosen = "" if len(self.routes) == 1 and self.classifier == ONE_ROUTE else f" by {self.classifier}"
        return f"{self.relation}: {listed}{chosen}"


@dataclass(frozen=True)
class Mesh:
    """The routes of every relation of a query."""

    ways: tuple[RelationRoutes, ...]

    def __post_init__(self) -> None:
        names = self.relations
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise PlanError(f"relation '{twice[0]}' occurs twice in mesh '{self}'")

    @cached_property
    def relations(self) -> tuple[str, ...]:
        return tuple(way.relation for way in self.ways)

    def of(self, relation: str) -> RelationRoutes:
        return next(way for way in self.ways if way.relation == relation)

    def __str__(self) -> str:
        return f"mesh({'; '.join(str(way) for way in self.ways)})"


Plan: TypeAlias = PhysicalPlan | Mesh
"""A plan of a query: a physical plan or a mesh."""


def operators(graph: JoinGraph) -> tuple[str, ...]:
    """Returns the operators of a query: probes of relations, selections of thetas, and existence probes."""
    selections = (selection_name(position) for position in range(len(graph.thetas)))
    return (*graph.names, *selections, *(existence_probe(name) for name in graph.names))


def existence_probe(relation: str) -> str:
    """Returns the existence probe of a relation: the operator that drops rows without a match in it."""
    return f"{relation}?"


def is_existence_probe(operator: str) -> bool:
    """True if an operator is an existence probe: it checks for matches but does not join."""
    return operator.endswith("?")


def checked_relation(operator: str) -> str:
    """Returns the relation that an existence probe checks."""
    return operator[:-1]


def is_probe(operator: str) -> bool:
    """True if an operator joins a relation."""
    return not is_selection(operator) and not is_existence_probe(operator)


def selected(operator: str, graph: JoinGraph) -> Theta:
    """Returns the predicate that a selection checks."""
    return graph.thetas[position_of(operator)]


def needs(operator: str, graph: JoinGraph) -> frozenset[str]:
    """Returns the relations that must be joined before the operator; none for a probe."""
    return selected(operator, graph).relations if is_selection(operator) else frozenset()


def attributes_of(graph: JoinGraph, relation: str) -> Schema:
    """Returns the columns that a classifier of the relation may test.

    These are the columns that the engine has: those that the query needs after its joins, key columns whose code is the
    value itself, columns whose classes travel (`plan.classes`), and the hour of day of all timestamps.
    """
    found = graph.relation(relation)
    keys = {name: key.type for name, key in key_columns(graph, relation).items() if found.schema.find(name) is None}
    attributes = [*found.schema, *(Field(name, kind, False) for name, kind in keys.items())]
    attributes += [Field(each.attribute, each.type) for each in found.classes]
    attributes += [Field(hour_attribute(name), pa.int64()) for name in timed_columns(found)]
    # The first occurrence wins: a carried column needs no class.
    return Schema(tuple({each.name.lower(): each for each in reversed(attributes)}.values())[::-1])


def timed_columns(relation: Relation) -> tuple[str, ...]:
    """Returns the timestamp columns that the engine has: the event time and the carried ones."""
    carried = (each.name for each in relation.schema if each.type == TIMESTAMP)
    has_times = not (relation.is_table or relation.is_derived or relation.is_result)
    own = (relation.event_time,) if has_times else ()
    return tuple(dict.fromkeys((*own, *carried)))


def key_columns(graph: JoinGraph, relation: str) -> dict[str, KeyClass]:
    """Returns the relation's columns that are keys and whose code is the value, with the class of each."""
    return {
        member.name: key
        for key in graph.keys_of([relation])
        if isinstance(member := key.expression(relation), Column) and key.is_exact
    }


def one_route(graph: JoinGraph, orders: Mapping[str, tuple[str, ...]] | None = None) -> Mesh:
    """Returns the mesh with one route per relation: the given probe order, or the default one."""
    every = mjoin(graph.names)
    chosen: dict[str, tuple[str, ...]] = dict.fromkeys(graph.names, ())
    if isinstance(every, JoinNode):
        chosen |= {
            name: tuple(graph.names[i] for i in probe_order(every, position, graph))
            for position, name in enumerate(graph.names)
        }
    chosen |= orders or {}
    return Mesh(tuple(RelationRoutes(name, (Route(chosen[name]),)) for name in graph.names))


def orders_of(plan: Plan | None, graph: JoinGraph) -> dict[str, tuple[str, ...]]:
    """Returns the probe orders of an mjoin, by relation; empty for any other plan."""
    if not isinstance(plan, JoinNode) or not all(isinstance(child, Leaf) for child in plan.inputs):
        return {}
    names = [child.relations[0] for child in plan.inputs]
    return {name: tuple(names[i] for i in probe_order(plan, at, graph)) for at, name in enumerate(names)}


def check_mesh(mesh: Mesh, graph: JoinGraph) -> Mesh:
    """Returns the mesh if every route computes the query; raises PlanError otherwise."""
    known = set(operators(graph))
    if unknown := sorted(set(mesh.relations) - set(graph.names)):
        raise PlanError(
            f"mesh '{mesh}' routes '{unknown[0]}', which the query does not have",
            hint=f"the query's relations are {', '.join(graph.names)}",
        )
    if missing := sorted(set(graph.names) - set(mesh.relations)):
        raise PlanError(f"mesh '{mesh}' has no route for '{missing[0]}'", hint="give each relation at least one")
    for way in mesh.ways:
        check_attributes(way.classifier, attributes_of(graph, way.relation), way.relation)
        for route in way.routes:
            if strange := sorted(set(route.operators) - known):
                raise PlanError(
                    f"route '{route}' of relation '{way.relation}' takes '{strange[0]}', which the query does not have",
                    hint=f"its operators are {', '.join(operators(graph))}",
                )
            _check_route(way.relation, route, graph)
    return mesh


def check_plan(plan: Plan, graph: JoinGraph, grouping: Grouping | None = None) -> Plan:
    """Returns the plan if it computes the query of the graph; raises PlanError otherwise."""
    return check_mesh(plan, graph) if isinstance(plan, Mesh) else validate(plan, graph, grouping)


def _check_route(relation: str, route: Route, graph: JoinGraph) -> None:
    probed = {operator for operator in route.operators if is_probe(operator)}
    if probed != set(graph.names) - {relation}:
        odd = sorted(probed ^ (set(graph.names) - {relation}))
        raise PlanError(
            f"route '{route}' of relation '{relation}' does not probe every other relation once",
            detail=f"look at '{odd[0]}'",
        )
    bound = {relation}
    for operator in route.operators:
        if early := sorted(needs(operator, graph) - bound):
            raise PlanError(
                f"route '{route}' of relation '{relation}' checks '{operator}' before '{early[0]}' is bound",
                detail=f"'{operator}' is {selected(operator, graph)}",
            )
        if is_selection(operator):
            require_no_guard(position_of(operator), graph, f"route '{route}' of relation '{relation}'")
        if is_existence_probe(operator) and checked_relation(operator) in bound:
            raise PlanError(
                f"route '{route}' of relation '{relation}' checks for '{checked_relation(operator)}' after joining it",
                hint=f"put '{operator}' before '{checked_relation(operator)}', or leave it out",
            )
        bound.add(operator)


# --- as text ---------------------------------------------------------------------------------------------------------

_OPERATOR = re.compile(r"[A-Za-z_][A-Za-z_0-9]*|#[0-9]+")


def parse_plan(text: str) -> Plan:
    """Parses a plan or mesh; raises PlanError with the position of a mistake."""
    return parse_mesh(text) if is_mesh_text(text) else parse(text)


def is_mesh_text(text: str) -> bool:
    """True if a text describes a mesh rather than a plan or a family of plans."""
    return re.match(r"\s*mesh\s*\(", text) is not None


def parse_mesh(text: str) -> Mesh:
    """Parses a mesh; raises PlanError with the position of a mistake."""
    reader = _Reader(text)
    try:
        mesh, at = reader.mesh()
    except RecursionError as error:
        raise PlanError("mesh text has too many brackets inside each other", hint=reader.hint) from error
    reader.end(at)
    return mesh


class _Reader(TextReader):
    token = re.compile(r"\s*('(?:[^']|'')*'|`(?:[^`]|``)*`|#?[0-9]+|[A-Za-z_][A-Za-z_0-9]*|\S)", re.S)
    kind = "mesh"
    hint = "meshes look like mesh(a: b>c, c>b by (k <= 3.5 ? 0 : 1); b: a>c; c: b>a)"

    def mesh(self) -> tuple[Mesh, int]:
        at = self.expect(self.expect(0, "mesh"), "(")
        way, at = self.way(at)
        ways = [way]
        while self.peek(at) == ";":
            way, at = self.way(at + 1)
            ways.append(way)
        return Mesh(tuple(ways)), self.expect(at, ")", "',', ';', '>', 'by' or ')'")

    def way(self, at: int) -> tuple[RelationRoutes, int]:
        relation = self.peek(at)
        if not _OPERATOR.fullmatch(relation) or is_selection(relation):
            raise self.unexpected(at, "a relation")
        route, at = self.route(self.expect(at + 1, ":"))
        routes = [route]
        while self.peek(at) == ",":
            route, at = self.route(at + 1)
            routes.append(route)
        if self.peek(at) != "by":
            if len(routes) > 1:
                raise self.unexpected(at, f"'by' and a classifier for the {len(routes)} routes of '{relation}'")
            return RelationRoutes(relation, tuple(routes)), at
        classifier, at = self.classifier(at + 1)
        return RelationRoutes(relation, tuple(routes), classifier), at

    def route(self, at: int) -> tuple[Route, int]:
        if self.peek(at) == "-":
            return Route(()), at + 1
        operator, at = self.operator(at)
        operators = [operator]
        while self.peek(at) == ">":
            operator, at = self.operator(at + 1)
            operators.append(operator)
        return Route(tuple(operators)), at

    def operator(self, at: int) -> tuple[str, int]:
        operator = self.peek(at)
        if not _OPERATOR.fullmatch(operator):
            raise self.unexpected(at, "a relation or a predicate such as #0")
        if not is_selection(operator) and self.peek(at + 1) == "?":
            return existence_probe(operator), at + 2
        return operator, at + 1

    def classifier(self, at: int) -> tuple[Classifier, int]:
        """Parses the classifier from the text up to the next token outside parentheses."""
        end, depth = at, 0
        while end < len(self.tokens) and (depth or end == at):
            depth += {"(": 1, ")": -1}.get(self.peek(end), 0)
            end += 1
        return parse_classifier(self.text[self.place(at) : self.place(end)]), end
