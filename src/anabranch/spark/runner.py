"""The driver of a running set of queries in micro-batches: one round (`run.round`) per micro-batch.

For batch b: every slot reads the state after b - 1 and writes its base rows; the results go to the sinks under b; then
the manifest of b commits; then Spark commits its offsets. Invariant: a crash at any point replays b from b - 1 with the
same answer. A batch whose manifest exists is skipped; any other batch runs again, and the sinks replace the output of
its unfinished attempt.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from threading import get_ident

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from anabranch.errors import CorruptCheckpoint, ForeignCheckpoint, SpecError
from anabranch.run.ingest import columns_to_read, relations_of
from anabranch.run.round import take_batch
from anabranch.run.store import Store
from anabranch.run.work import Work
from anabranch.spark.failure import QueryStopped, for_spark, is_interrupt, is_spark_gone, named_start
from anabranch.spark.file_streams import FileStreams, file_streams
from anabranch.spark.internals.patches.local_files import replace_local_files
from anabranch.spark.internals.patches.new_files import find_new_files
from anabranch.spark.internals.queries import newest_progress
from anabranch.spark.linked import COLUMNS
from anabranch.spark.micro_batch import MicroBatch
from anabranch.spark.offsets import in_scan_order, sparks_folder
from anabranch.spark.running import RunningQueries, RunOptions
from anabranch.spark.session import refuse_speculation
from anabranch.spark.sinks.sink import Sink
from anabranch.spark.spark_rows import LINKS, spark_rows
from anabranch.stats.backlog import backlog
from anabranch.telemetry.logs import log_event

_LOOK_SECONDS = 0.005
"""The seconds between two checks of a query that is being stopped."""
BATCH_SETTINGS = {
    # Spark checks a limit in bytes after every row, at a higher cost than the whole transfer to a worker. So the limit
    # is in rows, at a number that suits rows of any width.
    "spark.sql.execution.arrow.maxBytesPerBatch": str((1 << 31) - 1),
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(1 << 13),
    # The slots are the partitioning; adaptive execution would change nothing, and each attempt costs a planning round.
    "spark.sql.adaptive.enabled": "false",
}


class SparkRunner(RunningQueries):
    """One started set of queries, in micro-batches."""

    def __init__(self, work: Work, sinks: Mapping[str, Sink], checkpoint: str, options: RunOptions) -> None:
        super().__init__(work, sinks, checkpoint, options)
        self._is_leaving = False
        self._running: StreamingQuery | None = None
        self._is_configured = False
        self._lists_new_files = self._is_finite  # a finite run lists its folders once

    @property
    def reads_files(self) -> bool:
        """True if readers read the files of the streams without Spark."""
        return isinstance(self._pipeline.source, FileStreams)

    def leave(self) -> None:
        """Waits for the current batch; later batches are refused, and Spark's query must be stopped."""
        with self._at_work:
            self._is_leaving = True
        self._await_progress()

    def on_batch(self, frame: DataFrame, batch_id: int) -> None:
        """Runs one round; keeps its error in `failure`, because Spark forwards only the text."""
        try:
            with self._at_work:
                if not self._is_leaving:
                    self._batch_thread = get_ident()
                    self._round(frame, batch_id)
                    return
        except BaseException as error:
            if not self._has_stopped(error, frame.sparkSession):
                self.failure = error
                kind = type(error).__name__
                log_event("failed", logging.ERROR, run=self.title, batch=batch_id, kind=kind, message=str(error))
            short = for_spark(error)
            if short is error:
                raise
            raise short from None
        finally:
            self._batch_thread = None
        self._await_end()
        raise QueryStopped

    def _has_stopped(self, error: BaseException, spark: SparkSession) -> bool:
        """Returns True if a batch failed because its query ended; a restart repeats the batch."""
        return self._is_released or is_interrupt(error) or (self.is_ending and is_spark_gone(spark))

    def _await_progress(self) -> None:
        """Waits until Spark has recorded the last batch, so that progress and report include it."""
        while self._last_done is not None and self._running is not None and self._running.isActive:
            latest = self._running.lastProgress
            if latest is not None and latest.batchId >= self._last_done:
                return
            time.sleep(_LOOK_SECONDS)

    def _await_end(self) -> None:
        """Waits until Spark ends its query; until then it would treat an exception of the batch as an error."""
        while self._running is None or self._running.isActive:
            time.sleep(_LOOK_SECONDS)

    def _round(self, frame: DataFrame, batch_id: int) -> None:
        if batch_id > self.round.batch:
            # Spark ends an earlier run only after this one has started.
            self.round.resume(self.store.latest())
        if batch_id < self.round.batch:
            return
        if batch_id != self.round.batch:
            raise CorruptCheckpoint(
                f"checkpoint '{self.store.location}' has state up to batch {self.round.batch - 1}, but Spark continues "
                f"with batch {batch_id}",
                detail="the two parts of the checkpoint belong to different runs",
                hint="restore the folder as a whole from a copy, or start with an empty one",
            )
        if not self._is_configured:
            self._configure(frame.sparkSession)
        self._remember(take_batch(self.round, MicroBatch(self._pipeline, frame)))
        if not self._lists_new_files and self._running is not None:
            find_new_files(frame.sparkSession, self._running)
            self._lists_new_files = True

    def newest(self) -> Iterator[tuple[int, Callable[[], str]]]:
        return iter(()) if self._running is None else newest_progress(self._running)

    def follow(self, running: StreamingQuery) -> None:
        """Sets the streaming query of this run, whose progress has the backlog of the sources."""
        self._running = running

    def _latest(self) -> tuple[float | None, float | None]:
        """Returns the backlog in rows and the seconds of the previous trigger; None if unknown."""
        if self._running is None or not self.steering.needs_backlog:
            return None, None
        # The attributes of PySpark's progress have offsets as text, unlike its JSON.
        latest = self._running.lastProgress
        if latest is None:
            return None, None
        progress = json.loads(latest.json)
        return backlog(progress["sources"]), progress["durationMs"].get("triggerExecution", 0) / 1000 or None

    def _configure(self, session: SparkSession) -> None:
        """Configures the session that Spark cloned for this query; the user's session is not changed."""
        for key, value in BATCH_SETTINGS.items():
            session.conf.set(key, value)
        self._is_configured = True

    def streams(self, frames: Mapping[str, DataFrame]) -> tuple[DataFrame, list[str]]:
        """Returns the streaming frame of all relations, and the streams that it scans, in order."""
        ordered = in_scan_order(self.queries, (self.store.metadata() or {}).get("streams"))
        scans = [scan if isinstance(scan, str) else scan[1].stream for scan in ordered]
        self._scanned = tuple(name for name in dict.fromkeys(scans) if name in self.queries.streams)
        wanted = columns_to_read(self.queries, None if self.options.late is None else self.options.late.layout)
        if LINKS in frames:
            scans, wanted = [*(name for name in scans if name in frames), LINKS], {**wanted, LINKS: COLUMNS}
        files = file_streams(frames, scans, wanted)
        if files is not None:
            self._pipeline.source = files
            return files.frame(frames), scans
        event_times = {each.stream: each.event_time for each in relations_of(self.queries)}
        union, self._pipeline.source = spark_rows(scans, frames, wanted, event_times)
        return union, scans


