"""Runs a micro-batch from arrivals to manifest; every host uses this code.

A `Round` holds the state of a run between two batches and does no I/O: it makes the task of the slots, takes their
reports, and returns the manifest and the records. `take_batch` runs one batch on a host, which supplies arrivals,
execution, delivery and a clock, and announces every crash point.

Invariant: the state advances only when a batch is committed, so a failed batch can be repeated with the same answer.
Limit: one batch at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter, thread_time
from typing import Protocol

from anabranch.adapt.facts import BatchFacts
from anabranch.adapt.records import Record
from anabranch.adapt.steering import Steering
from anabranch.run.clock import ClockRule, Clocks
from anabranch.run.commit import intake_of, moment, next_manifest, next_task, rows_by_stream
from anabranch.run.floors import clocks_after
from anabranch.run.manifest import Manifest
from anabranch.run.side_output import ceilings
from anabranch.run.slot import SlotTask
from anabranch.run.store import Store
from anabranch.run.work import Setup, Work
from anabranch.stats.report import SlotReports

BEGIN, WRITTEN, DIVERTED, COMMITTED, COLLECTED = PHASES = ("begin", "written", "diverted", "committed", "collected")
"""The crash points of a batch: it begins; its results, its diverted rows and its manifest are durable; old files are
removed."""

Announce = Callable[[str, int], None]
"""Receives each phase of each batch; tests kill the host in it."""


def announce_nothing(phase: str, batch: int) -> None: ...


@dataclass(frozen=True)
class EventTimeRules:
    """The event-time settings, in microseconds and by stream."""

    idle_timeouts: Mapping[str, int | None] = field(default_factory=dict)
    """None for a stream that is never idle."""
    max_ahead: Mapping[str, int] = field(default_factory=dict)
    """Rows further ahead of the time of day than this are diverted."""


@dataclass(frozen=True)
class Arrivals:
    """What a host knows about a batch before its slots step."""

    versions: Mapping[str, str] = field(default_factory=dict)
    """The versions of tables that the batch uses."""
    pieces: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The files of the batch, by stream, if the host knows them."""


@dataclass(frozen=True)
class Begun:
    """A batch that is ready for its slots to step."""

    task: SlotTask
    rule: ClockRule
    pieces: Mapping[str, tuple[str, ...]]
    refused: list[Record]
    """Changes that could not begin with this batch."""


@dataclass(frozen=True)
class Taken:
    """A committed batch."""

    task: SlotTask
    reports: SlotReports
    clocks: Clocks
    records: list[Record]
    seconds: Mapping[str, float]
    """Wall-clock time of each phase."""
    deciding: float
    """CPU seconds of this thread that decisions took."""


class Host(Protocol):
    """The operations of a host for one batch; `take_batch` calls them in this order."""

    def now(self) -> int:
        """Returns the time of day in microseconds."""

    def announce(self, phase: str, batch: int) -> None:
        """Receives a crash point."""

    def arrivals(self, batch: int) -> Arrivals:
        """Determines the content of the batch, before any row is read."""

    def run(self, task: SlotTask) -> SlotReports:
        """Reads the rows, runs all stages of the batch in all slots, and publishes the results."""

    def divert(self, task: SlotTask, reports: SlotReports) -> None:
        """Delivers the rows that are late or ahead."""

    def commit(self, manifest: Manifest) -> None:
        """Makes the batch durable; after that it is not repeated."""

    def collect(self, kept: tuple[Manifest, ...]) -> None:
        """Removes files that none of these manifests lists."""

    def facts(self, batch: BatchFacts) -> BatchFacts:
        """Adds the host's resources: cores and backlog."""

    def note(self, records: list[Record]) -> None:
        """Writes records to the history."""


