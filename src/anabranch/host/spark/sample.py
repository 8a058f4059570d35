"""Statistics sampled from the first rows of streams, by two small Spark jobs before a query starts.

A stream cannot be looked at before it runs, but where Spark can read the same source as a batch its first files can.
Other sources say nothing: their numbers stay unknown. What is read is bounded (`MOST_FILES`, `MOST_BYTES`,
`MOST_ROWS`), and a sample that cannot be taken is no reason not to run: it is logged, and nothing is known.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as f

from anabranch.host.sample import Sample, Stretch, sampled
from anabranch.host.spark.source import PASSES, relation_frame
from anabranch.host.wire import RELATION, TIME, wire_layout
from anabranch.plan.partitioning import choose_partitioning
from anabranch.plan.query import Query

MOST_FILES = 16
MOST_BYTES = 16_000_000
MOST_ROWS = 20_000
"""Rows of a relation whose keys are looked at."""
_SEED = 1
_EDGES = (0.05, 0.95)
"""Rates are taken between these quantiles of event time: a stray row far away would spoil them."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StreamSample:
    """Rows of a stream as a batch, and how much of the stream they are."""

    frame: DataFrame
    share: float = 1.0
    latest: DataFrame | None = None
    """Where the frame is only a share of what is there: the newest rows, which tell how long all of it lasted."""


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


def sample_streams(query: Query, samples: Mapping[str, StreamSample]) -> Sample:
    """What the samples, by stream, say of the query, and some of their rows."""
    if not samples:
        return Sample()
    try:
        return _sampled(query, samples)
    except PySparkException as error:
        _log.warning("the streams could not be sampled, so nothing is known of them: %s", error)
        return Sample()


def _sampled(query: Query, samples: Mapping[str, StreamSample]) -> Sample:
    layout = wire_layout(query, choose_partitioning(query.graph, 1))
    relations = [(i, r) for i, r in enumerate(query.graph.relations) if r.stream in samples]
    frames = {i: relation_frame(i, r, layout, samples[r.stream].frame) for i, r in relations}
    every = reduce(DataFrame.unionAll, frames.values())
    counted = every.groupBy(RELATION).agg(
        f.count("*").alias("rows"),
        f.min(TIME).alias("oldest"),
        f.percentile_approx(TIME, list(_EDGES), 10_000).alias("edges"),
        f.avg(f.col(PASSES).cast("double")).alias("passing"),
    )
    stretches: dict[str, Stretch] = {}
    parts = []
    for row in counted.collect():
        relation = query.graph.relations[row[RELATION]]
        sample = samples[relation.stream]
        early, late = row["edges"]
        seconds, rows = (late - early) / (_EDGES[1] - _EDGES[0]) / 1e6, float(row["rows"])
        if sample.latest is not None:
            time = f.unix_micros(f.col(f"`{relation.event_time}`").cast("timestamp"))
            newest = sample.latest.agg(f.max(time)).collect()[0][0]
            seconds, rows = ((newest - row["oldest"]) / 1e6 if newest else 0.0), rows / sample.share
        stretches[relation.name] = Stretch(rows, seconds, row["passing"])
        part = frames[row[RELATION]].where(PASSES)
        wanted = MOST_ROWS / max(row["rows"] * row["passing"], 1.0)
        parts.append(part if wanted >= 1 else part.sample(wanted, _SEED))
    if not parts:
        return Sample()
    kept = reduce(DataFrame.unionAll, parts).select(*layout.schema.names).toArrow()
    looked_at = layout.split(kept.cast(layout.schema))
    return Sample(sampled(query, stretches, looked_at), looked_at)
