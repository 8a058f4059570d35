"""The driver of running queries, common to micro-batches and real-time mode: the round, the checkpoint, progress and
records.

Invariant: one run of a checkpoint at a time holds the lease, and the latest run in this process owns the hot state.
Limit: the driver keeps the progress of the latest thousand batches.
"""

from __future__ import annotations

import atexit
import time
import warnings
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from threading import Lock, get_ident
from typing import Any
from weakref import WeakValueDictionary

from anabranch.adapt.records import Record
from anabranch.plan.query_set import ALONE
from anabranch.run import hot
from anabranch.run.branching import finish, has_answered
from anabranch.run.commit import (
    ahead_by_stream,
    late_by_stream,
    rows_by_query,
    rows_by_stream,
    rows_out,
    shed_by_stream,
    undated_by_stream,
)
from anabranch.run.controls import Controls
from anabranch.run.lease import Lease
from anabranch.run.manifest import Manifest
from anabranch.run.progress import BatchProgress, QueryProgress, SlotProgress, migrating_slots, sent_by_relation
from anabranch.run.round import Announce, EventTimeRules, Taken, announce_nothing, open_round, recovered
from anabranch.run.store import Store
from anabranch.run.work import Work
from anabranch.spark.late import LateRows, LateRowsWarning
from anabranch.spark.micro_batch import Pipeline
from anabranch.spark.places import Places
from anabranch.spark.sinks.sink import Sink
from anabranch.spark.tables import SparkTables, TableSource
from anabranch.stats.report import merged_statistics
from anabranch.telemetry.logs import log_event

REMEMBERED_BATCHES = 1000
latest_runs: WeakValueDictionary[str, RunningQueries] = WeakValueDictionary()
"""The latest run in this process by checkpoint identity; the hot state belongs to that run."""

Listener = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class RunOptions:
    """The options of a run."""

    trigger: Mapping[str, Any]
    """The arguments of Spark's `DataStreamWriter.trigger`."""
    name: str | None = None
    event_time: EventTimeRules = field(default_factory=EventTimeRules)
    listeners: tuple[Listener, ...] = ()
    """Functions that receive every record of the history."""
    late: LateRows | None = None
    """The sink of diverted rows; None to only count them."""
    assumed_disorder: frozenset[str] = frozenset()
    """The streams without a declared watermark delay; their first late rows raise a warning."""
    tables: Mapping[str, TableSource] = field(default_factory=dict)
    """The source of each table's rows."""
    spark_checkpoint: str | None = None
    """The location of Spark's part of the checkpoint; None for the folder beside ours."""
    announce: Announce = announce_nothing
    """Receives each phase of each batch; tests kill the driver in it."""


