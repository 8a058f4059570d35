"""The in-process host: runs queries without Spark, for tests, experiments and notebooks.

Slots are engines in this process and step in parallel threads; kernels and gathers release the interpreter lock. With a
checkpoint the host keeps durable rows and manifests as the Spark host does, and can be restarted with another plan or
another number of slots. Invariant: a batch runs through the same round as on every host (`run.round`). Limit: one
process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from anabranch.adapt.advisors.sharing import BY_HAND_ONLY, SharingRules
from anabranch.adapt.balancing import BY_HAND, BY_ITSELF, Balance
from anabranch.adapt.facts import BatchFacts
from anabranch.adapt.records import Record
from anabranch.adapt.rules import NO_RULES, ChangeRules
from anabranch.engine.batch import RelationBatch, joined
from anabranch.engine.engine import Engine
from anabranch.errors import BatchError, HostError
from anabranch.plan.execution import DEFAULT_EXECUTION, ExecutionModel
from anabranch.plan.mesh import Plan
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.query import Query
from anabranch.plan.query_set import Plans, QuerySet, as_plans, as_set
from anabranch.plan.slots import Orders, SlotRange
from anabranch.run.clock import Clocks
from anabranch.run.commit import ahead_by_stream, late_by_stream, next_task, shed_by_stream, undated_by_stream
from anabranch.run.controls import Controls
from anabranch.run.floors import informed
from anabranch.run.functions import functions_named
from anabranch.run.ingest import Arrived, Ingest, cells_of, columns_to_read, in_order, merged, part
from anabranch.run.manifest import Manifest
from anabranch.run.prefilter import Prefilter
from anabranch.run.rebuilding import Rows, RowSource, durable_sources, follow, rebuild, refresh
from anabranch.run.results import ResultLayout, Results, finished
from anabranch.run.round import Announce, Arrivals, EventTimeRules, announce_nothing, open_round, recovered, take_batch
from anabranch.run.rows import result_batch
from anabranch.run.shedding import Overload
from anabranch.run.side_output import SideOutputLayout
from anabranch.run.slot import Opening, SlotTask, advance, bring_to, can_reach, drain, idle_report, make_engine
from anabranch.run.store import Store
from anabranch.run.tables import TableVersions, read_columns
from anabranch.run.wire import wire_layout
from anabranch.run.work import Work
from anabranch.stats.report import SlotReport, SlotReports, merged_statistics, whole, with_results
from anabranch.stats.step import StepStatistics

NO_TICKS: Mapping[str, int] = MappingProxyType({})

CORES = os.cpu_count()


class LocalHost(Controls):
    """A running query, or a set of queries; call `step` once per micro-batch.

    >>> host = LocalHost(query, plan, slots=2)                        # doctest: +SKIP
    >>> results = host.step({"orders": orders, "payments": payments})  # doctest: +SKIP
    """

    def __init__(
        self,
        query: Query | QuerySet,
        plan: Plan | Plans,
        *,
        slots: int | SlotRange = 1,
        checkpoint: str | None = None,
        event_time: EventTimeRules | None = None,
        diverted: SideOutputLayout | None = None,
        now: Callable[[], int] = lambda: 0,
        rules: ChangeRules | Mapping[str, ChangeRules] = NO_RULES,
        execution: ExecutionModel = DEFAULT_EXECUTION,
        balance: Balance | None = None,
        traffic: Mapping[str, float] | None = None,
        tables: Mapping[str, pa.Table] | None = None,
        sharing: SharingRules = BY_HAND_ONLY,
        overload: Overload = "keep",
        sample: Mapping[str, RelationBatch] | None = None,
        announce: Announce = announce_nothing,
    ) -> None:
        queries = as_set(query)
        by_query = dict.fromkeys(queries.names, rules) if isinstance(rules, ChangeRules) else rules
        several = SlotRange.fixed(slots) if isinstance(slots, int) else slots
        work = Work(
            queries,
            as_plans(plan),
            several,
            by_query,
            execution,
            balance=balance or (BY_ITSELF if several.is_elastic else BY_HAND),
            traffic=traffic or {},
            sharing=sharing,
            overload=overload,
            sample=sample or {},
        )
        self.diverted = diverted
        """The layout of rows that are late or ahead; None to only count them."""
        self.diverted_rows = None if diverted is None else diverted.together([])
        """The rows that the latest batch diverted."""
        self.now = now
        self.announce = announce
        self.statistics = StepStatistics()
        self.reports: SlotReports = {}
        """The reports of the slots on the latest batch."""
        self.seconds_adapting = 0.0
        """CPU seconds of decisions in this thread so far; excludes background searches."""
        self.store = Store(checkpoint) if checkpoint is not None else None
        if self.store is not None:
            self.store.open(work.queries, work.execution)
        work, manifest = recovered(work, self.store)
        self.queries = work.queries
        self.late: dict[str, int] = dict.fromkeys(self.queries.streams, 0)
        self.ahead, self.shed, self.undated = dict(self.late), dict(self.late), dict(self.late)
        self.table_versions = TableVersions(self.queries, self.store)
        for name, table in (tables or {}).items():
            self._offer(name, table)
        _refuse_missing_tables(self.table_versions)
        self.prefilter = Prefilter(wire_layout(self.queries), self.table_versions.read)
        self.round = open_round(
            replace(work, held=self.table_versions.small()), manifest, self.store, event_time or EventTimeRules()
        )
        self.steering = self.round.steering
        self._records: list[Record] = []
        self.engines: dict[int, Engine] = {}
        """The engine of each working slot."""
        self.threads = ThreadPoolExecutor(several.most)
        self.is_broken = False
        """True once a batch failed in the middle: engines may be ahead of the last commit."""
        self.task = self._first_task()
        """The task of the latest batch, or the initial state of the first batch."""
        if not self.task.is_moving and not self.table_versions.tables:
            # After a restart with other slots, the first batch moves the rows; it also determines the versions of
            # tables.
            for slot in self.task.partitioning.working:
                self.open_slot(self.task, slot, [])

    def step(
        self,
        rows: Mapping[str, pa.Table],
        ticks: Mapping[str, int] = NO_TICKS,
        deliver: Callable[[SlotTask, pa.Table], None] | None = None,
    ) -> pa.Table:
        """Runs one micro-batch, given as tables by stream name, and returns its results.

        Derived streams advance by `ticks`: no later batch has a combination whose newest row is older. `deliver`
        receives the results before the batch is committed; if it raises an error, the batch is not committed.
        """
        if self.is_broken:
            raise HostError(
                "the query has ended: a batch failed half-way",
                hint="start it again; with a checkpoint it continues after the last committed batch",
            )
        _refuse_misfits(self.queries, rows)
        batch = _LocalBatch(self, rows, ticks, deliver)
        taken = take_batch(self.round, batch)
        _add(self.late, late_by_stream(self.queries, taken.reports))
        _add(self.ahead, ahead_by_stream(self.queries, taken.reports))
        _add(self.shed, shed_by_stream(self.queries, taken.reports))
        _add(self.undated, undated_by_stream(self.queries, taken.reports))
        self.task, self.reports = taken.task, taken.reports
        self.statistics = merged_statistics(taken.reports.values())
        self.seconds_adapting += taken.deciding
        self.is_broken = False
        return batch.answer

    @property
    def batch(self) -> int:
        """The number of the next batch."""
        return self.round.batch

    @property
    def clocks(self) -> Clocks:
        """The event time of each stream after the latest batch."""
        return self.round.clocks

    @property
    def manifest(self) -> Manifest | None:
        """The manifest of the latest batch."""
        return self.round.manifest

    @property
    def partitioning(self) -> Partitioning:
        """The grid and the slot of each group, after the latest batch or as requested for the next one."""
        return self.steering.table.table

    @property
    def history(self) -> list[dict[str, Any]]:
        """The records of this run, oldest first, as in the history of a handle."""
        return [record.to_json() for record in self._records]

    def note(self, records: list[Record]) -> None:
        """Adds records to the history."""
        self._records += records
        if self.store is not None:
            for record in records:
                self.store.note(record)

    def change_table(self, name: str, rows: pa.Table) -> None:
        """Replaces the rows of a table from the next batch on; right after a restart, from the batch after it."""
        if name in self.table_versions.fixed:
            raise BatchError(
                f"table '{name}' cannot change: the query has groups or waits for the watermark",
                hint="start a new query with an empty checkpoint to use the new rows",
            )
        self._offer(name, rows)

    def _offer(self, name: str, rows: pa.Table) -> None:
        graph = self.queries.graph
        if name not in graph.tables:
            raise BatchError(
                f"the query reads no table '{name}'", hint=f"its tables are {', '.join(graph.tables) or 'none'}"
            )
        wanted = read_columns(graph, name)
        if missing := [column for column in wanted if column not in rows.column_names]:
            raise BatchError(
                f"table '{name}' has no column '{missing[0]}'",
                detail=f"it has {', '.join(rows.column_names) or 'none'}",
                hint="give the table the columns it was registered with",
            )
        self.table_versions.offer(name, rows.select(list(wanted)))

    def _first_task(self) -> SlotTask:
        orders = Orders(self.steering.plans, self.steering.table.now)
        manifest, clocks = self.round.manifest, self.round.clocks
        return next_task(self.round.setup, orders, self.batch, manifest, clocks, None)

    # --- engines, which another host may keep elsewhere ---------------------------------------------------------------

    def is_ready(self, task: SlotTask) -> bool:
        """Returns True if every slot has an engine for the task's table and versions, so that none must be opened."""
        engines = [self.engines.get(slot) for slot in task.partitioning.working]
        return not task.is_moving and all(engine is not None and _goes_on(engine, task) for engine in engines)

    def open_slot(self, task: SlotTask, slot: int, held: list[RowSource], same_plans: bool = True) -> Opening:
        """Adapts the engine of a slot to the task's table and plans, or rebuilds it."""
        engine = self.engines.get(slot)
        if engine is not None and can_reach(engine, task, slot):
            refresh(engine, task, slot, self.table_versions.read_file)
        sources = held if self.store is None else list(durable_sources(task, self.store, slot))
        if engine is not None and _goes_on(engine, task):
            taken = follow(engine, task, slot, sources) if task.is_moving else {}
            if taken is not None:
                return Opening({} if same_plans else bring_to(engine, task, slot), was_hot=True, taken=taken)
        self.engines[slot] = engine = make_engine(task, slot)
        return Opening(taken=rebuild(engine, task, slot, sources, self.table_versions.read_file))

    def keep_slots(self, task: SlotTask) -> None:
        """Keeps the engines until the next batch; called after all slots have stepped."""


