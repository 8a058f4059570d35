"""Converts a spec to a run on Spark: registers its streams, compiles its queries, converts its entries to settings.

Limit: the spec has been checked by `spec.file`, so entries are not checked again here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from anabranch.adapt.rules import Switch
from anabranch.api import ContinuousQuery, QueryHandle, Session
from anabranch.api.members import Member
from anabranch.api.run import Run
from anabranch.api.settings import LateSettings, QuerySettings, RunSettings
from anabranch.lang.window import duration_text
from anabranch.plan.mesh import parse_plan
from anabranch.plan.query_set import ALONE
from anabranch.run.clock import IDLE_TIMEOUT
from anabranch.run.formats import FILE_FORMATS
from anabranch.run.stream_sample import StreamSample, file_sample
from anabranch.run.tables import FILES
from anabranch.settings.secrets import from_environment
from anabranch.spark import delta_source
from anabranch.spark.change_table import FORMATS, ChangeTable
from anabranch.spark.delta import delta_version, read_delta
from anabranch.spark.failure import named_source, refuses_schema
from anabranch.spark.kafka_source import open_topics
from anabranch.spark.own import travel_by_value
from anabranch.spark.redis_source import FORMAT as REDIS
from anabranch.spark.redis_source import RedisStreams
from anabranch.spark.sample import FrameSample, sample_of_files
from anabranch.spark.session import DataFrame, SparkSession, open_session
from anabranch.spark.stored_files import is_stored, open_stored, sample_of_store
from anabranch.spark.versions import version_of
from anabranch.spec.model import FunctionSpec, QuerySpec, SinkSpec, Spec, StreamSpec, TableSpec


def session(spec: Spec, **settings: str) -> SparkSession:
    """Opens the Spark session of the spec; the spec's settings take precedence over the arguments."""
    return open_session(
        spec.spark.master or f"local[{os.cpu_count() or 2}]", {**settings, **from_environment(spec.spark.settings)}
    )


def start(spec: Spec, spark: SparkSession) -> QueryHandle:
    """Registers the spec's streams, compiles its queries and starts them."""
    return prepare(spec, spark).start()


def prepare(spec: Spec, spark: SparkSession) -> Run:
    """Returns the spec's queries, ready to be explained or started."""
    session = _session(spec, spark)
    members = compile_members(spec, session)
    settings = RunSettings(
        name=spec.name,
        trigger=spec.trigger,
        slots=spec.slots,
        idle_timeout=spec.idle_timeout or IDLE_TIMEOUT,
        checkpoint=spec.checkpoint,
        spark_checkpoint=spec.spark_checkpoint,
        execution=spec.execution,
        balance=spec.balance,
        moves=spec.moves,
        late=_late(spec.late),
        together=spec.together,
        evolve=spec.evolve,
        overload=spec.overload,
    )
    return Run(session, members, settings)


def _late(sink: SinkSpec | None) -> LateSettings | None:
    if sink is None:
        return None
    return LateSettings(sink.format, sink.path, from_environment(sink.options), sink.partition_by)


def compile_members(spec: Spec, session: Session) -> dict[str, Member]:
    """Compiles the spec's queries, each after those that it reads, and registers their names in the session."""
    members: dict[str, Member] = {}
    for name in spec.in_order():
        query = _query(spec.queries[name], session)
        if name != ALONE:
            session.register(name, query)
        members[name] = Member(query.compiled, _settings(spec.queries[name]), is_silent=spec.queries[name].sink is None)
    return members


def _session(spec: Spec, spark: SparkSession) -> Session:
    session = Session(spark)
    for function in spec.functions:
        session.catalog.define(function.load())
        _ship(function)
    for stream in spec.streams:
        session.register(
            stream.name,
            shaped(stream, read(stream, spark)),
            event_time=stream.event_time,
            watermark=None if stream.disorder is None else duration_text(stream.disorder),
            idle_timeout=stream.idle_timeout,
            max_ahead=None if stream.max_ahead is None else duration_text(stream.max_ahead),
            sample=partial(sample, stream, spark),
        )
    for table in spec.tables:
        read_again = partial(read_table, table, spark)
        version: Callable[[], object] | None = None
        if table.is_delta and table.version == FILES:
            version = partial(delta_version, table.name, table.path or "")
        elif table.version is not None:
            version = partial(version_of, spark, table.name, table.path, table.version)
        if table.format in FORMATS:
            changes = _changes(table)
            session.table(table.name, changes.rows, version=changes.version)
            continue
        is_read_again = table.refresh is not None or version is not None
        session.table(table.name, read_again if is_read_again else read_again(), table.refresh, version)
    return session


