"""Rusters: rows that take the same route, with the token that says what is still to come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

from anabranch.engine.batch import Combinations
from anabranch.engine.compile import Probe, compile_probe
from anabranch.plan.join_graph import JoinGraph, Theta
from anabranch.plan.mesh import RelationRoutes, Route, Step
from anabranch.plan.token import Token


@dataclass(frozen=True)
class CompiledRoute:
    """A route of a mesh in numbers of an operator index, with what an operator must know to act on its rows."""

    query: int
    """Whose results these will be, when several queries share the fabric."""
    relation: str
    number: int
    token: Token
    probes: Mapping[tuple[str, frozenset[str]], Probe]
    """The lookup in a relation, given the relations that are bound already."""


@dataclass(frozen=True)
class Ruster:
    """Combinations under way on a route, and what is left of its token."""

    found: Combinations
    route: CompiledRoute
    token: Token


def compile_routes(
    graph: JoinGraph, way: RelationRoutes, numbers: Mapping[str, int], query: int = 0
) -> tuple[CompiledRoute, ...]:
    """The routes of one relation; `numbers` are the operators' places in the index."""
    return tuple(
        CompiledRoute(
            query,
            way.relation,
            number,
            Token(tuple(tuple(numbers[operator] for operator in step) for step in route.steps)),
            route_probes(graph, way.relation, route),
        )
        for number, route in enumerate(way.routes)
    )


def route_probes(graph: JoinGraph, relation: str, route: Route) -> dict[tuple[str, frozenset[str]], Probe]:
    """Every lookup that the route can come to, whatever is chosen in its uncertain steps."""
    put_off = [graph.thetas[int(operator[1:])] for operator in route.operators if operator.startswith("#")]
    probes: dict[tuple[str, frozenset[str]], Probe] = {}
    bound = frozenset([relation])
    for step in route.steps:
        probed = tuple(operator for operator in step if not operator.startswith("#"))
        for before, target in _openings(probed):
            probes[target, bound | before] = _probe_without(put_off, bound | before, target, graph)
        bound |= frozenset(probed)
    return probes


def _probe_without(put_off: list[Theta], bound: frozenset[str], target: str, graph: JoinGraph) -> Probe:
    probe = compile_probe(0, bound, frozenset([target]), graph)
    return replace(probe, thetas=tuple(theta for theta in probe.thetas if theta not in put_off))


def _openings(step: Step) -> Iterator[tuple[frozenset[str], str]]:
    """Each relation of a step with each set of the others that may have been taken before it."""
    for target in step:
        others = [name for name in step if name != target]
        for count in range(len(others) + 1):
            for before in combinations(others, count):
                yield frozenset(before), target
