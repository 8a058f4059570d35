"""Delivers the results of a batch to the sinks of its queries; the same routine serves one query and several.

One Spark job computes the results of all queries. Workers write what their sinks ask them to write; the frame holds
the rest. When several sinks read the frame, or one that may evaluate it more than once, the frame is computed first and
cached. Sinks publish only after all results of the batch are written.

Law: the step of each slot runs exactly once, whatever the sinks do with their frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from anabranch.plan.query_set import ALONE
from anabranch.spark.failure import evaluating, named_failure
from anabranch.spark.sinks.sink import Batch, Sink
from anabranch.spark.sinks.workers import WorkerWriter


def deliver(
    sinks: Mapping[str, Sink],
    batch: Batch,
    compute: Callable[[Mapping[str, WorkerWriter]], DataFrame],
    *,
    is_observed: bool = False,
) -> None:
    """Writes and publishes one batch.

    `sinks` are by name of the query. `compute` returns the frame of results, given the writers of the queries whose
    results the workers write. The frame of a query that runs alone has the columns of its results; that of named
    queries has a struct column for each query. `is_observed` says that somebody waits for an observation of the frame.
    """
    writers: dict[str, WorkerWriter] = {}
    for name, sink in sinks.items():
        with named_failure(sink.title, batch.number):
            if (writer := sink.stage(batch)) is not None:
                writers[name] = writer
    is_alone = ALONE in sinks
    frame = compute(writers)
    readers = {name: sink for name, sink in sinks.items() if name not in writers}
    titles = ", ".join(sink.title for sink in sinks.values())
    if not readers:
        with named_failure(titles, batch.number), evaluating(batch.number):
            _run(frame, is_observed)
    elif len(readers) == 1 and all(sink.is_single_pass for sink in readers.values()):
        ((name, sink),) = readers.items()
        with named_failure(sink.title, batch.number), evaluating(batch.number):
            sink.write(frame if is_alone else _of_query(frame, name), batch)
    else:
        with _cached(frame, titles, batch.number):
            for name, sink in readers.items():
                with named_failure(sink.title, batch.number):
                    sink.write(frame if is_alone else _of_query(frame, name), batch)
    for sink in sinks.values():
        with named_failure(sink.title, batch.number):
            sink.publish(batch)


def _run(frame: DataFrame, is_observed: bool) -> None:
    """Computes a frame for what its workers do.

    As part of the execution of the micro-batch: one of its own is described in words, announced and collected through
    a socket. But Spark tells observations only at the end of an execution.
    """
    if is_observed:
        frame.collect()
    else:
        frame._jdf.queryExecution().toRdd().count()


def _of_query(frame: DataFrame, name: str) -> DataFrame:
    return frame.where(f.col(name).isNotNull()).select(f"{name}.*")


@contextmanager
def _cached(frame: DataFrame, titles: str, batch: int) -> Iterator[None]:
    """Computes the frame and keeps it; the step has run, even if no sink reads the frame."""
    frame.persist()
    try:
        with named_failure(titles, batch), evaluating(batch):
            frame.count()
        yield
    finally:
        frame.unpersist()
