"""A mesh at work: new rows are classified into rusters, and the fabric brings them to their results.

Law: a mesh has no state of its own, so `replace` is a change of pointers at a batch boundary; rusters under way end on
the routes they began on. A relation's new rows are classified once, when they are taken. A ruster smaller than
`SMALLEST_RUSTER` goes with the largest: a route of its own would cost more than it can save.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import thread_time
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.classify import AttributeColumn, lay_out
from anabranch.engine.batch import Combinations
from anabranch.engine.fabric import kernels
from anabranch.engine.fabric.lottery import Lottery
from anabranch.engine.fabric.modules import OperatorIndex
from anabranch.engine.fabric.ruster import CompiledRoute, Ruster, compile_routes, gathered
from anabranch.engine.kernels import Int64Array
from anabranch.engine.meter import Meter
from anabranch.engine.state.base import BaseState
from anabranch.engine.state.intermediate import IntermediateState
from anabranch.engine.state.ring import Index
from anabranch.plan.classifier import Classifier, attributes
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.mesh import Mesh, key_columns

SMALLEST_RUSTER = 100
"""Rows below which a ruster is not worth the fixed cost of its probes (Nehme et al. 2012, Table 3)."""


class MeshTrack:
    """The routes of one query over base states that it shares and does not own."""

    def __init__(self, graph: JoinGraph, mesh: Mesh, bases: Mapping[str, BaseState], meter: Meter) -> None:
        self.intermediates: dict[str, IntermediateState] = {}
        self._graph = graph
        self._bases = bases
        self._meter = meter
        self._index = OperatorIndex(bases, meter, Lottery())
        self.replace(mesh)

    def replace(self, mesh: Mesh) -> None:
        """Rows that are taken from now on go by this mesh; indexes that it needs are there afterwards."""
        numbers = self._index.numbers(self._graph)
        routes = {way.relation: compile_routes(self._graph, way, numbers) for way in mesh.ways}
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
        self._routes = routes
        self._sorting = {
            way.relation: Sorting(self._graph, self._bases[way.relation], way.classifier)
            for way in mesh.ways
            if len(way.routes) > 1
        }
        self._index.lottery.forget()

    def indexes(self, relation: str) -> tuple[Index, ...]:
        """The indexes of a base state that some route looks into."""
        return tuple(self._indexes[relation])

    def retain_indexes(self) -> None:
        """Keeps no intermediate state, and so no index."""

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
        routes, sorting = self._routes[relation], self._sorting.get(relation)
        if sorting is None:
            return [_ruster(found, routes[0])]
        # Time of this thread: what comes in between on a busy machine is not routing.
        started = thread_time()
        rusters = sorting.cut(found, routes)
        self._meter.spent("classify", thread_time() - started)
        return rusters


class Sorting:
    """How new rows of a relation are told apart by a classifier."""

    def __init__(self, graph: JoinGraph, base: BaseState, classifier: Classifier) -> None:
        self._base = base
        self._attributes = Attributes(graph, base, attributes(classifier))
        self._table = lay_out(classifier)

    def cut(self, found: Combinations, routes: Sequence[CompiledRoute]) -> list[Ruster]:
        """The rows of each route; a route that only few take leaves its rows to the largest."""
        relation, size = self._base.relation, len(found)
        numbers = found.rows[relation]
        labels = self._table.assign(self._attributes.glance(numbers), size)
        cut = np.empty((3, size), dtype=np.int64)
        counts = kernels.cut(labels, len(routes), SMALLEST_RUSTER, numbers, found.newest, found.deadline, cut)
        rusters, start = [], 0
        for route, count in zip(routes, counts.tolist(), strict=True):
            if count == size:
                return [_ruster(found, route)]
            if count:
                rows, newest, deadline = cut[:, start : start + count]
                rusters.append(_ruster(Combinations({relation: rows}, newest, deadline), route))
                start += count
        return rusters


class Attributes:
    """Columns of a relation's rows that a classifier may test: carried ones, and keys whose code is the value."""

    def __init__(self, graph: JoinGraph, base: BaseState, names: Iterable[str]) -> None:
        self._base = base
        codes = {name.lower(): key.name for name, key in key_columns(graph, base.relation).items()}
        fields = {name: base.schema.find(name) for name in names}
        self._columns = {name: field.name for name, field in fields.items() if field is not None}
        # A code is a number where the column may be a date or a boolean; classifiers count those the same way.
        self._codes = {name: codes[name.lower()] for name, field in fields.items() if field is None}

    def read(self, rows: Int64Array) -> dict[str, pa.Array]:
        """The columns of the rows, by the names under which they were asked for."""
        columns = {name: self._base.column(column, rows) for name, column in self._columns.items()}
        return columns | {name: pa.array(self._base.code(code, rows)) for name, code in self._codes.items()}

    def glance(self, numbers: Int64Array) -> dict[str, AttributeColumn]:
        """The same of rows with rising numbers, to be looked at before the next step.

        Columns are taken as they stand in the state where nothing is between the rows; a query that shares its states
        with others may take in only some of what is new.
        """
        first, last = int(numbers[0]), int(numbers[-1])
        rows = range(first, last + 1) if last - first + 1 == len(numbers) else numbers
        found: dict[str, AttributeColumn] = {name: self._base.code(code, rows) for name, code in self._codes.items()}
        for name, column in self._columns.items():
            plain = self._base.plain(column, rows)
            found[name] = self._base.column(column, rows) if plain is None else plain
        return found


def _ruster(found: Combinations, route: CompiledRoute) -> Ruster:
    return Ruster(found, route, route.token)
