"""One engine step of one slot, the same on every host.

A `SlotTask` is all that a step needs beside the rows: a small immutable value that travels to the worker. The step
admits the rows (late ones are counted and dropped), advances the engine, and keeps what the slot took in as a file of
base rows that carries the slot's report. A task may be run again: it starts from the state after the batch before,
and if that is not at hand it is rebuilt from the base rows that the last manifest lists.

Each slot has a plan of its own. Where a slot is found at work with another plan than the task names, it migrates in
place, before the step; where it is rebuilt, it comes up with the plan the task names and has nothing to migrate. So a
migration needs nothing durable: whatever crashes, the restart has a plan and the rows.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from anabranch.engine.batch import RelationBatch, joined
from anabranch.engine.engine import Engine, expiry
from anabranch.engine.ownership import needed_in, owner_test
from anabranch.engine.parallel_track import ParallelTrack
from anabranch.engine.shared import SharedEngine
from anabranch.engine.state.arena import Arena
from anabranch.errors import HostError, MigrationError
from anabranch.host.profiles import take_profiles
from anabranch.host.store import RowFile, Store, rows_name
from anabranch.host.wire import wire_layout
from anabranch.plan.bundle import Bundle, BundlePlan
from anabranch.plan.difference import Strategy
from anabranch.plan.execution import DEFAULT_EXECUTION, ExecutionModel
from anabranch.plan.mesh import Plan
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.query import Query
from anabranch.stats.step import StepStatistics
from anabranch.window import FOREVER


@dataclass(frozen=True)
class SlotPlan:
    """The plan a slot is to run, and how it comes to it where it still runs another."""

    plan: Plan
    strategy: Strategy = "moving-state"
    learns: bool = False
    """After the step the slot reports what its operators do to its youngest rows, for the search of a mesh."""


@dataclass(frozen=True)
class SlotTask:
    """A step of all slots of a query: their plans and the state it starts from."""

    query: Query
    plans: tuple[SlotPlan, ...]
    """By slot; of a bundle, those of one query after those of another."""
    partitioning: Partitioning
    batch: int
    attempt: str
    """This attempt at the batch; its files and its hot state bear the name."""
    after: str | None
    """The attempt that left the state to start from; None at the first batch."""
    floors: Mapping[str, int]
    """By relation, as of before the batch."""
    answered_before: int
    """The watermark before the batch: boundaries below it have been answered."""
    watermark: int | None
    """The watermark after the batch; needed during the step by grouped queries and where rows wait for it."""
    files: tuple[RowFile, ...] = ()
    partitionings: tuple[Partitioning, ...] = ()
    execution: ExecutionModel = DEFAULT_EXECUTION
    compacting: frozenset[int] = frozenset()
    """The slots that write all their live rows this time, so that older files can go."""

    @property
    def plan(self) -> Plan | BundlePlan:
        """The plan that most slots have."""
        slots = self.partitioning.slots
        most = [most_frequent(self.plans[start : start + slots]) for start in range(0, len(self.plans), slots)]
        if isinstance(self.query, Bundle):
            return BundlePlan({m.name: plan for m, plan in zip(self.query.members, most, strict=True)})
        return most[0]

    def by_query(self, slot: int) -> dict[str, SlotPlan]:
        """The plans of a slot of a bundle."""
        assert isinstance(self.query, Bundle)
        mine = self.plans[slot :: self.partitioning.slots]
        return {member.name: plan for member, plan in zip(self.query.members, mine, strict=True)}

    def rows_name(self, slot: int) -> str:
        """The file that the slot leaves."""
        return rows_name(self.batch, slot, self.attempt)


def most_frequent(plans: Sequence[SlotPlan]) -> Plan:
    """The plan that most of the slots have."""
    several = [each.plan for each in plans]
    return max(several, key=several.count)


SlotEngine: TypeAlias = Engine | SharedEngine


def make_engine(task: SlotTask, slot: int, arena: Arena | None = None) -> SlotEngine:
    """A fresh engine of the slot, with the task's plan."""
    query, codes = task.query, wire_layout(task.query, task.partitioning).codes
    if isinstance(query, Bundle):
        owners = {each.name: owner_test(task.partitioning, slot, each.query.graph.names) for each in query.members}
        plan = BundlePlan({name: wanted.plan for name, wanted in task.by_query(slot).items()})
        return SharedEngine(query, plan, arena=arena, codes=codes, owns=owners)
    owns = owner_test(task.partitioning, slot, query.graph.names)
    return Engine(query, task.plans[slot].plan, arena=arena, codes=codes, owns=owns, execution=task.execution)


