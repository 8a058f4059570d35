"""Profiles operators on live rows, to measure what each does to each row: the input of the mesh search.

The youngest rows of a relation represent future rows. Rows that are processed together match earlier rows and the new
rows of relations that come first in the order, and are matched by the others. So if the last batch is large enough, the
rows are sampled from it and match what they matched then. (In batches longer than the windows, the first relation
matches almost nothing and the last one everything.) A probe that needs only such a row is run directly. For a probe
that needs other relations bound first, the rows get there by the shortest path, and the profile records how many
combinations of each row leave per combination that entered. A row that does not get that far is assumed to behave as
the others.

Cost is this thread's CPU time for all rows together, minus the fixed cost of a call, divided among input and output
rows, because a lookup costs its probe and its matches. (Nehme et al. 2012, sections 4.2 and 4.6: training rows are run
through the operators.)

Invariant: profiling produces no results and changes no state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from time import thread_time

import numpy as np
import pyarrow as pa

from anabranch.engine.batch import Combinations, concatenated
from anabranch.engine.fabric.hops import Hop, ProbeHop, compile_hop
from anabranch.engine.fabric.sorting import Attributes
from anabranch.engine.kernels import Int64Array
from anabranch.engine.meter import Meter
from anabranch.engine.operators.join import keep
from anabranch.engine.state.base import BaseState
from anabranch.lang.arrays import Doubles
from anabranch.plan.join_graph import JoinGraph, is_selection
from anabranch.plan.mesh import attributes_of, needs, selected
from anabranch.stats.mesh.operators import OperatorMatrix
from anabranch.stats.mesh.profiles import OperatorProfile

PROFILED_ROWS = 4_096
FEW, CALLS = 4, 3
"""The number of combinations and of calls that measure the fixed cost of a call."""
LEAST_SHARE = 0.2
"""The least share of the time of a call on many rows that is attributed to the rows."""
MOST_COMBINATIONS = 1 << 14
"""Above this number of combinations, only a sample is carried further."""


def profile(
    graph: JoinGraph,
    relation: str,
    bases: Mapping[str, BaseState],
    *,
    rows: int = PROFILED_ROWS,
    deferred: tuple[str, ...] = (),
    batch_starts: Mapping[str, int] | None = None,
    evenly: bool = False,
) -> OperatorProfile:
    """Runs every operator of the relation's rows on its youngest rows or, with `evenly`, on rows of any age.

    `batch_starts` has the number of the first row of each relation's latest insertion, if known.

    `deferred` are selections (`#0`, …) that become separate operators; other predicates count with the probe that makes
    them checkable. Rows must be linked: between two steps.
    """
    others = tuple(name for name in graph.names if name != relation)
    operators = (*others, *deferred)
    attributes = attributes_of(graph, relation)
    if not bases[relation].ring.live:
        nothing = np.empty((0, len(operators)))
        return OperatorProfile(
            relation, attributes.to_arrow().empty_table(), OperatorMatrix(operators, nothing, nothing)
        )
    indexes = {name: base.indexes for name, base in bases.items()}
    taken = _batch_rows(bases[relation], batch_starts)
    if evenly:
        found = _drawn(bases[relation], bases[relation].ring.live, min(rows, bases[relation].ring.live))
    else:
        found = _drawn(bases[relation], taken, rows) if taken >= rows else _youngest(bases[relation], rows)
    hidden = _later(graph, relation, batch_starts) if batch_starts and taken >= rows else {}
    run = _Run(graph, relation, bases, operators, hidden)
    columns = Attributes(graph, bases[relation], attributes.names).read(found.rows[relation])
    selectivity, cost = np.ones((len(found), len(operators))), np.zeros((len(found), len(operators)))
    call = 0.0
    for number, operator in enumerate(operators):
        selectivity[:, number], cost[:, number], before = run.measure(operator, found)
        call += before
    for name, base in bases.items():
        base.retain(indexes[name])
    return OperatorProfile(relation, pa.table(columns), OperatorMatrix(operators, selectivity, cost), taken, call)


def timed(work: Iterator[Combinations], entered: int) -> tuple[list[Combinations], float]:
    """Runs an operator on that many combinations; returns its output and this thread's CPU seconds.

    Tests replace this function by one that counts combinations (`testing/costs.py`), so none depends on a clock.
    """
    started = thread_time()
    return list(work), thread_time() - started


class _Run:
    """Runs the operators of one relation's rows outside any step.

    Rows of the relations in `hidden` are not found from that number on.
    """

    def __init__(
        self,
        graph: JoinGraph,
        relation: str,
        bases: Mapping[str, BaseState],
        operators: Sequence[str],
        hidden: Mapping[str, int],
    ) -> None:
        self._graph, self._relation, self._bases, self._hidden = graph, relation, bases, hidden
        self._deferred = [selected(operator, graph) for operator in operators if is_selection(operator)]
        self._meter = Meter()
        self._hops: dict[tuple[str, frozenset[str]], Hop] = {}
        for operator in operators:
            bound = {relation}
            for name in (*self._way(operator), operator):
                hop = self._hop(name, bound)
                if isinstance(hop, ProbeHop):
                    bases[name].require((hop.probe.index,))
                bound.add(name)

    def measure(self, operator: str, found: Combinations) -> tuple[Doubles, Doubles, float]:
        """Returns rows out per row in and seconds per row in, for each row, and the fixed seconds of a call."""
        numbers, size = found.rows[self._relation], len(found)
        for name in self._way(operator):
            found = _thinned(_joined(list(self._work(name, found)), found))
        blocks, spent = self._timed(operator, found)
        few = found.take(np.arange(min(FEW, len(found)), dtype=np.int64))
        call = min(self._timed(operator, few)[1] for _ in range(CALLS))
        entered = np.bincount(np.searchsorted(numbers, found.rows[self._relation]), minlength=size)
        left = np.zeros(size, dtype=np.int64)
        for block in blocks:
            left += np.bincount(np.searchsorted(numbers, block.rows[self._relation]), minlength=size)
        overall = float(left.sum() / entered.sum()) if entered.sum() else 1.0
        selectivity = np.where(entered > 0, left / np.maximum(entered, 1), overall)
        # A coarse clock or a busy moment must not make rows cost nothing.
        unit = max(spent - call, LEAST_SHARE * spent) / max(1, int(entered.sum() + left.sum()))
        return selectivity, unit * (1 + selectivity), call

    def _timed(self, operator: str, found: Combinations) -> tuple[list[Combinations], float]:
        return timed(self._work(operator, found), len(found))

    def _work(self, operator: str, found: Combinations) -> Iterator[Combinations]:
        blocks = self._hop(operator, found.rows.keys()).work(found)
        if operator not in self._hidden:
            return blocks
        return (keep(block, block.rows[operator] < self._hidden[operator]) for block in blocks)

    def _hop(self, operator: str, bound: Set[str]) -> Hop:
        key = operator, frozenset(bound)
        if key not in self._hops:
            self._hops[key] = compile_hop(
                self._graph, self._relation, operator, bound, self._deferred, self._bases, self._meter
            )
        return self._hops[key]

    def _way(self, operator: str) -> list[str]:
        """The relations to bind before the operator can run as a lookup, nearest first."""
        wanted = sorted(needs(operator, self._graph) - {self._relation}) if is_selection(operator) else [operator]
        way: list[str] = []
        for target in wanted:
            for name in self._path(target):
                if name not in way:
                    way.append(name)
        return way if is_selection(operator) else way[:-1]

    def _path(self, target: str) -> list[str]:
        """The relations from the rows' own to the target, along predicates; the target alone if there is no path."""
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