class _LocalBatch:
    """One batch of the in-process host, as the round runs it."""

    def __init__(
        self,
        host: LocalHost,
        rows: Mapping[str, pa.Table],
        ticks: Mapping[str, int],
        deliver: Callable[[SlotTask, pa.Table], None] | None,
    ) -> None:
        self._host, self._rows, self._ticks, self._deliver = host, rows, ticks, deliver
        self._queries = host.queries
        self._layout = wire_layout(host.queries, host.partitioning)
        self._diverted: pa.Table | None = None
        self.now, self.announce, self.note = host.now, host.announce, host.note
        self.answer: pa.Table

    def arrivals(self, batch: int) -> Arrivals:
        return Arrivals(self._host.table_versions.in_force(batch) if self._host.table_versions.tables else {})

    def run(self, task: SlotTask) -> SlotReports:
        """Runs all stages in all slots and delivers the results."""
        host, working = self._host, task.partitioning.working
        found = self._read(task)
        task, arrived = informed(task, found.intake), in_order(self._queries, self._layout, found.rows)
        self._diverted = found.diverted
        if host.manifest is None and task.partitioning != host.task.partitioning:
            # Before the first batch there are no rows to move; each new engine gets its share of the results.
            host.engines.clear()
        # Before any slot steps: without a checkpoint, slots take rows from each other's engines.
        held = _held(host, task)
        same_plans = task.plans == host.task.plans
        host.is_broken = True
        for slot in host.engines.keys() - set(working):
            del host.engines[slot]
        opened = dict.fromkeys(working, Opening(was_hot=True))
        if not (same_plans and host.is_ready(task)):
            each = host.threads.map(lambda slot: host.open_slot(task, slot, held, same_plans), working)
            opened = dict(zip(working, each, strict=True))
        opened = {
            slot: replace(each, intake=found.intake if slot == working[0] else found.intake.times)
            for slot, each in opened.items()
        }
        stages: dict[int, list[SlotReport]] = {slot: [] for slot in working}
        answers: dict[str, list[pa.RecordBatch]] = {}
        for stage in range(self._queries.stages):
            finished = self._stage(task.at(stage), arrived, opened, stages)
            arrived = self._derived(finished)
            for name, results in finished.items():
                answers.setdefault(name, []).extend(each.rows for each in results)
            opened = dict.fromkeys(working, Opening(was_hot=True))
        host.keep_slots(task.at(self._queries.stages - 1))
        idle = {slot: idle_report(task, slot) for slot in range(task.partitioning.slots)}
        counts = {name: sum(batch.num_rows for batch in batches) for name, batches in answers.items()}
        reports = with_results({**idle, **{slot: whole(several) for slot, several in stages.items()}}, counts)
        self.answer = ResultLayout(self._queries).join(answers)
        if self._deliver is not None:
            self._deliver(task, self.answer)
        return reports

    def divert(self, task: SlotTask, reports: SlotReports) -> None:
        """Keeps the rows that are late or ahead, if a layout was given."""
        layout = self._host.diverted
        if layout is not None:
            self._host.diverted_rows = layout.together([] if self._diverted is None else [self._diverted])

    def commit(self, manifest: Manifest) -> None:
        if self._host.store is not None:
            self._host.store.commit(manifest)

    def collect(self, kept: tuple[Manifest, ...]) -> None:
        if self._host.store is not None:
            self._host.store.collect(kept)

    def facts(self, batch: BatchFacts) -> BatchFacts:
        return replace(batch, cores=CORES)

    def _read(self, task: SlotTask) -> Arrived:
        """Admits the rows and ticks of the batch."""
        host = self._host
        ingest = Ingest(task, host.diverted, host.prefilter.keys(task.versions))
        rows = host.threads.map(ingest.take, self._rows, self._rows.values())
        return merged([*rows, *map(ingest.tick, self._ticks, self._ticks.values())])

    def _stage(
        self,
        task: SlotTask,
        arrived: Mapping[str, RelationBatch],
        opened: Mapping[int, Opening],
        reports: dict[int, list[SlotReport]],
    ) -> dict[str, list[Results]]:
        """Runs one stage in all slots; returns the finished results of each query."""
        host, table = self._host, task.partitioning
        cells = cells_of(table, arrived)

        def step_slot(slot: int) -> tuple[list[tuple[str, pa.RecordBatch]], SlotReport]:
            mine = part(table, arrived, cells, slot)
            return drain(advance(host.engines[slot], task, slot, mine, host.store, opened[slot]))

        found: list[tuple[str, pa.RecordBatch]] = []
        for slot, (results, report) in zip(opened, host.threads.map(step_slot, opened), strict=True):
            reports[slot].append(report)
            found += results
        with functions_named(self._queries.graph, task.batch):
            return finished(self._queries, table, found)

    def _derived(self, found: Mapping[str, list[Results]]) -> dict[str, RelationBatch]:
        """Returns the results of a stage as rows of the relations that read them."""
        derived: dict[str, RelationBatch] = {}
        for name, several in found.items():
            for relation in self._queries.readers(name):
                rows = [
                    result_batch(relation, self._layout, each.rows, each.times)
                    for each in several
                    if each.times is not None
                ]
                known = derived.get(relation.name, self._layout.empty(relation.name))
                derived[relation.name] = joined([known, *rows])
        return derived


