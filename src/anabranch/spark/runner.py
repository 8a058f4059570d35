"""The driver's side of a running set of queries: one round (`run.round`) per micro-batch.

For batch b: the step of every slot reads the state after b - 1 and writes its base rows; the results go to the sinks
under b; then the manifest of b commits; then Spark commits its offsets. A crash anywhere replays b from b - 1 with
the same answer: a batch whose manifest exists is done and is skipped, every other is done again, and the sinks
replace what an unfinished attempt left.
"""

from __future__ import annotations

import atexit
import json
import logging
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from threading import Lock, get_ident
from typing import Any
from weakref import WeakValueDictionary

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from anabranch.adapt.records import Record
from anabranch.errors import CorruptCheckpoint, SpecError
from anabranch.plan.query_set import ALONE
from anabranch.run import hot
from anabranch.run.branching import has_answered
from anabranch.run.commit import ahead_by_stream, late_by_stream, rows_by_query, rows_by_stream, rows_out
from anabranch.run.controls import Controls
from anabranch.run.ingest import columns_to_read, relations_of
from anabranch.run.lease import Lease
from anabranch.run.manifest import Manifest
from anabranch.run.progress import BatchProgress, QueryProgress, SlotProgress, migrating_slots, sent_by_relation
from anabranch.run.round import Announce, EventTimeRules, Taken, announce_nothing, open_round, recovered, take_batch
from anabranch.run.store import Store
from anabranch.run.work import Work
from anabranch.spark.failure import QueryStopped, for_spark, is_interrupt, is_spark_gone, named_start
from anabranch.spark.file_streams import FileStreams, file_streams
from anabranch.spark.internals.patches.local_files import replace_local_files
from anabranch.spark.internals.patches.new_files import find_new_files
from anabranch.spark.late import LateRows, LateRowsWarning
from anabranch.spark.linked import COLUMNS
from anabranch.spark.micro_batch import MicroBatch, Pipeline
from anabranch.spark.offsets import in_scan_order, sparks_folder
from anabranch.spark.places import Places
from anabranch.spark.session import refuse_speculation
from anabranch.spark.sinks.sink import Sink
from anabranch.spark.spark_rows import LINKS, spark_rows
from anabranch.spark.tables import SparkTables, TableSource
from anabranch.stats.backlog import backlog
from anabranch.stats.report import merged_statistics
from anabranch.telemetry.logs import log_event

REMEMBERED_BATCHES = 1000
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

_latest: WeakValueDictionary[str, SparkRunner] = WeakValueDictionary()
"""For each checkpoint the latest run in this process; the hot state belongs to that run."""

Listener = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class RunOptions:
    """How a set of queries is run."""

    trigger: Mapping[str, Any]
    """As Spark's `DataStreamWriter.trigger` takes it."""
    name: str | None = None
    event_time: EventTimeRules = field(default_factory=EventTimeRules)
    listeners: tuple[Listener, ...] = ()
    """Functions that get every record of the history."""
    late: LateRows | None = None
    """Where diverted rows go; None to count them only."""
    assumed_disorder: frozenset[str] = frozenset()
    """The streams whose allowed disorder nobody gave; their first late rows raise a warning."""
    tables: Mapping[str, TableSource] = field(default_factory=dict)
    """Where the rows of tables come from, by table."""
    spark_checkpoint: str | None = None
    """Where Spark keeps its part of the checkpoint; None for beside ours."""
    announce: Announce = announce_nothing
    """Gets each phase of each batch, for tests that end the driver there."""


