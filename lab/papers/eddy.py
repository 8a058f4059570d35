"""An eddy with content-based routing: the baseline that decides at every hop instead of once.

Rows go from a central router to an operator and back, until they have been everywhere. At each return the router
decides again, by the observed selectivities on rows of the same class (`content_routing`), and goes on profiling.
Without batching each row gets a decision of its own; with batching, each run of neighbouring rows gets one decision.
Decisions are taken for whole arrays, rows of one destination are worked on together, and rows that have visited the
same operators are put together again: the baseline has the same vectorised operators as the fabric and no smaller
vectors than it needs. (Avnur & Hellerstein 2000; Deshpande 2004; Bizarro et al. 2005.)

It is a baseline for experiments; a query cannot run with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from time import thread_time
from typing import Any

import numpy as np

from anabranch.engine.batch import Combinations, concatenated
from anabranch.engine.fabric.modules import ProbeModule
from anabranch.engine.fabric.row_group import CompiledRoute, gathered
from anabranch.engine.fabric.sorting import Attributes
from anabranch.engine.fabric.token import Token
from anabranch.engine.kernels import Int64Array
from anabranch.engine.meter import Meter
from anabranch.engine.state.base import BaseState
from anabranch.engine.state.ring import Index
from anabranch.engine.tracks.protocol import PlanContext
from anabranch.engine.tracks.stateless import StatelessTrack
from anabranch.errors import InvariantBroken
from anabranch.plan.classifier import hour_of, is_classifiable
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.mesh import Mesh, RelationRoutes, Route, attributes_of
from lab.papers.content_routing import Buckets, Profile, SelectivityEstimates, make_buckets

PROFILED = 1_000
"""Rows at the head of each turn that are profiled: bucketed by all attributes, and counted at every operator."""
EXPLORING = 10
"""One in this many profiled rows goes to a random operator first, so that no operator is forgotten."""


class EddyTrack(StatelessTrack):
    """One query run by an eddy; `batching` is the number of rows that share a decision, None for one each."""

    def __init__(self, ground: PlanContext, *, batching: int | None = None, seed: int = 0) -> None:
        graph = ground.query.graph
        others = {name: tuple(other for other in graph.names if other != name) for name in graph.names}
        # Seen as a mesh, an eddy leaves everything open.
        super().__init__(ground, Mesh(tuple(RelationRoutes(name, (Route((step,)),)) for name, step in others.items())))
        self._routers = {
            name: _Router(graph, name, ground.bases, ground.meter, batching, np.random.default_rng([seed, number]))
            for number, name in enumerate(graph.names)
        }

    def indexes(self, relation: str) -> tuple[Index, ...]:
        """Every index that is there: a row may visit the operators in any order."""
        return self.context.bases[relation].indexes

    def layout(self) -> dict[str, Any]:
        raise InvariantBroken("an eddy is not kept between processes")

    def take(self, relation: str, found: Combinations, *, wanted: bool) -> Iterator[Combinations]:
        if wanted:
            yield from gathered(self._routers[relation].take(found))


class _Router:
    """The centre of the eddy for rows of one relation."""

    def __init__(
        self,
        graph: JoinGraph,
        relation: str,
        bases: Mapping[str, BaseState],
        meter: Meter,
        batching: int | None,
        rng: np.random.Generator,
    ) -> None:
        others = tuple(name for name in graph.names if name != relation)
        # One open step over all others: every lookup that any order can come to.
        self._route = CompiledRoute(graph, relation, 0, Route((others,)), Token(()))
        for target, index in self._route.indexes():
            bases[target].require((index,))
        self._modules = [ProbeModule(bases[name], bases, meter) for name in others]
        self._graph, self._base, self._meter = graph, bases[relation], meter
        self._attributes = [
            field.name
            for field in attributes_of(graph, relation)
            if is_classifiable(field.type) and hour_of(field.name) is None
        ]
        self._batching, self._rng = batching, rng
        self._buckets: list[Buckets] = []
        self._profile = Profile(len(others), max(1, len(self._attributes)))
        self._estimates: SelectivityEstimates = self._profile.learn()
        self._best: dict[int, Int64Array] = {}

    def take(self, found: Combinations) -> Iterator[Combinations]:
        """Profiles the first rows, learns, and routes the rest accordingly."""
        yield from self._route_all(_slice(found, 0, PROFILED), is_profiled=True)
        started = thread_time()
        self._estimates, self._best = self._profile.learn(), {}
        self._meter.spent("route", thread_time() - started)
        if len(found) > PROFILED:
            yield from self._route_all(_slice(found, PROFILED, len(found)), is_profiled=False)

    def _route_all(self, found: Combinations, *, is_profiled: bool) -> Iterator[Combinations]:
        started = thread_time()
        relation, everywhere = self._base.relation, (1 << len(self._modules)) - 1
        first = int(found.rows[relation][0])
        buckets = self._bucketed(found, range(len(self._attributes)) if is_profiled else self._estimates.attributes)
        every = np.stack(list(buckets.values())) if is_profiled and buckets else None
        classes = self._estimates.classify(buckets, len(found))
        pool: dict[int, list[Combinations]] = {0: [found]}
        self._meter.spent("route", thread_time() - started)
        while pool:
            started = thread_time()
            # Rows that have been to most operators first, so that few rows are under way.
            visited = max(pool, key=lambda mask: (mask.bit_count(), mask))
            blocks = pool.pop(visited)
            waiting = concatenated(blocks, blocks[0].rows)
            if visited == everywhere:
                self._meter.spent("route", thread_time() - started)
                yield waiting
                continue
            destinations = self._decide(visited, classes[waiting.rows[relation] - first], is_profiled)
            groups = list(_grouped(waiting, destinations))
            self._meter.spent("route", thread_time() - started)
            for operator, group in groups:
                out = [block for block in self._modules[operator].work(group, self._route) if len(block)]
                if out:
                    pool.setdefault(visited | 1 << operator, []).extend(out)
                if every is not None:
                    started = thread_time()
                    origins = [block.rows[relation] - first for block in out] or [np.empty(0, dtype=np.int64)]
                    self._profile.note(operator, every, group.rows[relation] - first, np.concatenate(origins))
                    self._meter.spent("route", thread_time() - started)

    def _bucketed(self, found: Combinations, attributes: Iterable[int]) -> dict[int, Int64Array]:
        """The bucket of each row by attribute."""
        names = {number: self._attributes[number] for number in attributes}
        columns = Attributes(self._graph, self._base, names.values()).read(found.rows[self._base.relation])
        if not self._buckets:
            self._buckets = [make_buckets(columns[name]) for name in self._attributes]
        return {number: self._buckets[number].of(columns[name]) for number, name in names.items()}

    def _decide(self, visited: int, classes: Int64Array, is_profiled: bool) -> Int64Array:
        """The next operator of each combination."""
        open_operators = [i for i in range(len(self._modules)) if not visited >> i & 1]
        if len(open_operators) == 1:
            return np.full(len(classes), open_operators[0], dtype=np.int64)
        if self._batching is None:
            chosen = self._best_by_class(visited, open_operators)[classes]
        else:
            chosen = self._best_by_batch(open_operators, classes, self._batching)
        if is_profiled and not visited:
            explorers = np.arange(int(self._rng.integers(EXPLORING)), len(classes), EXPLORING)
            chosen[explorers] = self._rng.choice(open_operators)
        return chosen

    def _best_by_class(self, visited: int, open_operators: list[int]) -> Int64Array:
        if visited not in self._best:
            best = self._estimates.by_class[open_operators].argmin(axis=0)
            self._best[visited] = np.array(open_operators, dtype=np.int64)[best]
        return self._best[visited]

    def _best_by_batch(self, open_operators: list[int], classes: Int64Array, size: int) -> Int64Array:
        """The operator of least selectivity on average over each run of rows."""
        runs = np.arange(len(classes)) // size
        mixed = np.bincount(
            runs * self._estimates.classes + classes, minlength=(runs[-1] + 1) * self._estimates.classes
        )
        shares = mixed.reshape(runs[-1] + 1, self._estimates.classes)
        best = (shares @ self._estimates.by_class[open_operators].T).argmin(axis=1)
        chosen: Int64Array = np.array(open_operators, dtype=np.int64)[best][runs]
        return chosen


def _slice(found: Combinations, start: int, stop: int) -> Combinations:
    rows = {relation: numbers[start:stop] for relation, numbers in found.rows.items()}
    return Combinations(rows, found.newest[start:stop], found.deadline[start:stop])


def _grouped(found: Combinations, destinations: Int64Array) -> Iterator[tuple[int, Combinations]]:
    """The combinations that go to each operator."""
    counts = np.bincount(destinations)
    if int(counts.max()) == len(destinations):
        yield int(destinations[0]), found
        return
    order = np.argsort(destinations.astype(np.int16), kind="stable")
    start = 0
    for operator, count in enumerate(counts.tolist()):
        if count:
            chosen = order[start : start + count]
            rows = {relation: numbers[chosen] for relation, numbers in found.rows.items()}
            yield operator, Combinations(rows, found.newest[chosen], found.deadline[chosen])
            start += count
