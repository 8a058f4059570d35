"""Descriptions of the joins of a physical plan: the predicates they check and the probe orders of their inputs.

Both the text and the graphical form of plans use these functions, so they agree.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.plan.classifier import attributes
from anabranch.plan.classing import classes_for
from anabranch.plan.join_graph import JoinGraph, KeyClass, is_selection, render, selection_name
from anabranch.plan.mesh import Mesh, Plan, RelationRoutes, checked_relation, is_existence_probe, selected
from anabranch.plan.physical import (
    JoinNode,
    PhysicalPlan,
    input_operators,
    kept,
    nodes,
    probe_order,
    shape,
    shared_parts,
)
from anabranch.plan.selections import checked_in, deferred_thetas

LONGEST_MESH = 90
"""The maximum length of a mesh text that is shown on one line."""


def conditions(plan: PhysicalPlan, graph: JoinGraph) -> dict[str, tuple[str, ...]]:
    """Returns the predicates that each join of a plan checks, by its shape; none for a cross product."""
    deferred = deferred_thetas(plan)
    found = {}
    for node in nodes(plan):
        sides = [frozenset(child.relations) for child in node.inputs]
        keys = [_key_text(key, sides) for key in graph.keys if sum(bool(key.relations & side) for side in sides) > 1]
        thetas = [
            f"{graph.thetas[position]}{f' ({selection_name(position)}, deferred)' if position in deferred else ''}"
            for position in checked_in(node, graph, deferred)
        ]
        found[node.shape] = (*keys, *thetas)
    return found


def probe_path(node: JoinNode, position: int, graph: JoinGraph) -> tuple[str, ...]:
    """Returns an input and the other inputs in its probe order, as shapes."""
    return tuple(shape(node.inputs[step]) for step in (position, *probe_order(node, position, graph)))


def describe(plan: PhysicalPlan, graph: JoinGraph) -> str:
    """Describes a plan: its text, every join with its predicates and probe orders, and the relations."""
    lines = [f"plan {plan}"]
    states, added = {inner.shape for inner in kept(plan)}, conditions(plan, graph)
    lines += [f"  shared {part} computed once for all queries that share it" for part in shared_parts(plan)]
    lines += [f"  {each.kind} {each.shape} kept as state" for each in input_operators(plan)]
    for node in nodes(plan):
        lines.append(f"  join {node.shape}{' kept as state' if node.shape in states else ''}")
        lines.append(f"    on {' AND '.join(added[node.shape]) or 'nothing: every pair within the windows'}")
        lines += [f"    probe {' > '.join(probe_path(node, position, graph))}" for position in range(len(node.inputs))]
    return "\n".join([*lines, *_named(graph)])


def short_text(plan: Plan) -> str:
    """Returns the text of a plan for one line; for a mesh with a long text, its number of routes."""
    text = str(plan)
    if not isinstance(plan, Mesh) or len(text) <= LONGEST_MESH:
        return text
    return f"mesh of {sum(len(way.routes) for way in plan.ways)} routes"


def describe_mesh(mesh: Mesh, graph: JoinGraph) -> str:
    """Describes a mesh: its text, each relation's classifier and routes, and the relations."""
    lines = [f"plan {mesh}", *(line for way in mesh.ways for line in describe_routes(way, graph))]
    return "\n".join([*lines, *_named(graph)])


def describe_routes(way: RelationRoutes, graph: JoinGraph, notes: Sequence[str] = ()) -> list[str]:
    """Describes the classifier and the routes of one relation, with optional notes on the routes."""
    tested = ", ".join(attributes(way.classifier))
    lines = [f"  rows of {way.relation}{f' by {tested}' if tested else ''}"]
    if tested:
        lines.append(f"    classifier {way.classifier}")
    travelling = [each.attribute for each in classes_for(Mesh((way,)), graph).get(way.relation, ())]
    if travelling:
        lines.append(f"    not selected, so rows travel with their classes: {', '.join(travelling)}")
    for number, route in enumerate(way.routes):
        steps = [_operator_text(operator, graph) for operator in route.operators]
        note = f" ({notes[number]})" if notes else ""
        lines.append(f"    route {number}: {' > '.join(steps) or 'nothing to probe'}{note}")
    return lines


def _named(graph: JoinGraph) -> list[str]:
    """Lists the relations, and the predicates with the names that plans defer them by."""
    relations = [f"  {line}" for line in render(graph).split("\n") if line.startswith("relation ")]
    return relations + [f"  {selection_name(i)} is {theta}" for i, theta in enumerate(graph.thetas)]


def _operator_text(operator: str, graph: JoinGraph) -> str:
    if is_existence_probe(operator):
        return f"any {checked_relation(operator)}?"
    return f"[{selected(operator, graph)}]" if is_selection(operator) else operator


def _key_text(key: KeyClass, sides: list[frozenset[str]]) -> str:
    """Returns the equality that a join adds: one member per input."""
    chosen = [next((str(member) for name, member in key.members if name in side), None) for side in sides]
    return " = ".join(member for member in chosen if member is not None)
