"""The destinations of a run: the sinks of its queries, the side output of late rows, and the checkpoint.

Invariant: no two queries of a run write to the same folder.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Mapping

from anabranch.api.compiled import RegisteredStream
from anabranch.api.members import Member
from anabranch.api.settings import RunSettings
from anabranch.errors import SpecError
from anabranch.plan.query_set import ALONE
from anabranch.run.side_output import SideOutputLayout
from anabranch.run.sink_settings import require_columns
from anabranch.spark import session as spark_host
from anabranch.spark.late import LateRows
from anabranch.spark.sinks.functions import ForeachBatchSink
from anabranch.spark.sinks.make import make_sink
from anabranch.spark.sinks.sink import Sink
from anabranch.spark.sinks.table import TableSink

LATE = "late rows"
"""The name of the side output in error messages."""


def sink_of(spark: spark_host.SparkSession, name: str, member: Member, run: RunSettings) -> Sink:
    """Returns the sink of a query."""
    settings, schema = member.settings, member.compiled.query.schema
    if settings.function is not None:
        if settings.format is not None or settings.path is not None:
            raise SpecError("a query has both a format and a foreachBatch function", hint="omit one of them")
        return ForeachBatchSink(settings.function)
    if settings.table is not None:
        require_columns(settings.partition_by, schema)
        return TableSink(
            settings.table,
            spark,
            schema,
            format=settings.format,
            options=settings.options,
            partition_by=settings.partition_by,
        )
    return make_sink(
        settings.format or "parquet",
        settings.options,
        spark=spark,
        schema=schema,
        name=name or run.name,
        path=settings.path,
        partition_by=settings.partition_by,
    )


def late_rows(
    spark: spark_host.SparkSession, run: RunSettings, streams: Mapping[str, RegisteredStream]
) -> LateRows | None:
    """Returns the side output, if one is set."""
    asked = run.late
    if asked is None:
        return None
    layout = SideOutputLayout({name: stream.declaration.schema for name, stream in streams.items()})
    name = run.name and f"{run.name}_late"
    sink = make_sink(
        asked.format,
        asked.options,
        spark=spark,
        schema=layout.schema,
        name=name,
        path=asked.path,
        partition_by=asked.partition_by,
    )
    return LateRows(sink, layout)


def checkpoint_of(spark: spark_host.SparkSession, run: RunSettings, sinks: Mapping[str, Sink]) -> str:
    """Returns the given folder, else one below the session's, else a temporary one if no sink is durable."""
    name, given = run.name, run.checkpoint
    if given is not None:
        return given
    common = spark.conf.get("spark.sql.streaming.checkpointLocation", None)
    if common and name:
        return f"{common.rstrip('/')}/{name}"
    if not any(sink.is_lasting for sink in sinks.values()):
        folder = tempfile.mkdtemp(prefix="anabranch-checkpoint-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return folder
    what = f"the query into {sinks[ALONE].title}" if ALONE in sinks else f"the run of queries {', '.join(sinks)}"
    raise SpecError(
        f"{what} has no checkpoint",
        hint="set option('checkpointLocation', …) to a folder of this query alone, kept between restarts",
    )


def refuse_shared_places(sinks: Mapping[str, Sink]) -> None:
    """Refuses one location for two queries: file names and Delta transactions are per run, so they would collide."""
    places: dict[str, str] = {}
    for name, sink in sinks.items():
        place = sink.place
        if place is not None and (other := places.setdefault(place, name)) != name:
            who = "late rows and results" if name == LATE else f"queries '{other}' and '{name}'"
            raise SpecError(f"{who} write to the same folder '{place}'", hint="give each its own folder")