def _changes(table: TableSpec) -> ChangeTable:
    assert table.format is not None
    assert table.schema_text is not None, "the spec was checked"
    return ChangeTable(table.name, table.schema_text, from_environment(table.options), table.format)


def _ship(function: FunctionSpec) -> None:
    """Ships a module beside the spec file to the workers by value, since they cannot import it."""
    module = sys.modules[function.python.partition(":")[0]]
    if Path(getattr(module, "__file__", None) or "").is_relative_to(function.folder):
        travel_by_value(module)


def _query(spec: QuerySpec, session: Session) -> ContinuousQuery:
    return session.sql(spec.query, allow_unbounded=spec.allow_unbounded, late_filters=spec.late_filters)


def _settings(spec: QuerySpec) -> QuerySettings:
    settings = QuerySettings(
        plan_options=spec.plan_options,
        adapt=spec.adapt,
        switches=tuple(Switch(each.at_batch, parse_plan(each.plan), each.strategy) for each in spec.switches),
    )
    if (sink := spec.sink) is None:
        return settings
    return replace(
        settings,
        format=sink.format,
        path=sink.path,
        options=from_environment(sink.options),
        partition_by=sink.partition_by,
    )


def sample(stream: StreamSpec, spark: SparkSession) -> StreamSample | None:
    """Returns the first files of a folder; None for sources without files.

    Arrow reads them if the stream has the columns of its files; otherwise Spark reads them.
    """
    if stream.format not in FILE_FORMATS or stream.path is None or stream.schema is None:
        return None
    through_spark = partial(_sample_through_spark, stream, spark)
    if stream.where is not None or stream.select:
        return through_spark()
    return file_sample(stream.path, stream.format, stream.schema, through_spark)


def _sample_through_spark(stream: StreamSpec, spark: SparkSession) -> FrameSample | None:
    assert stream.format is not None
    assert stream.path is not None
    assert stream.schema_text is not None
    options = from_environment(stream.options)
    if is_stored(stream.format, stream.path):
        found = sample_of_store(spark, stream.format, stream.path, stream.schema_text, options)
    else:
        reader = spark.read.options(**options).schema(stream.schema_text)
        found = sample_of_files(reader, stream.format, stream.path, spark)
    if found is None:
        return None
    latest = None if found.latest is None else shaped(stream, found.latest)
    return replace(found, frame=shaped(stream, found.frame), latest=latest)


def shaped(stream: StreamSpec, frame: DataFrame) -> DataFrame:
    """Applies the spec's `select` and `where` to the frame of a source."""
    with named_source(stream.name):
        if stream.where is not None:
            frame = frame.where(stream.where)
        if stream.select:
            frame = frame.selectExpr(*(f"{expression} AS {name}" for name, expression in stream.select))
    return frame


def read_table(table: TableSpec, spark: SparkSession) -> DataFrame:
    """Reads the batch frame of a table's entry."""
    if table.is_delta and table.path is not None:
        return read_delta(spark, table.name, table.path)
    reader = spark.read.options(**from_environment(table.options))
    with named_source(table.name, kind="table"):
        if table.table is not None:
            return reader.table(table.table)
        assert table.format is not None, "a table without a name of its own has a format"
        reader = reader.format(table.format)
        if table.schema_text is not None:
            reader = reader.schema(table.schema_text)
        return reader.load(table.path)


def read(stream: StreamSpec, spark: SparkSession) -> DataFrame:
    """Opens the streaming frame of a stream's entry."""
    options = from_environment(stream.options)
    with named_source(stream.name):
        if stream.table is not None:
            return spark.readStream.options(**options).table(stream.table)
        assert stream.format is not None, "a stream without a table has a format"
        if stream.format == "kafka":
            return open_topics(spark, stream.schema_text, options)
        if is_stored(stream.format, stream.path):
            assert stream.path is not None
            assert stream.schema_text is not None, "the spec was checked"
            return open_stored(spark, stream.format, stream.path, stream.schema_text, options)
        if delta_source.is_read(stream.format, stream.path):
            assert stream.path is not None
            return delta_source.open_versions(spark, stream.path, stream.schema_text, options)
        if stream.format == REDIS:
            spark.dataSource.register(RedisStreams)
        reader = spark.readStream.options(**options).format(stream.format)
        if stream.schema_text is None:
            return reader.load(stream.path)
        try:
            return reader.schema(stream.schema_text).load(stream.path)
        except Exception as error:
            if not refuses_schema(error):
                raise
        # The source has its own columns; the spec's schema only serves to explain the query without Spark.
        return spark.readStream.options(**options).format(stream.format).load(stream.path)