def can_reach(engine: SlotEngine, task: SlotTask, slot: int) -> bool:
    """True when the engine has the task's plan, or can change to it without being rebuilt."""
    if isinstance(engine, SharedEngine):
        return all(_can_reach(engine.engines[name], wanted) for name, wanted in task.by_query(slot).items())
    return _can_reach(engine, task.plans[slot])


def _can_reach(engine: Engine, wanted: SlotPlan) -> bool:
    track = engine.track
    return engine.plan == wanted.plan or not isinstance(track, ParallelTrack) or track.leaving == wanted.plan


def bring_to(engine: SlotEngine, task: SlotTask, slot: int) -> dict[str, Any]:
    """The engine has, or is on its way to, the task's plan; what was done for it is for the slot's report.

    A plan that the engine refuses is reported as well, and it goes on with the one it has.
    """
    if isinstance(engine, SharedEngine):
        return {"queries": {n: _bring_to(engine.engines[n], wanted) for n, wanted in task.by_query(slot).items()}}
    return _bring_to(engine, task.plans[slot])


def _bring_to(engine: Engine, wanted: SlotPlan) -> dict[str, Any]:
    if engine.plan != wanted.plan and engine.is_migrating:
        # Where the change is made box by box, the plan that it leaves may not be the one to go back to.
        engine.abort_migration()
    if engine.plan == wanted.plan:
        return {}
    try:
        return {"migrated": asdict(engine.migrate(wanted.plan, wanted.strategy))}
    except MigrationError as error:
        return {"refused": error.message}


def rebuild(engine: SlotEngine, task: SlotTask, slot: int, store: Store) -> None:
    """Brings a fresh engine to the state after the batch before the task's, from durable base rows."""
    layout = wire_layout(task.query, task.partitioning)
    parts: dict[str, list[RelationBatch]] = {name: [] for name in task.query.graph.names}
    for file in task.files:
        written_by = task.partitionings[file.partitioning]
        if written_by == task.partitioning and file.slot != slot:
            continue
        batches = wire_layout(task.query, written_by).split(store.read_rows(file.name))
        for name, batch in batches.items():
            if len(batch):
                mine = _alive(task, name, batch)
                if written_by != task.partitioning:
                    mine &= _moves_here(task.partitioning, slot, written_by, file.slot, name, batch)
                parts[name].append(batch.take(np.flatnonzero(mine)))
    rows = {name: joined(batches) if batches else layout.empty(name) for name, batches in parts.items()}
    engine.restore(rows, task.answered_before)


