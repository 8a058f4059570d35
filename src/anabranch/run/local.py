"""The in-process host: the whole product without Spark, for tests, experiments and notebooks.

Slots are engines in this process and step in parallel threads; kernels and gathers release the interpreter lock. With a
checkpoint the host keeps durable rows and manifests as the Spark host does, and can be restarted with another plan or
another number of slots.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from time import perf_counter, thread_time
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from anabranch.adapt.balancing import BY_HAND, BY_ITSELF, Balance
from anabranch.adapt.facts import BatchFacts
from anabranch.adapt.records import Record
from anabranch.adapt.rules import NO_RULES, ChangeRules
from anabranch.adapt.schedule import Scheduled
from anabranch.adapt.sharing import BY_HAND_ONLY, SharingRules
from anabranch.engine.batch import RelationBatch, joined
from anabranch.engine.engine import Engine
from anabranch.engine.evaluate.expression import evaluate_mask
from anabranch.engine.kernels import Int64Array
from anabranch.engine.ownership import own_cells, rows_for_slot
from anabranch.errors import BatchError, HostError
from anabranch.lang.expr import columns
from anabranch.plan.execution import DEFAULT_EXECUTION, ExecutionModel
from anabranch.plan.join_graph import Relation
from anabranch.plan.mesh import Plan
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.query import Query
from anabranch.plan.query_set import Plans, QuerySet, as_plans, as_set
from anabranch.plan.slots import Orders, SlotRange
from anabranch.run.clock import Clocks
from anabranch.run.commit import (
    ahead_by_stream,
    derived_relations,
    late_by_stream,
    moment,
    next_manifest,
    next_task,
    rows_by_stream,
)
from anabranch.run.functions import functions_named
from anabranch.run.keys import code_of
from anabranch.run.manifest import Manifest
from anabranch.run.rebuilding import Holding, Rows, durable_holdings, follow, rebuild
from anabranch.run.results import ResultLayout, Results, finished
from anabranch.run.rows import flat, relation_batch, result_batch, times
from anabranch.run.side_output import Bounds, SideOutputLayout, ceilings
from anabranch.run.slot import Opening, SlotTask, advance, bring_to, drain, idle_report, make_engine
from anabranch.run.store import Store
from anabranch.run.tables import TableVersions, read_columns
from anabranch.run.wire import WireLayout, wire_layout
from anabranch.run.work import Work
from anabranch.stats.report import SlotReport, SlotReports, merged_statistics, whole, with_results
from anabranch.stats.step import StepStatistics

NO_TICKS: Mapping[str, int] = MappingProxyType({})

CORES = os.cpu_count()


class LocalHost:
    """A running query, or a set of them; feed it one micro-batch at a time.

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
        idle_timeouts: Mapping[str, int | None] | None = None,
        max_ahead: Mapping[str, int] | None = None,
        diverted: SideOutputLayout | None = None,
        now: Callable[[], int] = lambda: 0,
        rules: ChangeRules | Mapping[str, ChangeRules] = NO_RULES,
        execution: ExecutionModel = DEFAULT_EXECUTION,
        moves: Iterable[Scheduled] = (),
        balance: Balance | None = None,
        traffic: Mapping[str, float] | None = None,
        tables: Mapping[str, pa.Table] | None = None,
        sharing: SharingRules = BY_HAND_ONLY,
        sample: Mapping[str, RelationBatch] | None = None,
    ) -> None:
        queries = as_set(query)
        by_query = dict.fromkeys(queries.names, rules) if isinstance(rules, ChangeRules) else rules
        several = SlotRange.fixed(slots) if isinstance(slots, int) else slots
        balance = balance or (BY_ITSELF if several.is_elastic else BY_HAND)
        work = Work(
            queries, as_plans(plan), several, by_query, execution, tuple(moves), balance, traffic or {}, sharing=sharing
        )
        work = replace(work, sample=sample or {}).carrying()
        self.queries = queries = work.queries
        self.idle_timeouts = idle_timeouts or {}
        self.max_ahead = max_ahead or {}
        self.diverted = diverted
        """How rows that are late or ahead look; None to count them only."""
        self.diverted_rows = None if diverted is None else diverted.together([])
        """The rows that the latest batch diverted."""
        self.now = now
        self.statistics = StepStatistics()
        self.reports: SlotReports = {}
        """What each slot said of the latest batch."""
        self.late: dict[str, int] = dict.fromkeys(self.queries.streams, 0)
        self.ahead: dict[str, int] = dict.fromkeys(self.queries.streams, 0)
        self._store = Store(checkpoint) if checkpoint is not None else None
        self._manifest: Manifest | None = None
        if self._store is not None:
            self._store.open(queries, work.execution)
            self._manifest = self._store.latest()
        manifest = self._manifest
        self._setup = work.setup
        self.batch = manifest.batch + 1 if manifest else 0
        self.clocks = manifest.clocks.resumed(now()) if manifest else Clocks.at_start(self.queries.streams, now())
        self._shelf = TableVersions(queries, self._store)
        for name, table in (tables or {}).items():
            self._offer(name, table)
        _refuse_missing_tables(self._shelf)
        work = replace(work, held=self._shelf.small())
        self.steering = work.steering(work.first_table(manifest.partitionings[-1] if manifest else None))
        self._records: list[Record] = []
        self.seconds_adapting = 0.0
        """Processor time of deciding so far, in this thread: searches that batches do not wait for are not in it."""
        self._orders = Orders(self.steering.plans, self.steering.table.now)
        self._began: float | None = None
        self._engines: dict[int, Engine] = {}
        self._versions: dict[str, str] = {}
        task = self._task(self.clocks, {})
        if not task.is_moving and not self._shelf.tables:
            # A restart with other slots takes rows over with its first batch, which also says what tables it meets.
            for slot in task.partitioning.working:
                self._open(task, slot, [])
        self._threads = ThreadPoolExecutor(several.most)
        self._is_broken = False
        if self._store is not None:
            self.steering.recall(self._store.history())

    def step(
        self,
        rows: Mapping[str, pa.Table],
        ticks: Mapping[str, int] = NO_TICKS,
        deliver: Callable[[SlotTask, pa.Table], None] | None = None,
    ) -> pa.Table:
        """Takes one micro-batch, tables by stream name, and returns the results it completes.

        Derived streams advance by `ticks`: no later batch brings a combination whose newest row is older. `deliver`
        gets the results before the batch is committed; a batch whose results it refuses is not.
        """
        if self._is_broken:
            raise HostError(
                "the query has ended: a batch failed half-way",
                hint="start it again; with a checkpoint it goes on after the last committed batch",
            )
        _refuse_misfits(self.queries, rows)
        earlier_step, self._began = self._began, perf_counter()
        expected = self.partitioning
        layout = wire_layout(self.queries, expected)
        present = [
            relation for relation in self.queries.graph.streamed if relation.stream in rows and not relation.is_result
        ]

        def read(relation: Relation) -> tuple[RelationBatch, Int64Array | None]:
            batch = relation_batch(relation, layout, rows[relation.stream])
            return batch, _cells(expected, relation.name, batch)

        reading = self._threads.map(read, present)
        now = self.now()
        limits = ceilings(self.queries.graph.relations, self.max_ahead, now)
        clocks = self._clocks_after(rows, limits, now, ticks)
        with functions_named(self.queries.graph, self.batch):
            arrived = {relation.name: found for relation, found in zip(present, reading, strict=True)}
        before, self._orders = self._orders, self._next_orders()
        if self._orders.table.grid != expected.grid:
            # Another grid, which is known only now.
            arrived = {name: (batch, _cells(self._orders.table, name, batch)) for name, (batch, _) in arrived.items()}
        if self._shelf.tables:
            self._versions = self._shelf.in_force(self.batch)
        if self._manifest is None and self._orders.table != before.table:
            # No batch has been taken yet, so there are no rows to take over; new engines own their part of the results.
            self._engines.clear()
        task = self._task(clocks, limits)
        working = task.partitioning.working
        # Before any slot steps: without a checkpoint, slots take rows over from each other's engines.
        held = self._held(task)
        same_plans = self._orders.plans == before.plans
        self._is_broken = True
        for slot in self._engines.keys() - set(working):
            del self._engines[slot]
        opened = dict.fromkeys(working, Opening(was_hot=True))
        if not (same_plans and self._is_ready(task)):
            each = self._threads.map(lambda slot: self._open(task, slot, held, same_plans), working)
            opened = dict(zip(working, each, strict=True))
        rejected = {
            relation.name: _timed(rows[relation.stream], relation) - len(arrived[relation.name][0])
            for relation in present
        }
        opened[working[0]] = replace(opened[working[0]], rejected_rows=rejected)
        stages: dict[int, list[SlotReport]] = {slot: [] for slot in working}
        answers: dict[str, list[pa.RecordBatch]] = {}
        for stage in range(self.queries.stages):
            found = self._stage(task.at(stage), arrived, opened, stages)
            arrived = self._derived(layout, found)
            for name, results in found.items():
                answers.setdefault(name, []).extend(each.rows for each in results)
            opened = dict.fromkeys(working, Opening(was_hot=True))
        idle = {slot: idle_report(task, slot) for slot in range(task.partitioning.slots)}
        finished = {name: sum(batch.num_rows for batch in batches) for name, batches in answers.items()}
        reports = with_results({**idle, **{slot: whole(several) for slot, several in stages.items()}}, finished)
        answer = ResultLayout(self.queries).join(answers)
        for stream, count in late_by_stream(self.queries, reports).items():
            self.late[stream] += count
        for stream, count in ahead_by_stream(self.queries, reports).items():
            self.ahead[stream] += count
        if self.diverted is not None:
            outside = [_diverted(relation, rows[relation.stream], self.diverted, task.bounds) for relation in present]
            self.diverted_rows = self.diverted.together(outside)
        self.reports, self.statistics = reports, merged_statistics(reports.values())
        if deliver is not None:
            deliver(task, answer)
        earlier, self.clocks = self.clocks, clocks
        self._commit(task, reports, clocks)
        started = thread_time()
        waiting = sum(rows_by_stream(self.queries, reports).values())
        facts = BatchFacts(
            self.batch,
            clocks.seconds_since(earlier),
            waiting,
            clocks.seconds_behind(self.now()),
            period=None if earlier_step is None else self._began - earlier_step,
            cores=CORES,
        )
        records = self.steering.after(facts, reports)
        self._note(records)
        self.seconds_adapting += thread_time() - started
        self.batch += 1
        self._is_broken = False
        return answer

    @property
    def plan(self) -> Plan | Plans:
        """The plan of the latest batch, or the one that most slots had; of named queries, those of each."""
        return self.steering.most_plans.unwrapped

    @property
    def history(self) -> list[dict[str, Any]]:
        """The records of this run, oldest first, in the form of a handle's history."""
        return [record.to_json() for record in self._records]

    def migrate(
        self,
        plan: Plan,
        strategy: str = "auto",
        slots: Iterable[int] | None = None,
        *,
        box_by_box: bool = False,
        query: str | None = None,
    ) -> None:
        """Changes the plan of all slots, or of some, with the next batch; refuses without any effect.

        Of queries that run together, `query` names the one whose plan is to change.
        """
        self.steering.of_query(query).migrate(plan, strategy, slots, box_by_box=box_by_box)

    def change_table(self, name: str, rows: pa.Table) -> None:
        """Gives a table other rows, from the next batch on (the one after it, right after a restart)."""
        if name in self._shelf.fixed:
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
        self._shelf.offer(name, rows.select(list(wanted)))

    def share(self, join: str, queries: Iterable[str] | None = None) -> None:
        """Lets queries share a join from the next batch on: those that are named, else all that can."""
        self.steering.share(join, queries)

    def unshare(self, queries: Iterable[str] | None = None) -> None:
        """Lets queries compute their shared joins themselves from the next batch on."""
        self.steering.unshare(queries)

    def _note(self, records: list[Record]) -> None:
        self._records += records
        if self._store is not None:
            for record in records:
                self._store.note(record)

    def _clocks_after(
        self, rows: Mapping[str, pa.Table], limits: Mapping[str, int], now: int, ticks: Mapping[str, int]
    ) -> Clocks:
        newest: dict[str, int | None] = dict.fromkeys(self.queries.streams)
        for relation in self.queries.graph.streamed:
            if relation.stream in rows and not relation.is_result:
                seen = times(flat(rows[relation.stream].column(relation.event_time)))
                seen = Bounds({}, limits).below(relation.name, seen)
                newest[relation.stream] = int(seen.max()) if len(seen) else None
        disorder = {each.stream: each.disorder for each in self.queries.graph.streamed if not each.is_result}
        derived = {relation.stream: ticks.get(relation.stream) for relation in derived_relations(self.queries).values()}
        return self.clocks.advance(newest, disorder, now, self.idle_timeouts, derived)

    def move(
        self, groups: Iterable[int], to: int, strategy: str = "moving-state", most_rows: int | None = None
    ) -> None:
        """Moves partition groups to a slot from the next batch on; refuses without any effect."""
        self.steering.table.move(groups, to, strategy, most_rows)

    def split(self, value: Any, over: int | Sequence[int] | None = None, key: str | None = None) -> None:
        """Splits a key value over several slots, from the next batch on; refuses without any effect.

        `over` names slots, or how many (all when None); `key` is an expression of the key, where there are several.
        """
        self.steering.table.split(*code_of(self.queries, value, key), over)

    def unite(self, value: Any, key: str | None = None) -> None:
        """Takes the split of a key value back, from the next batch on; refuses without any effect."""
        self.steering.table.unite(*code_of(self.queries, value, key))

    def scale(self, slots: int) -> None:
        """Measures the next batch and uses that many slots from the batch after it on."""
        self.steering.table.scale(slots)

    def rebalance(self) -> None:
        """Measures the next batch and moves groups with the batch after it, so that no slot holds the others back."""
        self.steering.table.rebalance()

    def spread(self, partitioning: Partitioning, strategy: str = "moving-state", most_rows: int | None = None) -> None:
        """Spreads the work by another grid or table over the same number of slots, from the next batch on."""
        self.steering.table.spread(partitioning, strategy, most_rows)

    @property
    def partitioning(self) -> Partitioning:
        """The grid and the table of the latest batch, or the one that it is to become."""
        return self.steering.table.table

    def _task(self, clocks_after: Clocks, limits: Mapping[str, int]) -> SlotTask:
        before = self._manifest, self.clocks
        return next_task(self._setup, self._orders, self.batch, *before, clocks_after, limits, self._versions)

    def _next_orders(self) -> Orders:
        started = thread_time()
        now = moment(self.queries, self.clocks, self._setup.execution)
        orders, refused = self.steering.next(self.batch, now)
        self._note(refused)
        self.seconds_adapting += thread_time() - started
        return orders

    def _held(self, task: SlotTask) -> list[Holding]:
        """The rows of all engines, where groups move and no checkpoint has the rows."""
        is_changing = any(not _goes_on(engine, task) for engine in self._engines.values())
        if self._store is not None or not (task.is_moving or is_changing):
            return []
        tables = task.partitionings[-1:] or (task.partitioning,)
        exported = {slot: engine.export() for slot, engine in self._engines.items()}
        return [Holding(slot, tables, partial(_some, rows)) for slot, rows in exported.items()]

    def _is_ready(self, task: SlotTask) -> bool:
        """Whether every slot has an engine that is at the task's table and versions, so that there is none to open."""
        engines = [self._engines.get(slot) for slot in task.partitioning.working]
        return not task.is_moving and all(engine is not None and _goes_on(engine, task) for engine in engines)

    def _open(self, task: SlotTask, slot: int, held: list[Holding], same_plans: bool = True) -> Opening:
        """Brings the engine of a slot to the task's table and plans."""
        engine = self._engines.get(slot)
        if engine is not None and _goes_on(engine, task):
            taken: Rows | None = {}
            if task.is_moving:
                taken = follow(engine, task, slot, self._holdings(task, slot, held))
            if taken is not None:
                return Opening({} if same_plans else bring_to(engine, task, slot), was_hot=True, taken=taken)
        self._engines[slot] = engine = make_engine(task, slot)
        return Opening(taken=rebuild(engine, task, slot, self._holdings(task, slot, held), self._shelf.read))

    def _holdings(self, task: SlotTask, slot: int, held: list[Holding]) -> Iterable[Holding]:
        return held if self._store is None else durable_holdings(task, self._store, slot)

    def _part(self, relation: str, batch: RelationBatch, cells: Int64Array | None, slot: int) -> RelationBatch:
        """The rows that a slot needs."""
        return batch if cells is None else batch.take(rows_for_slot(self._orders.table, relation, cells, slot))

    def _stage(
        self,
        task: SlotTask,
        arrived: Mapping[str, tuple[RelationBatch, Int64Array | None]],
        opened: Mapping[int, Opening],
        reports: dict[int, list[SlotReport]],
    ) -> dict[str, list[Results]]:
        """One stage of a batch in all slots; returns the finished results of each query."""

        def step_slot(slot: int) -> tuple[list[tuple[str, pa.RecordBatch]], SlotReport]:
            mine = {name: self._part(name, *batch, slot) for name, batch in arrived.items()}
            return drain(advance(self._engines[slot], task, slot, mine, self._store, opened[slot]))

        found: list[tuple[str, pa.RecordBatch]] = []
        for slot, (results, report) in zip(opened, self._threads.map(step_slot, opened), strict=True):
            reports[slot].append(report)
            found += results
        with functions_named(self.queries.graph, self.batch):
            return finished(self.queries, task.partitioning, found)

    def _derived(
        self, layout: WireLayout, found: Mapping[str, list[Results]]
    ) -> dict[str, tuple[RelationBatch, Int64Array | None]]:
        """The results of a stage as rows of the relations that read them, with their cells."""
        derived = {}
        for name, several in found.items():
            for relation in self.queries.readers(name):
                rows = [
                    result_batch(relation, layout, each.rows, each.times) for each in several if each.times is not None
                ]
                batch = joined([layout.empty(relation.name), *rows])
                derived[relation.name] = batch, _cells(self._orders.table, relation.name, batch)
        return derived

    def _commit(self, task: SlotTask, reports: SlotReports, clocks: Clocks) -> None:
        before, self._manifest = self._manifest, next_manifest(task, reports, clocks)
        if self._store is not None:
            self._store.commit(self._manifest)
            self._store.collect((self._manifest, before) if before else (self._manifest,))


