"""The driver's side of a running set of queries: one protocol round per micro-batch.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock, get_ident
from typing import Any
from weakref import WeakValueDictionary

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from anabranch.adapt.facts import BatchFacts
from anabranch.adapt.records import Record
from anabranch.errors import CorruptCheckpoint, SpecError
from anabranch.plan.mesh import Plan, parse_plan
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.query_set import ALONE, Plans
from anabranch.run import hot
from anabranch.run.clock import Clocks
from anabranch.run.commit import (
    ahead_by_stream,
    late_by_stream,
    moment,
    newest_by_stream,
    next_manifest,
    next_task,
    rows_by_query,
    rows_by_stream,
    rows_out,
    ticks_by_stream,
)
from anabranch.run.file_rows import SlotFiles
from anabranch.run.keys import code_of
from anabranch.run.lease import Lease
from anabranch.run.progress import BatchProgress, QueryProgress, SlotProgress, migrating_slots, sent_by_relation
from anabranch.run.results import ResultLayout
from anabranch.run.side_output import ceilings
from anabranch.run.slot import SlotTask, idle_report
from anabranch.run.store import Store
from anabranch.run.wire import RELATION, wire_layout
from anabranch.run.work import Work
from anabranch.spark import newest
from anabranch.spark.arrow_schema import to_spark
from anabranch.spark.exchange import PACKETS, Course, Outlet
from anabranch.spark.expressions import require_ansi
from anabranch.spark.failure import (
    QueryStopped,
    evaluating,
    for_spark,
    is_interrupt,
    is_spark_gone,
    named_start,
    query_id,
)
from anabranch.spark.file_streams import FileStreams, file_streams, slots_frame
from anabranch.spark.internals.patches.local_files import replace_local_files
from anabranch.spark.internals.patches.new_files import find_new_files
from anabranch.spark.late import LateRows, LateRowsWarning, only_diverted
from anabranch.spark.locality import SLOT, anchored
from anabranch.spark.offsets import in_scan_order, sparks_folder
from anabranch.spark.places import Places
from anabranch.spark.prefilter import Prefilter
from anabranch.spark.session import refuse_speculation
from anabranch.spark.sinks.delivery import deliver
from anabranch.spark.sinks.sink import Batch, Sink
from anabranch.spark.sinks.workers import WorkerWriter
from anabranch.spark.source import (
    PASSES,
    Cells,
    Routing,
    below_ceilings,
    has_observed_filters,
    routing,
    tagged_union,
)
from anabranch.spark.tables import SparkTables, TableSource
from anabranch.spark.worker import merge_function, step_function
from anabranch.stats.backlog import backlog
from anabranch.stats.report import SlotReports, added, merged_statistics, whole, with_delivered, with_results
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

Announce = Callable[[str, int], None]
Listener = Callable[[Mapping[str, Any]], None]


def _announce_nothing(phase: str, batch: int) -> None: ...


@dataclass(frozen=True)
class RunOptions:
    """How a set of queries is run."""

    trigger: Mapping[str, Any]
    """As Spark's `DataStreamWriter.trigger` takes it."""
    name: str | None = None
    idle_timeouts: Mapping[str, int | None] = field(default_factory=dict)
    """In microseconds, by stream; None for a stream that is never idle."""
    listeners: tuple[Listener, ...] = ()
    """Functions that get every record of the history."""
    max_ahead: Mapping[str, int] = field(default_factory=dict)
    """In microseconds, by stream: rows further ahead of the time of day are diverted."""
    late: LateRows | None = None
    """Where diverted rows go; None to count them only."""
    assumed_disorder: frozenset[str] = frozenset()
    """The streams whose allowed disorder nobody gave; their first late rows raise a warning."""
    tables: Mapping[str, TableSource] = field(default_factory=dict)
    """Where the rows of tables come from, by table."""
    spark_checkpoint: str | None = None
    """Where Spark keeps its part of the checkpoint; None for beside ours."""
    announce: Announce = _announce_nothing
    """Gets each phase of each batch, for tests that end the driver there."""


