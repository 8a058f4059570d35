"""Several queries through one fabric: base states, their indexes and the operator modules are there once.

Queries may share a fabric when a relation that several of them name is the same in each: stream, window, filter. Rows
of such a relation are kept and linked once, whoever needs them; keys that two queries compare by the same expressions
have one code and one index. Each query has its own routes, whose rusters carry its number, and its own results.

Law: what each query gets is what it would get alone. A row stays as long as the query that needs it longest. Grouped
queries have engines of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from anabranch.engine.batch import Combinations, RelationBatch
from anabranch.engine.evaluate import evaluate
from anabranch.engine.fabric.lottery import Lottery
from anabranch.engine.fabric.modules import OperatorIndex
from anabranch.engine.fabric.track import MeshTrack
from anabranch.engine.meter import Meter
from anabranch.engine.operators.join import read_column
from anabranch.engine.state.arena import ProcessArena
from anabranch.engine.state.base import BaseState
from anabranch.errors import PlanError
from anabranch.plan.join_graph import JoinGraph, KeyClass, Relation
from anabranch.plan.mesh import Mesh, check_mesh
from anabranch.plan.query import Query
from anabranch.schema import Field, Schema


class SharedFabric:
    """The meshes of several queries over the base states that they share, in this process."""

    def __init__(self, queries: Sequence[Query], meshes: Sequence[Mesh]) -> None:
        graphs, self.codes = shared_graphs([query.graph for query in queries])
        self.queries = tuple(replace(query, graph=graph) for query, graph in zip(queries, graphs, strict=True))
        self.meter = Meter()
        bases: dict[str, BaseState] = {}
        for graph in graphs:
            for name in graph.names:
                if name not in bases:
                    bases[name] = BaseState(ProcessArena(), graph, name, self.codes[name])
        self.bases = bases
        self._index = OperatorIndex(bases, self.meter, Lottery())
        self.tracks = [
            MeshTrack(
                query.graph,
                check_mesh(mesh, query.graph),
                {name: bases[name] for name in query.graph.names},
                self.meter,
                index=self._index,
                query=number,
            )
            for number, (query, mesh) in enumerate(zip(self.queries, meshes, strict=True))
        ]

    @property
    def modules(self) -> int:
        """Operators in the index, the output not counted."""
        return len(self._index) - 1

    def step(
        self, batches: Mapping[str, RelationBatch], floors: Mapping[str, int]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The results that new rows complete, each with the number of its query; rows of a batch are in time order."""
        for name, state in self.bases.items():
            others = [floor for other, floor in floors.items() if other != name]
            state.drop(min(others, default=floors[name]))
        for name, state in self.bases.items():
            batch = batches.get(name)
            if batch is None or not len(batch):
                continue
            first = state.append(batch)
            times = np.require(batch.times, requirements=["C", "W"])
            rows = np.arange(first, first + len(batch), dtype=np.int64)
            news = Combinations({name: rows}, times, times + state.range)
            for number, (query, track) in enumerate(zip(self.queries, self.tracks, strict=True)):
                if name in query.graph.names:
                    for found in track.take(name, news, wanted=True):
                        yield number, self._project(query, found)
            state.link(rows, news.newest, news.deadline)

    def _project(self, query: Query, found: Combinations) -> pa.RecordBatch:
        arrays = [
            evaluate(output.expression, lambda column: read_column(self.bases, column, found), len(found))
            for output in query.outputs
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=query.schema.to_arrow())


def shared_graphs(graphs: Sequence[JoinGraph]) -> tuple[list[JoinGraph], dict[str, tuple[str, ...]]]:
    """The graphs with one schema for each relation and one name for each key, and the code names by relation."""
    relations = _shared_relations(graphs)
    known: list[KeyClass] = []
    shared: list[JoinGraph] = []
    for graph in graphs:
        keys = []
        for key in graph.keys:
            place = next((i for i, other in enumerate(known) if _agree(key, other)), len(known))
            if place == len(known):
                known.append(replace(key, name=f"k{place}"))
            else:
                members = dict(known[place].members) | dict(key.members)
                known[place] = replace(known[place], members=tuple(members.items()))
            keys.append(replace(key, name=f"k{place}"))
        shared.append(replace(graph, relations=tuple(relations[name] for name in graph.names), keys=tuple(keys)))
    codes = {name: tuple(key.name for key in known if name in key.relations) for name in relations}
    return shared, codes


def _agree(key: KeyClass, other: KeyClass) -> bool:
    """True when the two share a relation, and every relation they share has the same expression in both."""
    common = key.relations & other.relations
    return (
        bool(common)
        and key.type == other.type
        and all(key.expression(name) == other.expression(name) for name in common)
    )


def _shared_relations(graphs: Sequence[JoinGraph]) -> dict[str, Relation]:
    found: dict[str, Relation] = {}
    for graph in graphs:
        if any(theta.band is not None for theta in graph.thetas):
            raise PlanError("a query with a band cannot share a fabric", hint="give it an engine of its own")
        for relation in graph.relations:
            before = found.setdefault(relation.name, relation)
            if replace(before, schema=relation.schema) != relation:
                raise PlanError(
                    f"relation '{relation.name}' is not the same in all queries",
                    detail=f"it is {before.stream} {before.window} in one and {relation.stream} {relation.window} "
                    "in another, or has another filter",
                    hint="give it another alias in one of them",
                )
            fields: dict[str, Field] = {field.name: field for field in (*before.schema, *relation.schema)}
            found[relation.name] = replace(relation, schema=Schema(tuple(fields.values())))
    return found
