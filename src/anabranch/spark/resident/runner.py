"""The driver of a real-time run: polls the sources, and runs a round as soon as there is new input.

A batch takes everything that has arrived during the previous one, so batches grow with the load. A batch that lost a
slot is repeated; its first attempt wrote nothing that a manifest names. Invariant: when a poll finds nothing,
everything found before has been committed.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from threading import get_ident
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from anabranch.errors import SpecError
from anabranch.run.commit import rows_by_stream, rows_out
from anabranch.run.ingest import columns_to_read
from anabranch.run.round import Taken, take_batch
from anabranch.run.work import Work
from anabranch.spark.failure import is_spark_gone
from anabranch.spark.resident.host import Offsets, ResidentHost, Source
from anabranch.spark.resident.job import SparkJob, refuse_few_cores
from anabranch.spark.resident.query import ResidentQuery, now
from anabranch.spark.resident.slots import Slots, SlotsLost
from anabranch.spark.resident.spark_log import read_by_spark, spark_identity
from anabranch.spark.resident.streams import watched_streams
from anabranch.spark.running import RunningQueries, RunOptions
from anabranch.spark.session import refuse_speculation
from anabranch.spark.sinks.sink import Sink
from anabranch.telemetry.logs import log_event

_REST = 0.001
"""The minimum seconds between two polls."""
_SHARE = 4
"""Polling uses at most one part in this many of a core."""


class ResidentRunner(RunningQueries):
    """One started set of queries, in real-time mode."""

    def __init__(self, work: Work, sinks: Mapping[str, Sink], checkpoint: str, options: RunOptions) -> None:
        super().__init__(work, sinks, checkpoint, options)
        self.query: ResidentQuery
        self._work = work
        self.slots: Slots | None = None
        """The slots of the run, once it has begun."""
        self._before: float | None = None
        """The duration of the last batch in seconds."""

    @property
    def reads_files(self) -> bool:
        """True: slots read all files themselves."""
        return True

    def begin(self, spark: SparkSession, frames: Mapping[str, DataFrame]) -> ResidentQuery:
        """Starts the slots and the thread that runs the rounds."""
        layout = None if self.options.late is None else self.options.late.layout
        source = watched_streams(frames, columns_to_read(self.queries, layout))
        count = self._work.slots.most
        refuse_few_cores(spark, count)
        self._restore(source)
        self.store.note_real_time()
        identity = spark_identity(self.store) or str(uuid.UUID(hex=self.identity))
        title = ", ".join(sink.title for sink in self.sinks.values())
        self.query = ResidentQuery(identity, str(uuid.uuid4()), self.options.name, title)
        job = SparkJob(spark, count, self.title, f"anabranch-slots-{self.query.runId}")
        host = str(spark.conf.get("spark.driver.host"))
        bind = str(spark.conf.get("spark.driver.bindAddress", host))
        self.slots = Slots(count, host, self.store.location, job, bind=bind)
        batches = ResidentHost(self._pipeline, spark, source, self.slots, identity)
        self.query.start(lambda: self._run(spark, source, batches))
        return self.query

    def newest(self) -> Iterator[tuple[int, Callable[[], str]]]:
        return self.query.newest()

    def leave(self) -> None:
        """Waits for the current batch, but not for slots that have not connected; prevents further batches."""
        self.query.end()
        if self.slots is not None:
            self.slots.wait_no_more()
        self.query.leave()

    def release(self, *, is_followed: bool = False) -> None:
        if self.slots is not None:
            self.slots.close()
        super().release(is_followed=is_followed)

    def _restore(self, source: Source) -> None:
        """Tells the source what has been read, in either mode, and rewrites the list of it.

        The input of each kept manifest has an entry of its own, so that a return to an earlier manifest reads it again.
        """
        store, manifest = self.store, self.manifest
        last = -1 if manifest is None else manifest.batch
        kept = {batch: known.pieces for batch in store.batches() if (known := store.manifest(batch)) is not None}
        listed: list[Offsets] = []
        if store.is_real_time:
            listed = [files for batch, files in store.read_files() if batch <= last and batch not in kept]
        elif manifest is not None:
            listed = [read_by_spark(store, last)]
        for files in listed:
            source.took(files)
        earlier = {name: sorted(paths) for name, paths in source.read.items()}
        for files in kept.values():
            source.took(files)
        store.keep_read([(-1, earlier), *kept.items()])

    def _run(self, spark: SparkSession, source: Source, host: ResidentHost) -> None:
        assert self.slots is not None
        self._batch_thread = get_ident()
        try:
            self.slots.require()
            while not self.query.is_stopping:
                started = time.perf_counter()
                poll, is_thorough = self.query.begin_poll()
                found = source.poll(is_thorough=is_thorough)
                self.query.found(poll, bool(found))
                if found:
                    host.offer(found)
                    self._take(host, source)
                else:
                    self.query.rest(max(_REST, (_SHARE - 1) * (time.perf_counter() - started)))
        except BaseException as error:
            is_expected = self.is_ending or self.query.is_stopping
            if is_expected and (isinstance(error, SlotsLost) or is_spark_gone(spark)):
                return
            self.failure = error
            kind, batch = type(error).__name__, self.round.batch
            log_event("failed", logging.ERROR, run=self.title, batch=batch, kind=kind, message=str(error))
            raise
        finally:
            self._batch_thread = None
            self.slots.close()

    def _take(self, host: ResidentHost, source: Source) -> None:
        """Runs one round; after the loss of a slot, the same input is offered again."""
        began, started = now(), time.perf_counter()
        try:
            with self._at_work:
                taken = take_batch(self.round, host)
        except SlotsLost:
            if self.query.is_stopping:
                return
            log_event("slots lost", logging.WARNING, run=self.title, batch=self.round.batch)
            return
        self._before = time.perf_counter() - started
        self._show(taken, began, self._before, source.shown)

    def _show(self, taken: Taken, began: float, seconds: float, shown: Mapping[str, Mapping[str, Any]]) -> None:
        self._remember(taken)
        rows = rows_by_stream(self.queries, taken.reports)
        self.query.took(taken, began, seconds, rows, rows_out(self.queries, taken.reports), shown)

    def _latest(self) -> tuple[float | None, float | None]:
        return None, self._before


def start_resident(
    spark: SparkSession,
    frames: Mapping[str, DataFrame],
    work: Work,
    sinks: Mapping[str, Sink],
    checkpoint: str,
    options: RunOptions,
) -> tuple[ResidentQuery, ResidentRunner]:
    """Starts a set of queries in real-time mode over streaming frames, by stream; sinks are by query."""
    refuse_speculation(spark)
    _refuse_sinks(sinks)
    if options.spark_checkpoint is not None:
        raise SpecError(
            "'spark_checkpoint' cannot be set in real-time mode",
            detail="a checkpoint of real-time mode has no part of Spark",
            hint="remove 'spark_checkpoint', or run in micro-batches",
        )
    runner = ResidentRunner(work, sinks, checkpoint, options)
    undo = runner.claim()
    try:
        runner.note_start()
        started = runner.begin(spark, frames)
    except BaseException:
        undo()
        raise
    runner.note_started(started.id)
    return started, runner


def _refuse_sinks(sinks: Mapping[str, Sink]) -> None:
    for sink in sinks.values():
        if not (sink.workers_write or sink.takes_tables):
            raise SpecError(
                f"sink {sink.title} cannot be used in real-time mode",
                detail="Spark writes its batches, with a job for each",
                hint="write Parquet, Delta, Iceberg or Kafka without Spark's options, or remove trigger(realTime=True)",
            )
