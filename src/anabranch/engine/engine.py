"""The engine of one slot: base states, and one query engine per query of a set, advanced one batch at a time.

Invariant: the multiset of all results of `step` depends only on the rows. It does not depend on batch boundaries, on
the plans, on which other queries share the base states, or on whether the engine was rebuilt from its base rows.

A step costs its new rows plus their matches. A batch that spans much more time than the windows is cut into slices by
time; by the invariant, this does not change the results.

The caller passes *floors*: for each relation the event time below which no more rows will be admitted. A row can be
dropped when its deadline is before the floors of all other relations, or when bands over event times put it out of
their reach. In a grouped query its deadline must also be before its own floor, so that pending groups can be recomputed
from the rows kept. Outer joins keep rows longer still (`expiry`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.engine.arrangement import Arrangement, Joins, parts_of, rows_of
from anabranch.engine.batch import Combinations, RelationBatch, joined
from anabranch.engine.counting import in_counting_order, still_counted
from anabranch.engine.execution import WatermarkBuffer, in_order
from anabranch.engine.expiry import early_leavers, expiry
from anabranch.engine.expiry import watermarks as watermarks_of
from anabranch.engine.kernels import BoolArray, Int64Array
from anabranch.engine.meter import Meter
from anabranch.engine.migration import MigrationStrategy
from anabranch.engine.operators.sides import Known
from anabranch.engine.ownership import Ownership
from anabranch.engine.query_engine import QueryEngine
from anabranch.engine.shared_join import SharedJoin
from anabranch.engine.slices import floors_after, in_time_order, slices
from anabranch.engine.state.arena import Arena, PartOfArena, ProcessArena
from anabranch.engine.state.base import BaseState
from anabranch.engine.tracks.make import plan_of
from anabranch.errors import InvariantBroken
from anabranch.lang.window import CountWindow, SessionWindow
from anabranch.plan.execution import DEFAULT_EXECUTION, ExecutionModel
from anabranch.plan.mesh import Plan
from anabranch.plan.pairwise import lifetimes
from anabranch.plan.query import Query
from anabranch.plan.query_set import ALONE, Plans, QuerySet, by_itself
from anabranch.stats.report import Migrated
from anabranch.stats.step import StepStatistics, labelled, merge

SHARED = "shared "
"""The name prefix of shared joins and their states in the statistics of the whole set."""
FEW = 16
"""The share of lost rows, one in this many, below which a slot keeps them until they expire. So at most this many rows
are copied for each row that leaves.
"""
WAITING = "waiting rows"
"""The name of buffered rows in statistics; no relation can have such a name."""


@dataclass(frozen=True)
class EngineStatistics:
    """The work of the engine since the last call, in total and by query; a query's part includes its base states."""

    total: StepStatistics
    queries: Mapping[str, StepStatistics]


