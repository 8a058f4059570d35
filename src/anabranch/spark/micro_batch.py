"""One micro-batch of Spark, as the round runs it.

Finds the newest event times where the slots need them, sends the rows to the slots, runs all stages in one Spark job,
and delivers the results. Invariant: each slot's step runs exactly once for each attempt at the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as f

from anabranch.adapt.facts import BatchFacts
from anabranch.adapt.records import Record
from anabranch.plan.partitioning import Partitioning
from anabranch.run.file_rows import SlotFiles
from anabranch.run.lease import Lease
from anabranch.run.manifest import Manifest
from anabranch.run.results import ResultLayout
from anabranch.run.round import Announce, Arrivals
from anabranch.run.slot import SlotTask, idle_report
from anabranch.run.store import Store
from anabranch.run.wire import RELATION
from anabranch.spark import newest
from anabranch.spark.arrow_schema import to_spark
from anabranch.spark.exchange import PACKETS, Course, Outlet
from anabranch.spark.failure import evaluating, query_id
from anabranch.spark.file_streams import FileStreams, slots_frame
from anabranch.spark.late import LateRows, only_diverted
from anabranch.spark.locality import SLOT, anchored
from anabranch.spark.places import Places
from anabranch.spark.prefilter import Prefilter
from anabranch.spark.sinks.delivery import deliver
from anabranch.spark.sinks.sink import Batch, Sink
from anabranch.spark.sinks.workers import WorkerWriter
from anabranch.spark.source import PASSES, Cells, Routing, below_ceilings, has_observed_filters, routing
from anabranch.spark.tables import SparkTables
from anabranch.spark.worker import merge_function, step_function
from anabranch.stats.report import SlotReports, added, whole, with_delivered, with_newest, with_results


@dataclass
class Pipeline:
    """The parts of a run that its micro-batches share."""

    cells: Cells
    sinks: Mapping[str, Sink]
    late: LateRows | None
    store: Store
    identity: str
    lease: Lease
    tables: SparkTables
    places: Places
    now: Callable[[], int]
    """Returns the time of day in microseconds."""
    announce: Announce
    note: Callable[[list[Record]], None]
    latest: Callable[[], tuple[float | None, float | None]]
    files: FileStreams | None = None
    """The streams whose files the slots read themselves; None where Spark reads."""
    _routing: tuple[Partitioning, Routing] | None = None
    is_first: bool = True
    """True until a batch has been delivered: an attempt of an earlier run may have left rows."""
    is_filtered: bool = field(init=False)
    """True when Spark must see the rows that filters reject."""
    prefilter: Prefilter = field(init=False)

    def __post_init__(self) -> None:
        relations = self.cells.layout.queries.graph.relations
        self.is_filtered = has_observed_filters(each for each in relations if not each.is_result)
        self.prefilter = Prefilter(self.cells.layout, self.tables.read)

    def routing(self, table: Partitioning) -> Routing:
        """Returns the way of rows to the slots of a table."""
        if self._routing is None or self._routing[0] != table:
            self._routing = table, routing(self.cells, table)
        return self._routing[1]


class MicroBatch:
    """A micro-batch that Spark has planned."""

    def __init__(self, pipeline: Pipeline, frame: DataFrame, needs_times: bool) -> None:
        self._pipeline, self._frame, self._needs_times = pipeline, frame, needs_times
        self._queries = pipeline.cells.layout.queries
        self._session = frame.sparkSession
        self._files: SlotFiles | None = None
        self._observation: Observation | None = None
        self._sent: Mapping[int, int] | None = None
        self._batch: Batch
        self.now, self.announce, self.note = pipeline.now, pipeline.announce, pipeline.note

    def arrivals(self, batch: int, limits: Mapping[str, int]) -> Arrivals:
        """Finds the files of the batch, and its newest event times where slots need them."""
        pipeline = self._pipeline
        if pipeline.files is not None:
            found = pipeline.files.of_batch(self._frame)
            if isinstance(found, SlotFiles):
                self._files = found
            else:
                self._frame = found
        times = self._times(batch, limits) if self._needs_times else Arrivals()
        if self._files is None:
            if not self._needs_times and (pipeline.is_filtered or pipeline.prefilter.may_filter):
                self._observe(limits)
            if pipeline.is_filtered:
                self._frame = self._frame.where(PASSES).drop(PASSES)
        pipeline.places.meet(self._session)
        versions = pipeline.tables.in_force(batch)
        if (known := pipeline.prefilter.condition(versions)) is not None:
            self._frame = self._frame.where(known)
        return replace(times, versions=versions)

    def run(self, task: SlotTask) -> SlotReports:
        """Runs the batch as one job and publishes its results."""
        pipeline, late = self._pipeline, self._pipeline.late
        if late is not None:
            self._frame = only_diverted(self._frame, pipeline.cells.layout, late.layout, task.bounds)
        self._batch = Batch(task.batch, query_id(self._frame), task.attempt, task.answered_before)
        is_observed = self._observation is not None
        deliver(pipeline.sinks, self._batch, partial(self._results, task), is_observed=is_observed)
        reports = self._reports(task)
        sent = self._sent
        if self._observation is not None:
            observed = self._observation.get
            sent = newest.counted(observed)
            reports = with_newest(reports, newest.by_relation(self._queries, observed))
        # Rows that do not reach the slots count, too.
        return reports if sent is None else with_delivered(reports, pipeline.cells.rows(sent))

    def divert(self, task: SlotTask, reports: SlotReports) -> None:
        """Delivers the rows that are late or ahead to their sink."""
        pipeline = self._pipeline
        if pipeline.late is not None:
            is_first, place = pipeline.is_first, pipeline.store.location
            pipeline.late.deliver(self._session, self._batch, task, reports, place, may_replace=is_first)
        pipeline.is_first = False

    def commit(self, manifest: Manifest) -> None:
        self._pipeline.lease.require()
        self._pipeline.store.commit(manifest)

    def collect(self, kept: tuple[Manifest, ...]) -> None:
        self._pipeline.store.collect(kept)

    def facts(self, batch: BatchFacts) -> BatchFacts:
        waiting, trigger = self._pipeline.latest()
        cores = self._pipeline.places.cores(self._session)
        return replace(batch, cores=cores, backlog=waiting, trigger=trigger)

    def _times(self, batch: int, limits: Mapping[str, int]) -> Arrivals:
        """Reads the newest event times before the step, once: a grouped query answers by them."""
        if self._files is not None:
            return Arrivals(newest.by_stream(self._queries, self._files.newest(self._queries, limits)))
        moving = below_ceilings(self._queries.graph.names, limits)
        with evaluating(batch):
            grouped = self._frame.groupBy(RELATION)
            rows = grouped.agg(f.max(moving).alias(newest.NEWEST), f.count("*").alias(newest.ROWS)).collect()
        self._sent = {row[RELATION]: row[newest.ROWS] for row in rows}
        return Arrivals(newest.of_rows(self._queries, rows), newest.ticks(self._queries, rows))

    def _observe(self, limits: Mapping[str, int]) -> None:
        """Lets Spark count all rows and find their newest times while it sends those that pass."""
        self._observation = Observation()
        moving = below_ceilings(self._queries.graph.names, limits)
        columns = [*newest.maxima(self._queries, moving), *newest.counts(self._queries)]
        self._frame = self._frame.observe(self._observation, *columns)

    def _results(self, task: SlotTask, writers: Mapping[str, WorkerWriter]) -> DataFrame:
        """Returns the frame of the results; evaluating it runs all stages of the batch, once."""
        pipeline, frame, files = self._pipeline, self._frame, self._files
        slots = len(task.partitioning.working)
        anchor = pipeline.places.anchor(self._session, task.partitioning)
        if files is None:
            frame = pipeline.routing(task.partitioning).send(frame, anchor)
        else:
            frame = slots_frame(self._session, slots, anchor)
        diverted = None if pipeline.late is None else pipeline.late.layout
        course = Course.of(task).work
        for number, (stage, merges) in enumerate(course):
            is_final = number == len(course) - 1
            outlet = Outlet(task.at(stage), writers, number, is_final)
            function = (
                merge_function(outlet, pipeline.store.location)
                if merges
                else step_function(outlet, pipeline.identity, pipeline.store.location, diverted, files)
            )
            frame = frame.mapInArrow(function, to_spark(ResultLayout(self._queries).schema) if is_final else PACKETS)
            if not is_final:
                frame = frame.repartition(slots, SLOT)
                if anchor is not None and not course[number + 1][1]:
                    frame = anchored(frame, anchor)
        return frame

    def _reports(self, task: SlotTask) -> SlotReports:
        store, working = self._pipeline.store, frozenset(task.partitioning.working)
        merged = [task.at(stage) for stage, merges in Course.of(task).work if merges]
        reports = {
            slot: whole([store.read_report(task.rows_name(slot, stage)) for stage in range(self._queries.stages)])
            if slot in working
            else idle_report(task, slot)
            for slot in range(task.partitioning.slots)
        }
        of_groups = [store.read_report(each.merged_name(slot)).results for each in merged for slot in working]
        return with_results(reports, added(of_groups)) if of_groups else reports
