"""One engine step of one slot; every host runs this code.

A step needs the admitted rows (`run.ingest`) and a `SlotTask`: a small immutable value that is sent to the worker. The
step advances the engine, and writes the rows to a file together with the slot's report. A task may be run again: it
starts from the state after the previous batch. If that state is not available, it is rebuilt from the base rows that
the last manifest lists.

If queries read the results of others, a batch has several stages: the rows of streams are the input of the first, and
the results of one stage for other queries are the input of the next. Each stage is a separate step, with the floors
from before the batch; by the invariant of the engine, this division does not change any result. A grouped query answers
in the stage in which all its rows are present.

Each slot has its own plan for each query. A slot that runs another plan than the task's migrates in place, before the
step. A slot that is rebuilt starts with the task's plan, and has nothing to migrate. Invariant: a migration needs
nothing durable; after any crash, the restart has a plan and the rows.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter, thread_time
from types import MappingProxyType
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anabranch.engine.batch import RelationBatch, joined
from anabranch.engine.engine import Engine
from anabranch.engine.expiry import watermarks
from anabranch.engine.kernels import Int64Array
from anabranch.engine.ownership import Ownership, cells_needed, first_cells, own_cells, owner_test
from anabranch.engine.query_engine import QueryEngine
from anabranch.engine.state.arena import Arena
from anabranch.errors import BundleError, MigrationError
from anabranch.migrate.strategies.registry import strategy_named
from anabranch.plan.execution import DEFAULT_EXECUTION, ExecutionModel
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.query_set import Plans, QuerySet
from anabranch.plan.sharing import SHARING, shares
from anabranch.plan.slots import SlotPlan, SlotPlans
from anabranch.run.clock import ClockRule
from anabranch.run.counting import count_keys
from anabranch.run.functions import functions_named
from anabranch.run.manifest import RowFile
from anabranch.run.profiles import take_profiles
from anabranch.run.side_output import Bounds
from anabranch.run.store import Store, rows_name
from anabranch.run.tables import can_follow
from anabranch.run.wire import wire_layout
from anabranch.stats.intake import NOTHING_READ, Intake
from anabranch.stats.report import PlanChange, QueryReport, RowsWritten, SlotReport
from anabranch.stats.step import StepStatistics


@dataclass(frozen=True)
class SlotTask:
    """A step of all slots of a set of queries: their plans and the state it starts from."""

    queries: QuerySet
    plans: SlotPlans
    partitioning: Partitioning
    batch: int
    attempt: str
    """The name of this attempt at the batch; it is part of the names of its files and its hot state."""
    after: str | None
    """The attempt that left the state to start from; None at the first batch."""
    floors: Mapping[str, int]
    """The floor of each relation before the batch."""
    rule: ClockRule | None = None
    """The rule by which the batch advances the clocks, if slots must know it while they step: for grouped queries, and
    if rows are buffered until the watermark.
    """
    floors_after: Mapping[str, int] | None = None
    """The floors after the batch; a slot computes them by the rule once it has the event times of all readers."""
    files: tuple[RowFile, ...] = ()
    partitionings: tuple[Partitioning, ...] = ()
    """The tables since the oldest of the files was written, in the order in which they took effect."""
    execution: ExecutionModel = DEFAULT_EXECUTION
    compacting: frozenset[int] = frozenset()
    """The slots that write all their live rows with this batch, so that older files can be removed."""
    counts_cells: bool = False
    """True if slots report their rows by cell."""
    kept: float = 1.0
    """The share of keys whose rows are kept; the others are shed."""
    ceilings: Mapping[str, int] = field(default_factory=dict)
    """The largest admitted event time, by relation, where there is one."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """The version of each table of the queries that applies in this batch."""

    @property
    def bounds(self) -> Bounds:
        """The admitted event times."""
        return Bounds(self.floors, self.ceilings)

    stage: int = 0
    since: Mapping[str, int] = field(default_factory=dict)
    """The event time from which each query that was added to the running set answers."""
    until: Mapping[str, int] = field(default_factory=dict)
    """The event time at which the answers of a query end because another run takes over."""
    complete: Mapping[str, int] = field(default_factory=dict)
    """The event times of completeness, as in the manifest."""

    def at(self, stage: int) -> SlotTask:
        """Returns the task of another stage of the batch."""
        return self if stage == self.stage else replace(self, stage=stage)

    @property
    def is_last(self) -> bool:
        """True for the last stage of the batch."""
        return self.stage == self.queries.stages - 1

    @property
    def answered_before(self) -> int:
        """The lowest watermark of all queries before the batch."""
        return min(self.floors.values())

    @property
    def answered(self) -> dict[str, int]:
        """The watermark of each query before the stage: boundaries below it have been answered."""
        answered = watermarks(self.queries, self.floors, self.execution)
        if self.stage and self.floors_after is not None:
            after = watermarks(self.queries, self.floors_after, self.execution)
            answered |= {name: after[name] for name, level in self.queries.levels.items() if level < self.stage}
        return answered

    @property
    def watermarks(self) -> dict[str, int] | None:
        """The watermark after the batch of each query that answers in this stage, if known."""
        if self.floors_after is None:
            return None
        after = watermarks(self.queries, self.floors_after, self.execution)
        return {name: after[name] for name, level in self.queries.levels.items() if level == self.stage}

    @property
    def is_moving(self) -> bool:
        """True if partition groups move between slots with this batch."""
        return bool(self.partitionings) and self.partitionings[-1] != self.partitioning

    @property
    def tables(self) -> tuple[Partitioning, ...]:
        """The tables since the oldest of the files was written, with the task's own as the last."""
        if self.partitionings and not self.is_moving:
            return self.partitionings
        return (*self.partitionings, self.partitioning)

    def of_slot(self, slot: int) -> dict[str, SlotPlan]:
        """Returns the plan of each query in a slot."""
        return {name: plans[slot] for name, plans in self.plans.items()}

    def rows_name(self, slot: int, stage: int | None = None) -> str:
        """Returns the name of the file that the slot writes in this stage, or in another."""
        return rows_name(self.batch, slot, self.attempt, self.stage if stage is None else stage)

    def merged_name(self, slot: int) -> str:
        """Returns the name of the report on the groups that the slot merges after this stage."""
        return self.rows_name(slot).replace(".arrow", "-merged.arrow")

    def is_compacting(self, slot: int) -> bool:
        """True if the file of this stage has all live rows of the slot."""
        return self.is_last and slot in self.compacting


