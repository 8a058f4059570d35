"""Row groups, and the compiled routes along which they travel.

A row group is processed depth first, block by block, so memory is bounded by the blocks on one route, whatever the
fan-out. Invariant: a row group ends on the route on which it began.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

from anabranch.engine.batch import Combinations, concatenated
from anabranch.engine.fabric.hops import Hop, ProbeHop, compile_hop
from anabranch.engine.meter import Meter
from anabranch.engine.state.base import BaseState
from anabranch.plan.join_graph import JoinGraph, is_selection
from anabranch.plan.mesh import RelationRoutes, Route, is_existence_probe, selected

GATHERED = 1 << 13
"""The number of combinations to forward at once, if there are that many."""


@dataclass(frozen=True, eq=False)
class CompiledRoute:
    """A route of a mesh over base states."""

    relation: str
    number: int
    hops: tuple[Hop, ...]
    meter: Meter

    def indexes(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yields the indexes that the route probes, each with its relation."""
        for hop in self.hops:
            if isinstance(hop, ProbeHop):
                yield hop.state.relation, hop.probe.index

    def forward(self, found: Combinations, place: int = 0) -> Iterator[Combinations]:
        """Passes combinations to the hop at a place, and its output to the next; yields those that leave the last."""
        entered = len(found.newest)
        if not entered:
            return
        if place == len(self.hops):
            yield found
            return
        hop = self.hops[place]
        kept, spent, started = 0, 0.0, perf_counter()
        for block in hop.work(found):
            kept += len(block.newest)
            spent += perf_counter() - started
            yield from self.forward(block, place + 1)
            started = perf_counter()
        self.meter.hopped(self.relation, self.number, hop.name, entered, kept, spent + perf_counter() - started)


class RowGroup(NamedTuple):
    """Rows on one route."""

    found: Combinations
    route: CompiledRoute


def compile_routes(
    graph: JoinGraph, way: RelationRoutes, bases: Mapping[str, BaseState], meter: Meter
) -> tuple[CompiledRoute, ...]:
    """Compiles the routes of one relation."""
    return tuple(
        CompiledRoute(way.relation, number, tuple(_hops(graph, way.relation, route, bases, meter)), meter)
        for number, route in enumerate(way.routes)
    )


def _hops(graph: JoinGraph, relation: str, route: Route, bases: Mapping[str, BaseState], meter: Meter) -> Iterator[Hop]:
    deferred = [selected(operator, graph) for operator in route.operators if is_selection(operator)]
    bound = {relation}
    for operator in route.operators:
        yield compile_hop(graph, relation, operator, bound, deferred, bases, meter)
        if not is_selection(operator) and not is_existence_probe(operator):
            bound.add(operator)


def gathered(blocks: Iterable[Combinations]) -> Iterator[Combinations]:
    """Merges combinations into blocks that are worth the fixed cost of the work that follows.

    Several routes finish the same relations in separate blocks, and processing results has a cost per block. Large
    blocks are not copied.
    """
    waiting: list[Combinations] = []
    rows = 0
    for block in blocks:
        size = len(block.newest)
        if size >= GATHERED:
            yield block
            continue
        waiting.append(block)
        rows += size
        if rows >= GATHERED:
            yield concatenated(waiting, waiting[0].rows)
            waiting, rows = [], 0
    if waiting:
        yield concatenated(waiting, waiting[0].rows)
