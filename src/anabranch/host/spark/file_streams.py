"""Streams of Parquet files whose rows never pass through the JVM: Spark finds the files, the slots read them.

Spark lists the folders, keeps the offsets and decides which files are of a micro-batch, as ever. Of its plan for the
batch only the files are taken: the streaming plan is a scan of each stream that nobody runs, and the slots read the
files themselves (`host/file_rows`). So a micro-batch has one stage without a shuffle, and Spark has next to nothing to
plan, to generate and to compile.

Law: a batch has the rows that Spark would read. Streams that are more than a scan of Parquet files, and queries that
need Spark to compute or to observe something, are read by Spark from the start. A batch with a file that slots cannot
read is read by Spark as a whole, from the same files.

The files of a batch are found in Spark's plan of it, by calls that are not part of its interface. Where Spark has not
got them, it reads.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from anabranch.host.file_rows import MOST_READERS, Columns, Footer, SlotFiles, columns_to_read, look_into
from anabranch.host.first_rows import WideLayout
from anabranch.host.spark.arrow_schema import from_spark
from anabranch.host.spark.failure import query_id
from anabranch.host.spark.source import Cells, tagged_union
from anabranch.host.wire import RELATION
from anabranch.plan.join_graph import Relation
from anabranch.plan.query_set import QuerySet
from anabranch.schema import TIMESTAMP

OFF = "ANABRANCH_SPARK_READS"
"""An environment variable that, set to anything, lets Spark read all streams."""
MOST_FILES = 256
"""Of more files in a batch, Spark reads all, with tasks for them."""
MOST_LISTED = 10_000
"""Files whose sizes are added up."""
_SCAN, _FILES = "StreamingRelation", "LogicalRelation"
_THROUGH = ("EventTimeWatermark", "SubqueryAlias")
"""Nodes above a scan that change no row."""
_LISTING = frozenset(
    (
        *("path", "basepath", "pathglobfilter", "recursivefilelookup", "__globpaths__", "filenameonly"),
        *("maxfilespertrigger", "maxbytespertrigger", "maxcachedfiles", "maxfileage", "latestfirst"),
        *("modifiedbefore", "modifiedafter", "cleansource", "sourcearchivedir"),
    )
)
"""Options that concern which files there are, and not how they are read."""
_NEEDED = {
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "corrected",
    "spark.sql.parquet.int96RebaseModeInRead": "corrected",
    "spark.sql.parquet.int96TimestampConversion": "false",
    "spark.sql.parquet.fieldId.read.enabled": "false",
}
"""Settings under which Spark reads Parquet as Arrow does."""
_CALLS = {
    "org.apache.spark.sql.execution.streaming.runtime.StreamingQueryWrapper": "streamingQuery",
    "org.apache.spark.sql.execution.streaming.runtime.StreamExecution": "lastExecution",
}
_WATERMARK = "spark.watermarkDelayMs"

Scan = tuple[int, Relation]


@dataclass(frozen=True)
class FileStreams:
    """The streams of a run, all of which are files that slots read; `scans` are those of Spark's plan, in order."""

    spark: SparkSession
    """The session that runs the query."""
    cells: Cells
    scans: Sequence[Scan]
    columns: Mapping[str, Columns]

    def frame(self, frames: Mapping[str, DataFrame]) -> DataFrame:
        """A streaming frame that finds the files of each micro-batch, and reads nothing of them."""
        found = [frames[relation.stream].select(f.lit(place).alias(RELATION)) for place, relation in self.scans]
        return reduce(DataFrame.unionAll, found)

    def carrying(self, cells: Cells) -> FileStreams | None:
        """The same streams, with rows that come with other classes; None where only Spark can make those."""
        columns = columns_to_read(cells.layout.queries)
        return None if columns is None else replace(self, cells=cells, columns=columns)

    def of_batch(self, frame: DataFrame) -> SlotFiles | DataFrame:
        """The files of a micro-batch or, if slots cannot read all of them, its rows in the wire layout."""
        execution, relations, of_stream = self._found(frame)
        files = {stream: () if found is None else _paths(found) for stream, found in of_stream.items()}
        footers = {
            stream: [look_into(_local(path), self.columns[stream]) for path in paths] for stream, paths in files.items()
        }
        rows = {stream: sum(footer.rows for footer in several) for stream, several in footers.items()}
        _count(execution, [rows[relation.stream] for _, relation in self.scans])
        if self._can_read(files, footers) and not any(map(_is_partitioned, relations)):
            return SlotFiles({stream: tuple(map(_local, paths)) for stream, paths in files.items()}, self.columns)
        return self._read_by_spark(frame.sparkSession, of_stream)

    def wide(self, frame: DataFrame, wide: WideLayout) -> DataFrame | None:
        """The rows of a micro-batch with wide columns, read by Spark; None of a batch without any."""
        _, _, of_stream = self._found(frame)
        return self._read_by_spark(frame.sparkSession, of_stream, wide) if any(of_stream.values()) else None

    def _found(self, frame: DataFrame) -> tuple[Any, list[Any | None], dict[str, Any | None]]:
        """Spark's plan of a micro-batch, and what its scans read, by place and by stream."""
        execution = self.spark._jsparkSession.streams().get(query_id(frame)).streamingQuery().lastExecution()
        relations = [_relation(leaf) for leaf in _listed(execution.logical().collectLeaves())]
        assert len(relations) == len(self.scans), "Spark's plan of the batch has other scans"
        of_stream = {relation.stream: found for (_, relation), found in zip(self.scans, relations, strict=True)}
        return execution, relations, of_stream

    def _can_read(self, files: Mapping[str, Sequence[str]], footers: Mapping[str, Sequence[Footer]]) -> bool:
        paths = [path for several in files.values() for path in several]
        is_local = all(urlsplit(path).scheme == "file" for path in paths)
        is_readable = all(footer.is_readable for several in footers.values() for footer in several)
        return len(paths) <= MOST_FILES and is_local and is_readable

    def _read_by_spark(
        self, session: SparkSession, relations: Mapping[str, Any], wide: WideLayout | None = None
    ) -> DataFrame:
        java = session._jsparkSession
        frames = {
            stream: DataFrame(java.baseRelationToDataFrame(found), session)
            for stream, found in relations.items()
            if found is not None
        }
        return tagged_union(self.cells, frames, None, [scan for scan in self.scans if scan[1].stream in frames], wide)