Found = TypeVar("Found")
Returned = TypeVar("Returned")
UNCHANGED = PlanChange()


@dataclass(frozen=True)
class Opening:
    """The engine and the rows of a step, and how the host obtained them."""

    changes: Mapping[str, PlanChange] = field(default_factory=dict)
    """Plan changes made just before the step, by query."""
    was_hot: bool = False
    intake: Intake = NOTHING_READ
    """The slot's part of the readers' counts."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    cpu: float = 0.0
    """The CPU seconds of opening, of one core."""
    taken: Mapping[str, RelationBatch] = field(default_factory=dict)
    """Rows that the slot took over from others along with their partition groups; its file of the batch keeps them."""


NOTHING_OPENED = Opening()
NOTHING_FINISHED: Mapping[str, int] = MappingProxyType({})


def make_engine(task: SlotTask, slot: int, arena: Arena | None = None) -> Engine:
    """Creates a new engine of the slot, with the task's plans."""
    return Engine(
        task.queries,
        Plans({name: wanted.plan for name, wanted in task.of_slot(slot).items()}),
        arena=arena,
        codes=wire_layout(task.queries, task.partitioning).codes,
        owns=owners(task, slot),
        execution=task.execution,
        since=task.since,
    )


def owners(task: SlotTask, slot: int) -> dict[str, Ownership | None]:
    """Returns the ownership test of each query, which assigns a combination to one slot."""
    return {
        member.name: owner_test(task.partitioning, slot, member.query.graph.names) for member in task.queries.members
    }


