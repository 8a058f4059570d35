"""From a spec to a running query on Spark: the one place where spec entries become calls of the public API."""

from __future__ import annotations

import os
from functools import partial
from typing import TypeVar

from anabranch.api import ContinuousQueryWriter, QueryHandle, Session, Together
from anabranch.host.formats import FILE_FORMATS
from anabranch.host.spark.failure import named_source, refuses_schema
from anabranch.host.spark.sample import StreamSample, sample_of_files
from anabranch.host.spark.session import DataFrame, SparkSession, open_session
from anabranch.plan.query_set import ALONE
from anabranch.spec.model import AvailableNow, Every, QuerySpec, Spec, StreamSpec
from anabranch.window import duration_text


def session(spec: Spec, **settings: str) -> SparkSession:
    """The Spark session that the spec asks for; settings given here yield to its own."""
    return open_session(spec.spark.master or f"local[{os.cpu_count() or 2}]", {**settings, **dict(spec.spark.settings)})


def start(spec: Spec, spark: SparkSession) -> QueryHandle:
    """Registers the spec's streams, compiles its queries and starts them."""
    return prepare(spec, spark).start()


def prepare(spec: Spec, spark: SparkSession) -> ContinuousQueryWriter | Together:
    """Returns the spec's queries, ready to be explained or started."""
    session = _session(spec, spark)
    writers = {name: _writer(query, session) for name, query in spec.queries.items()}
    if ALONE in writers:
        return _run(writers[ALONE], spec).execution(spec.execution)
    return _run(session.together(**writers), spec)


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


def _writer(spec: QuerySpec, session: Session) -> ContinuousQueryWriter:
    query = session.sql(spec.query, allow_unbounded=spec.allow_unbounded, late_filters=spec.late_filters)
    writer = query.writeStream.format(spec.sink.format).outputMode(spec.sink.mode).options(**dict(spec.sink.options))
    writer = writer.partitionBy(*spec.sink.partition_by).wishes(spec.wishes)
    if spec.sink.path is not None:
        writer = writer.option("path", spec.sink.path)
    if spec.adapt is not None:
        writer = writer.adaptation(spec.adapt)
    for switch in spec.switches:
        writer = writer.switch(switch.at_batch, switch.plan, switch.strategy)
    return writer


Run = TypeVar("Run", ContinuousQueryWriter, Together)


def _run(run: Run, spec: Spec) -> Run:
    run = run.option("checkpointLocation", spec.checkpoint)
    if spec.slots is not None:
        run = run.slots(spec.slots)
    if spec.name is not None:
        run = run.queryName(spec.name)
    if spec.idle_timeout is not None:
        run = run.idleTimeout(spec.idle_timeout)
    match spec.trigger:
        case AvailableNow():
            return run.trigger(availableNow=True)
        case Every(interval):
            return run.trigger(processingTime=duration_text(interval).lower())


def sample(stream: StreamSpec, spark: SparkSession) -> StreamSample | None:
    """Rows of the same source read as a batch, where that can be done cheaply: the first files of a folder."""
    if stream.format not in FILE_FORMATS or stream.path is None or stream.schema_text is None:
        return None
    reader = spark.read.options(**dict(stream.options)).schema(stream.schema_text)
    return sample_of_files(reader, stream.format, stream.path, spark)


def read(stream: StreamSpec, spark: SparkSession) -> DataFrame:
    """The streaming frame that a stream's entry describes."""
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
        # The source knows its columns; they are written down for whoever explains the query without Spark.
        return spark.readStream.options(**dict(stream.options)).format(stream.format).load(stream.path)
