"""The operators of a route: lookups and existence probes in base states, and predicates.

A hop is compiled for the relations that are bound before it. Invariant: hops hold no rows; base states belong to the
engine, so any number of routes, meshes and queries can use the same state at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import TypeAlias

from anabranch.engine.batch import Combinations
from anabranch.engine.compile import Probe, compile_probe
from anabranch.engine.meter import Meter
from anabranch.engine.operators.join import look_up, meeting, passing
from anabranch.engine.state.base import BaseState
from anabranch.plan.join_graph import JoinGraph, Theta, is_selection
from anabranch.plan.mesh import checked_relation, is_existence_probe, selected

MESH = "mesh"
"""The name under which the probes of all routes are counted, where a plan would name the join."""


@dataclass(frozen=True, eq=False)
class ProbeHop:
    """Looks up rows in the base state of one relation, or keeps those that have a match there (a semi-join)."""

    name: str
    state: BaseState
    probe: Probe
    bases: Mapping[str, BaseState]
    meter: Meter
    names: tuple[str, str, str]
    """The names under which the meter counts."""

    def work(self, found: Combinations) -> Iterator[Combinations]:
        if is_existence_probe(self.name):
            return iter((meeting(self.probe, found, self.state, self.bases, self.meter, self.names),))
        return look_up(self.probe, found, self.state, self.bases, self.meter, self.names)


@dataclass(frozen=True, eq=False)
class SelectionHop:
    """Keeps the combinations for which a predicate is true."""

    name: str
    theta: Theta
    bases: Mapping[str, BaseState]

    def work(self, found: Combinations) -> Iterator[Combinations]:
        yield passing(self.theta.predicate, found, self.bases)


Hop: TypeAlias = ProbeHop | SelectionHop


def compile_hop(
    graph: JoinGraph,
    relation: str,
    operator: str,
    bound: Set[str],
    deferred: Iterable[Theta],
    bases: Mapping[str, BaseState],
    meter: Meter,
) -> Hop:
    """Compiles an operator for rows of a relation to which other relations are bound.

    A probe leaves out the `deferred` predicates, which are hops of their own.
    """
    if is_selection(operator):
        return SelectionHop(operator, selected(operator, graph), bases)
    target = checked_relation(operator) if is_existence_probe(operator) else operator
    probe = compile_probe(0, frozenset(bound), frozenset([target]), graph)
    probe = replace(probe, thetas=tuple(theta for theta in probe.thetas if theta not in deferred))
    return ProbeHop(operator, bases[target], probe, bases, meter, (MESH, relation, operator))
