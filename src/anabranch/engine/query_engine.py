"""One running query over base states that it does not own: plan track, sides, groups, projection, statistics.

The engine of a slot has one query engine per query of its set. It appends new rows to a base state once, passes them
through every query engine that reads the relation (`take`), and links them once. A query engine reports which indexes
of the base states its track uses; the engine keeps the union.

Residual predicates (`ResidualPredicates`): a query may restrict a shared relation more than all queries do, by a
shorter window or its own filter. The query engine applies the restriction to new rows before they probe, to the inputs
of input operators, and to finished combinations. In between, the plan may see rows that the query alone would not have
kept.

Invariant: the results are those that the query would have alone. After a refused or failed change of plan the old plan
keeps running.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from anabranch.engine.batch import Combinations
from anabranch.engine.evaluate.expression import evaluate, evaluate_mask
from anabranch.engine.kernels import Int64Array
from anabranch.engine.migration import MigrationStrategy, change_plan
from anabranch.engine.operators.candidates import Candidates
from anabranch.engine.operators.group_by import GroupState
from anabranch.engine.operators.join import keep, read_column
from anabranch.engine.operators.open_groups import OpenCombinations
from anabranch.engine.operators.open_sessions import OpenSessions
from anabranch.engine.operators.pregroup import carried_by
from anabranch.engine.operators.residuals import demanded, passing, within
from anabranch.engine.operators.sides import Known, Sides
from anabranch.engine.ownership import Ownership
from anabranch.engine.state.arena import Arena
from anabranch.engine.state.base import BaseState
from anabranch.engine.state.kept import Kept
from anabranch.engine.state.ring import Index
from anabranch.engine.tracks.make import make_track, reopened
from anabranch.engine.tracks.protocol import PlanContext, Track
from anabranch.errors import MigrationError
from anabranch.lang.expr import Column
from anabranch.plan.mesh import Mesh, Plan
from anabranch.plan.physical import Shared, kept, pre_groups, shared_parts
from anabranch.plan.query_set import Member, ResidualPredicates
from anabranch.stats.report import Migrated
from anabranch.stats.step import StepStatistics

if TYPE_CHECKING:
    from anabranch.engine.shared_join import Block, SharedJoin

EVENT_TIME = "_time"
"""The last column of results that other queries read: event times in microseconds."""
GROUPS = "group by"
"""The name of the state of pending groups in statistics; no relation can have such a name."""


OPEN = "open groups"
"""The statistics name of count-window combinations that groups will count; no relation can have such a name."""


class QueryEngine:
    """The plan of one query over its base states.

    `retain` notifies the engine that this query no longer uses some index of a base state. `since` is the event
    time at which its answers begin; None for no limit.
    """

    def __init__(
        self,
        member: Member,
        plan: Plan,
        bases: Mapping[str, BaseState],
        *,
        arena: Arena,
        owns: Ownership | None = None,
        retain: Callable[[], None] = lambda: None,
        since: int | None = None,
        shared: Mapping[Shared, SharedJoin] | None = None,
    ) -> None:
        self.query = member.query
        self.bases = {name: bases[name] for name in member.query.whole.names}
        core = {name: bases[name] for name in member.query.graph.names}
        self.context = PlanContext(
            member.query, core, arena, owns=owns, residuals=member.residuals, shared=shared or {}, name=member.name
        )
        self.meter = self.context.meter
        self.batch_starts: dict[str, int] = {}
        """The first row number of each relation's latest insertion; empty before the first step."""
        self._own_residuals = {residual.relation: residual for residual in member.residuals}
        self._residuals = self._own_residuals
        """The residual predicates that finished combinations must pass."""
        self._feeds = member.feeds
        self._retain = retain
        self._floors: dict[str, int] = {}
        self.track: Track = make_track(self.context, plan)
        self._note_terms()
        grouping = member.query.grouping
        self.groups = GroupState(arena, grouping) if grouping is not None else None
        self.candidates = Candidates(grouping) if grouping is not None and grouping.ranked is not None else None
        counted = member.query.graph.counted
        self.open: OpenCombinations | OpenSessions | None = None
        if grouping is not None and grouping.gap:
            (relation,) = member.query.graph.relations
            self.open = OpenSessions(arena, relation, self.bases[relation.name])
        elif grouping is not None and counted:
            self.open = OpenCombinations(arena, grouping, self.bases, counted)
        self._counted = frozenset(counted)
        self.sides = Sides(member.query, self.bases, arena) if member.query.sides else None
        self._since = since
        self.until: int | None = None
        """The event time at which its answers end; None for no limit."""
        if self.groups is not None and since is not None:
            # An answer has the time of its boundary, even if that is after the last instant that it counts.
            self.groups.pass_watermark(since - self.groups.grouping.lag)

    @property
    def plan(self) -> Plan:
        """The running plan; during a migration, the new plan."""
        return self.track.plan

    @property
    def is_migrating(self) -> bool:
        return self.track.leaving is not None

    @property
    def owns(self) -> Ownership | None:
        """The ownership test of combinations in this slot; None when no other slot can find them."""
        return self.context.owns

    def indexes(self, relation: str) -> tuple[Index, ...]:
        """The indexes of a base state that this query uses."""
        if relation in self.context.bases:
            return self.track.indexes(relation)
        return self.sides.indexes(relation) if self.sides is not None and relation in self.bases else ()

    @property
    def is_rebuilt_from_combinations(self) -> bool:
        """True if states behind the plan are refilled by the combinations of restored rows."""
        return self.groups is not None or self.sides is not None

    def shared_indexes(self, shared: Shared) -> tuple[Index, ...]:
        """The indexes of a shared join's state that this query uses."""
        return self.track.shared_indexes(shared)

    # --- life ---------------------------------------------------------------------------------------------------------

    def layout(self) -> dict[str, Any]:
        """Describes where the states are in the arena, after the base states have been laid out."""
        return {
            "track": self.track.layout(),
            "tracks_made": self.context.tracks_made,
            "floors": self._floors,
            "batch_starts": self.batch_starts,
            "groups": self.groups.layout() if self.groups else None,
            "open": self.open.layout() if self.open is not None else None,
            "sides": self.sides.layout() if self.sides else None,
        }

    def reopen(self, layout: Mapping[str, Any]) -> None:
        """Resumes from a layout, with its plan or its migration; base states must be reopened first."""
        self.context.tracks_made, self._floors = layout["tracks_made"], dict(layout["floors"])
        self.batch_starts = dict(layout["batch_starts"])
        self.track = reopened(self.context, layout["track"])
        self._note_terms()
        if self.groups is not None:
            self.groups.reopen(layout["groups"])
        if self.open is not None:
            self.open.reopen(layout["open"])
        if self.sides is not None:
            self.sides.reopen(layout["sides"])

    def begin_restore(self, answered_before: int) -> None:
        """Records the watermark up to which answers have been given, before rows are restored."""
        if self.groups is not None:
            self.groups.pass_watermark(answered_before)
        if self.open is not None:
            self.open.passed = answered_before
        if self.sides is not None:
            self.sides.begin_restore(answered_before)

    def keep(self, kept: Mapping[str, Kept]) -> None:
        """Follows base states that keep only some of their rows; only without a running migration."""
        for state in self.track.held:
            state.keep(kept)
        self.batch_starts = {name: kept[name].threshold(row) for name, row in self.batch_starts.items()}

    def begin_after(self, floors: Mapping[str, int]) -> None:
        """Starts with states that are filled as of these floors."""
        self._floors = dict(floors)

    @property
    def floors(self) -> Mapping[str, int]:
        """The floors of the last drop; empty if nothing was dropped yet."""
        return self._floors

    def end_restore(self) -> None:
        """Clears the counts of a restore: its rows belong to earlier steps."""
        if self.sides is not None:
            self.sides.end_restore()
        self.batch_starts = {}
        self.meter.reset()

    # --- work ---------------------------------------------------------------------------------------------------------

    def take(self, relation: str, news: Combinations, *, wanted: bool) -> Iterator[Known]:
        """Passes new rows of a base state, not linked yet, through the plan and the sides.

        Yields the results that become known, each with the event time at which it does.
        """
        if self.sides is not None and relation not in self.context.bases:
            yield from self.sides.take(relation, news, self.owns)
            return
        residual = self._residuals.get(relation)
        if residual is not None:
            if residual.is_shorter:
                news = replace(news, deadline=residual.window.deadline(news.newest))
            news = self._tested(residual, news)
            if not len(news):
                return
        if relation in self._counted:
            # Drops rows that are only counted, and rows that others of the same instant push out.
            news = keep(news, news.newest <= news.deadline)
            if not len(news):
                return
        self.batch_starts[relation] = int(news.rows[relation][0])
        yield from self._finished(self.track.take(relation, news, wanted=wanted), (relation,))

    def take_shared(self, shared: Shared, block: Block, *, wanted: bool) -> Iterator[Known]:
        """Continues with combinations that a shared join has found for new rows of a relation, not linked yet."""
        rest = self.context.shared[shared].common.rests[self.context.name]
        ends = isinstance(self.plan, Shared)
        found, mask = block.found, None
        if rest.shift is not None:
            found = replace(found, deadline=found.deadline - rest.shift)
            mask = found.newest <= found.deadline
        for residual in rest.residuals:
            if residual.filter is not None:
                passed = evaluate_mask(residual.filter, block.read, len(found))
                self.meter.tested(residual.relation, len(found), int(passed.sum()))
                mask = passed if mask is None else mask & passed
        if ends and self.owns is not None:
            mine = block.owned(self.owns)
            mask = mine if mask is None else mask & mine
        has_windows = rest.shift is None and any(residual.is_shorter for residual in rest.residuals)
        if ends and not has_windows and not rest.equalities and not rest.thetas and self.sides is None:
            # The fast path, for most results of most users: row numbers are no longer needed.
            if wanted:
                chosen = block.chosen(mask, found.deadline)
                yield chosen, chosen.newest
            return
        found = found if mask is None else keep(found, mask)
        if has_windows:
            for residual in rest.residuals:
                found = within(residual, found, self.bases)
        if len(found):
            several = self.track.take_shared(shared, found, wanted=wanted)
            yield from self._finished(several, shared.relations, owned=ends)

    def demanded(self, found: Combinations) -> Combinations:
        """Applies this query's own windows and filters to combinations of linked rows."""
        return demanded(self._residuals.values(), found, self.bases)

    def _finished(
        self, several: Iterator[Combinations], passed: Sequence[str], *, owned: bool = False
    ) -> Iterator[Known]:
        """Selects finished combinations of this slot that pass the residual predicates; skips relations in `passed`."""
        owns = None if owned else self.owns
        others = [residual for residual in self._residuals.values() if residual.relation not in passed]
        for found in several:
            if owns is not None:
                found = keep(found, owns.holds(found, self.bases))
            found = demanded(others, found, self.bases)
            if self.sides is not None:
                yield from self.sides.enter(found)
            elif self.open is not None:
                self.open.enter(found)
            else:
                yield found, found.newest

    def settle(self, watermark: int) -> Iterator[Known]:
        """Yields the results that the watermark makes final: those of combinations without a match in a side.

        For combinations with open deadlines, the groups get the time up to the watermark, in which they were valid.
        """
        if self.open is not None:
            for found in self.open.settle(watermark):
                yield found, found.newest
        if self.sides is not None:
            yield from self.sides.settle(watermark)

    def results(self, found: Combinations, known: Int64Array) -> Iterator[tuple[Int64Array, pa.RecordBatch]]:
        """Projects combinations, with the times at which they became known; a grouped query groups them instead."""
        if not len(found):
            return
        if self.groups is not None:
            self.group(found)
            return
        if self._since is not None:
            # By the rows of a result; an unmatched one becomes known later.
            wanted = found.newest >= self._since
            found, known = keep(found, wanted), known[wanted]
        if self.until is not None:
            wanted = found.newest < self.until
            found, known = keep(found, wanted), known[wanted]
        if len(found):
            yield known, self._project(found)

    def group(self, found: Combinations) -> None:
        """Adds finished combinations to the pending groups."""
        assert self.groups is not None
        started = perf_counter()
        if self.candidates is not None and len(found) and not found.carried:
            wanted = self.candidates.among(found.newest, found.deadline, self._reader(found))
            found = found if wanted is None else keep(found, wanted)
        if len(found):
            self.groups.add(found.newest, found.deadline, self._reader(found), carried_by(self.groups.grouping, found))
        self.meter.spent("group", perf_counter() - started)

    def answer(self, watermark: int) -> Iterator[pa.RecordBatch]:
        """Yields partial aggregates of the boundaries that the watermark has passed; nothing for ungrouped queries."""
        if self.groups is not None:
            if self.until is not None:
                watermark = min(watermark, self.until - self.groups.grouping.lag)
            parts = self.groups.pass_watermark(watermark)
            self.meter.rows_out += parts.num_rows
            yield from parts.combine_chunks().to_batches()

    def drop(self, floors: Mapping[str, int]) -> None:
        """Drops intermediate results that no future row can complete; base states must drop first."""
        floors = {name: floors[name] for name in self.context.bases if name in floors}
        self.track.drop(floors)
        self._floors = floors
        settled = self.track.settled()
        if settled is not self.track:
            self._adopt(settled)

    def statistics(self) -> StepStatistics:
        """Returns the work since the last call, without base states."""
        beside = {} if self.groups is None else {GROUPS: (self.groups.rows, self.groups.bytes)}
        if self.open is not None:
            beside[OPEN] = len(self.open), self.open.bytes
        if self.sides is not None:
            beside |= self.sides.sizes
            for kind, seconds in self.sides.meter.seconds.items():
                self.meter.spent(kind, seconds)
            self.sides.meter.reset()
        return self.track.finish(beside)

    # --- migration ----------------------------------------------------------------------------------------------------

    def migrate(self, plan: Plan, strategy: MigrationStrategy) -> Migrated:
        """Changes to another plan between two steps: at once or, on parallel tracks, while steps go on.

        The strategy refuses unsupported changes. After a refusal or a failure, the old plan keeps running.
        """
        if self._residuals and not isinstance(plan, Mesh) and any(pre_groups(plan)):
            raise MigrationError(
                f"plan '{plan}' merges rows, and other queries keep more rows of the shared relations",
                detail="the states would be computed from rows that this query does not need",
                hint="give the shared relations other aliases in this query, or start it with this plan",
            )
        try:
            track, migrated = self.changed(plan, strategy)
        except BaseException:
            self._retain_indexes()
            raise
        self.adopt(track, migrated)
        return migrated

    def changed(self, plan: Plan, strategy: MigrationStrategy) -> tuple[Track, Migrated]:
        """Builds the complete track of a changed plan; nothing changes until it is adopted."""
        return change_plan(self.context, self.track, plan, strategy, self._floors)

    def adopt(self, track: Track, migrated: Migrated) -> None:
        """Switches to a track that `changed` has built."""
        self._adopt(track)
        self.meter.spent("migrate", migrated.seconds)

    def give_back(self, track: Track) -> None:
        """Releases the states of a track that is not adopted, except those of the running track."""
        for state in track.held:
            if all(state is not needed for needed in self.track.held):
                state.ring.release()

    def abort_migration(self) -> None:
        """Returns to the old plan of the current migration, between two steps."""
        self._adopt(self.track.aborted())

    def can_reach(self, plan: Plan) -> bool:
        """True when the query runs the plan, or can change to it without a rebuild."""
        return plan in (self.plan, self.track.leaving) or not self.is_migrating

    def _adopt(self, track: Track) -> None:
        """Makes this the running track; releases the states and indexes that only the previous one needed."""
        before, self.track = self.track, track
        self._note_terms()
        for state in before.held:
            if all(state is not needed for needed in track.held):
                state.ring.release()
        self._retain_indexes()

    def _note_terms(self) -> None:
        plan = self.plan
        parts = () if isinstance(plan, Mesh) else shared_parts(plan)
        rests = [self.context.shared[part].common.rests[self.context.name] for part in parts]
        left = {residual.relation: residual for rest in rests for residual in rest.residuals}
        self._residuals = self._own_residuals
        if parts and not isinstance(plan, Mesh) and not any(kept(plan)):
            inside = {name for part in parts for name in part.relations}
            self._residuals = {
                name: residual for name, residual in self._own_residuals.items() if name not in inside
            } | left
        # Otherwise the plan's own states may hold combinations of another plan, or of the join when it had other users.

    def _retain_indexes(self) -> None:
        self.track.retain_indexes()
        self._retain()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _project(self, found: Combinations) -> pa.RecordBatch:
        started = perf_counter()
        read = self._reader(found)
        arrays = [evaluate(output.expression, read, len(found)) for output in self.query.outputs]
        schema = self.query.schema.to_arrow()
        if self._feeds:
            # By position, because a column of the query may have any name.
            arrays.append(pa.array(found.newest))
            schema = schema.append(pa.field(EVENT_TIME, pa.int64(), nullable=False))
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        self.meter.rows_out += len(found)
        self.meter.spent("project", perf_counter() - started)
        return batch

    def _reader(self, found: Combinations) -> Callable[[Column], pa.Array]:
        return found.read or partial(read_column, self.bases, found=found)

    def _tested(self, residual: ResidualPredicates, found: Combinations) -> Combinations:
        """Returns new rows that pass the query's own filter; counts show how much of a shared join is used."""
        kept = passing(residual, found, self.bases)
        if residual.filter is not None:
            self.meter.tested(residual.relation, len(found), len(kept))
        return kept
