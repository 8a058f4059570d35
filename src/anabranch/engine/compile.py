"""Compiles a query and a physical plan into the probes that the engine performs.

For each input of each join, the compiler lists the probes in order: the target state, the index, the bound relations
that supply the codes, and the checks on the matches. All key classes that connect the bound relations with the target
form one index (with a composite code if there are several). Without key classes, a band gives a bucket index. Without a
band, the index `all` links every row under one code and the probe is a nested loop.

Invariant: probe and checks together apply every key class and theta between the bound relations and the target.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from anabranch.plan.join_graph import Band, JoinGraph, KeyClass, Theta
from anabranch.plan.physical import JoinNode, PhysicalPlan, Shared, leaves, nodes, probe_order, shape
from anabranch.plan.selections import checked_by_probe, deferred_thetas
from anabranch.plan.sharing import Rest

ALL = "all"
"""The index that links every row under one code."""


@dataclass(frozen=True)
class KeyCheck:
    """A key class whose equality must be verified on the matches, between two bound relations."""

    key: KeyClass
    left: str
    right: str


@dataclass(frozen=True)
class Probe:
    """One lookup: bound combinations against the state of one other input."""

    target: int
    index: tuple[str, ...]
    """Code names; empty for the index of all rows."""
    sources: tuple[str, ...]
    """For each code name, the bound relation whose code is looked up."""
    offsets: tuple[int, ...]
    """The offsets added to the code: (0,) for keys, two neighbouring buckets for a band."""
    checks: tuple[KeyCheck, ...]
    thetas: tuple[Theta, ...]


@dataclass(frozen=True)
class Entry:
    """The checks of a query on combinations that it takes from a shared join."""

    checks: tuple[KeyCheck, ...] = ()
    thetas: tuple[Theta, ...] = ()


NO_ENTRY = Entry()


@dataclass(frozen=True)
class JoinProgram:
    """A join of the plan with the probes of each of its inputs."""

    node: JoinNode
    probes: tuple[tuple[Probe, ...], ...]


@dataclass(frozen=True)
class Program:
    """All joins of a plan, inputs first, and the indexes that each state must keep (by the shape of its plan)."""

    plan: PhysicalPlan
    joins: tuple[JoinProgram, ...]
    indexes: dict[str, tuple[tuple[str, ...], ...]]


def compile_plan(plan: PhysicalPlan, graph: JoinGraph, rests: Mapping[Shared, Rest] | None = None) -> Program:
    """Compiles the probes of a plan; `rests` are its query's predicates beyond those of the shared joins it uses."""
    deferred = deferred_thetas(plan)
    entries = {shared: entry(rest, graph, deferred) for shared, rest in (rests or {}).items()}
    joins = tuple(JoinProgram(node, _probes(node, graph, deferred, entries)) for node in nodes(plan))
    indexes: dict[str, dict[tuple[str, ...], None]] = {}
    for join in joins:
        for probes in join.probes:
            for probe in probes:
                indexes.setdefault(shape(join.node.inputs[probe.target]), {})[probe.index] = None
    for name in leaves(plan):
        # A base state without probes, under a merged input or as the whole plan, still keeps event times.
        indexes.setdefault(name, {(): None})
    return Program(plan, joins, {state: tuple(kept) for state, kept in indexes.items()})


def compile_join(node: JoinNode, graph: JoinGraph) -> JoinProgram:
    """Compiles the probes of one join of a graph, regardless of its inputs."""
    return JoinProgram(node, _probes(node, graph, {}, {}))


def entry(rest: Rest, graph: JoinGraph, deferred: Mapping[int, frozenset[str]]) -> Entry:
    """The checks on combinations that a query takes from a shared join."""
    checks = tuple(KeyCheck(each.key, each.left, each.right) for each in rest.equalities)
    return Entry(checks, tuple(graph.thetas[position] for position in rest.thetas if position not in deferred))


def index_name(index: tuple[str, ...]) -> str:
    return "+".join(index) or ALL


def band_name(band: Band) -> str:
    """Returns the code name of a band, which is the same in every query that has the band.

    The name does not depend on the predicate: other conditions of a query on the same pair narrow the band, and other
    bounds mean other buckets.
    """
    return f"band{hashlib.sha256(repr(band).encode()).hexdigest()[:16]}"


def bands_of(graph: JoinGraph, relation: str) -> tuple[tuple[str, Band], ...]:
    """The bands that involve one relation, with their code names."""
    bands = dict.fromkeys(theta.band for theta in graph.thetas if theta.band is not None)
    return tuple((band_name(band), band) for band in bands if relation in (band.left_relation, band.right_relation))


def compared_by(graph: JoinGraph) -> dict[str, frozenset[str]]:
    """For each code name, the relations that the graph compares by it."""
    bands = {
        band_name(theta.band): frozenset((theta.band.left_relation, theta.band.right_relation))
        for theta in graph.thetas
        if theta.band is not None
    }
    return bands | {key.name: key.relations for key in graph.keys}


def _probes(
    node: JoinNode, graph: JoinGraph, deferred: Mapping[int, frozenset[str]], entries: Mapping[Shared, Entry]
) -> tuple[tuple[Probe, ...], ...]:
    programs = []
    for position, child in enumerate(node.inputs):
        bound = frozenset(child.relations)
        probes = []
        for target in probe_order(node, position, graph):
            others = frozenset(node.inputs[target].relations)
            checked = tuple(graph.thetas[i] for i in checked_by_probe(node, bound, others, graph, deferred))
            probe = compile_probe(target, bound, others, graph)
            found = node.inputs[target]
            first = entries.get(found, NO_ENTRY) if isinstance(found, Shared) else NO_ENTRY
            checks, thetas = (*first.checks, *probe.checks), (*first.thetas, *checked)
            probes.append(replace(probe, checks=checks, thetas=thetas))
            bound |= others
        programs.append(tuple(probes))
    return tuple(programs)


def compile_probe(target: int, bound: frozenset[str], others: frozenset[str], graph: JoinGraph) -> Probe:
    """Compiles the lookup of bound relations in the state of the others, which is the input at position `target`."""
    keys = graph.keys_between(bound, others)
    thetas = graph.thetas_between(bound, others)
    checks = tuple(
        KeyCheck(key, _member(key, bound), _member(key, others))
        for key in keys
        # A single exact class is compared by the probe itself. A composite code is a hash, so equality must be checked.
        if not key.is_exact or len(keys) > 1
    )
    if keys:
        sources = tuple(_member(key, bound) for key in keys)
        return Probe(target, tuple(key.name for key in keys), sources, (0,), checks, thetas)
    for theta in graph.thetas:
        band = theta.band
        if band is None:
            continue
        if band.left_relation in bound and band.right_relation in others:
            return Probe(target, (band_name(band),), (band.left_relation,), (0, -1), (), thetas)
        if band.right_relation in bound and band.left_relation in others:
            return Probe(target, (band_name(band),), (band.right_relation,), (0, 1), (), thetas)
    return Probe(target, (), (), (0,), (), thetas)


def _member(key: KeyClass, relations: frozenset[str]) -> str:
    return next(relation for relation, _ in key.members if relation in relations)
