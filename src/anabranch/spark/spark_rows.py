"""The streams that Spark reads: one streaming frame with the columns that queries need, and the reader of its rows.

A scan has the number of its stream and shared columns: streams use the same column for values of one type, so that the
union of many streams has few columns. Spark computes only event times without a zone; readers rename the columns and
cast them to the types of the stream.

Invariant: the first scan of a stream has all its rows. Further scans, which Spark's offset log may list, have none.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import ByteType, DataType, TimestampNTZType, TimestampType

from anabranch.lang.schema import TIMESTAMP
from anabranch.run.ingest import Read
from anabranch.spark.expressions import quote

STREAM = "_stream"
EVENT_TIME = "event time, converted"
LINKS = ""
"""The name of the frame of links (`spark/linked`) among the names of streams."""
TICK, ROWS = "tick", "rows"
"""The columns of a frame of links, after the stream: a tick, or rows in Arrow's format."""


@dataclass(frozen=True)
class ScannedStream:
    """A stream in the union: its columns with their shared columns and types."""

    name: str
    columns: Mapping[str, tuple[str, pa.DataType]]
    clock: str | None = None
    """The column with the event times, if Spark converted them."""

    def rows(self, table: pa.Table) -> pa.Table:
        return pa.table({name: _typed(table.column(wire), kind) for name, (wire, kind) in self.columns.items()})


@dataclass(frozen=True)
class SparkRows:
    """Reads the rows that Spark passes to a task."""

    streams: tuple[ScannedStream, ...]

    def read(self, part: int, given: Iterator[pa.RecordBatch]) -> Iterator[Read]:
        batches = list(given)
        if not batches:
            return
        table = pa.Table.from_batches(batches)
        tags = table.column(STREAM).to_numpy()
        # A partition of the union has the rows of few scans, one after the other.
        edges = [0, *(np.flatnonzero(np.diff(tags)) + 1).tolist(), len(tags)]
        for start, stop in itertools.pairwise(edges):
            if start == stop:
                continue
            stream = self.streams[tags[start]]
            rows = stream.rows(table.slice(start, stop - start))
            if stream.name == LINKS:
                yield from _linked(rows)
            else:
                yield Read(stream.name, rows, clock=stream.clock)


def spark_rows(
    scans: Sequence[str],
    frames: Mapping[str, DataFrame],
    wanted: Mapping[str, Mapping[str, pa.DataType]],
    event_times: Mapping[str, str],
) -> tuple[DataFrame, SparkRows]:
    """Returns the streaming frame of all scans, which are named by their streams, and the reader of its rows.

    `wanted` has the columns to read of each stream; a stream that no query reads has none, and no rows. An event time
    without a zone, by the columns in `event_times`, is converted in the session's zone.
    """
    names = list(dict.fromkeys(scans))
    local = [name for name in event_times if name in frames and _is_local(frames[name], event_times[name])]
    frames = {
        name: frame.withColumn(EVENT_TIME, f.col(quote(event_times[name])).cast(TimestampType()))
        if name in local
        else frame
        for name, frame in frames.items()
    }
    wanted = {
        name: {**columns, EVENT_TIME: TIMESTAMP} if name in local else columns for name, columns in wanted.items()
    }
    streams, types = _placed(names, frames, wanted)
    parts, seen = [], set()
    for name in scans:
        number, frame = names.index(name), frames[name]
        placed = {wire: f.col(quote(column)) for column, (wire, _) in streams[number].columns.items()}
        if name in seen or name not in wanted:
            frame = frame.where(f.lit(False))
        seen.add(name)
        columns = [placed.get(wire, f.lit(None)).cast(kind).alias(wire) for wire, kind in types.items()]
        parts.append(frame.select(f.lit(number).cast(ByteType()).alias(STREAM), *columns))
    return reduce(DataFrame.unionAll, parts), SparkRows(streams)


def _placed(
    names: Sequence[str], frames: Mapping[str, DataFrame], wanted: Mapping[str, Mapping[str, pa.DataType]]
) -> tuple[tuple[ScannedStream, ...], dict[str, DataType]]:
    """Assigns each column of each stream to a shared column of its type."""
    shared: dict[DataType, list[str]] = {}
    types: dict[str, DataType] = {}
    streams = []
    for name in names:
        used: dict[DataType, int] = {}
        columns = {}
        for column, kind in wanted.get(name, {}).items():
            of_frame = frames[name].schema[column].dataType
            position = used.get(of_frame, 0)
            used[of_frame] = position + 1
            of_type = shared.setdefault(of_frame, [])
            if position == len(of_type):
                of_type.append(f"_value{len(types)}")
                types[of_type[-1]] = of_frame
            columns[column] = of_type[position], kind
        streams.append(ScannedStream(name, columns, EVENT_TIME if EVENT_TIME in columns else None))
    return tuple(streams), types


def _linked(rows: pa.Table) -> Iterator[Read]:
    """Yields the rows and ticks of links."""
    for stream, tick, packed in zip(
        rows.column(STREAM).to_pylist(), rows.column(TICK).to_pylist(), rows.column(ROWS).to_pylist(), strict=True
    ):
        if packed is None:
            yield Read(stream, tick=tick)
        else:
            with pa.ipc.open_stream(packed) as reader:
                yield Read(stream, reader.read_all())


def _is_local(frame: DataFrame, event_time: str) -> bool:
    return isinstance(frame.schema[event_time].dataType, TimestampNTZType)


def _typed(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    return values if values.type == kind else values.cast(kind)
