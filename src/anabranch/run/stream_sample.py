"""Samples streams before queries start: reads some rows of each stream and computes the statistics of each query.

Rows are read once per stream, as Arrow columns, and become rows of relations by the same code as in a run
(`run/rows`). Invariant: a sample changes which plan is chosen, never a result. A sample that cannot be read leaves the
statistics unknown and is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa
from pyarrow import dataset, fs

from anabranch.engine.batch import RelationBatch
from anabranch.engine.evaluate.codes import xxhash64_remainders
from anabranch.errors import AnabranchError
from anabranch.lang.expr import columns
from anabranch.lang.schema import TIMESTAMP, Field, Schema
from anabranch.plan.classing import widened
from anabranch.plan.join_graph import JoinGraph, Relation
from anabranch.plan.query import Query
from anabranch.plan.query_set import by_itself, partitioning_of
from anabranch.run.locations import UNKNOWN, locate
from anabranch.run.rows import relation_batch
from anabranch.run.rows import times as micros
from anabranch.run.sample import Kin, Sample, Stretch, narrowed, sampled, shared_key
from anabranch.run.wire import WireLayout, wire_layout

MOST_FILES = 16
MOST_BYTES = 16_000_000
MOST_ROWS = 20_000
"""The maximum number of rows of a relation that are kept for the statistics."""
ARROW_FORMATS = ("parquet", "orc", "json")
"""The file formats whose samples Arrow reads."""
_SEED = 1
_VALUES = 1 << 30
"""The number of hash ranges into which the values of a key are divided, to draw some of them."""
_EDGES = (0.05, 0.95)
"""Rates are measured between these quantiles of event time, so that outliers do not distort them."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class SampledRows:
    """Rows of a stream, and facts about all its rows."""

    rows: pa.Table
    share: float = 1.0
    """The fraction of the stream's rows that are in the sample."""
    newest: int | None = None
    """The newest event time of the stream in microseconds, if the rows are only a share of it."""


class StreamSample(Protocol):
    """Some rows of a stream."""

    def has(self, column: Field) -> bool:
        """Returns True if the sample has the column; a sample may lack columns that no query reads."""

    def read(self, wanted: Mapping[str, pa.DataType], event_time: str) -> SampledRows:
        """Reads the columns in the given types; `event_time` is one of them."""


@dataclass(frozen=True)
class FileSample:
    """The first files of a folder, read by Arrow; falls back to another sample if Arrow cannot read them."""

    format: str
    files: fs.FileSystem
    paths: Sequence[str]
    """The files, in the order in which a stream delivers them."""
    sizes: Sequence[int]
    columns: Schema
    """The declared columns of the stream."""
    otherwise: Callable[[], StreamSample | None]

    def has(self, column: Field) -> bool:
        return column in self.columns

    def read(self, wanted: Mapping[str, pa.DataType], event_time: str) -> SampledRows:
        first = first_files(self.sizes)
        try:
            rows = self._read(self.paths[:first], wanted)
            if first == len(self.paths):
                return SampledRows(rows)
            latest = self._read(self.paths[-1:], {event_time: wanted[event_time]}).column(event_time)
        except UNKNOWN as error:
            other = self.otherwise()
            if other is None:
                raise
            _log.info("Arrow cannot read a sample of '%s': %s", self.paths[0], error)
            return other.read(wanted, event_time)
        return SampledRows(rows, sum(self.sizes[:first]) / sum(self.sizes), newest_time(latest))

    def _read(self, paths: Sequence[str], wanted: Mapping[str, pa.DataType]) -> pa.Table:
        """Reads the columns; a column that the files lack is NULL."""
        schema = pa.schema(list(wanted.items()))
        return dataset.dataset(list(paths), schema=schema, format=self.format, filesystem=self.files).to_table()


def file_sample(
    path: str, format: str, declared: Schema, otherwise: Callable[[], StreamSample | None]
) -> StreamSample | None:
    """Returns a sample of the files in a folder; `otherwise` if Arrow cannot read them; None if there are none."""
    if format not in ARROW_FORMATS:
        return otherwise()
    try:
        files, root, _ = locate(path)
        found = files.get_file_info(fs.FileSelector(root, recursive=True))
    except UNKNOWN:
        # A pattern, a single file, or a location that only Spark supports.
        return otherwise()
    visible = [each for each in found if each.is_file and each.size and not _is_hidden(each.path[len(root) :])]
    ordered = sorted(visible, key=lambda each: (each.mtime_ns or 0, each.path))
    if not ordered:
        return None
    paths, sizes = [each.path for each in ordered], [each.size for each in ordered]
    return FileSample(format, files, paths, sizes, declared, otherwise)


def first_files(sizes: Sequence[int]) -> int:
    """Returns the number of files in a sample, at least one, given their sizes in order."""
    within = np.cumsum(sizes[:MOST_FILES]) <= MOST_BYTES
    return max(1, int(within.sum()))


def _is_hidden(path: str) -> bool:
    """Returns True for files that Spark does not read."""
    return any(part.startswith(("_", ".")) for part in path.split("/"))