def _batch_rows(base: BaseState, batch_starts: Mapping[str, int] | None) -> int:
    """Returns the number of live rows of the latest insertion; 0 if unknown."""
    if not batch_starts or base.relation not in batch_starts:
        return 0
    return base.ring.next - max(batch_starts[base.relation], base.ring.first)


def _drawn(base: BaseState, taken: int, rows: int) -> Combinations:
    """Samples this many rows of the latest insertion, evenly spaced."""
    numbers = base.ring.next - taken + np.arange(rows, dtype=np.int64) * taken // rows
    return Combinations({base.relation: numbers}, *base.ring.times(numbers))


def _later(graph: JoinGraph, relation: str, batch_starts: Mapping[str, int]) -> dict[str, int]:
    """Returns the relations processed after this one, with the first row number of their latest insertion."""
    later = graph.names[graph.names.index(relation) + 1 :]
    return {name: batch_starts[name] for name in later if name in batch_starts}


def _joined(blocks: list[Combinations], before: Combinations) -> Combinations:
    if not blocks:
        nothing: Int64Array = np.empty(0, dtype=np.int64)
        return Combinations(dict.fromkeys(before.rows, nothing), nothing, nothing)
    return concatenated(blocks, blocks[0].rows)


def _thinned(found: Combinations) -> Combinations:
    """Samples at most `MOST_COMBINATIONS`, evenly spaced."""
    if len(found) <= MOST_COMBINATIONS:
        return found
    chosen = np.linspace(0, len(found) - 1, MOST_COMBINATIONS).astype(np.int64)
    rows = {name: numbers[chosen] for name, numbers in found.rows.items()}
    return Combinations(rows, found.newest[chosen], found.deadline[chosen])
