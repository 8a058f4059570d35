"""Samples the first rows of streams, by two small Spark jobs before one query or several start.

A stream cannot be read before it runs, but the first files of a source that Spark can also read as a batch can. The
statistics of other sources stay unknown. The sample is bounded (`MOST_FILES`, `MOST_BYTES`, `MOST_ROWS`). A sample that
fails does not stop a query: the failure is logged, and the statistics stay unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as f

from anabranch.engine.batch import RelationBatch
from anabranch.lang.schema import Field
from anabranch.plan.classing import widened
from anabranch.plan.join_graph import JoinGraph, KeyClass, Relation
from anabranch.plan.query import Query
from anabranch.plan.query_set import by_itself, partitioning_of
from anabranch.run.sample import Kin, Sample, Stretch, narrowed, sampled, shared_key
from anabranch.run.wire import RELATION, TIME, WireLayout, wire_layout
from anabranch.spark.arrow_schema import data_type
from anabranch.spark.source import PASSES, event_micros, relation_frame

MOST_FILES = 16
MOST_BYTES = 16_000_000
MOST_ROWS = 20_000
"""Rows of a relation whose keys are sampled."""
_SEED = 1
_VALUES = 1 << 30
"""Parts into which the values of a key are cut, to draw some of them."""
_EDGES = (0.05, 0.95)
"""Rates are taken between these quantiles of event time: a stray row far away would spoil them."""

_QUERY = "_query"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StreamSample:
    """Rows of a stream as a batch, and how much of the stream they are."""

    frame: DataFrame
    share: float = 1.0
    latest: DataFrame | None = None
    """The newest rows, where the frame is only a share of the data; they give the time that all of it covers."""


def sample_of_files(reader: DataFrameReader, format: str, path: str, spark: SparkSession) -> StreamSample | None:
    """The first files of a folder that is read as a stream; None when it is empty or not there."""
    listing = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    try:
        files = listing.load(path).select("path", "modificationTime", "length").collect()
    except PySparkException as error:
        _log.info("no sample of '%s': %s", path, error)
        return None
    files = sorted(
        (file for file in files if file["length"]), key=lambda file: (file["modificationTime"], file["path"])
    )
    total = sum(file["length"] for file in files)
    first: list[str] = []
    taken = 0
    for file in files[:MOST_FILES]:
        if first and taken + file["length"] > MOST_BYTES:
            break
        first.append(file["path"])
        taken += file["length"]
    if not first:
        return None
    reader = reader.format(format)
    latest = reader.load(files[-1]["path"]) if len(first) < len(files) else None
    return StreamSample(reader.load(first), taken / total, latest)


def sample_streams(queries: Sequence[Query], samples: Mapping[str, StreamSample]) -> list[Sample]:
    """The sample of each query, from the samples of the streams; the two jobs serve all queries."""
    if not samples:
        return [Sample() for _ in queries]
    try:
        return _sampled(queries, samples)
    except PySparkException as error:
        if len(queries) > 1:
            # What fails may be a condition of one of them, and the others can do without it.
            return [sample for query in queries for sample in sample_streams([query], samples)]
        _log.warning("the streams could not be sampled, so nothing is known of them: %s", error)
        return [Sample()]


def _sampled(queries: Sequence[Query], samples: Mapping[str, StreamSample]) -> list[Sample]:
    # Meshes may be learnt from columns that a query does not carry; two relations have only one order.
    wide = [query if len(query.graph.names) < 3 else widened(query, partial(_has, samples)) for query in queries]
    sets = [by_itself(query) for query in wide]
    layouts = [wire_layout(each, partitioning_of(each, 1)) for each in sets]
    frames = {
        (number, position): relation_frame(position, relation, layouts[number], samples[relation.stream].frame)
        for number, query in enumerate(wide)
        for position, relation in enumerate(query.graph.relations)
        if relation.stream in samples
    }
    if not frames:
        return [Sample() for _ in queries]
    newest: dict[str, int | None] = {}
    stretches: list[dict[str, Stretch]] = [{} for _ in queries]
    parts: list[list[DataFrame]] = [[] for _ in queries]
    wanted: list[dict[str, float]] = [{} for _ in queries]
    for row in _counted(frames).collect():
        number, position = row[_QUERY], row[RELATION]
        relation = queries[number].graph.relations[position]
        sample = samples[relation.stream]
        early, late = row["edges"]
        seconds, rows = (late - early) / (_EDGES[1] - _EDGES[0]) / 1e6, float(row["rows"])
        if sample.latest is not None:
            if relation.stream not in newest:
                newest[relation.stream] = _newest(sample.latest, relation)
            end = newest[relation.stream]
            seconds, rows = ((end - row["oldest"]) / 1e6 if end else 0.0), rows / sample.share
        stretches[number][relation.name] = Stretch(rows, seconds, row["passing"])
        part = frames[number, position].where(PASSES)
        share = wanted[number][relation.name] = MOST_ROWS / max(row["rows"] * row["passing"], 1.0)
        parts[number].append(part if share >= 1 else part.sample(share, _SEED))
    shared = [_shared(layout.queries.graph, shares) for layout, shares in zip(layouts, wanted, strict=True)]
    kin = [
        [] if found is None else _of_values(number, layouts[number], frames, *found)
        for number, found in enumerate(shared)
    ]
    looked_at = _collected([*parts, *kin], [*layouts, *layouts])
    return [
        _sample(query, known, rows, None if found is None else Kin(*found, _only(found[0], of_values)))
        if known
        else Sample()
        for query, known, found, rows, of_values in zip(
            queries, stretches, shared, looked_at[: len(queries)], looked_at[len(queries) :], strict=True
        )
    ]


def _has(samples: Mapping[str, StreamSample], relation: Relation, field: Field) -> bool:
    """Whether the sample of the relation's stream has a column, which only the stream need have."""
    sample = samples.get(relation.stream)
    if sample is None or field.name not in sample.frame.columns:
        return False
    return bool(sample.frame.schema[field.name].dataType == data_type(field.type, field.name))


