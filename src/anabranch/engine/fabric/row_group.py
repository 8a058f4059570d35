"""Rusters: rows that take the same route, with the token that says what is still to come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations

from anabranch.engine.batch import Combinations, concatenated
from anabranch.engine.compile import Probe, compile_probe
from anabranch.engine.fabric.token import Token
from anabranch.plan.join_graph import JoinGraph, is_selection
from anabranch.plan.mesh import RelationRoutes, Route, asked, is_probe, is_question, selected

GATHERED = 1 << 13
"""Combinations that are handed over at once, unless there are no more of them."""


@dataclass(frozen=True)
class CompiledRoute:
    """A route of a mesh in numbers of an operator index; lookups are compiled when a ruster first comes to them."""

    graph: JoinGraph
    relation: str
    number: int
    route: Route
    token: Token
    _probes: dict[tuple[str, frozenset[str]], Probe] = field(default_factory=dict, repr=False, compare=False)

    def probe(self, target: str, bound: frozenset[str]) -> Probe:
        """The lookup in a relation, given the relations that are bound already."""
        if (target, bound) not in self._probes:
            probe = compile_probe(0, bound, frozenset([target]), self.graph)
            deferred = [selected(name, self.graph) for name in self.route.operators if is_selection(name)]
            kept = tuple(theta for theta in probe.thetas if theta not in deferred)
            self._probes[target, bound] = replace(probe, thetas=kept)
        return self._probes[target, bound]

    def indexes(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield every index that the route can probe, with its relation, for any choice in open steps."""
        bound = frozenset([self.relation])
        for step in self.route.steps:
            probed = [name for name in step if is_probe(name)]
            for target in (*probed, *(asked(name) for name in step if is_question(name))):
                # Relations that meet the target in the same predicates lead to the same index: one stands for all.
                alike = {self._meeting(name, target): name for name in probed if name != target}
                for count in range(len(alike) + 1):
                    for before in combinations(alike.values(), count):
                        yield target, compile_probe(0, bound.union(before), frozenset([target]), self.graph).index
            bound |= frozenset(probed)

    def _meeting(self, name: str, target: str) -> tuple[object, ...]:
        keys = self.graph.keys_between([name], [target])
        return (*(key.name for key in keys), *self.graph.thetas_between([name], [target]))


@dataclass(frozen=True)
class RowGroup:
    """Combinations under way on a route, and what is left of its token."""

    found: Combinations
    route: CompiledRoute
    token: Token


def compile_routes(graph: JoinGraph, way: RelationRoutes, numbers: Mapping[str, int]) -> tuple[CompiledRoute, ...]:
    """The routes of one relation; `numbers` are the operators' places in the index."""
    tokens = [Token(tuple(tuple(numbers[name] for name in step) for step in route.steps)) for route in way.routes]
    return tuple(
        CompiledRoute(graph, way.relation, number, route, token)
        for number, (route, token) in enumerate(zip(way.routes, tokens, strict=True))
    )


def gathered(blocks: Iterable[Combinations]) -> Iterator[Combinations]:
    """Combinations in blocks that are worth the fixed cost of the work that follows.

    Several routes finish the same relations in blocks of their own, and what is done with results costs per block.
    """
    waiting: list[Combinations] = []
    for block in blocks:
        waiting.append(block)
        if sum(len(one) for one in waiting) >= GATHERED:
            yield concatenated(waiting, waiting[0].rows)
            waiting = []
    if waiting:
        yield concatenated(waiting, waiting[0].rows)
