"""Running operators on rows that are at hand, to learn what each does to each: what a mesh is searched from.

The youngest rows of a relation stand for those to come. A probe that needs nothing but such a row is run on them
directly; for one that needs other relations bound first, the rows are brought there on the shortest way and what counts
is how many more (or fewer) combinations of each row leave it than entered. A row that does not get that far is taken to
do as the others do. Nothing is put out and no state changes: the engine's answer does not know of it.

Cost is measured as time of this thread for all rows together and shared among what goes in and what comes out, because
a lookup costs its probe and its matches. (Nehme et al. 2012, sections 4.2 and 4.6: training rows are run through the
operators.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import thread_time
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.engine.batch import Combinations
from anabranch.engine.fabric.modules import ProbeModule, SelectionModule
from anabranch.engine.fabric.ruster import CompiledRoute, concatenated
from anabranch.engine.fabric.track import Attributes
from anabranch.engine.kernels import Int64Array
from anabranch.engine.meter import Meter
from anabranch.engine.state.base import BaseState
from anabranch.plan.join_graph import JoinGraph, is_selection
from anabranch.plan.mesh import Route, attributes_of, needs, selected
from anabranch.plan.token import Token
from anabranch.stats.operators import OperatorMatrix
from anabranch.stats.profiles import OperatorProfile

Doubles: TypeAlias = npt.NDArray[np.float64]

PROFILED_ROWS = 4_096
MOST_COMBINATIONS = 1 << 16
"""Beyond this many combinations only some of them are brought further."""


def profile(
    graph: JoinGraph,
    relation: str,
    bases: Mapping[str, BaseState],
    *,
    rows: int = PROFILED_ROWS,
    put_off: tuple[str, ...] = (),
) -> OperatorProfile:
    """Every operator that rows of the relation go through, run on its youngest rows.

    `put_off` are selections (`#0`, …) that are to be operators of their own; other predicates count with the probe that
    makes them checkable. Rows must be linked: between two steps.
    """
    others = tuple(name for name in graph.names if name != relation)
    operators = (*others, *put_off)
    attributes = attributes_of(graph, relation)
    if not bases[relation].ring.live:
        nothing = np.empty((0, len(operators)))
        return OperatorProfile(
            relation, attributes.to_arrow().empty_table(), OperatorMatrix(operators, nothing, nothing)
        )
    indexes = {name: base.indexes for name, base in bases.items()}
    run = _Run(graph, relation, bases, Route(((*operators,),)) if operators else Route(()))
    found = _youngest(bases[relation], rows)
    columns = Attributes(graph, bases[relation], attributes.names).read(found.rows[relation])
    selectivity, cost = np.ones((len(found), len(operators))), np.zeros((len(found), len(operators)))
    for number, operator in enumerate(operators):
        selectivity[:, number], cost[:, number] = run.measure(operator, found)
    for name, base in bases.items():
        base.retain(indexes[name])
    return OperatorProfile(relation, pa.table(columns), OperatorMatrix(operators, selectivity, cost))


class _Run:
    """The operators of one relation's rows, run outside any step."""

    def __init__(self, graph: JoinGraph, relation: str, bases: Mapping[str, BaseState], route: Route) -> None:
        self._graph, self._relation, self._bases = graph, relation, bases
        self._route = CompiledRoute(graph, relation, 0, route, Token(()))
        for target, index in self._route.indexes():
            bases[target].require((index,))
        self._meter = Meter()

    def measure(self, operator: str, found: Combinations) -> tuple[Doubles, Doubles]:
        """Rows out per row in, and seconds per row in, for each row."""
        first, size = int(found.rows[self._relation][0]) if len(found) else 0, len(found)
        for name in self._way(operator):
            found = _thinned(_joined(list(self._work(name, found)), found))
        started = thread_time()
        blocks = list(self._work(operator, found))
        spent = thread_time() - started
        entered = np.bincount(found.rows[self._relation] - first, minlength=size)
        left = np.zeros(size, dtype=np.int64)
        for block in blocks:
            left += np.bincount(block.rows[self._relation] - first, minlength=size)
        overall = float(left.sum() / entered.sum()) if entered.sum() else 1.0
        selectivity = np.where(entered > 0, left / np.maximum(entered, 1), overall)
        unit = spent / max(1, int(entered.sum() + left.sum()))
        return selectivity, unit * (1 + selectivity)

    def _work(self, operator: str, found: Combinations) -> Iterator[Combinations]:
        if is_selection(operator):
            return SelectionModule(operator, selected(operator, self._graph), self._bases).work(found, self._route)
        return ProbeModule(self._bases[operator], self._bases, self._meter).work(found, self._route)

    def _way(self, operator: str) -> list[str]:
        """The relations to bind before the operator can be run as a lookup, nearest first."""
        wanted = sorted(needs(operator, self._graph) - {self._relation}) if is_selection(operator) else [operator]
        way: list[str] = []
        for target in wanted:
            for name in self._path(target):
                if name not in way:
                    way.append(name)
        return way if is_selection(operator) else way[:-1]

    def _path(self, target: str) -> list[str]:
        """The relations from the rows' own to the target, along predicates; the target alone if there is no way."""
        paths: dict[str, list[str]] = {self._relation: []}
        waiting = [self._relation]
        while waiting:
            at = waiting.pop(0)
            for name in self._graph.names:
                if name not in paths and self._graph.are_connected([at], [name]):
                    paths[name] = [*paths[at], name]
                    waiting.append(name)
        return paths.get(target, [target])


def _youngest(base: BaseState, rows: int) -> Combinations:
    count = min(rows, base.ring.live)
    numbers = np.arange(base.ring.next - count, base.ring.next, dtype=np.int64)
    return Combinations({base.relation: numbers}, *(base.ring.times(numbers) if count else (numbers, numbers)))


def _joined(blocks: list[Combinations], before: Combinations) -> Combinations:
    if not blocks:
        nothing: Int64Array = np.empty(0, dtype=np.int64)
        return Combinations(dict.fromkeys(before.rows, nothing), nothing, nothing)
    return concatenated(blocks)


def _thinned(found: Combinations) -> Combinations:
    """Not more than the most, taken at even distances."""
    if len(found) <= MOST_COMBINATIONS:
        return found
    chosen = np.linspace(0, len(found) - 1, MOST_COMBINATIONS).astype(np.int64)
    rows = {name: numbers[chosen] for name, numbers in found.rows.items()}
    return Combinations(rows, found.newest[chosen], found.deadline[chosen])
