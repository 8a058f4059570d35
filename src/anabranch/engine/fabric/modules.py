"""Operator modules, and the index that forwards a row group from one module to the next.

A module is one operator: a one-way probe into the base state of one relation (for an `[UNBOUNDED]` relation, a table
lookup), a semi-join probe of that state, or a predicate. Invariant: modules hold no rows. Base states belong to the
engine, so any number of routes, meshes and queries can use the same modules at the same time.

A row group is processed depth first, block by block, so memory is bounded by the blocks on one route, whatever the
fan-out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from time import perf_counter
from typing import TypeAlias

from anabranch.engine.batch import Combinations
from anabranch.engine.fabric.lottery import Lottery
from anabranch.engine.fabric.row_group import CompiledRoute, RowGroup
from anabranch.engine.fabric.token import Token
from anabranch.engine.meter import Meter
from anabranch.engine.operators.join import look_up, meeting, passing
from anabranch.engine.state.base import BaseState
from anabranch.plan.join_graph import JoinGraph, Theta, selection_name
from anabranch.plan.mesh import existence_probe

MESH = "mesh"
"""The name under which the probes of all routes are counted, where a plan would name the join."""


class ProbeModule:
    """Looks up rows in the base state of one relation."""

    def __init__(self, state: BaseState, bases: Mapping[str, BaseState], meter: Meter) -> None:
        self.name = state.relation
        self._state = state
        self._bases = bases
        self._meter = meter

    def work(self, found: Combinations, route: CompiledRoute) -> Iterator[Combinations]:
        probe = route.probe(self.name, frozenset(found.rows))
        return look_up(probe, found, self._state, self._bases, self._meter, (MESH, route.relation, self.name))


class ExistenceModule:
    """Keeps the rows that have a match in the base state of one relation (a semi-join)."""

    def __init__(self, state: BaseState, bases: Mapping[str, BaseState], meter: Meter) -> None:
        self.name = existence_probe(state.relation)
        self._state = state
        self._bases = bases
        self._meter = meter

    def work(self, found: Combinations, route: CompiledRoute) -> Iterator[Combinations]:
        probe = route.probe(self._state.relation, frozenset(found.rows))
        yield meeting(probe, found, self._state, self._bases, self._meter, (MESH, route.relation, self.name))


class SelectionModule:
    """Keeps the combinations for which a predicate is true."""

    def __init__(self, name: str, theta: Theta, bases: Mapping[str, BaseState]) -> None:
        self.name = name
        self._theta = theta
        self._bases = bases

    def work(self, found: Combinations, route: CompiledRoute) -> Iterator[Combinations]:
        yield passing(self._theta.predicate, found, self._bases)


Module: TypeAlias = ProbeModule | ExistenceModule | SelectionModule


class OperatorIndex:
    """The operators in an array; a token's numbers are positions in it, and position 0 is the output."""

    def __init__(self, bases: Mapping[str, BaseState], meter: Meter, lottery: Lottery) -> None:
        self._modules: list[Module | None] = [None]
        self._places: dict[str | Theta, int] = {}
        self._bases = bases
        self._meter = meter
        self.lottery = lottery

    def __len__(self) -> int:
        return len(self._modules)

    def numbers(self, graph: JoinGraph) -> dict[str, int]:
        """Returns the position of each operator of a query; adds missing ones."""
        for name in graph.names:
            if name not in self._places:
                self._add(name, ProbeModule(self._bases[name], self._bases, self._meter))
            if existence_probe(name) not in self._places:
                self._add(existence_probe(name), ExistenceModule(self._bases[name], self._bases, self._meter))
        for position, theta in enumerate(graph.thetas):
            if theta not in self._places:
                self._add(theta, SelectionModule(selection_name(position), theta, self._bases))
        lookups = {name: self._places[name] for each in graph.names for name in (each, existence_probe(each))}
        return lookups | {selection_name(i): self._places[theta] for i, theta in enumerate(graph.thetas)}

    def forward(self, row_group: RowGroup) -> Iterator[RowGroup]:
        """Passes a row group to the operator on top of its token, and the output to the next; yields finished groups.

        An empty row group ends there, along with its token.
        """
        if not len(row_group.found):
            return
        route, top, rows = row_group.route, row_group.token.next, len(row_group.found)
        if not top:
            yield row_group
            return
        number = top[0] if len(top) == 1 else self.lottery.choose(route.relation, route.number, top)
        module, rest = self._modules[number], _after(row_group.token, number)
        assert module is not None
        kept, spent, started = 0, 0.0, perf_counter()
        for block in module.work(row_group.found, route):
            kept += len(block)
            spent += perf_counter() - started
            yield from self.forward(RowGroup(block, route, rest))
            started = perf_counter()
        spent += perf_counter() - started
        self._meter.hopped(route.relation, route.number, module.name, rows, kept, spent)
        if len(top) > 1:
            self.lottery.learn(route.relation, route.number, number, rows, kept)

    def _add(self, key: str | Theta, module: Module) -> None:
        self._places[key] = len(self._modules)
        self._modules.append(module)


@lru_cache(maxsize=4096)
def _after(token: Token, number: int) -> Token:
    return token.after(number)
