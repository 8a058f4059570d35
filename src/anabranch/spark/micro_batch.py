"""One micro-batch of Spark, as the round runs it.

Readers divide the rows into packets for the slots, and slots run all stages, in one Spark job; then the results are
delivered. Invariant: each slot's step runs exactly once for each attempt at the batch. Limit: Spark plans every
micro-batch anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from pyspark.sql import DataFrame, SparkSession

from anabranch.adapt.facts import BatchFacts
from anabranch.adapt.records import Record
from anabranch.plan.query_set import QuerySet
from anabranch.run.commit import rows_by_stream
from anabranch.run.hot import MappedEngines
from anabranch.run.ingest import Ingest, Reader
from anabranch.run.lease import Lease
from anabranch.run.manifest import Manifest
from anabranch.run.pieces import MOST_READERS, Piece, divided, files_of, shared
from anabranch.run.prefilter import Prefilter
from anabranch.run.results import ResultLayout
from anabranch.run.round import Announce, Arrivals
from anabranch.run.slot import SlotTask, idle_report
from anabranch.run.store import Store
from anabranch.run.wire import wire_layout
from anabranch.spark.arrow_schema import to_spark
from anabranch.spark.exchange import PACKETS, Outlet, StageSequence
from anabranch.spark.failure import query_id
from anabranch.spark.file_streams import BatchFiles, FileStreams, slots_frame
from anabranch.spark.late import LateRows
from anabranch.spark.locality import SLOT, located
from anabranch.spark.places import Places
from anabranch.spark.sinks.delivery import deliver
from anabranch.spark.sinks.sink import Batch, Sink
from anabranch.spark.sinks.workers import WorkerWriter
from anabranch.spark.spark_rows import SparkRows
from anabranch.spark.tables import SparkTables
from anabranch.spark.worker import Reading, cut_function, in_task, merge_function, step_function
from anabranch.stats.intake import added
from anabranch.stats.report import SlotReport, SlotReports, whole, with_results


@dataclass
class Pipeline:
    """The parts of a run that its micro-batches share."""

    queries: QuerySet
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
    source: FileStreams | SparkRows = field(init=False)
    """The streams whose files the readers read, or the reader of rows that Spark reads."""
    is_first: bool = True
    """True until a batch has been delivered, because an attempt of an earlier run may have left rows."""
    prefilter: Prefilter = field(init=False)

    def __post_init__(self) -> None:
        self.prefilter = Prefilter(wire_layout(self.queries), self.tables.read)


class DriverSide:
    """The driver's part of a batch, common to all ways of running the slots."""

    def __init__(self, pipeline: Pipeline, session: SparkSession) -> None:
        self._pipeline, self._session = pipeline, session
        self._queries = pipeline.queries
        self._batch: Batch
        self.now, self.announce, self.note = pipeline.now, pipeline.announce, pipeline.note

    def divert(self, task: SlotTask, reports: SlotReports) -> None:
        """Delivers the rows that are late or ahead to their sink."""
        pipeline = self._pipeline
        if pipeline.late is not None:
            is_first, place = pipeline.is_first, pipeline.store.location
            pipeline.late.deliver(self._session, self._batch, reports, place, may_replace=is_first)
        pipeline.is_first = False

    def commit(self, manifest: Manifest) -> None:
        self._pipeline.lease.require()
        self._pipeline.store.commit(manifest)

    def collect(self, kept: tuple[Manifest, ...]) -> None:
        self._pipeline.store.collect(kept)

    def facts(self, batch: BatchFacts) -> BatchFacts:
        waiting, trigger = self._pipeline.latest()
        return replace(batch, cores=self._cores, backlog=waiting, trigger=trigger)

    @cached_property
    def _cores(self) -> int | None:
        return self._pipeline.places.cores(self._session)


