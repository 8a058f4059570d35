"""The driver's side of a running set of queries: one round (`run.round`) per micro-batch.

For batch b: the step of every slot reads the state after b - 1 and writes its base rows; the results go to the sinks
under b; then the manifest of b commits; then Spark commits its offsets. A crash anywhere replays b from b - 1 with
the same answer: a batch whose manifest exists is done and is skipped, every other is done again, and the sinks
replace what an unfinished attempt left.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from threading import Lock, get_ident

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
"""Between two looks at a query that is being stopped."""
BATCH_SETTINGS = {
    # Spark checks any other limit in bytes after every row, which costs more than all else on the way to a worker. So
    # the limit in rows is one that suits rows of any width.
    "spark.sql.execution.arrow.maxBytesPerBatch": str((1 << 31) - 1),
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(1 << 13),
    # The slots are the partitioning; there is nothing for Spark to adapt, and each attempt costs a planning round.
    "spark.sql.adaptive.enabled": "false",
}


class SparkRunner(RunningQueries):
    """One started set of queries, in micro-batches."""

    def __init__(self, work: Work, sinks: Mapping[str, Sink], checkpoint: str, options: RunOptions) -> None:
        super().__init__(work, sinks, checkpoint, options)
        self._at_work = Lock()
        self._is_leaving = False
        self._running: StreamingQuery | None = None
        self._is_configured = False
        self._lists_new_files = self._is_finite  # such a run lists its folders once

    @property
    def reads_files(self) -> bool:
        """True when readers read the files of the streams themselves."""
        return isinstance(self._pipeline.source, FileStreams)

    def leave(self) -> None:
        """Waits for the batch at hand; after it this runner takes no other, and Spark's query must be stopped."""
        with self._at_work:
            self._is_leaving = True
        self._await_progress()

    def on_batch(self, frame: DataFrame, batch_id: int) -> None:
        """Runs one round; keeps its error in `failure`, because Spark passes on only the text."""
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
        """True when a batch ends because the query does; a restart does the batch again."""
        return self._is_released or is_interrupt(error) or (self.is_ending and is_spark_gone(spark))

    def _await_progress(self) -> None:
        """Waits until Spark has taken in the last batch, so that progress and report have it, too."""
        while self._last_done is not None and self._running is not None and self._running.isActive:
            latest = self._running.lastProgress
            if latest is not None and latest.batchId >= self._last_done:
                return
            time.sleep(_LOOK_SECONDS)

    def _await_end(self) -> None:
        """Waits until Spark has been told to end its query; before that it takes what a batch raises for an error."""
        while self._running is None or self._running.isActive:
            time.sleep(_LOOK_SECONDS)

    def _round(self, frame: DataFrame, batch_id: int) -> None:
        if batch_id > self.round.batch:
            # Spark ends an earlier run only as this one begins.
            self.round.resume(self.store.latest())
        if batch_id < self.round.batch:
            return
        if batch_id != self.round.batch:
            raise CorruptCheckpoint(
                f"checkpoint '{self.store.location}' has state up to batch {self.round.batch - 1}, but Spark goes on "
                f"with batch {batch_id}",
                detail="the two parts of the checkpoint are not of the same run",
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
        """Takes Spark's side of the run, which tells what waits in the sources."""
        self._running = running

    def _latest(self) -> tuple[float | None, float | None]:
        """Of the trigger before: rows that waited in the sources then, where these say, and its seconds."""
        if self._running is None or not self.steering.needs_backlog:
            return None, None
        # The attributes of PySpark's value have offsets as texts, its JSON does not.
        latest = self._running.lastProgress
        if latest is None:
            return None, None
        progress = json.loads(latest.json)
        return backlog(progress["sources"]), progress["durationMs"].get("triggerExecution", 0) / 1000 or None

    def _configure(self, session: SparkSession) -> None:
        """Settings of the session that Spark cloned for this query alone; the user's own is not touched."""
        for key, value in BATCH_SETTINGS.items():
            session.conf.set(key, value)
        self._is_configured = True

    def streams(self, frames: Mapping[str, DataFrame]) -> tuple[DataFrame, list[str]]:
        """The streaming frame of all relations, and the streams that it scans, in order."""
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
    """Starts a set of queries over streaming frames, by stream; sinks are by query.

    A frame of links, under `LINKS`, has the rows of all derived streams (`spark/linked`).
    The checkpoint holds Spark's part in `spark/` and ours in `anabranch/`.
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
            f"checkpoint '{store.location}' has gone on in real-time mode",
            detail="Spark's log of offsets, which micro-batches need, ends before its last batch",
            hint="go on with trigger(realTime=True), or start with an empty checkpoint folder",
        )


def _refuse_name_in_use(spark: SparkSession, name: str | None) -> None:
    """Before the checkpoint is claimed; Spark itself would say so only after."""
    if name and any(other.name == name for other in spark.streams.active):
        raise SpecError(
            f"a query named '{name}' is running already", hint="stop it first, or give this one another queryName()"
        )