def _held(host: LocalHost, task: SlotTask) -> list[RowSource]:
    """Returns the rows of all engines if groups move and no checkpoint has the rows."""
    working = task.partitioning.working
    is_changing = any(
        not (_goes_on(engine, task) or (slot in working and can_reach(engine, task, slot)))
        for slot, engine in host.engines.items()
    )
    if host.store is not None or not (task.is_moving or is_changing):
        return []
    tables = task.partitionings[-1:] or (task.partitioning,)
    exported = {slot: engine.export() for slot, engine in host.engines.items()}
    return [RowSource(slot, tables, partial(_some, rows)) for slot, rows in exported.items()]


def _goes_on(engine: Engine, task: SlotTask) -> bool:
    """Returns True if an engine has the task's tables and its states are worth keeping."""
    return engine.versions == task.versions and not engine.is_wasteful


def _add(totals: dict[str, int], counts: Mapping[str, int]) -> None:
    for stream, count in counts.items():
        totals[stream] += count


def _some(rows: Rows, relations: Collection[str]) -> Rows:
    return {name: batch for name, batch in rows.items() if name in relations}


def _refuse_missing_tables(versions: TableVersions) -> None:
    if versions.lacking:
        raise BatchError(f"table '{versions.lacking[0]}' has no rows", hint="give its rows under 'tables'")


def _refuse_misfits(queries: QuerySet, rows: Mapping[str, pa.Table]) -> None:
    """Refuses a batch with streams that the queries do not read, or without columns that they read."""
    streams = queries.streams
    if unknown := sorted(set(rows) - set(streams)):
        raise BatchError(
            f"the batch has rows of '{unknown[0]}', which the query does not read",
            hint=f"give tables under the names of its streams: {', '.join(streams)}",
        )
    for stream, read in columns_to_read(queries).items():
        found = rows[stream].column_names if stream in rows else read
        if missing := [name for name in read if name not in found]:
            raise BatchError(
                f"the batch has no column '{missing[0]}' of stream '{stream}'",
                detail=f"it has {', '.join(found) or 'none'}",
                hint="give every stream the columns it was registered with",
            )
