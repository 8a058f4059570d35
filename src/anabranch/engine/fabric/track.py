"""A mesh at work: new rows are classified into rusters, and the fabric brings them to their results.

Law: a mesh has no state of its own, so `replace` is a change of pointers at a batch boundary; rusters under way end on
the routes they began on. A relation's new rows are classified once, when they are taken. A ruster smaller than
`SMALLEST_RUSTER` goes with the largest: a route of its own would cost more than it can save.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.engine.batch import Combinations
from anabranch.engine.fabric import kernels
from anabranch.engine.fabric.kernels import Routes
from anabranch.engine.fabric.lottery import Lottery
from anabranch.engine.fabric.modules import OperatorIndex
from anabranch.engine.fabric.ruster import CompiledRoute, Ruster, compile_routes, gathered
from anabranch.engine.meter import Meter
from anabranch.engine.state.base import BaseState
from anabranch.engine.state.intermediate import IntermediateState
from anabranch.plan.classifier import Assign, Classifier, attributes
from anabranch.plan.classify import assign_routes
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.mesh import Mesh, key_columns

SMALLEST_RUSTER = 100
"""Rows below which a ruster is not worth the fixed cost of its probes (Nehme et al. 2012, Table 3)."""


class MeshTrack:
    """The routes of one query over base states that it shares and does not own."""

    def __init__(
        self,
        graph: JoinGraph,
        mesh: Mesh,
        bases: Mapping[str, BaseState],
        meter: Meter,
        *,
        index: OperatorIndex | None = None,
        query: int = 0,
    ) -> None:
        self.intermediates: dict[str, IntermediateState] = {}
        self._graph = graph
        self._bases = bases
        self._meter = meter
        self._query = query
        self._index = index or OperatorIndex(bases, meter, Lottery())
        self.replace(mesh)

    def replace(self, mesh: Mesh) -> None:
        """Rows that are taken from now on go by this mesh; indexes that it needs are there afterwards."""
        numbers = self._index.numbers(self._graph)
        routes = {way.relation: compile_routes(self._graph, way, numbers, self._query) for way in mesh.ways}
        self._indexes: dict[str, list[tuple[str, ...]]] = {name: [] for name in self._bases}
        for several in routes.values():
            for route in several:
                for target, index in route.indexes():
                    self._indexes[target].append(index)
        for name, base in self._bases.items():
            # A state that nobody looks into keeps the index of all rows, by which it knows what is overdue.
            self._indexes[name] = list(dict.fromkeys(self._indexes[name])) or [()]
            base.require(tuple(self._indexes[name]))
        self.plan = mesh
        self._classifiers = {way.relation: way.classifier for way in mesh.ways}
        self._routes = routes
        self._index.lottery.forget(self._query)

    def retain_indexes(self) -> None:
        """Takes back every index of a base state that no route looks into."""
        for name, base in self._bases.items():
            base.retain(tuple(self._indexes[name]))

    def layout(self) -> dict[str, Any]:
        return {"plan": str(self.plan), "lottery": self._index.lottery.layout()}

    def reopen(self, layout: Mapping[str, Any]) -> None:
        self._index.lottery.reopen(layout["lottery"])

    def take(self, relation: str, found: Combinations, *, wanted: bool) -> Iterator[Combinations]:
        """Sends new rows of a relation on their routes and yields what they finish, if that is wanted."""
        if wanted:
            yield from gathered(self._finished(relation, found))

    def _finished(self, relation: str, found: Combinations) -> Iterator[Combinations]:
        for ruster in self._rusters(relation, found):
            done = 0
            for finished in self._index.forward(ruster):
                done += len(finished.found)
                yield finished.found
            self._meter.routed(relation, ruster.route.number, len(ruster.found), done)

    def drop(self, floors: Mapping[str, int], meter: Meter) -> None:
        """Nothing is kept beside the base states."""

    def _rusters(self, relation: str, found: Combinations) -> list[Ruster]:
        """The rows, cut by route."""
        classifier = self._classifiers[relation]
        if isinstance(classifier, Assign):
            return [_ruster(found, self._routes[relation][classifier.route])]
        started = perf_counter()
        rusters = self._cut(relation, found, self._labels(classifier, relation, found))
        self._meter.spent("classify", perf_counter() - started)
        return rusters

    def _cut(self, relation: str, found: Combinations, labels: Routes) -> list[Ruster]:
        routes = self._routes[relation]
        counts = kernels.count(labels, len(routes))
        most = int(counts.argmax())
        # What the small ones would leave is put to the largest, which stands first among its rows and theirs.
        taken = [n for n in range(len(routes)) if counts[n] >= SMALLEST_RUSTER and n != most]
        if not taken:
            return [_ruster(found, routes[most])]
        ends = np.cumsum([len(labels) - int(counts[taken].sum()), *counts[taken]])
        if int(counts[[most, *taken]].sum()) < len(labels):
            order = np.full(len(routes), most, dtype=np.int16)
            order[taken] = taken
            labels = order[labels]
        rows, newest, deadline = (np.empty(len(labels), dtype=np.int64) for _ in range(3))
        starts = np.zeros(len(routes), dtype=np.int64)
        starts[taken] = ends[:-1]
        kernels.scatter(labels, starts, found.rows[relation], found.newest, found.deadline, rows, newest, deadline)
        cuts = itertools.pairwise([0, *ends.tolist()])
        return [
            _ruster(Combinations({relation: rows[a:b]}, newest[a:b], deadline[a:b]), routes[number])
            for number, (a, b) in zip((most, *taken), cuts, strict=True)
        ]

    def _labels(self, classifier: Classifier, relation: str, found: Combinations) -> Routes:
        names = attributes(classifier)
        return assign_routes(classifier, read_attributes(self._graph, self._bases[relation], names, found), len(found))


def read_attributes(
    graph: JoinGraph, base: BaseState, names: Iterable[str], found: Combinations
) -> dict[str, pa.Array]:
    """Columns of a relation's rows that a classifier may test: carried ones, and keys whose code is the value."""
    rows, keys = found.rows[base.relation], key_columns(graph, base.relation)
    codes = {name.lower(): key.name for name, key in keys.items()}
    fields = {name: base.schema.find(name) for name in names}
    # A code is a number where the column may be a date or a boolean; classifiers count those the same way.
    return {
        name: base.column(field.name, rows) if field is not None else pa.array(base.code(codes[name.lower()], rows))
        for name, field in fields.items()
    }


def _ruster(found: Combinations, route: CompiledRoute) -> Ruster:
    return Ruster(found, route, route.token)