def can_reach(engine: Engine, task: SlotTask, slot: int) -> bool:
    """Returns True if the engine need not be rebuilt.

    Its tables must be those of the task or earlier versions of them, its states worth keeping, and each query must have
    the task's plan or be able to change to it.
    """
    plans = task.of_slot(slot)
    return (
        not engine.is_wasteful
        and (engine.versions == task.versions or _follows_tables(engine, task))
        and all(engine.engines[name].can_reach(wanted.plan) for name, wanted in plans.items())
    )


def _follows_tables(engine: Engine, task: SlotTask) -> bool:
    """Whether the task's tables are later versions of those of the engine, which can take them in place.

    A slot whose groups change is rebuilt.
    """
    return engine.follows_tables and not task.is_moving and can_follow(engine.versions, task.versions)


def bring_to(engine: Engine, task: SlotTask, slot: int) -> dict[str, PlanChange]:
    """Changes each query to the task's plan, or starts its migration; returns the changes.

    An engine that refuses a plan keeps its current plan.
    """
    changes: dict[str, PlanChange] = {}
    sharing: dict[str, SlotPlan] = {}
    for name, wanted in task.of_slot(slot).items():
        mine = engine.engines[name].plan
        if mine != wanted.plan and (shares(mine) or shares(wanted.plan)):
            sharing[name] = wanted
        else:
            changes[name] = _bring_to(engine, name, wanted)
    return changes | _bring_together(engine, sharing)


def _bring_together(engine: Engine, wanted: Mapping[str, SlotPlan]) -> dict[str, PlanChange]:
    """Changes the plans of queries that begin or stop sharing joins, all of them or none."""
    if not wanted:
        return {}
    for name in wanted:
        if engine.engines[name].is_migrating:
            engine.abort_migration(name)
    strategy = strategy_named(SHARING)
    try:
        done = engine.change_plans({name: each.plan for name, each in wanted.items()}, strategy)
    except (MigrationError, BundleError) as error:
        return dict.fromkeys(wanted, PlanChange(refused=error.message))
    return {name: PlanChange(migrated) for name, migrated in done.items()}


def _bring_to(engine: Engine, query: str, wanted: SlotPlan) -> PlanChange:
    mine = engine.engines[query]
    if mine.plan != wanted.plan and mine.is_migrating:
        # A change made box by box may leave a plan that is not the one to return to.
        engine.abort_migration(query)
    if mine.plan == wanted.plan:
        return PlanChange()
    try:
        return PlanChange(engine.migrate(wanted.plan, strategy_named(wanted.strategy), query))
    except MigrationError as error:
        return PlanChange(refused=error.message)


def advance(
    engine: Engine,
    task: SlotTask,
    slot: int,
    admitted: dict[str, RelationBatch],
    store: Store | None,
    opening: Opening = NOTHING_OPENED,
    finished: Mapping[str, int] = NOTHING_FINISHED,
) -> Generator[tuple[str, pa.RecordBatch], None, SlotReport]:
    """Yields the results of one step, each batch with its query; for a grouped query, parts.

    At the end the rows are durable, along with the report that it returns. `finished` holds the number of results of
    each query that the consumer of the batches has produced by then.
    """
    started, cpu = perf_counter(), thread_time()
    rows = {name: int(first_copies(task.partitioning, slot, name, batch).sum()) for name, batch in admitted.items()}
    admitting = perf_counter() - started
    engine.answer_until(task.until)
    with functions_named(task.queries.graph, task.batch):
        for query, batch in engine.step(admitted, task.floors, task.watermarks):
            if batch.num_rows:
                yield query, batch
    # An export may include rows of groups that have left; no later table needs them, so they do not count.
    kept = engine.export() if task.is_compacting(slot) else _both(admitted, opening.taken)
    statistics, wanted = engine.statistics(), task.of_slot(slot)
    held, left = _held(task, slot, engine) if task.counts_cells else (None, 0.0)
    reporting = thread_time()
    queries = {
        name: _query_report(
            each, wanted[name], statistics.queries[name], opening.changes.get(name, UNCHANGED), task.is_last
        )
        for name, each in engine.engines.items()
    }
    has_looked = any(each.profiles is not None for each in queries.values())
    looking = {"look": thread_time() - reporting} if has_looked else {}
    report = SlotReport(
        queries=queries,
        statistics=statistics.total,
        rows=rows,
        intake=opening.intake,
        results=dict(finished),
        seconds={**opening.seconds, "admit": admitting, **looking},
        was_hot=opening.was_hot,
        files=() if store is None else (_written(kept, task.stage),),
        cpu=opening.cpu + thread_time() - cpu,
        taken=sum(len(batch) for batch in opening.taken.values()),
        cells=_cells(task, slot, admitted) if task.counts_cells else None,
        held=held,
        left=left,
        keys=count_keys(task.partitioning, slot, admitted) if task.counts_cells else None,
    )
    if store is not None:
        store.write_rows(task.rows_name(slot), wire_layout(task.queries, task.partitioning).join(kept), report)
    return report