class Engine:
    """The plans of a set of queries over the base states that they share."""

    def __init__(
        self,
        queries: QuerySet,
        plans: Plans,
        *,
        arena: Arena | None = None,
        codes: Mapping[str, tuple[str, ...]] | None = None,
        owns: Mapping[str, Ownership | None] | None = None,
        execution: ExecutionModel = DEFAULT_EXECUTION,
        since: Mapping[str, int] | None = None,
    ) -> None:
        """Creates an engine; `since` maps queries to the event times at which their answers begin."""
        self.queries = queries
        self.execution = execution
        self.meter = Meter()
        self.arena = arena = arena or ProcessArena()
        names = codes or queries.graph.code_names
        self.bases = {name: BaseState(arena, queries.graph, name, names[name]) for name in queries.graph.names}
        for name in queries.may_be_absent:
            self.bases[name].may_be_absent = True
        for name in early_leavers(queries):
            self.bases[name].leaves_early = True
        self._spread(owns or {})
        self._counted = {relation.name: relation for relation in queries.graph.relations if relation.window.is_counted}
        if self._counted and not execution.rows_wait:
            raise InvariantBroken(
                "a count window needs an execution model that buffers rows until the watermark", detail=queries.text
            )
        self._lifetimes = lifetimes(member.query for member in queries.members)
        self.versions: dict[str, str] = {}
        """The version of each loaded table."""
        self.is_wasteful = False
        """True when the states should be rebuilt: after the last drop they held many expired rows."""
        self._is_stepping = False
        self._tables = frozenset(relation.name for relation in queries.graph.relations if relation.is_table)
        self._is_rearranging = False
        self._left: dict[str, int] = {}
        """The number of the next row of each relation when the slot last lost partition groups."""
        self._floors: dict[str, int] = {}
        """The floors of the last drop; empty before the first."""
        self._arrangement = Arrangement(queries, self.bases, arena)
        self.joins = self._arrangement.empty(plans.plans)
        self.engines = {
            member.name: QueryEngine(
                member,
                plans[member.name],
                self.bases,
                arena=PartOfArena(arena, member.label),
                owns=(owns or {}).get(member.name),
                retain=self._retain_indexes,
                since=(since or {}).get(member.name),
                shared=self.joins,
            )
            for member in queries.members
        }
        self.watermark_buffer = WatermarkBuffer(arena) if execution.rows_wait else None
        self._readers = self._reading()

    @classmethod
    def alone(
        cls,
        query: Query,
        plan: Plan,
        *,
        arena: Arena | None = None,
        codes: Mapping[str, tuple[str, ...]] | None = None,
        owns: Ownership | None = None,
        execution: ExecutionModel = DEFAULT_EXECUTION,
    ) -> Engine:
        """The engine of a query that runs alone."""
        plans = Plans({ALONE: plan})
        return cls(by_itself(query), plans, arena=arena, codes=codes, owns={ALONE: owns}, execution=execution)

    @property
    def only(self) -> QueryEngine:
        """The query engine of a query that runs alone."""
        return self.engines[ALONE]

    @property
    def plans(self) -> Plans:
        """The running plans; for a migrating query, the new plan."""
        return Plans({name: each.plan for name, each in self.engines.items()})

    @property
    def is_migrating(self) -> bool:
        return any(each.is_migrating for each in self.engines.values())

    # --- life ---------------------------------------------------------------------------------------------------------

    def layout(self) -> dict[str, Any]:
        """Describes where the states are in the arena; `reopen` restores them from this."""
        return {
            "bases": {name: state.layout() for name, state in self.bases.items()},
            "joins": {str(shared): join.layout() for shared, join in self.joins.items()},
            "joins_made": self._arrangement.made,
            "floors": self._floors,
            "queries": {name: each.layout() for name, each in self.engines.items()},
            "watermark_buffer": self.watermark_buffer.layout() if self.watermark_buffer is not None else None,
            "left": self._left,
            "versions": self.versions,
            "wasteful": self.is_wasteful,
        }

    def reopen(self, layout: Mapping[str, Any]) -> None:
        """Resumes from a layout, with the plans and migrations that were running when it was taken."""
        for name, state in self.bases.items():
            state.reopen(layout["bases"][name])
        # Uses the plans of the layout, which may differ from those that the engine was created with.
        plans = {name: plan_of(each["track"]) for name, each in layout["queries"].items()}
        numbers = {shared: each["number"] for shared, each in layout["joins"].items()}
        self.joins = self._arrangement.empty(plans, numbers)
        for shared, join in self.joins.items():
            join.reopen(layout["joins"][str(shared)])
        self._arrangement.made, self._floors = layout["joins_made"], dict(layout["floors"])
        for name, each in self.engines.items():
            each.context.shared = self.joins
            each.reopen(layout["queries"][name])
        self._readers = self._reading()
        if self.watermark_buffer is not None:
            self.watermark_buffer.reopen(layout["watermark_buffer"])
        self._left = dict(layout["left"])
        self.versions = dict(layout["versions"])
        self.is_wasteful = layout["wasteful"]

    def export(self) -> dict[str, RelationBatch]:
        """Returns the live rows of streams and the buffered rows: all that a checkpoint or a rebuild needs."""
        waiting = self.watermark_buffer.rows if self.watermark_buffer is not None else {}
        rows = {
            name: joined([state.export(), *([waiting[name]] if name in waiting else [])])
            for name, state in self.bases.items()
            if name not in self._tables
        }
        if self._counted and self._floors:
            # Expired rows may follow a live row.
            lows = expiry(self.queries, self._floors, self.execution)
            rows |= {name: still_counted(each, rows[name], lows[name]) for name, each in self._counted.items()}
        return rows

    def load(self, rows: Mapping[str, RelationBatch], versions: Mapping[str, str]) -> None:
        """Loads the rows of tables, by relation, before any row of a stream; records the versions of the tables."""
        for _ in self._advance(rows, restores=True):
            pass
        self.versions = dict(versions)
        self.meter.reset()

    def answer_until(self, times: Mapping[str, int]) -> None:
        """Sets the event times at which answers end, by query."""
        for name, engine in self.engines.items():
            engine.until = times.get(name)

    @property
    def follows_tables(self) -> bool:
        """Whether `replace` can bring tables to other versions."""
        return self.watermark_buffer is None and not self.is_migrating

    def replace(
        self,
        gone: Mapping[str, Int64Array],
        rows: Mapping[str, RelationBatch],
        versions: Mapping[str, str],
        answered: Mapping[str, int],
    ) -> None:
        """Removes rows of tables, by their numbers, and adds others, between two steps.

        The states are then as if they had been rebuilt over these versions.
        """
        for name, numbers in gone.items():
            self.bases[name].remove(numbers)
        for name, each in self.engines.items():
            each.begin_restore(answered[name])
        for _ in self._advance(rows, restores=True):
            pass
        for each in (*self.engines.values(), *(join.engine for join in self.joins.values())):
            each.end_restore()
        self.versions = dict(versions)
        self.meter.reset()

    def restore(self, rows: Mapping[str, RelationBatch], answered: Mapping[str, int] | None) -> None:
        """Inserts base rows as already processed: fills states and produces no results.

        The engine may be new, or running and taking over partition groups between two steps.

        `answered` holds, for each query, the watermark up to which boundaries have been answered. A grouped query
        rebuilds its pending groups for boundaries not below it. If rows are buffered until the watermark, those not
        below it are buffered again.
        """
        if self.watermark_buffer is not None:
            assert answered is not None
            rows = self.watermark_buffer.pass_through(rows, min(answered.values()))
        for name, each in self.engines.items():
            if answered is not None:
                each.begin_restore(answered[name])
        ordered = self._ordered(rows)
        for name, (found, _) in self._advance(ordered, restores=True):
            if self.engines[name].groups is not None:
                self.engines[name].group(found)
        for each in (*self.engines.values(), *(join.engine for join in self.joins.values())):
            each.end_restore()
        for state in self.bases.values():
            state.kept_rows = state.ring.live
        self.is_wasteful = False
        self.meter.reset()

    # --- partition groups that leave ----------------------------------------------------------------------------------

    def leave(self, wanted: Mapping[str, BoolArray]) -> None:
        """Drops base rows of lost partition groups and all combinations with them; `wanted` flags the rows to keep.

        The caller ensures that no row that the slot still needs can match them, and that no query is migrating. A small
        number of lost rows is kept until they expire, so that a move in many small parts does not copy the window with
        each of them.
        """
        live = sum(len(flags) for flags in wanted.values())
        lost = live - sum(int(np.count_nonzero(flags)) for flags in wanted.values())
        if lost * FEW < live:
            self._left = {name: state.ring.next for name, state in self.bases.items()} if lost else {}
            return
        kept = {name: state.keep(wanted[name]) for name, state in self.bases.items()}
        for join in self.joins.values():
            join.keep(kept)
        for each in self.engines.values():
            each.keep(kept)
        self._left = {}

    def own(self, owns: Mapping[str, Ownership | None]) -> None:
        """Changes each query's ownership test, between two steps."""
        self._spread(owns)
        for name, each in self.engines.items():
            each.context.owns = owns[name]

    def _spread(self, owns: Mapping[str, Ownership | None]) -> None:
        """Makes base states keep the row hashes that ownership tests need."""
        wanted = frozenset[str]().union(*(test.spread for test in owns.values() if test is not None))
        for name, state in self.bases.items():
            state.spread(name in wanted)

    @property
    def has_leftovers(self) -> bool:
        """True while rows of lost partition groups may remain in the states."""
        return any(self.bases[name].ring.first < mark for name, mark in self._left.items())

    # --- work ---------------------------------------------------------------------------------------------------------

    def step(
        self,
        batches: Mapping[str, RelationBatch],
        floors: Mapping[str, int],
        watermarks: Mapping[str, int] | None = None,
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yields the results that the new rows complete, each batch with the name of its query.

        A grouped query yields partial aggregates of the boundaries that its watermark passed. `floors` are those before
        the batch. `watermarks`, by query, are those after it; they are needed for grouped queries and if rows are
        buffered. The iterator must be exhausted: states advance as it is read.
        """
        self._is_stepping = True
        if self.watermark_buffer is not None:
            assert watermarks is not None
            # Buffered rows may be older than the floor of their relation.
            floors = dict.fromkeys(floors, min(floors.values()))
            batches = self.watermark_buffer.pass_through(batches, min(watermarks.values()))
        results = self._results(batches, floors, watermarks or {})
        if self.execution.orders_results:
            yield from in_order(results)
        else:
            yield from ((name, batch) for name, _, batch in results)
        for name, watermark in (watermarks or {}).items():
            yield from ((name, part) for part in self.engines[name].answer(watermark))
        self._is_stepping = False

    def _results(
        self, batches: Mapping[str, RelationBatch], floors: Mapping[str, int], watermarks: Mapping[str, int]
    ) -> Iterator[tuple[str, Int64Array, pa.RecordBatch]]:
        """Yields the results that rows complete or that the watermark makes final; grouped queries keep theirs.

        Each block comes with its query and the event times at which its results became known.
        """
        self._drop(floors)
        ordered = self._ordered(batches)
        for name, batch in ordered.items():
            self.meter.rows_in[name] += len(batch)
        for part in slices(ordered, self._longest_range(ordered)):
            for query, found in self._advance(part.rows):
                for known, batch in self.engines[query].results(*found):
                    yield query, known, batch
            if not part.is_last:
                inside = floors_after(part, ordered, floors, self.queries.graph)
                # Before dropping rows that an unmatched combination still needs.
                yield from self._settled(watermarks_of(self.queries, inside, self.execution))
                self._drop(inside)
        yield from self._settled(watermarks)

    def _settled(self, watermarks: Mapping[str, int]) -> Iterator[tuple[str, Int64Array, pa.RecordBatch]]:
        for query, watermark in watermarks.items():
            for found in self.engines[query].settle(watermark):
                for known, batch in self.engines[query].results(*found):
                    yield query, known, batch

    def statistics(self) -> EngineStatistics:
        """Returns the work since the last call."""
        sizes = {name: (state.ring.live, state.bytes) for name, state in self.bases.items()}
        if self.watermark_buffer is not None:
            sizes[WAITING] = (len(self.watermark_buffer), self.watermark_buffer.bytes)
        base = self.meter.finish(sizes)
        joins = {shared: join.statistics() for shared, join in self.joins.items()}
        own = {name: each.statistics() for name, each in self.engines.items()}
        if self.queries.names == (ALONE,):
            whole = merge([base, own[ALONE]])
            return EngineStatistics(whole, {ALONE: whole})
        total = merge(
            [
                base,
                *(labelled(step, SHARED) for step in joins.values()),
                *(labelled(own[member.name], member.label) for member in self.queries.members),
            ]
        )
        used = {
            name: [step for shared, step in joins.items() if name in self.joins[shared].common.rests] for name in own
        }
        return EngineStatistics(
            total, {name: merge([_seen_by(self.engines[name], base), *used[name], step]) for name, step in own.items()}
        )

    # --- migration ----------------------------------------------------------------------------------------------------

    def migrate(self, plan: Plan, strategy: MigrationStrategy, query: str = ALONE) -> Migrated:
        """Changes the plan of a query between two steps: at once or, on parallel tracks, while steps go on.

        The engine refuses unsupported changes. After a refusal or a failure, the old plan keeps running.
        """
        self._require_rest()
        return self.engines[query].migrate(plan, strategy)

    def abort_migration(self, query: str = ALONE) -> None:
        """Returns to the old plan of the current migration, between two steps."""
        self._require_rest()
        self.engines[query].abort_migration()

    def change_plans(self, plans: Mapping[str, Plan], strategy: MigrationStrategy) -> dict[str, Migrated]:
        """Changes the plans of several queries at once, between two steps; shared joins may change too.

        Either all change or none: after a refusal or a failure the old plans keep running.
        """
        self._require_rest()
        started = perf_counter()
        after = {name: plans.get(name, each.plan) for name, each in self.engines.items()}
        before = self.joins
        with ExitStack() as undo:
            undo.callback(self._retain_indexes)
            undo.callback(self._use, before)
            joins, filled = self._arrangement.following(before, after, self._floors, undo)
            self._use(joins)
            made = {}
            for name in self.engines:
                if name not in plans and not any(name in joins[part].common.rests for part in filled):
                    continue
                # A query that keeps its plan but uses a recomputed join gets a new track over that join.
                track, migrated = self.engines[name].changed(after[name], strategy)
                undo.callback(self.engines[name].give_back, track)
                made[name] = track, migrated
            undo.pop_all()
        self._is_rearranging = True
        for name, (track, migrated) in made.items():
            self.engines[name].adopt(track, migrated)
        self._is_rearranging = False
        for part, join in before.items():
            if not join.is_same_as(joins.get(part)):
                join.release()
        self._readers = self._reading()
        self._retain_indexes()
        seconds = perf_counter() - started
        return {
            name: replace(
                made[name][1],
                recomputed={**made[name][1].recomputed, **rows_of(filled, after[name])},
                seconds=seconds,
            )
            for name in plans
        }

    def _require_rest(self) -> None:
        if self._is_stepping:
            raise InvariantBroken("plans can change only between two steps", detail=f"plan '{self.plans}' is in one")

    # --- inside -------------------------------------------------------------------------------------------------------

    def _advance(self, batches: Mapping[str, RelationBatch], *, restores: bool = False) -> Iterator[tuple[str, Known]]:
        """Inserts new rows into the states, relation by relation; yields what becomes known, each with its query.

        During a restore, only the states behind the plans need the combinations.
        """
        for name in self._counted:
            if name in batches and len(batches[name]) and isinstance(self._counted[name].window, CountWindow):
                # Before any probe: rows that the new ones push out must not match.
                self.bases[name].count(batches[name])
        for name, state in self.bases.items():
            batch = batches.get(name)
            if batch is None or not len(batch):
                continue
            started = perf_counter()
            news = state.append(batch)
            self.meter.spent("append", perf_counter() - started)
            for join in self.joins.values():
                if name in join.engine.bases:
                    yield from self._join(join, name, news, restores=restores)
            for query, each in self._readers[name]:
                wanted = not restores or each.is_rebuilt_from_combinations
                yield from ((query, found) for found in each.take(name, news, wanted=wanted))
            started = perf_counter()
            state.link(news)
            self.meter.spent("insert", perf_counter() - started)
            self.meter.inserted(name, len(batch))

    def _ordered(self, batches: Mapping[str, RelationBatch]) -> dict[str, RelationBatch]:
        """Sorts rows by event time; rows of count windows in counting order."""
        counted = {name for name, each in self._counted.items() if isinstance(each.window, CountWindow)}
        return {
            name: in_counting_order(batch) if name in counted else in_time_order(batch)
            for name, batch in batches.items()
        }

    def _longest_range(self, batches: Mapping[str, RelationBatch]) -> int:
        """Returns the longest time that rows are kept; for count windows, estimated from the rate of this batch."""
        longest = max((span for name, span in self._lifetimes.items() if name not in self._counted), default=0)
        for name, relation in self._counted.items():
            batch, window = batches.get(name), relation.window
            if isinstance(window, SessionWindow):
                longest = max(longest, window.gap)
            elif isinstance(window, CountWindow) and batch is not None and len(batch):
                rows = max(window.rows, self.bases[name].kept_rows if window.partition else 0)
                span = (int(batch.times[-1]) - int(batch.times[0])) * rows // len(batch)
                longest = max(longest, min(span, window.reach))
        return longest

    def _join(
        self, join: SharedJoin, relation: str, news: Combinations, *, restores: bool
    ) -> Iterator[tuple[str, Known]]:
        """Passes new rows of a relation through a shared join, and the combinations through its users."""
        users = {query: self.engines[query] for query in join.common.rests}
        wanting = {query: not restores or each.is_rebuilt_from_combinations for query, each in users.items()}
        for each in users.values():
            each.batch_starts[relation] = int(news.rows[relation][0])
        for block in join.take(relation, news, wanted=any(wanting.values())):
            for query, each in users.items():
                several = each.take_shared(join.shared, block, wanted=wanting[query])
                yield from ((query, found) for found in several)
            join.enter(block)

    def _drop(self, floors: Mapping[str, int]) -> None:
        """Drops what can no longer be part of a result; only prefixes, so the cost is that of the dropped rows."""
        started = perf_counter()
        lows = expiry(self.queries, floors, self.execution)
        for name, state in self.bases.items():
            self.meter.dropped(name, state.drop(lows[name]))
        for join in self.joins.values():
            join.drop(floors)
        for each in self.engines.values():
            each.drop(floors)
        self._floors = dict(floors)
        self.is_wasteful = any(state.is_wasteful for state in self.bases.values())
        self.meter.spent("drop", perf_counter() - started)

    def _retain_indexes(self) -> None:
        """Releases every index of a base state or shared join that no query uses."""
        if self._is_rearranging:
            return
        for name, state in self.bases.items():
            of_queries = [index for each in self.engines.values() for index in each.indexes(name)]
            state.retain((*of_queries, *(index for join in self.joins.values() for index in join.indexes(name))))
        for shared, join in self.joins.items():
            join.retain(index for query in join.common.rests for index in self.engines[query].shared_indexes(shared))

    def _reading(self) -> dict[str, tuple[tuple[str, QueryEngine], ...]]:
        """The queries that read each relation's rows directly, not through a shared join."""
        reading = {
            query: each.bases.keys() - {name for part in parts_of(each.plan) for name in part.relations}
            for query, each in self.engines.items()
        }
        return {name: tuple((q, each) for q, each in self.engines.items() if name in reading[q]) for name in self.bases}

    def _use(self, joins: Joins) -> None:
        self.joins = joins
        for each in self.engines.values():
            each.context.shared = joins


def _seen_by(query: QueryEngine, base: StepStatistics) -> StepStatistics:
    """The statistics of the base states that a query reads; the time spent there belongs to the whole set."""
    return StepStatistics(
        rows_in={name: rows for name, rows in base.rows_in.items() if name in query.bases},
        states=tuple(state for state in base.states if state.state in query.bases),
    )
