"""From a spec to a run on Spark: its streams are registered, its queries compiled, its entries become settings."""

from __future__ import annotations

import os
from functools import partial

from anabranch.adapt.rules import Switch
from anabranch.api import QueryHandle, Session
from anabranch.api.run import Member, Run
from anabranch.api.settings import QuerySettings, RunSettings
from anabranch.host.clock import IDLE_TIMEOUT
from anabranch.host.formats import FILE_FORMATS
from anabranch.host.spark.failure import named_source, refuses_schema
from anabranch.host.spark.sample import StreamSample, sample_of_files
from anabranch.host.spark.session import DataFrame, SparkSession, open_session
from anabranch.plan.mesh import parse_plan
from anabranch.spec.model import QuerySpec, Spec, StreamSpec
from anabranch.window import duration_text


def session(spec: Spec, **settings: str) -> SparkSession:
    """Opens the Spark session of the spec; settings of the spec win over those given here."""
    return open_session(spec.spark.master or f"local[{os.cpu_count() or 2}]", {**settings, **dict(spec.spark.settings)})


def start(spec: Spec, spark: SparkSession) -> QueryHandle:
    """Registers the spec's streams, compiles its queries and starts them."""
    return prepare(spec, spark).start()


def prepare(spec: Spec, spark: SparkSession) -> Run:
    """Returns the spec's queries, ready to be explained or started."""
    session = _session(spec, spark)
    members = {name: _member(query, session) for name, query in spec.queries.items()}
    settings = RunSettings(
        name=spec.name,
        trigger=spec.trigger,
        slots=spec.slots,
        idle_timeout=spec.idle_timeout or IDLE_TIMEOUT,
        checkpoint=spec.checkpoint,
        execution=spec.execution,
        balance=spec.balance,
        moves=spec.moves,
    )
    return Run(session, members, settings)


def _session(spec: Spec, spark: SparkSession) -> Session:
    session = Session(spark)
    for stream in spec.streams:
        session.register(
            stream.name,
            read(stream, spark),
            event_time=stream.event_time,
            watermark=duration_text(stream.disorder),
            idle_timeout=stream.idle_timeout,
            sample=partial(sample, stream, spark),
        )
    return session


def _member(spec: QuerySpec, session: Session) -> Member:
    query = session.sql(spec.query, allow_unbounded=spec.allow_unbounded, late_filters=spec.late_filters)
    settings = QuerySettings(
        format=spec.sink.format,
        path=spec.sink.path,
        options=dict(spec.sink.options),
        partition_by=spec.sink.partition_by,
        wishes=spec.wishes,
        adapt=spec.adapt,
        switches=tuple(Switch(each.at_batch, parse_plan(each.plan), each.strategy) for each in spec.switches),
    )
    return Member(query.compiled, settings)


def sample(stream: StreamSpec, spark: SparkSession) -> StreamSample | None:
    """Reads the first files of a folder as a batch; None for sources that have no files."""
    if stream.format not in FILE_FORMATS or stream.path is None or stream.schema_text is None:
        return None
    reader = spark.read.options(**dict(stream.options)).schema(stream.schema_text)
    return sample_of_files(reader, stream.format, stream.path, spark)


def read(stream: StreamSpec, spark: SparkSession) -> DataFrame:
    """Opens the streaming frame of a stream's entry."""
    reader = spark.readStream.options(**dict(stream.options))
    with named_source(stream.name):
        if stream.table is not None:
            return reader.table(stream.table)
        assert stream.format is not None, "a stream without a table has a format"
        reader = reader.format(stream.format)
        if stream.schema_text is None:
            return reader.load(stream.path)
        try:
            return reader.schema(stream.schema_text).load(stream.path)
        except Exception as error:
            if not refuses_schema(error):
                raise
        # The source knows its own columns; the schema of the spec serves to explain the query without Spark.
        return spark.readStream.options(**dict(stream.options)).format(stream.format).load(stream.path)