def start_query(
    spark: SparkSession,
    frames: Mapping[str, DataFrame],
    work: Work,
    sinks: Mapping[str, Sink],
    checkpoint: str,
    options: RunOptions,
) -> tuple[StreamingQuery, SparkRunner]:
    """Starts a set of queries over streaming frames (by stream) and sinks (by query).

    The frame under `LINKS` has the rows of all derived streams (`spark/linked`). The checkpoint has Spark's part in
    `spark/` and ours in `anabranch/`.
    """
    refuse_speculation(spark)
    _refuse_real_time(checkpoint)
    replace_local_files(spark)
    _refuse_name_in_use(spark, options.name)
    runner = SparkRunner(work, sinks, checkpoint, options)
    undo = runner.claim()
    try:
        union, streams = runner.streams(frames)
        if options.spark_checkpoint or LINKS in frames:
            folder = f"{runner.store.location}/spark"
        else:
            folder = sparks_folder(runner.store, streams)
        writer = union.writeStream.foreachBatch(runner.on_batch)
        writer = writer.option("checkpointLocation", options.spark_checkpoint or folder).trigger(**options.trigger)
        if options.name:
            writer = writer.queryName(options.name)
        runner.note_start()
        with named_start(runner.store.location):
            started = writer.start()
        runner.follow(started)
    except BaseException:
        undo()
        raise
    runner.note_started(str(started.id))
    return started, runner


def _refuse_real_time(checkpoint: str) -> None:
    store = Store(checkpoint)
    if store.is_real_time:
        raise ForeignCheckpoint(
            f"checkpoint '{store.location}' was continued in real-time mode",
            detail="Spark's log of offsets ends before its last batch, and micro-batches need this log",
            hint="continue with trigger(realTime=True), or start with an empty checkpoint folder",
        )


def _refuse_name_in_use(spark: SparkSession, name: str | None) -> None:
    """Refuses a name in use before the checkpoint is claimed; Spark checks it only afterwards."""
    if name and any(other.name == name for other in spark.streams.active):
        raise SpecError(f"a query named '{name}' is already running", hint="stop it first, or use another queryName()")