def _sample(
    query: Query, stretches: Mapping[str, Stretch], wide: Mapping[str, RelationBatch], kin: Kin | None
) -> Sample:
    rows = narrowed(query, wide)
    return Sample(sampled(query, stretches, rows), rows, kin, wide)


def _shared(graph: JoinGraph, wanted: Mapping[str, float]) -> tuple[KeyClass, float] | None:
    """The key whose values are drawn, and the share of them; None where all rows are taken anyway."""
    key = shared_key(graph)
    shares = [] if key is None else [share for name, share in wanted.items() if name in key.relations]
    return None if key is None or len(shares) < 2 or min(shares) >= 1 else (key, min(shares))


def _of_values(
    number: int,
    layout: WireLayout,
    frames: Mapping[tuple[int, int], DataFrame],
    key: KeyClass,
    share: float,
) -> list[DataFrame]:
    """The rows of some values of a key; which ones, its codes decide, so that they are the same in all relations."""
    parts = []
    for position, relation in enumerate(layout.queries.graph.relations):
        if relation.name in key.relations and (number, position) in frames:
            wire = layout.code_columns[layout.codes[relation.name].index(key.name)]
            drawn = f.pmod(f.xxhash64(wire), f.lit(_VALUES)) < round(share * _VALUES)
            parts.append(frames[number, position].where(PASSES).where(drawn))
    return parts


def _only(key: KeyClass, rows: Mapping[str, RelationBatch]) -> dict[str, RelationBatch]:
    return {name: batch for name, batch in rows.items() if name in key.relations}


def _counted(frames: Mapping[tuple[int, int], DataFrame]) -> DataFrame:
    """For each relation of each query: how many rows it has, when, and the share of them that its filter passes."""
    narrow = [
        frame.select(f.lit(number).alias(_QUERY), RELATION, TIME, PASSES) for (number, _), frame in frames.items()
    ]
    of_relation = reduce(DataFrame.unionAll, narrow).groupBy(_QUERY, RELATION)
    return of_relation.agg(
        f.count("*").alias("rows"),
        f.min(TIME).alias("oldest"),
        f.percentile_approx(TIME, list(_EDGES), 10_000).alias("edges"),
        f.avg(f.col(PASSES).cast("double")).alias("passing"),
    )


def _newest(latest: DataFrame, relation: Relation) -> int | None:
    found: int | None = latest.agg(f.max(event_micros(relation))).collect()[0][0]
    return found


def _collected(parts: Sequence[Sequence[DataFrame]], layouts: Sequence[WireLayout]) -> list[dict[str, RelationBatch]]:
    """The rows of each query by relation, brought here by one job: side by side, each query in columns of its own."""
    columns = [[f"q{number}{name}" for name in layout.schema.names] for number, layout in enumerate(layouts)]
    sides = [
        reduce(DataFrame.unionAll, of_query).select(*layouts[number].schema.names).toDF(*columns[number])
        for number, of_query in enumerate(parts)
        if of_query
    ]
    if not sides:
        return [{} for _ in layouts]
    table = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), sides).toArrow()
    found: list[dict[str, RelationBatch]] = []
    for layout, own, of_query in zip(layouts, columns, parts, strict=True):
        if not of_query:
            found.append({})
            continue
        kept = table.select(own).filter(table.column(own[0]).is_valid()).rename_columns(layout.schema.names)
        found.append(layout.split(kept.cast(layout.schema)))
    return found
