"""Delivers the results of a batch to the sinks of its queries, for one query or several.

One Spark job computes the results of all queries. Workers write the results of sinks that request it; the frame holds
the rest. The frame is computed first and cached when several sinks read it, or when one sink may evaluate it more than
once. Sinks publish only after all results of the batch are written.

Invariant: the step of each slot runs exactly once, however the sinks use their frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from anabranch.plan.query_set import ALONE
from anabranch.spark.failure import evaluating, named_failure
from anabranch.spark.internals.plans import run
from anabranch.spark.sinks.sink import Batch, Sink
from anabranch.spark.sinks.workers import WorkerWriter


def deliver(
    sinks: Mapping[str, Sink],
    batch: Batch,
    compute: Callable[[Mapping[str, WorkerWriter]], DataFrame],
) -> None:
    """Writes and publishes one batch.

    `sinks` is keyed by query name. `compute` returns the frame of results, given the writers of the queries whose
    results the workers write. The frame of a single query has its result columns; the frame of named queries has a
    struct column per query.
    """
    writers = _staged(sinks, batch)
    is_alone = ALONE in sinks
    frame = compute(writers)
    readers = {name: sink for name, sink in sinks.items() if name not in writers}
    titles = ", ".join(sink.title for sink in sinks.values())
    if not readers:
        with named_failure(titles, batch.number), evaluating(batch.number):
            run(frame)
    elif len(readers) == 1 and all(sink.is_single_pass for sink in readers.values()):
        ((name, sink),) = readers.items()
        with named_failure(sink.title, batch.number), evaluating(batch.number):
            sink.write(frame if is_alone else _of_query(frame, name), batch)
    else:
        with _cached(frame, titles, batch.number):
            for name, sink in readers.items():
                with named_failure(sink.title, batch.number):
                    sink.write(frame if is_alone else _of_query(frame, name), batch)
    _publish(sinks, batch)


def deliver_tables(
    sinks: Mapping[str, Sink],
    batch: Batch,
    compute: Callable[[Mapping[str, WorkerWriter]], Mapping[str, pa.Table]],
) -> None:
    """Writes and publishes one batch; `compute` returns the results that workers do not write, as tables by query."""
    writers = _staged(sinks, batch)
    tables = compute(writers)
    for name, sink in sinks.items():
        if name not in writers:
            with named_failure(sink.title, batch.number):
                sink.take(tables[name], batch)
    _publish(sinks, batch)


def _staged(sinks: Mapping[str, Sink], batch: Batch) -> dict[str, WorkerWriter]:
    """Calls `stage` of the sinks; returns the writers of those whose results the workers write."""
    writers: dict[str, WorkerWriter] = {}
    for name, sink in sinks.items():
        with named_failure(sink.title, batch.number):
            if (writer := sink.stage(batch)) is not None:
                writers[name] = writer
    return writers


def _publish(sinks: Mapping[str, Sink], batch: Batch) -> None:
    for sink in sinks.values():
        with named_failure(sink.title, batch.number):
            sink.publish(batch)


def _of_query(frame: DataFrame, name: str) -> DataFrame:
    return frame.where(f.col(name).isNotNull()).select(f"{name}.*")


@contextmanager
def _cached(frame: DataFrame, titles: str, batch: int) -> Iterator[None]:
    """Computes and caches the frame; the step has run even if no sink reads the frame."""
    frame.persist()
    try:
        with named_failure(titles, batch), evaluating(batch):
            frame.count()
        yield
    finally:
        frame.unpersist()
