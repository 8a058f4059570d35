"""A mesh at work: new rows are classified into rusters, and the fabric brings them to their results.

Law: a mesh has no state of its own, so `replace` is a change of pointers at a batch boundary; rusters under way end on
the routes they began on. A relation's new rows are classified once, when they are taken. A ruster smaller than
`SMALLEST_RUSTER` goes with the largest: a route of its own would cost more than it can save.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import perf_counter
from typing import Any

import numpy as np

from anabranch.engine.batch import Combinations
from anabranch.engine.fabric.lottery import Lottery
from anabranch.engine.fabric.modules import OperatorIndex
from anabranch.engine.fabric.ruster import CompiledRoute, Ruster, compile_routes
from anabranch.engine.meter import Meter
from anabranch.engine.state.base import BaseState
from anabranch.engine.state.intermediate import IntermediateState
from anabranch.plan.classifier import Assign, Classifier, attributes
from anabranch.plan.classify import assign_routes
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.mesh import Mesh

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
        self._lottery = Lottery()
        self._index = index or OperatorIndex(bases, meter, self._lottery)
        self.replace(mesh)

    def replace(self, mesh: Mesh) -> None:
        """Rows that are taken from now on go by this mesh; indexes that it needs are there afterwards."""
        numbers = self._index.numbers(self._graph)
        routes = {way.relation: compile_routes(self._graph, way, numbers, self._query) for way in mesh.ways}
        for several in routes.values():
            for route in several:
                for (target, _), probe in route.probes.items():
                    self._bases[target].require((probe.index,))
        for base in self._bases.values():
            if not base.indexes:
                base.require(((),))
        self.plan = mesh
        self._classifiers = {way.relation: way.classifier for way in mesh.ways}
        self._routes = routes
        self._lottery.forget()

    def layout(self) -> dict[str, Any]:
        return {"lottery": self._lottery.layout()}

    def reopen(self, layout: Mapping[str, Any]) -> None:
        self._lottery.reopen(layout["lottery"])

    def take(self, relation: str, found: Combinations, *, wanted: bool) -> Iterator[Combinations]:
        """Sends new rows of a relation on their routes and yields what they finish, if that is wanted."""
        if not wanted:
            return
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
        routes, classifier = self._routes[relation], self._classifiers[relation]
        if isinstance(classifier, Assign):
            return [_ruster(found, routes[classifier.route])]
        started = perf_counter()
        labels = self._labels(classifier, relation, found)
        counts = np.bincount(labels, minlength=len(routes))
        most = int(counts.argmax())
        if counts[most] == len(labels):
            rusters = [_ruster(found, routes[most])]
        else:
            small = counts < min(SMALLEST_RUSTER, counts[most])
            labels = np.where(small, most, np.arange(len(routes), dtype=np.int16))[labels]
            rusters = [_ruster(part, routes[number]) for number, part in split(found, labels)]
        self._meter.spent("classify", perf_counter() - started)
        return rusters

    def _labels(self, classifier: Classifier, relation: str, found: Combinations) -> np.ndarray[Any, Any]:
        base = self._bases[relation]
        columns = {name: base.column(name, found.rows[relation]) for name in attributes(classifier)}
        return assign_routes(classifier, columns, len(found))


def split(found: Combinations, labels: np.ndarray[Any, Any]) -> Iterator[tuple[int, Combinations]]:
    """The combinations of each label, in the order they had."""
    order = np.argsort(labels, kind="stable")
    ends = np.cumsum(np.bincount(labels))
    start = 0
    for label, end in enumerate(ends.tolist()):
        if end > start:
            chosen = order[start:end]
            rows = {relation: numbers[chosen] for relation, numbers in found.rows.items()}
            yield label, Combinations(rows, found.newest[chosen], found.deadline[chosen])
        start = end


def _ruster(found: Combinations, route: CompiledRoute) -> Ruster:
    return Ruster(found, route, route.token)
