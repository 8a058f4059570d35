"""Derives the precedence of operators from the join graph: which operators must follow others.

A probe must follow some relation that shares a predicate with its target, so that no cross product is formed where a
lookup is possible. A deferred predicate must follow all relations that it reads.
"""

from __future__ import annotations

from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.mesh import needs
from anabranch.stats.mesh.operators import Needs


def precedence(graph: JoinGraph, relation: str, operators: tuple[str, ...]) -> Needs:
    """Returns, for each operator on the rows of the relation, the operators that must precede it."""
    places = {name: place for place, name in enumerate(operators)}
    reachable = {relation}
    while grown := {name for name in operators if name in graph.names and _meets(graph, name, reachable)}:
        reachable |= grown
    return tuple(_needed(graph, relation, operator, places, reachable) for operator in operators)


def _meets(graph: JoinGraph, name: str, bound: set[str]) -> bool:
    return name not in bound and graph.are_connected(bound, [name])


def _needed(
    graph: JoinGraph, relation: str, operator: str, places: dict[str, int], reachable: set[str]
) -> tuple[frozenset[int], ...]:
    if read := needs(operator, graph) - {relation}:
        return (frozenset(places[name] for name in read),)
    if operator not in graph.names or operator not in reachable or graph.are_connected([relation], [operator]):
        return ()
    neighbours = (name for name in places if name in reachable and name != operator and name in graph.names)
    return tuple(frozenset({places[name]}) for name in neighbours if graph.are_connected([name], [operator]))