class Round:
    """The state of a run between two batches."""

    def __init__(self, setup: Setup, steering: Steering, manifest: Manifest | None, rules: EventTimeRules) -> None:
        self.setup = setup
        self.steering = steering
        self.rules = rules
        self.manifest = manifest
        self.clocks = manifest.clocks if manifest else Clocks.at_start(setup.queries.streams, 0)
        self._began: float | None = None
        self._is_awake = False

    @property
    def batch(self) -> int:
        """The number of the next batch."""
        return self.manifest.batch + 1 if self.manifest else 0

    @property
    def needs_times(self) -> bool:
        """True if slots need the watermark after the batch during their step."""
        return self.setup.queries.needs_watermark or self.setup.execution.rows_wait

    def resume(self, manifest: Manifest | None) -> None:
        """Continues after the manifest of another run."""
        self.manifest, self._is_awake = manifest, False
        self.clocks = manifest.clocks if manifest else self.clocks

    def wake(self, now: int) -> None:
        """Starts the idle timeout of every stream at the first batch; earlier silence does not count."""
        if not self._is_awake:
            self.clocks, self._is_awake = self.clocks.resumed(now), True

    def limits(self, now: int) -> dict[str, int]:
        """Returns the largest admitted event time of each relation that has a limit."""
        return dict(ceilings(self.setup.queries.graph.relations, self.rules.max_ahead, now))

    def begin(self, arrivals: Arrivals, now: int) -> Begun:
        """Returns the task of the next batch."""
        rule = self._rule(now)
        at = moment(self.setup.queries, self.clocks, self.setup.execution)
        orders, refused = self.steering.next(self.batch, at)
        needed = rule if self.needs_times else None
        before = self.manifest, self.clocks
        task = next_task(self.setup, orders, self.batch, *before, needed, self.limits(now), arrivals.versions)
        return Begun(task, rule, arrivals.pieces, refused)

    def end(self, begun: Begun, reports: SlotReports) -> Manifest:
        """Returns the manifest of the batch, to be committed."""
        clocks = clocks_after(self.setup.queries, begun.rule, intake_of(reports))
        return replace(next_manifest(begun.task, reports, clocks), pieces=begun.pieces)

    def advance(self, manifest: Manifest, reports: SlotReports, now: int, started: float) -> BatchFacts:
        """Advances to the next batch after the manifest was committed; returns the facts of the batch.

        `started` is the start of the batch on a monotonic clock, in seconds.
        """
        earlier, self.manifest, self.clocks = self.clocks, manifest, manifest.clocks
        began, self._began = self._began, started
        return BatchFacts(
            manifest.batch,
            self.clocks.seconds_since(earlier),
            sum(rows_by_stream(self.setup.queries, reports).values()),
            self.clocks.seconds_behind(now),
            period=None if began is None else started - began,
        )

    def _rule(self, now: int) -> ClockRule:
        streamed = self.setup.queries.graph.streamed
        disorder = {each.stream: each.disorder for each in streamed if not each.is_result}
        return ClockRule(self.clocks, disorder, now, self.rules.idle_timeouts)


def recovered(work: Work, store: Store | None) -> tuple[Work, Manifest | None]:
    """Returns the work continued from a checkpoint, and the last manifest."""
    manifest = None if store is None else store.latest()
    return (work if manifest is None else work.resumed(manifest.plans)).carrying(), manifest


def open_round(work: Work, manifest: Manifest | None, store: Store | None, rules: EventTimeRules) -> Round:
    """Opens a run with the statistics that earlier runs measured, from the history."""
    table = work.first_table(manifest.partitionings[-1] if manifest else None)
    opened = Round(work.setup, work.steering(table), manifest, rules)
    if store is not None:
        opened.steering.recall(store.history())
    return opened


def take_batch(batch_round: Round, host: Host) -> Taken:
    """Runs the next batch on a host."""
    started, number = perf_counter(), batch_round.batch
    now = host.now()
    batch_round.wake(now)
    host.announce(BEGIN, number)
    arrivals = host.arrivals(number)
    deciding = thread_time()
    begun = batch_round.begin(arrivals, now)
    spent = thread_time() - deciding
    task, planned = begun.task, perf_counter()
    reports = host.run(task)
    written = perf_counter()
    host.announce(WRITTEN, number)
    host.divert(task, reports)
    host.announce(DIVERTED, number)
    manifest, before = batch_round.end(begun, reports), batch_round.manifest
    host.commit(manifest)
    host.announce(COMMITTED, number)
    facts = batch_round.advance(manifest, reports, host.now(), started)
    host.collect((manifest, before) if before else (manifest,))
    host.announce(COLLECTED, number)
    collected = perf_counter()
    facts, deciding = host.facts(facts), thread_time()
    records = [*begun.refused, *batch_round.steering.after(facts, reports)]
    host.note(records)
    spent += thread_time() - deciding
    seconds = {"plan": planned - started, "step": written - planned, "commit": collected - written}
    seconds["adapt"] = perf_counter() - collected
    return Taken(task, reports, manifest.clocks, records, seconds, spent)