def _cells(task: SlotTask, slot: int, admitted: Mapping[str, RelationBatch]) -> dict[str, tuple[int, ...]]:
    """Returns the number of rows by relation and cell; a row that went to several slots counts in the first of them."""
    table = task.partitioning
    counts = {
        name: np.bincount(own_cells(table, name, batch), minlength=table.cells(name))
        for name, batch in admitted.items()
    }
    return {name: _first(table, slot, name, cells) for name, cells in counts.items()}


def _held(task: SlotTask, slot: int, engine: Engine) -> tuple[dict[str, tuple[int, ...]], float]:
    """Returns the number of base rows in their windows by relation and cell, and the share of expired rows, which do
    not count.

    Reads only the keys of rows, so that it costs little compared to a step; splitting heavy keys needs whole rows.
    """
    table = task.partitioning
    found, all_rows, left = dict[str, tuple[int, ...]](), 0, 0
    for name, state in engine.bases.items():
        rows = state.export() if table.heavy else state.keys()
        cells = np.bincount(own_cells(table, name, rows), minlength=table.cells(name))
        all_rows += len(rows)
        left += int(cells[~cells_needed(table, name)[slot]].sum())
        found[name] = _first(table, slot, name, cells)
    return found, left / max(all_rows, 1)


def _first(table: Partitioning, slot: int, name: str, cells: Int64Array) -> tuple[int, ...]:
    """Returns counts by cell, without the cells whose first copy is in another slot."""
    return tuple(np.where(first_cells(table, name, slot), cells, 0).tolist())


def idle_report(task: SlotTask, slot: int) -> SlotReport:
    """Returns the report of a slot without partition groups: no work, and the task's plans."""
    return SlotReport(queries={name: QueryReport(wanted.plan) for name, wanted in task.of_slot(slot).items()})


def _both(admitted: dict[str, RelationBatch], taken: Mapping[str, RelationBatch]) -> dict[str, RelationBatch]:
    if not taken:
        return admitted
    names = {**admitted, **taken}
    return {name: joined([rows[name] for rows in (admitted, taken) if name in rows]) for name in names}


def _written(rows: Mapping[str, RelationBatch], stage: int) -> RowsWritten:
    newest = {name: int(batch.times.max()) for name, batch in rows.items() if len(batch)}
    return RowsWritten(sum(len(batch) for batch in rows.values()), newest, stage)


def _query_report(
    engine: QueryEngine, wanted: SlotPlan, statistics: StepStatistics, change: PlanChange, is_last: bool
) -> QueryReport:
    is_asked = wanted.learns and not engine.is_migrating and is_last and not engine.query.graph.tables
    profiles = tuple(take_profiles(engine)) if is_asked else None
    return QueryReport(engine.plan, engine.is_migrating, statistics, change, profiles)


def drain(step: Generator[Found, None, Returned]) -> tuple[list[Found], Returned]:
    """Collects the items that a step yields, and its report."""
    results = []
    while True:
        try:
            results.append(next(step))
        except StopIteration as end:
            return results, end.value


def first_copies(partitioning: Partitioning, slot: int, name: str, rows: RelationBatch) -> NDArray[np.bool_]:
    """Returns True for rows that this slot counts: a row counts in the first of the slots that it was sent to."""
    if partitioning.is_partition or not len(rows):
        return np.ones(len(rows), dtype=np.bool_)
    first: NDArray[np.bool_] = first_cells(partitioning, name, slot).take(own_cells(partitioning, name, rows))
    return first