class MicroBatch(DriverSide):
    """A micro-batch that Spark has planned."""

    def __init__(self, pipeline: Pipeline, frame: DataFrame) -> None:
        super().__init__(pipeline, frame.sparkSession)
        self._frame = frame
        self._files: BatchFiles | None = None
        self._pieces: Sequence[Piece] | None = None

    def arrivals(self, batch: int) -> Arrivals:
        """Finds the files of the batch."""
        pipeline = self._pipeline
        if isinstance(pipeline.source, SparkRows):
            self._rows = pipeline.source
        else:
            self._files = pipeline.source.of_batch(self._frame)
            if self._files.by_spark is None:
                self._pieces = self._files.pieces
            else:
                self._frame, self._rows = self._files.by_spark
        pipeline.places.meet(self._session)
        return Arrivals(pipeline.tables.in_force(batch), files_of(self._pieces or ()))

    def run(self, task: SlotTask) -> SlotReports:
        """Runs the batch as one job and publishes its results."""
        pipeline = self._pipeline
        self._batch = Batch(task.batch, query_id(self._frame), task.attempt, task.answered_before)
        deliver(pipeline.sinks, self._batch, partial(self._results, task))
        reports = self._reports(task)
        if self._files is not None:
            self._files.count(rows_by_stream(self._queries, reports))
        return reports

    def _results(self, task: SlotTask, writers: Mapping[str, WorkerWriter]) -> DataFrame:
        """Returns the frame of the results; evaluating it runs all stages of the batch, once."""
        pipeline = self._pipeline
        slots = len(task.partitioning.working)
        locality = pipeline.places.locality(self._session, task.partitioning)
        frame, reading, is_direct = self._reading(task, slots, locality)
        if not is_direct:
            frame = _exchanged(frame.mapInArrow(in_task(cut_function(reading)), PACKETS), slots, locality)
        stages = StageSequence.of(task).work
        for number, (stage, merges) in enumerate(stages):
            is_final = number == len(stages) - 1
            outlet = Outlet(task.at(stage), writers, number, is_final)
            location, read = pipeline.store.location, None if number or not is_direct else reading
            function = (
                merge_function(outlet, location)
                if merges
                else step_function(outlet, MappedEngines(pipeline.identity), location, read)
            )
            columns = to_spark(ResultLayout(self._queries).schema) if is_final else PACKETS
            frame = frame.mapInArrow(in_task(function), columns)
            if not is_final:
                frame = _exchanged(frame, slots, None if stages[number + 1][1] else locality)
        return frame

    def _reading(self, task: SlotTask, slots: int, locality: DataFrame | None) -> tuple[DataFrame, Reading, bool]:
        """Returns the frame of the reading tasks, their work, and whether these tasks are the slots."""
        pipeline, session, pieces = self._pipeline, self._session, self._pieces
        readers = pipeline.places.cores(session) or slots
        reader: Reader
        if pieces is None:
            is_direct = slots == 1 and locality is None
            frame, reader = self._frame.coalesce(1 if is_direct else readers), self._rows
        else:
            assert isinstance(pipeline.source, FileStreams)
            readings, is_direct = pipeline.source.readings, slots <= MOST_READERS
            if is_direct:
                frame, reader = slots_frame(session, slots, locality), shared(pieces, readings, slots)
            else:
                reader = divided(pieces, readings, readers)
                frame = slots_frame(session, len(reader.shares), None)
        late = None if pipeline.late is None else pipeline.late.layout
        ingest = Ingest(task, late, pipeline.prefilter.keys(task.versions))
        return frame, Reading(ingest, reader, pipeline.store.location), is_direct

    def _reports(self, task: SlotTask) -> SlotReports:
        store, working = self._pipeline.store, task.partitioning.working
        merged = [task.at(stage) for stage, merges in StageSequence.of(task).work if merges]
        steps = {
            slot: [store.read_report(task.rows_name(slot, stage)) for stage in range(self._queries.stages)]
            for slot in working
        }
        return reports_of(
            task, steps, [store.read_report(each.merged_name(slot)) for each in merged for slot in working]
        )


def reports_of(task: SlotTask, steps: Mapping[int, Sequence[SlotReport]], merges: Sequence[SlotReport]) -> SlotReports:
    """Returns the reports of all slots on a batch, from those of its stages and of its merges of groups."""
    slots = range(task.partitioning.slots)
    reports = {slot: whole(list(steps[slot])) if slot in steps else idle_report(task, slot) for slot in slots}
    return with_results(reports, added(each.results for each in merges)) if merges else reports


def _exchanged(packets: DataFrame, slots: int, locality: DataFrame | None) -> DataFrame:
    """Returns the packets, each in the partition of its slot; with a locality frame, at the location of the slot."""
    sent = packets.repartition(slots, SLOT)
    return sent if locality is None else located(sent, locality)
