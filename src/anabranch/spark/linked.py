"""Links as a Spark streaming source: one source for all inputs of an operator, in the wire layout.

A source has the offset of a `Feed`: the last batch taken from each link. Spark logs it before a batch runs, so a replay
reads the same rows. One task reads a batch, or several tasks if it is large. The task computes codes and cells like the
engine, which saves a Spark projection per input. The tick of an input is sent as a row rejected by a filter, under the
complement of its relation's number. When Spark has committed a batch, its rows are acknowledged and may be deleted.

The inlets are looked up for every batch. The object must be picklable, because Spark calls it in a separate process.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import IntegerType, StructField, StructType

from anabranch.engine.batch import RelationBatch
from anabranch.engine.ownership import own_cells
from anabranch.lang.schema import Schema
from anabranch.plan.partitioning import Partitioning
from anabranch.run.links.feed import Feed, Inlet, Offset, Piece
from anabranch.run.rows import relation_batch
from anabranch.run.wire import RELATION, TIME, WireLayout
from anabranch.spark.arrow_schema import to_spark
from anabranch.spark.source import CELL, Cells

FORMAT = "anabranch_links"
MOST_BYTES = 1 << 25
"""The maximum bytes that one task reads; larger batches are read by several tasks."""


class Inlets(Protocol):
    """A callable that returns the links that an operator reads; pickled and sent to Spark's process."""

    def __call__(self) -> Sequence[Inlet]: ...


@dataclass(frozen=True)
class LinkInputs:
    """The input links of an operator: its reader name, their location, and the inlets."""

    reader: str
    place: str
    inlets: Inlets

    def feed(self) -> Feed:
        return Feed(self.reader, self.place, self.inlets())


@dataclass(frozen=True)
class _Numbering:
    """The part of `Cells` that a task needs to number rows."""

    layout: WireLayout
    start: Partitioning
    first: Mapping[str, int]
    copies: Mapping[str, int]


def link_frame(spark: SparkSession, inputs: LinkInputs) -> Callable[[Cells], DataFrame]:
    """Returns the rows of all links of an operator, in the form that `start_query` takes."""

    def rows(cells: Cells) -> DataFrame:
        names = cells.layout.queries.graph.names
        first = {name: cells.first(name) for name in names}
        numbering = _Numbering(cells.layout, cells.start, first, {name: cells.copies(name) for name in names})
        schema = to_spark(Schema.from_arrow(cells.layout.schema))
        schema = StructType([*schema.fields, StructField(CELL, IntegerType(), True)])
        spark.dataSource.register(LinkDataSource)
        packed = base64.b64encode(pickle.dumps((inputs, numbering))).decode()
        return spark.readStream.format(FORMAT).schema(schema).option("packed", packed).load()

    return rows


class LinkDataSource(DataSource):
    """The data source registered with Spark."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> LinkReader:
        inputs, numbering = pickle.loads(base64.b64decode(self.options["packed"]))
        return LinkReader(inputs, numbering)


@dataclass
class Share(InputPartition):
    """The work of one task: entries of links, and the ticks of the batch for the first task."""

    pieces: tuple[Piece, ...]
    ticks: Mapping[str, int]

    def __init__(self, pieces: Sequence[Piece], ticks: Mapping[str, int]) -> None:
        super().__init__(0)
        self.pieces, self.ticks = tuple(pieces), dict(ticks)


class LinkReader(DataSourceStreamReader):
    """Plans batches in Spark's process for the source, and reads them in workers."""

    def __init__(self, inputs: LinkInputs, numbering: _Numbering) -> None:
        self._inputs = inputs
        self._numbering = numbering

    def initialOffset(self) -> dict[str, Any]:
        return {}

    def latestOffset(self, start: Offset, limit: object) -> dict[str, Any]:
        return self._inputs.feed().latest(start)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        feed = self._inputs.feed()
        shares: list[list[Piece]] = [[]]
        size = 0
        for piece in feed.pieces(start, end):
            if size + piece.entry.bytes > MOST_BYTES and shares[-1]:
                shares.append([])
                size = 0
            shares[-1].append(piece)
            size += piece.entry.bytes
        ticks = feed.ticks(end)
        return [Share(pieces, {} if number else ticks) for number, pieces in enumerate(shares)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        feed, numbering = self._inputs.feed(), self._numbering
        graph = numbering.layout.queries.graph
        position = {relation.stream: number for number, relation in enumerate(graph.relations)}
        for stream, tick in partition.ticks.items():
            yield _tick(numbering, position[stream], tick)
        for piece in partition.pieces:
            relation = graph.relations[position[piece.stream]]
            for rows in feed.read(piece):
                if rows.num_rows:
                    batch = relation_batch(relation, numbering.layout, rows)
                    yield from _numbered(numbering, position[piece.stream], batch)

    def commit(self, end: Offset) -> None:
        self._inputs.feed().commit(end)


def _numbered(numbering: _Numbering, position: int, batch: RelationBatch) -> Iterator[pa.RecordBatch]:
    """Returns rows in the wire layout with their cells; a row that several slots need appears once for each."""
    name = numbering.layout.queries.graph.names[position]
    table = numbering.layout.relation_table(position, batch)
    copies = numbering.copies[name]
    cells = own_cells(numbering.start, name, batch) * copies + numbering.first[name]
    for copy in range(copies):
        column = pa.array((cells + copy).astype(np.int32))
        yield from table.append_column(CELL, column).combine_chunks().to_batches()


def _tick(numbering: _Numbering, position: int, tick: int) -> pa.RecordBatch:
    """Returns a tick as a row rejected at its time."""
    name = numbering.layout.queries.graph.names[position]
    values = {RELATION: ~position, TIME: tick, CELL: numbering.first[name]}
    values |= dict.fromkeys(numbering.layout.code_columns, 0)
    schema = pa.schema([*numbering.layout.schema, pa.field(CELL, pa.int32())])
    return pa.RecordBatch.from_arrays([pa.array([values.get(f.name)], f.type) for f in schema], schema=schema)