class SparkRunner:
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
        self.manifest = self.store.latest()
        if self.manifest is not None:
            work = work.resumed(self.manifest.plans)
        work = work.carrying()
        self.queries = work.queries
        self.setup = work.setup
        self._tables = SparkTables(work.queries, self.store, options.tables)
        work = replace(work, held=self._tables.small())
        table = work.first_table(self.manifest.partitionings[-1] if self.manifest else None)
        self.cells = Cells(wire_layout(work.queries, table), table.without_heavy)
        self._routing: tuple[Partitioning, Routing] | None = None
        self.steering = work.steering(table)
        self._lease = Lease(self.store)
        hot.claim(self.identity, self.store.location)
        self._clocks = self.manifest.clocks if self.manifest else Clocks.at_start(self.queries.streams, _now())
        self._is_filtered = has_observed_filters(each for each in self.queries.graph.relations if not each.is_result)
        self._prefilter = Prefilter(self.cells.layout, self._tables.read)
        self._is_observed = self._is_filtered or self._prefilter.may_filter
        self._late_warning = LateRowsWarning(options.assumed_disorder if options.late is None else frozenset())
        self._places = Places(self.steering.table)
        self._began: float | None = None
        self._running: StreamingQuery | None = None
        self._is_configured = False
        self._lists_new_files = self._is_finite  # such a run lists its folders once
        self._is_released = False
        self._files: FileStreams | None = None
        self._scanned = self.queries.streams
        """In the order of Spark's sources."""
        self._progress: OrderedDict[int, BatchProgress] = OrderedDict()
        self._between: list[Record] = []
        self.steering.recall(self.store.history())

    @property
    def plan(self) -> Plan | Plans:
        """The plan of the latest batch, or the one that most slots had."""
        return self.steering.most_plans.unwrapped

    @property
    def title(self) -> str:
        """How the log names the run."""
        return self.options.name or self.identity[:8]

    def migrate(
        self, plan: str, strategy: str, slots: Iterable[int] | None, box_by_box: bool, query: str | None = None
    ) -> None:
        self.steering.of_query(query).migrate(parse_plan(plan), strategy, slots, box_by_box=box_by_box)

    def share(self, join: str, queries: Iterable[str] | None) -> None:
        self.steering.share(join, queries)

    def unshare(self, queries: Iterable[str] | None) -> None:
        self.steering.unshare(queries)

    def move(self, groups: Iterable[int], to: int, strategy: str, most_rows: int | None) -> None:
        self.steering.table.move(groups, to, strategy, most_rows)

    def scale(self, slots: int) -> None:
        self.steering.table.scale(slots)

    def split(self, value: Any, over: int | Sequence[int] | None, key: str | None) -> None:
        self.steering.table.split(*code_of(self.queries, value, key), over)

    def unite(self, value: Any, key: str | None) -> None:
        self.steering.table.unite(*code_of(self.queries, value, key))

    def rebalance(self) -> None:
        self.steering.table.rebalance()

    def abort_migration(self, query: str | None = None) -> None:
        self.steering.of_query(query).abort()

    def freeze(self, frozen: bool) -> None:
        self.steering.freeze(frozen)

    @property
    def is_changing(self) -> bool:
        return self.steering.is_changing

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

    @property
    def next_batch(self) -> int:
        return self.manifest.batch + 1 if self.manifest else 0

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
        committed = self.manifest.batch if self.manifest else -1
        if batch_id > committed + 1:
            committed = self._catch_up()
        if batch_id <= committed:
            return
        if batch_id != committed + 1:
            raise CorruptCheckpoint(
                f"checkpoint '{self.store.location}' has state up to batch {committed}, but Spark goes on with "
                f"batch {batch_id}",
                detail="the two parts of the checkpoint are not of the same run",
                hint="restore the folder as a whole from a copy, or start with an empty one",
            )
        started = time.perf_counter()
        # Silence is what Spark has found between batches. What comes while one runs, or before the first, it finds with
        # the next; so the time that those take must not make a stream idle.
        now = _now()
        if not self._is_configured:
            self._clocks = self._clocks.resumed(now)
        self._configure(frame.sparkSession)
        self.options.announce("begin", batch_id)
        files = None
        if self._files is not None:
            found = self._files.of_batch(frame)
            frame, files = (found, None) if isinstance(found, DataFrame) else (frame, found)
        # Once per batch: whether a stream is idle depends on the time of day, and what a grouped query answers, or
        # which rows have waited long enough, on that.
        clocks, sent = None, None
        limits = ceilings(self.queries.graph.relations, self.options.max_ahead, now)
        moving = below_ceilings(self.queries.graph.names, limits)
        if self.queries.needs_watermark or self.setup.execution.rows_wait:
            if files is not None:
                times = newest.by_stream(self.queries, files.newest(self.queries, limits))
                clocks = self._clocks_after(times, now, {})
            else:
                with evaluating(batch_id):
                    found_by = frame.groupBy(RELATION).agg(
                        f.max(moving).alias(newest.NEWEST), f.count("*").alias(newest.ROWS)
                    )
                    rows = found_by.collect()
                sent = {row[RELATION]: row[newest.ROWS] for row in rows}
                times, ticks = newest.of_rows(self.queries, rows), newest.ticks(self.queries, rows)
                clocks = self._clocks_after(times, now, ticks)
        observation = Observation()
        is_observed = self._is_observed and clocks is None and files is None
        if is_observed:
            frame = frame.observe(observation, *newest.maxima(self.queries, moving), *newest.counts(self.queries))
        if self._is_filtered and files is None:
            frame = frame.where(PASSES).drop(PASSES)
        self._places.meet(frame.sparkSession)
        orders, refused = self.steering.next(batch_id, moment(self.queries, self._clocks, self.setup.execution))
        versions = self._tables.in_force(batch_id)
        if (known := self._prefilter.condition(versions)) is not None:
            frame = frame.where(known)
        task = next_task(self.setup, orders, batch_id, self.manifest, self._clocks, clocks, limits, versions)
        late = self.options.late
        if late is not None:
            frame = only_diverted(frame, self.cells.layout, late.layout, task.bounds)
        planned = time.perf_counter()
        batch = Batch(batch_id, query_id(frame), task.attempt, task.answered_before)
        deliver(self.sinks, batch, partial(self._results, frame, files, task), is_observed=is_observed)
        written = time.perf_counter()
        self.options.announce("written", batch_id)
        reports = self._reports(task)
        if is_observed and sent is None:
            sent = newest.counted(observation.get)
        if sent is not None:
            # Rows that do not reach the slots count, too.
            reports = with_delivered(reports, self.cells.rows(sent))
        if late is not None:
            session, is_first = frame.sparkSession, not self._progress
            late.deliver(session, batch, task, reports, self.store.location, may_replace=is_first)
            self.options.announce("diverted", batch_id)
        if clocks is None:
            times = (
                newest.by_stream(self.queries, observation.get)
                if is_observed
                else {**newest_by_stream(self.queries, reports)}
            )
            clocks = self._clocks_after(times, now, ticks_by_stream(self.queries, reports))
        manifest = next_manifest(task, reports, clocks)
        self._lease.require()
        self.store.commit(manifest)
        self.options.announce("committed", batch_id)
        seconds = clocks.seconds_since(self._clocks)
        before, self.manifest, self._clocks = self.manifest, manifest, clocks
        self.store.collect((manifest, before) if before else (manifest,))
        self.options.announce("collected", batch_id)
        collected = time.perf_counter()
        waiting = sum(rows_by_stream(self.queries, reports).values())
        facts = BatchFacts(
            batch_id,
            seconds,
            waiting,
            clocks.seconds_behind(_now()),
            period=None if self._began is None else started - self._began,
            cores=self._places.cores(frame.sparkSession),
            backlog=self._backlog(),
        )
        self._began = started
        records = [*refused, *self.steering.after(facts, reports)]
        self._note(records)
        spent = {"plan": planned - started, "step": written - planned, "commit": collected - written}
        spent["adapt"] = time.perf_counter() - collected
        self._remember(batch_id, task, reports, clocks, spent, [*self._between, *records])
        self._between.clear()
        if not self._lists_new_files and self._running is not None:
            find_new_files(frame.sparkSession, self._running)
            self._lists_new_files = True

    def follow(self, running: StreamingQuery) -> None:
        """Takes Spark's side of the run, which tells what waits in the sources."""
        self._running = running

    def _backlog(self) -> float | None:
        """Rows that waited in the sources after the batch before, where anybody asks and the sources say."""
        if self._running is None or not self.steering.needs_backlog:
            return None
        # The attributes of PySpark's value have offsets as texts, its JSON does not.
        latest = self._running.lastProgress
        return None if latest is None else backlog(json.loads(latest.json)["sources"])

    def _catch_up(self) -> int:
        """The batch of the last manifest, read again: Spark ends an earlier run only as this one begins."""
        self.manifest = self.store.latest()
        if self.manifest is None:
            return -1
        self._clocks = self.manifest.clocks.resumed(_now())
        return self.manifest.batch

    def _configure(self, session: SparkSession) -> None:
        """Settings of the session that Spark cloned for this query alone; the user's own is not touched."""
        if not self._is_configured:
            for key, value in BATCH_SETTINGS.items():
                session.conf.set(key, value)
            self._is_configured = True

    def streams(self, frames: Mapping[str, DataFrame]) -> tuple[DataFrame, list[str]]:
        """The streaming frame of all relations, and the streams that it scans, in order."""
        scans = in_scan_order(self.queries, (self.store.metadata() or {}).get("streams"))
        is_left_to_slots = self.options.late is None and not self._prefilter.may_filter
        self._files = file_streams(self.cells, frames, scans) if is_left_to_slots else None
        if self._files is not None:
            union = self._files.frame(frames)
        else:
            late = None if self.options.late is None else self.options.late.layout
            union = tagged_union(self.cells, frames, late, scans)
        scanned = [scan if isinstance(scan, str) else scan[1].stream for scan in scans]
        self._scanned = tuple(name for name in dict.fromkeys(scanned) if name in self.queries.streams)
        return union, scanned

    def _results(
        self, frame: DataFrame, files: SlotFiles | None, task: SlotTask, writers: Mapping[str, WorkerWriter]
    ) -> DataFrame:
        """The frame of the results; evaluating it runs all stages of the batch, once."""
        slots = len(task.partitioning.working)
        anchor = self._places.anchor(frame.sparkSession, task.partitioning)
        if files is None:
            frame = self._route(task.partitioning).send(frame, anchor)
        else:
            frame = slots_frame(frame.sparkSession, slots, anchor)
        diverted = None if self.options.late is None else self.options.late.layout
        course = Course.of(task).work
        for number, (stage, merges) in enumerate(course):
            is_final = number == len(course) - 1
            outlet = Outlet(task.at(stage), writers, number, is_final)
            function = (
                merge_function(outlet, self.store.location)
                if merges
                else step_function(outlet, self.identity, self.store.location, diverted, files)
            )
            frame = frame.mapInArrow(function, to_spark(ResultLayout(self.queries).schema) if is_final else PACKETS)
            if not is_final:
                frame = frame.repartition(slots, SLOT)
                if anchor is not None and not course[number + 1][1]:
                    frame = anchored(frame, anchor)
        return frame

    def _reports(self, task: SlotTask) -> SlotReports:
        working = frozenset(task.partitioning.working)
        merged = [task.at(stage) for stage, merges in Course.of(task).work if merges]
        reports = {
            slot: whole([self.store.read_report(task.rows_name(slot, stage)) for stage in range(self.queries.stages)])
            if slot in working
            else idle_report(task, slot)
            for slot in range(task.partitioning.slots)
        }
        of_groups = [self.store.read_report(each.merged_name(slot)).results for each in merged for slot in working]
        return with_results(reports, added(of_groups)) if of_groups else reports

    def _route(self, table: Partitioning) -> Routing:
        if self._routing is None or self._routing[0] != table:
            self._routing = table, routing(self.cells, table)
        return self._routing[1]

    # --- event time ---------------------------------------------------------------------------------------------------

    def _clocks_after(self, newest: Mapping[str, int | None], now: int, ticks: Mapping[str, int | None]) -> Clocks:
        disorder = {each.stream: each.disorder for each in self.queries.graph.streamed if not each.is_result}
        return self._clocks.advance(newest, disorder, now, self.options.idle_timeouts, ticks)

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

    def _remember(
        self,
        batch_id: int,
        task: SlotTask,
        reports: SlotReports,
        clocks: Clocks,
        seconds: Mapping[str, float],
        records: list[Record],
    ) -> None:
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
            idle_streams=tuple(name for name, clock in clocks.streams.items() if clock.is_idle),
            seconds=seconds,
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
    frames: Mapping[str, DataFrame] | Callable[[Cells], DataFrame],
    work: Work,
    sinks: Mapping[str, Sink],
    checkpoint: str,
    options: RunOptions,
) -> tuple[StreamingQuery, SparkRunner]:
    """Starts a set of queries over streaming frames, by stream; sinks are by query.

    `frames` may also be a function that makes the rows of all relations, in the wire layout with their cells.
    The checkpoint holds Spark's part in `spark/` and ours in `anabranch/`.
    """
    refuse_speculation(spark)
    require_ansi(spark, work.queries.graph)
    replace_local_files(spark)
    _refuse_name_in_use(spark, options.name)
    runner = SparkRunner(work, sinks, checkpoint, options)
    earlier = _latest.get(runner.identity)
    _latest[runner.identity] = runner
    # Hot state is memory; a driver that ends without stop() gives it back too.
    atexit.register(runner.release)
    try:
        if callable(frames):
            union, folder = frames(runner.cells), f"{runner.store.location}/spark"
        else:
            union, streams = runner.streams(frames)
            folder = "" if options.spark_checkpoint else sparks_folder(runner.store, streams)
        writer = union.writeStream.foreachBatch(runner.on_batch)
        writer = writer.option("checkpointLocation", options.spark_checkpoint or folder).trigger(**options.trigger)
        if options.name:
            writer = writer.queryName(options.name)
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
