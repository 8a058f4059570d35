"""Private calls about running streaming queries: their progress, their sources and the plan of the current batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from anabranch.spark.internals.driver import java_array, jvm_of
from anabranch.spark.internals.plans import listed

Execution: TypeAlias = Any
"""The execution of a micro-batch in the JVM."""
Relation: TypeAlias = Any
"""The files of a stream in a micro-batch, in the JVM."""
_FILES, _SOURCE_OF_FILES, _BETWEEN = "LogicalRelation", "FileStreamSource", "StreamingDataSourceV2"
_CALLS = {
    "org.apache.spark.sql.execution.streaming.runtime.StreamingQueryWrapper": "streamingQuery",
    "org.apache.spark.sql.execution.streaming.runtime.StreamExecution": "lastExecution",
}


def newest_progress(query: StreamingQuery) -> Iterator[tuple[int, Callable[[], str]]]:
    """Yields the batch number of recent triggers and a function that returns their JSON, newest first.

    The public `recentProgress` reads and parses all of them, up to a thousand. Without this call, progress that is
    followed trigger by trigger is an error.
    """
    several = query._jsq.recentProgress()
    for place in range(len(several) - 1, -1, -1):
        each = several[place]
        yield each.batchId(), each.json


def file_sources(query: StreamingQuery) -> list[Any]:
    """Returns the file sources of a running query; without it, the patch of their listings is not applied."""
    found = listed(query._jsq.streamingQuery().sources())
    return [each for each in found if each.getClass().getSimpleName() == _SOURCE_OF_FILES]


def require_batch_plans(spark: SparkSession) -> None:
    """Raises an error of py4j if `current_batch` would fail; then Spark reads the files of the streams."""
    jvm = jvm_of(spark)
    nothing = java_array(spark, jvm.java.lang.Class)
    for name, method in _CALLS.items():
        jvm.java.lang.Class.forName(name).getMethod(method, nothing)


def current_batch(spark: SparkSession, query: str) -> Execution:
    """Returns the execution of the current micro-batch of a query; see `require_batch_plans`."""
    return spark._jsparkSession.streams().get(query).streamingQuery().lastExecution()


@dataclass(frozen=True)
class OffsetsRead:
    """The offsets between which a scan of a micro-batch reads."""

    start: dict[str, Any]
    end: dict[str, Any]


def scanned(execution: Execution) -> list[Relation | OffsetsRead | None]:
    """Returns what each scan of a micro-batch reads; None for a stream without new rows."""
    return [_scanned(leaf) for leaf in listed(execution.logical().collectLeaves())]


def _scanned(leaf: Any) -> Relation | OffsetsRead | None:
    name = leaf.getClass().getSimpleName()
    if name.startswith(_BETWEEN):
        start, end = leaf.startOffset(), leaf.endOffset().get()
        return OffsetsRead(json.loads(start.get().json()) if start.isDefined() else {}, json.loads(end.json()))
    return leaf.relation() if name == _FILES else None


def paths_of(relation: Relation) -> tuple[str, ...]:
    """Returns the files of a scan as URIs."""
    return tuple(relation.location().inputFiles())


def is_partitioned(relation: Relation) -> bool:
    """Returns whether the paths of the files hold columns."""
    return not relation.partitionSchema().isEmpty()


def frame_of_files(spark: SparkSession, relation: Relation) -> DataFrame:
    """Returns a frame over the files of a scan."""
    return DataFrame(spark._jsparkSession.baseRelationToDataFrame(relation), spark)


def row_counters(execution: Execution) -> list[Any | None]:
    """Returns the metric of each executed scan that counts its rows; None where a scan has none."""
    metrics = [leaf.metrics().get("numOutputRows") for leaf in listed(execution.executedPlan().collectLeaves())]
    return [metric.get() if metric.isDefined() else None for metric in metrics]