def _goes_on(engine: Engine, task: SlotTask) -> bool:
    """Whether an engine can take the task: with its tables, and with states that are worth keeping."""
    return engine.versions == task.versions and not engine.is_wasteful


def _cells(table: Partitioning, relation: str, batch: RelationBatch) -> Int64Array | None:
    """The cells of the grid in which rows lie, where there are several slots."""
    return None if table.slots == 1 else own_cells(table, relation, batch)


def _timed(table: pa.Table, relation: Relation) -> int:
    """The rows of a stream that have an event time."""
    column = table.column(relation.event_time)
    return len(column) - int(column.null_count)


def _some(rows: Rows, relations: Collection[str]) -> Rows:
    return {name: batch for name, batch in rows.items() if name in relations}


def _refuse_missing_tables(shelf: TableVersions) -> None:
    if shelf.lacking:
        raise BatchError(f"table '{shelf.lacking[0]}' has no rows", hint="give its rows under 'tables'")


def _refuse_misfits(queries: QuerySet, rows: Mapping[str, pa.Table]) -> None:
    """Refuses a batch with streams that the queries do not read, or without columns that they read."""
    graph, streams = queries.graph, queries.streams
    if unknown := sorted(set(rows) - set(streams)):
        raise BatchError(
            f"the batch has rows of '{unknown[0]}', which the query does not read",
            hint=f"give tables under the names of its streams: {', '.join(streams)}",
        )
    for relation in graph.streamed:
        if relation.is_result or relation.stream not in rows:
            continue
        expressions = [key.expression(relation.name) for key in graph.keys_of([relation.name])]
        expressions += [relation.filter] if relation.filter is not None else []
        read = [relation.event_time, *relation.schema.names, *(c.name for e in expressions for c in columns(e))]
        read += [each.column for each in relation.classes]
        found = rows[relation.stream].column_names
        if missing := [name for name in read if name not in found]:
            raise BatchError(
                f"the batch has no column '{missing[0]}' of stream '{relation.stream}'",
                detail=f"it has {', '.join(found) or 'none'}",
                hint="give every stream the columns it was registered with",
            )


def _diverted(relation: Relation, table: pa.Table, layout: SideOutputLayout, bounds: Bounds) -> pa.Table:
    """The rows of a stream that one of its relations would have, were they not late or ahead."""
    timed = table.filter(table.column(relation.event_time).is_valid())
    outside = ~bounds.admitted(relation.name, times(flat(timed.column(relation.event_time))))
    rows = timed.filter(pa.array(outside))
    columns = {name: flat(rows.column(name)) for name in rows.column_names}
    if relation.filter is not None and rows.num_rows:
        passes = pa.array(evaluate_mask(relation.filter, lambda column: columns[column.name], rows.num_rows))
        columns = {name: values.filter(passes) for name, values in columns.items()}
    schema = layout.streams[relation.stream]
    whole = pa.StructArray.from_arrays([columns[field.name].cast(field.type) for field in schema], list(schema.names))
    return layout.table(relation.stream, relation.name, times(columns[relation.event_time]), whole, bounds)
