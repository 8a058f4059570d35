"""Links as a Spark streaming source: one source for all inputs of an operator.

A source has the offset of a `Feed`: the last batch taken from each link. Spark logs it before a batch runs, so a replay
reads the same rows. One task reads a batch, or several tasks if it is large. Each row of the frame is the tick of an
input, or a block of its rows in Arrow's format. When Spark has committed a batch, its rows are acknowledged and may be
deleted.

The inlets are requested for every batch. The source must be picklable, because Spark calls it in a separate process.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from anabranch.run.links.feed import Feed, Inlet, Offset, Piece
from anabranch.spark.spark_rows import ROWS, STREAM, TICK

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


SCHEMA = StructType(
    [
        StructField(STREAM, StringType(), True),
        StructField(TICK, LongType(), True),
        StructField(ROWS, BinaryType(), True),
    ]
)
COLUMNS = {STREAM: pa.string(), TICK: pa.int64(), ROWS: pa.binary()}


def link_frame(spark: SparkSession, inputs: LinkInputs) -> DataFrame:
    """Returns the rows and ticks of all links of an operator."""
    spark.dataSource.register(LinkDataSource)
    packed = base64.b64encode(pickle.dumps(inputs)).decode()
    return spark.readStream.format(FORMAT).schema(SCHEMA).option("packed", packed).load()


class LinkDataSource(DataSource):
    """The data source registered with Spark."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> LinkReader:
        return LinkReader(pickle.loads(base64.b64decode(self.options["packed"])))


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

    def __init__(self, inputs: LinkInputs) -> None:
        self._inputs = inputs

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
        feed = self._inputs.feed()
        for stream, tick in partition.ticks.items():
            yield _row(stream, tick=tick)
        for piece in partition.pieces:
            for rows in feed.read(piece):
                if rows.num_rows:
                    yield _row(piece.stream, rows)

    def commit(self, end: Offset) -> None:
        self._inputs.feed().commit(end)


def _row(stream: str, rows: pa.Table | None = None, tick: int | None = None) -> pa.RecordBatch:
    packed = None
    if rows is not None:
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, rows.schema) as writer:
            writer.write_table(rows)
        packed = out.getvalue().to_pybytes()
    values = {STREAM: stream, TICK: tick, ROWS: packed}
    return pa.record_batch([pa.array([values[name]], kind) for name, kind in COLUMNS.items()], list(COLUMNS))