def slots_frame(session: SparkSession, slots: int, anchor: DataFrame | None) -> DataFrame:
    """A frame with a part for each slot, in which there is nothing to read."""
    return session.range(0, slots, 1, slots) if anchor is None else anchor


def file_streams(cells: Cells, frames: Mapping[str, DataFrame], scans: Iterable[Scan | str]) -> FileStreams | None:
    """The streams of a run if slots can read them all; None if Spark has to."""
    ours = list(scans)
    columns = columns_to_read(cells.layout.queries)
    if OFF in os.environ or columns is None or cells.start.slots > MOST_READERS:
        return None
    wanted = [scan for scan in ours if not isinstance(scan, str)]
    if len(wanted) < len(ours) or not all(_has_times(relation, frames[relation.stream]) for _, relation in wanted):
        return None
    session = frames[wanted[0][1].stream].sparkSession
    with suppress(Py4JError, TypeError, AttributeError):
        if (
            all(str(session.conf.get(name)).lower() == value for name, value in _NEEDED.items())
            and all(_is_scan_of_parquet(frames[stream]) and _folder(frames[stream]) for stream in columns)
            and _has_plans_of_batches(session)
        ):
            return FileStreams(session, cells, wanted, columns)
    return None


def _has_plans_of_batches(session: SparkSession) -> bool:
    """True when the plan of the batch at hand can be asked for; else an error of py4j."""
    jvm, gateway = session.sparkContext._jvm, session.sparkContext._gateway
    assert jvm is not None
    assert gateway is not None
    nothing = gateway.new_array(jvm.java.lang.Class, 0)
    for name, method in _CALLS.items():
        jvm.java.lang.Class.forName(name).getMethod(method, nothing)
    return True


def bytes_of_files(queries: QuerySet, frames: Mapping[str, DataFrame]) -> dict[str, float]:
    """The bytes that stand in the folder of each relation's stream; nothing where one is no folder of this machine.

    With nothing else known of the streams, these tell which of them brings the most rows.
    """
    relations = [each for each in queries.graph.streamed if not each.is_result]
    folders = {stream: _folder(frames[stream]) for stream in {each.stream for each in relations}}
    sizes = {stream: 0.0 if folder is None else _bytes_in(folder) for stream, folder in folders.items()}
    return {each.name: sizes[each.stream] for each in relations} if all(sizes.values()) else {}


def _folder(frame: DataFrame) -> str | None:
    with suppress(Py4JError, TypeError, AttributeError):
        node = _scan(frame)
        path = None if node is None else node.dataSource().options().get("path")
        if path is not None and path.isDefined():
            local = str(path.get()).removeprefix("file://")
            return local if os.path.isdir(local) else None
    return None


def _bytes_in(folder: str) -> float:
    with suppress(OSError), os.scandir(folder) as entries:
        return float(sum(entry.stat().st_size for entry in itertools.islice(entries, MOST_LISTED) if entry.is_file()))
    return 0.0


def _has_times(relation: Relation, frame: DataFrame) -> bool:
    schema = from_spark(frame.schema, relation.stream)
    field = schema.find(relation.event_time)
    return field is not None and field.type == TIMESTAMP


def _is_scan_of_parquet(frame: DataFrame) -> bool:
    schema: StructType = frame.schema
    if any(field.metadata.keys() - {_WATERMARK} for field in schema):
        return False
    node = _scan(frame)
    if node is None:
        return False
    source = node.dataSource()
    options = _listed(source.options().keys().toSeq())
    return source.className() == "parquet" and {option.lower() for option in options} <= _LISTING


def _scan(frame: DataFrame) -> Any | None:
    """The scan of a source that a streaming frame is; None of a frame that computes something."""
    node = frame._jdf.queryExecution().analyzed()
    while node.nodeName() in _THROUGH:
        node = node.children().apply(0)
    return node if node.nodeName() == _SCAN else None


def _relation(leaf: Any) -> Any | None:
    """What a scan of the batch reads; None of a stream without new files."""
    return leaf.relation() if leaf.getClass().getSimpleName() == _FILES else None


def _is_partitioned(relation: Any | None) -> bool:
    return relation is not None and not relation.partitionSchema().isEmpty()


def _paths(relation: Any) -> tuple[str, ...]:
    return tuple(relation.location().inputFiles())


def _local(path: str) -> str:
    return unquote(urlsplit(path).path)


def _count(execution: Any, counts: Sequence[int]) -> None:
    """Lets Spark's progress tell the rows of each scan, which Spark itself does not read."""
    leaves = _listed(execution.executedPlan().collectLeaves())
    if len(leaves) == len(counts):
        for leaf, count in zip(leaves, counts, strict=True):
            metric = leaf.metrics().get("numOutputRows")
            if count and metric.isDefined():
                metric.get().add(count)


def _listed(several: Any) -> list[Any]:
    return [several.apply(place) for place in range(several.size())]
