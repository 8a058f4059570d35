"""Row groups: rows on the same route, with the token of the operators still to visit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations

from anabranch.engine.batch import Combinations, concatenated
from anabranch.engine.compile import Probe, compile_probe
from anabranch.engine.fabric.token import Token
from anabranch.plan.join_graph import JoinGraph, is_selection
from anabranch.plan.mesh import RelationRoutes, Route, checked_relation, is_existence_probe, is_probe, selected

GATHERED = 1 << 13
"""The number of combinations to forward at once, if there are that many."""


@dataclass(frozen=True)
class CompiledRoute:
    """A route of a mesh as numbers of an operator index; lookups are compiled when a row group first needs them."""

    graph: JoinGraph
    relation: str
    number: int
    route: Route
    token: Token
    _probes: dict[tuple[str, frozenset[str]], Probe] = field(default_factory=dict, repr=False, compare=False)

    def probe(self, target: str, bound: frozenset[str]) -> Probe:
        """Compiles the lookup in a relation, given the relations that are already bound."""
        if (target, bound) not in self._probes:
            probe = compile_probe(0, bound, frozenset([target]), self.graph)
            deferred = [selected(name, self.graph) for name in self.route.operators if is_selection(name)]
            kept = tuple(theta for theta in probe.thetas if theta not in deferred)
            self._probes[target, bound] = replace(probe, thetas=kept)
        return self._probes[target, bound]

    def indexes(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yields every index that the route can probe, with its relation, for any choice in open steps."""
        bound = frozenset([self.relation])
        for step in self.route.steps:
            probed = [name for name in step if is_probe(name)]
            for target in (*probed, *(checked_relation(name) for name in step if is_existence_probe(name))):
                # Relations with the same predicates to the target lead to the same index: one represents all.
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
    """Combinations in progress on a route, and the rest of its token."""

    found: Combinations
    route: CompiledRoute
    token: Token


def compile_routes(graph: JoinGraph, way: RelationRoutes, numbers: Mapping[str, int]) -> tuple[CompiledRoute, ...]:
    """Compiles the routes of one relation; `numbers` are the operators' positions in the index."""
    tokens = [Token(tuple(tuple(numbers[name] for name in step) for step in route.steps)) for route in way.routes]
    return tuple(
        CompiledRoute(graph, way.relation, number, route, token)
        for number, (route, token) in enumerate(zip(way.routes, tokens, strict=True))
    )


def gathered(blocks: Iterable[Combinations]) -> Iterator[Combinations]:
    """Merges combinations into blocks that are worth the fixed cost of the work that follows.

    Several routes finish the same relations in separate blocks, and processing results has a cost per block.
    """
    waiting: list[Combinations] = []
    for block in blocks:
        waiting.append(block)
        if sum(len(one) for one in waiting) >= GATHERED:
            yield concatenated(waiting, waiting[0].rows)
            waiting = []
    if waiting:
        yield concatenated(waiting, waiting[0].rows)