class SparkRunner(Controls):
    """One started set of queries."""

    def __init__(self, work: Work, sinks: Mapping[str, Sink], checkpoint: str, options: RunOptions) -> None:
        self.sinks = sinks
        self.options = options
        self.failure: BaseException | None = None
        self._at_work = Lock()
        self._is_leaving = False
        self.is_ending = False
        """Whether the run is to end: what Spark says while it ends is no failure."""
        self._last_done: int | None = None
        """The latest batch that this runner has done."""
        self._batch_thread: int | None = None
        self._is_finite = "availableNow" in options.trigger or "once" in options.trigger
        self.store = Store(checkpoint)
        self.identity = self.store.open(work.queries, work.execution)
        work, manifest = recovered(work, self.store)
        self.queries = work.queries
        tables = SparkTables(work.queries, self.store, options.tables)
        self.round = open_round(replace(work, held=tables.small()), manifest, self.store, options.event_time)
        self.steering = self.round.steering
        self._lease = Lease(self.store)
        hot.claim(self.identity, self.store.location)
        self._places = Places(self.steering.table)
        self._pipeline = Pipeline(
            self.queries,
            sinks,
            options.late,
            self.store,
            self.identity,
            self._lease,
            tables,
            self._places,
            _now,
            options.announce,
            self._note,
            self._latest,
        )
        self._late_warning = LateRowsWarning(options.assumed_disorder if options.late is None else frozenset())
        self._running: StreamingQuery | None = None
        self._is_configured = False
        self._lists_new_files = self._is_finite  # such a run lists its folders once
        self._is_released = False
        self._scanned = self.queries.streams
        """In the order of Spark's sources."""
        self._progress: OrderedDict[int, BatchProgress] = OrderedDict()
        self._between: list[Record] = [*work.starts(0 if manifest is None else manifest.batch + 1)]

    @property
    def manifest(self) -> Manifest | None:
        """The manifest of the latest batch."""
        return self.round.manifest

    @property
    def has_answered(self) -> bool:
        """True when another run takes over from an event time on, and no older result can come."""
        return has_answered(self.queries, self.manifest)

    @property
    def reads_files(self) -> bool:
        """True when readers read the files of the streams themselves."""
        return isinstance(self._pipeline.source, FileStreams)

    @property
    def title(self) -> str:
        """How the log names the run."""
        return self.options.name or self.identity[:8]

    def history(self) -> list[dict[str, Any]]:
        return self.store.history()

    def progress(self, batch_id: int) -> BatchProgress | None:
        """The progress entry of a batch that ran."""
        return self._progress.get(batch_id)

    @property
    def latest_batch(self) -> int:
        """The latest batch with a progress entry; -1 before the first."""
        return next(reversed(self._progress), -1)

    def release(self, *, is_followed: bool = False) -> None:
        """Frees the memory of the hot state, once, and only if no later run of the checkpoint uses it.

        If a run of this process follows at once, the lease stays, so that no other driver comes in between.
        """
        atexit.unregister(self.release)
        if self._is_released:
            return
        self._is_released = True
        batch = self.manifest.batch if self.manifest else None
        log_event("ended", run=self.title, batch=batch, failed=self.failure is not None, finished=self._is_finite)
        self.steering.close()
        is_latest = _latest.get(self.identity) is self
        if is_latest:
            hot.forget(self.identity)
            if is_followed:
                self._lease.hand_over()
            else:
                self._lease.close()
            self._places.forget(self.identity)

    @property
    def is_calling(self) -> bool:
        return self._batch_thread == get_ident()

    def leave(self) -> None:
        """Waits for the batch at hand; after it this runner takes no other, and Spark's query must be stopped."""
        with self._at_work:
            self._is_leaving = True
        self._await_progress()

    def go_on_from(self, earlier: SparkRunner, record: Record) -> None:
        """Remembers the batches of the run before a change, and records the change.

        The progress of the next batch shows the record, too.
        """
        self._progress = OrderedDict(earlier._progress)
        self._note([record])
        self._between.append(record)

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

    # --- records ------------------------------------------------------------------------------------------------------

    def _note(self, records: list[Record]) -> None:
        """Writes records into the history and gives them to the listeners; neither can stop the query."""
        for record in records:
            self.store.note(record)
            log_event("record", run=self.title, **record.to_json())
            for listener in self.options.listeners:
                try:
                    listener(record.to_json())
                except Exception as error:
                    warnings.warn(f"a listener failed on {record.kind}: {error!r}", stacklevel=2)

    def note_start(self) -> None:
        """Records why the queries begin with their plans."""
        self._note(self._between)

    def _remember(self, taken: Taken) -> None:
        """Keeps the progress of a batch, for listeners and pages."""
        task, reports, clocks, batch_id = taken.task, taken.reports, taken.clocks, taken.task.batch
        records, self._between = [*self._between, *taken.records], []
        names = () if self.queries.names == (ALONE,) else self.queries.names
        late, finished = late_by_stream(self.queries, reports), rows_by_query(self.queries, reports)
        delivered = rows_by_stream(self.queries, reports)
        self._late_warning.note(late)
        self._last_done = batch_id
        self._progress[batch_id] = BatchProgress(
            plan=str(self.plan),
            plans=tuple(each.plan for plans in task.plans.values() for each in plans),
            migrating=migrating_slots(reports),
            records=tuple(records),
            rows_in={name: delivered[name] for name in self._scanned},
            rows_out=rows_out(self.queries, reports),
            late_rows=late,
            ahead_rows=ahead_by_stream(self.queries, reports),
            watermark=clocks.known_watermark,
            newest={name: clock.newest for name, clock in clocks.streams.items() if clock.newest is not None},
            idle_streams=tuple(name for name, clock in clocks.streams.items() if clock.is_idle),
            seconds=taken.seconds,
            slots=tuple(
                SlotProgress.of(slot, report, task.partitioning.table, self._places.executor(slot))
                for slot, report in sorted(reports.items())
            ),
            partitioning=task.partitioning,
            sent=sent_by_relation(reports),
            heavy=tuple(map(self.steering.table.names, task.partitioning.heavy)),
            statistics=merged_statistics(reports.values()),
            queries={
                name: QueryProgress.of({slot: report.queries[name] for slot, report in reports.items()}, finished[name])
                for name in names
            },
        )
        log_event("batch", run=self.title, batch=batch_id, **self._progress[batch_id].headline())
        while len(self._progress) > REMEMBERED_BATCHES:
            self._progress.popitem(last=False)


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
    replace_local_files(spark)
    _refuse_name_in_use(spark, options.name)
    runner = SparkRunner(work, sinks, checkpoint, options)
    earlier = _latest.get(runner.identity)
    _latest[runner.identity] = runner
    # Hot state is memory; a driver that ends without stop() gives it back too.
    atexit.register(runner.release)
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
        if earlier is not None:
            _latest[runner.identity] = earlier
        runner.release()
        raise
    for sink in (*sinks.values(), *([] if options.late is None else [options.late.sink])):
        sink.begin()
    after = runner.manifest.batch if runner.manifest else None
    log_event(
        "started",
        run=runner.title,
        id=str(started.id),
        plan=str(runner.plan),
        after=after,
        text=work.queries.text,
        inputs={each.stream: list(each.schema.names) for each in work.queries.graph.streamed if not each.is_result},
        outputs={name: sink.place or sink.title for name, sink in sinks.items()},
    )
    return started, runner


def _refuse_name_in_use(spark: SparkSession, name: str | None) -> None:
    """Before the checkpoint is claimed; Spark itself would say so only after."""
    if name and any(other.name == name for other in spark.streams.active):
        raise SpecError(
            f"a query named '{name}' is running already", hint="stop it first, or give this one another queryName()"
        )


def _now() -> int:
    """Processing time in microseconds."""
    return time.time_ns() // 1000