def advance(
    engine: SlotEngine,
    task: SlotTask,
    slot: int,
    arrived: Mapping[str, RelationBatch],
    store: Store | None,
    notes: Mapping[str, Any] | None = None,
) -> Generator[pa.RecordBatch, None, dict[str, Any]]:
    """Yields the results of one step; at its end the rows are durable, and with them the report it returns.

    `notes` is what the host adds to the report.
    """
    started = perf_counter()
    admitted: dict[str, RelationBatch] = {}
    counts: dict[str, dict[str, Any]] = {"rows": {}, "late": {}, "newest": {}}
    for name, batch in arrived.items():
        on_time = batch.times >= task.floors[name]
        late = None if on_time.all() else batch
        admitted[name] = batch if late is None else batch.take(np.flatnonzero(on_time))
        counts["rows"][name] = _first_copies(task.partitioning, slot, name, admitted[name])
        if late is not None:
            counts["late"][name] = _first_copies(task.partitioning, slot, name, late.take(np.flatnonzero(~on_time)))
        if len(batch):
            # Late rows too: a stream that brings nothing else is not silent.
            counts["newest"][name] = newest = int(batch.times.max())
            _refuse_beyond_all_windows(name, newest)
    admitting = perf_counter() - started
    yield from (batch for batch in engine.step(admitted, task.floors, task.watermark) if batch.num_rows)
    report: dict[str, Any] = {**(notes or {}), **counts}
    if isinstance(engine, SharedEngine):
        statistics, of_queries = engine.statistics()
        noted = report.pop("queries", {})
        report["queries"] = {
            name: {**noted.get(name, {}), **_account(engine.engines[name], wanted, of_queries[name])}
            for name, wanted in task.by_query(slot).items()
        }
        report |= {"statistics": statistics.to_json(), "plan": str(engine.plan), "migrating": engine.is_migrating}
    else:
        report |= _account(engine, task.plans[slot], engine.statistics())
    report["seconds"] = {**report.get("seconds", {}), "admit": admitting}
    if store is not None:
        kept = engine.export() if slot in task.compacting else admitted
        report["file"] = {
            "rows": sum(len(batch) for batch in kept.values()),
            "newest": {name: int(batch.times.max()) for name, batch in kept.items() if len(batch)},
        }
        table = wire_layout(task.query, task.partitioning).join(kept)
        store.write_rows(task.rows_name(slot), table, report)
    return report


def _refuse_beyond_all_windows(relation: str, time: int) -> None:
    """A range added to such a time would wrap, and the row meet nothing."""
    if time >= FOREVER:
        raise HostError(
            f"a row of relation '{relation}' has an event time that no window can be added to",
            detail=f"it lies {time:,} microseconds after 1970, which is beyond the year 148,000",
            hint="keep such rows out of the frame that is registered as the stream",
        )


def _account(engine: Engine, wanted: SlotPlan, statistics: StepStatistics) -> dict[str, Any]:
    """What a query's steering is told of the step of a slot."""
    told: dict[str, Any] = {"statistics": statistics.to_json()}
    if wanted.learns and not engine.is_migrating:
        told["profiles"] = [seen.to_json() for seen in take_profiles(engine)]
    return {**told, "plan": str(engine.plan), "migrating": engine.is_migrating}


def drain(step: Generator[pa.RecordBatch, None, dict[str, Any]]) -> tuple[list[pa.RecordBatch], dict[str, Any]]:
    """All results of a step, and its report."""
    results = []
    while True:
        try:
            results.append(next(step))
        except StopIteration as end:
            return results, end.value


def _alive(task: SlotTask, name: str, batch: RelationBatch) -> np.ndarray[Any, np.dtype[np.bool_]]:
    window = task.query.graph.relation(name).window.range
    deadline = batch.times + (FOREVER if window is None else window)
    alive: np.ndarray[Any, np.dtype[np.bool_]] = deadline >= expiry(task.query, task.floors, task.execution)[name]
    return alive


def _moves_here(
    partitioning: Partitioning, slot: int, before: Partitioning, written_in: int, name: str, batch: RelationBatch
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Rows of a file of another partitioning that this slot needs; of several copies, the first slot's counts."""
    copies = needed_in(before, name, batch.codes, len(batch))
    is_first = copies.argmax(axis=1) == written_in
    here: np.ndarray[Any, np.dtype[np.bool_]] = (
        is_first & needed_in(partitioning, name, batch.codes, len(batch))[:, slot]
    )
    return here


def _first_copies(partitioning: Partitioning, slot: int, name: str, batch: RelationBatch) -> int:
    """How many of the rows are counted here: each row once, in the first of the slots it was sent to."""
    if partitioning.is_partition or not len(batch):
        return len(batch)
    return int((needed_in(partitioning, name, batch.codes, len(batch)).argmax(axis=1) == slot).sum())