class RunningQueries(Controls):
    """One started set of queries."""

    def __init__(self, work: Work, sinks: Mapping[str, Sink], checkpoint: str, options: RunOptions) -> None:
        self.sinks = sinks
        self.options = options
        self.failure: BaseException | None = None
        self._at_work = Lock()
        """Held while a batch runs, and while the checkpoint changes between two batches."""
        self.is_ending = False
        """True once the run is to end; errors that this causes are not failures."""
        self._last_done: int | None = None
        """The latest batch that this run has committed."""
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
        self._is_released = False
        self._scanned = self.queries.streams
        """The streams in the order of Spark's sources."""
        self._progress: OrderedDict[int, BatchProgress] = OrderedDict()
        self._between: list[Record] = [*work.starts(0 if manifest is None else manifest.batch + 1)]

    def claim(self) -> Callable[[], None]:
        """Makes this run the latest of its checkpoint; returns a function that undoes it."""
        earlier = latest_runs.get(self.identity)
        latest_runs[self.identity] = self
        # Hot state is in memory, so it is also released if the driver ends without stop().
        atexit.register(self.release)

        def undo() -> None:
            if earlier is not None:
                latest_runs[self.identity] = earlier
            self.release()

        return undo

    @property
    def has_answered(self) -> bool:
        """True if another run takes over from an event time on, and no older result can come."""
        return has_answered(self.queries, self.manifest)

    def finish(self, least: int) -> int:
        """Sets the event time until which the queries answer, between two batches; returns it."""
        with self._at_work:
            self._lease.require()
            time = finish(self.store, self.queries, least)
            self.round.manifest = self.store.latest()
        return time

    @property
    def manifest(self) -> Manifest | None:
        """The manifest of the latest batch."""
        return self.round.manifest

    @property
    def is_calling(self) -> bool:
        return self._batch_thread == get_ident()

    @property
    def title(self) -> str:
        """The name of the run in the log."""
        return self.options.name or self.identity[:8]

    def history(self) -> list[dict[str, Any]]:
        return self.store.history()

    def progress(self, batch_id: int) -> BatchProgress | None:
        """Returns the progress entry of a batch, or None if it is no longer kept."""
        return self._progress.get(batch_id)

    @property
    def latest_batch(self) -> int:
        """The latest batch with a progress entry; -1 before the first."""
        return next(reversed(self._progress), -1)

    def release(self, *, is_followed: bool = False) -> None:
        """Releases the memory of the hot state, once, and only if no later run of the checkpoint uses it.

        If another run of this process follows, the lease is kept, so that no other driver takes it in between.
        """
        atexit.unregister(self.release)
        if self._is_released:
            return
        self._is_released = True
        batch = self.manifest.batch if self.manifest else None
        log_event("ended", run=self.title, batch=batch, failed=self.failure is not None, finished=self._is_finite)
        self.steering.close()
        is_latest = latest_runs.get(self.identity) is self
        if is_latest:
            hot.forget(self.identity)
            if is_followed:
                self._lease.hand_over()
            else:
                self._lease.close()
            self._places.forget(self.identity)

    def go_on_from(self, earlier: RunningQueries, record: Record) -> None:
        """Takes over the progress from the run before a change, and records the change.

        The progress of the next batch includes the record.
        """
        self._progress = OrderedDict(earlier._progress)
        self._note([record])
        self._between.append(record)

    @abstractmethod
    def leave(self) -> None:
        """Waits for the current batch; later batches are refused."""

    @abstractmethod
    def newest(self) -> Iterator[tuple[int, Callable[[], str]]]:
        """Yields the batch number of recent triggers and a function that returns their JSON, newest first."""

    def _latest(self) -> tuple[float | None, float | None]:
        """Returns the backlog in rows and the seconds of the previous trigger; None if unknown."""
        return None, None

    # --- records ------------------------------------------------------------------------------------------------------

    def _note(self, records: list[Record]) -> None:
        """Writes records to the history and calls the listeners; errors of either do not stop the query."""
        for record in records:
            self.store.note(record)
            log_event("record", run=self.title, **record.to_json())
            for listener in self.options.listeners:
                try:
                    listener(record.to_json())
                except Exception as error:
                    warnings.warn(f"a listener failed on {record.kind}: {error!r}", stacklevel=2)

    def note_start(self) -> None:
        """Records the reasons for the first plans."""
        self._note(self._between)

    def note_started(self, query_id: str) -> None:
        """Calls `begin` of the sinks and logs the start, once the run has started."""
        late = [] if self.options.late is None else [self.options.late.sink]
        for sink in (*self.sinks.values(), *late):
            sink.begin()
        queries = self.queries
        log_event(
            "started",
            run=self.title,
            id=query_id,
            plan=str(self.plan),
            after=self.manifest.batch if self.manifest else None,
            text=queries.text,
            inputs={each.stream: list(each.schema.names) for each in queries.graph.streamed if not each.is_result},
            outputs={name: sink.place or sink.title for name, sink in self.sinks.items()},
        )

    def _remember(self, taken: Taken) -> None:
        """Keeps the progress of a batch for listeners and pages."""
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
            shed_rows=shed_by_stream(self.queries, reports),
            kept=task.kept,
            undated_rows=undated_by_stream(self.queries, reports),
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


def _now() -> int:
    """Returns the processing time in microseconds."""
    return time.time_ns() // 1000