def newest_time(column: pa.ChunkedArray) -> int | None:
    """Returns the newest event time of a column in microseconds."""
    found = micros(column.combine_chunks())
    return int(found.max()) if len(found) else None


def sample_streams(queries: Sequence[Query], samples: Mapping[str, StreamSample]) -> list[Sample]:
    """Returns the sample of each query; each stream is read once for all of them."""
    # Meshes may be learnt from columns that a query does not carry; two relations have only one order.
    wide = [query if len(query.graph.names) < 3 else widened(query, partial(_has, samples)) for query in queries]
    read: dict[str, SampledRows] = {}
    for stream, sample in samples.items():
        wanted = {name: kind for query in wide for name, kind in _wanted(query.graph, stream).items()}
        if not wanted:
            continue
        try:
            read[stream] = sample.read(wanted, _event_time(wide, stream))
        except Exception as error:  # a sample must not end a run; the run reports an unreadable source itself
            _log.warning("stream '%s' could not be sampled, so its statistics are unknown: %s", stream, error)
    return [_sample_of(query, as_wide, read) for query, as_wide in zip(queries, wide, strict=True)]


def _has(samples: Mapping[str, StreamSample], relation: Relation, column: Field) -> bool:
    sample = samples.get(relation.stream)
    return sample is not None and sample.has(column)


def _wanted(graph: JoinGraph, stream: str) -> dict[str, pa.DataType]:
    """Returns the columns of a stream that a query reads: the event time, payload, filters and keys."""
    found: dict[str, pa.DataType] = {}
    for relation in graph.relations:
        if relation.stream != stream:
            continue
        expressions = [key.expression(relation.name) for key in graph.keys_of([relation.name])]
        expressions += [] if relation.filter is None else [relation.filter]
        found |= {each.name: each.type for each in relation.schema}
        found |= {each.name: each.type for expression in expressions for each in columns(expression)}
        found[relation.event_time] = TIMESTAMP
    return found


def _event_time(queries: Sequence[Query], stream: str) -> str:
    return next(each.event_time for query in queries for each in query.graph.relations if each.stream == stream)


def _sample_of(query: Query, wide: Query, read: Mapping[str, SampledRows]) -> Sample:
    """Returns the sample of one query; a failing condition of the query leaves its statistics unknown."""
    alone = by_itself(wide)
    layout = wire_layout(alone, partitioning_of(alone, 1))
    passing: dict[str, RelationBatch] = {}
    stretches: dict[str, Stretch] = {}
    try:
        for relation in layout.queries.graph.relations:
            if relation.stream in read:
                found = read[relation.stream]
                passing[relation.name] = _in_time_order(relation_batch(relation, layout, found.rows))
                stretches[relation.name] = _stretch(found, relation, len(passing[relation.name]))
    except AnabranchError as error:
        _log.warning("the streams could not be sampled, so their statistics are unknown: %s", error)
        return Sample()
    if not stretches:
        return Sample()
    drawn = {name: _drawn(batch) for name, batch in passing.items()}
    rows = narrowed(query, drawn)
    return Sample(sampled(query, stretches, rows), rows, _kin(layout, passing), drawn)


def _in_time_order(batch: RelationBatch) -> RelationBatch:
    return batch.take(np.argsort(batch.times, kind="stable"))


def _stretch(found: SampledRows, relation: Relation, passing: int) -> Stretch:
    times = micros(found.rows.column(relation.event_time).combine_chunks())
    if not len(times):
        return Stretch(0.0, 0.0, 0.0)
    early, late = np.quantile(times, _EDGES)
    # n rows have n - 1 intervals between them.
    rows, distances = float(len(times)), max(len(times) - 1, 1)
    seconds = (late - early) / (_EDGES[1] - _EDGES[0]) / 1e6 * rows / distances
    if found.newest is not None:
        seconds, rows = (found.newest - int(times.min())) / 1e6, rows / found.share
    return Stretch(rows, seconds, passing / len(times))


def _drawn(batch: RelationBatch) -> RelationBatch:
    """Returns at most `MOST_ROWS` rows, drawn one by one, in time order."""
    if len(batch) <= MOST_ROWS:
        return batch
    chosen = np.random.default_rng(_SEED).choice(len(batch), MOST_ROWS, replace=False)
    return batch.take(np.sort(chosen))


def _kin(layout: WireLayout, rows: Mapping[str, RelationBatch]) -> Kin | None:
    """Returns all rows of some values of the key that most relations share; None if no rows were left out.

    The codes decide which values are drawn, so that they are the same in all relations.
    """
    key = shared_key(layout.queries.graph)
    members = [] if key is None else [name for name in rows if name in key.relations]
    if key is None or len(members) < 2:
        return None
    share = min(MOST_ROWS / max(len(rows[name]), 1) for name in members)
    if share >= 1:
        return None
    bound = round(share * _VALUES)
    kept = {
        name: rows[name].take(np.flatnonzero(xxhash64_remainders(rows[name].codes[key.name], _VALUES) < bound))
        for name in members
    }
    return Kin(key, share, kept)
