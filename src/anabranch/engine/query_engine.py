"""One query at work over base states that it does not own: plan track, sides, groups, projection, statistics.

The engine of a slot has one query engine for each query of its set. It appends new rows to a base state once, lets them
pass through every query engine that reads the relation (`take`), and links them once. A query engine says which indexes
of the base states its track looks into; the engine keeps the union.

Terms: where a query demands more of a shared relation than all queries do (a shorter window, a filter of its own), the
query engine applies the demand to new rows before they probe, to what enters an input operator, and to the combinations
that the plan has finished. In between, the plan may see rows that the query alone would not have kept.

Law: the results are those that the query would have alone. A refused or failed change of plan leaves the old plan at
work.
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
from anabranch.engine.operators.group_by import GroupState
from anabranch.engine.operators.join import keep, read_column
from anabranch.engine.operators.open_groups import OpenCombinations
from anabranch.engine.operators.pregroup import carried_by
from anabranch.engine.operators.residuals import demanded, passing, within
from anabranch.engine.operators.sides import Known, Sides
from anabranch.engine.ownership import Ownership
from anabranch.engine.state.arena import Arena
from anabranch.engine.state.base import BaseState
from anabranch.engine.state.ring import Index
from anabranch.engine.tracks.make import make_track, reopened
from anabranch.engine.tracks.protocol import PlanContext, Track
from anabranch.errors import MigrationError
from anabranch.lang.expr import Column
from anabranch.plan.mesh import Mesh, Plan
from anabranch.plan.physical import Shared, kept, pre_groups, shared_parts
from anabranch.plan.query_set import Member, Terms
from anabranch.stats.report import Migrated
from anabranch.stats.step import StepStatistics

if TYPE_CHECKING:
    from anabranch.engine.shared_join import Block, SharedJoin

EVENT_TIME = "_time"
"""The last column of results that other queries read: their event times in microseconds."""
GROUPS = "group by"
"""The name of the state of pending groups in statistics; no relation can have such a name."""


OPEN = "open groups"
"""The name of the combinations of count windows that groups will count; no relation can have such a name."""


class QueryEngine:
    """The plan of one query over its base states.

    `retain` tells the engine that this query has stopped to look into some index of a base state. `since` is the event
    time from which on the query answers; None for all.
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
        self.ground = PlanContext(
            member.query, core, arena, owns=owns, terms=member.terms, shared=shared or {}, name=member.name
        )
        self.meter = self.ground.meter
        self.turns: dict[str, int] = {}
        """The number of the first row that each relation took in last; empty before the first step."""
        self._own_terms = {terms.relation: terms for terms in member.terms}
        self._terms = self._own_terms
        """The terms that finished combinations have to pass."""
        self._feeds = member.feeds
        self._retain = retain
        self._floors: dict[str, int] = {}
        self.track: Track = make_track(self.ground, plan)
        self._note_terms()
        grouping = member.query.grouping
        self.groups = GroupState(arena, grouping) if grouping is not None else None
        counted = member.query.graph.counted
        self.open = OpenCombinations(arena, grouping, self.bases, counted) if grouping is not None and counted else None
        self._counted = frozenset(counted)
        self.sides = Sides(member.query, self.bases, arena) if member.query.sides else None
        self._since = since
        if self.groups is not None and since is not None:
            # Answers have the time of their boundary, also where that is after the last instant that it counts.
            self.groups.pass_watermark(since - self.groups.grouping.lag)

    @property
    def plan(self) -> Plan:
        """The plan at work; during a migration, the new plan."""
        return self.track.plan

    @property
    def is_migrating(self) -> bool:
        return self.track.leaving is not None

    @property
    def owns(self) -> Ownership | None:
        """The test of which combinations belong to this slot; None when no other slot can find them."""
        return self.ground.owns

    def indexes(self, relation: str) -> tuple[Index, ...]:
        """The indexes of a base state that this query looks into."""
        if relation in self.ground.bases:
            return self.track.indexes(relation)
        return self.sides.indexes(relation) if self.sides is not None and relation in self.bases else ()

    @property
    def is_rebuilt_from_combinations(self) -> bool:
        """Whether states behind the plan are filled again by the combinations that restored rows make."""
        return self.groups is not None or self.sides is not None

    def shared_indexes(self, shared: Shared) -> tuple[Index, ...]:
        """The indexes of the state of a shared join that this query looks into."""
        return self.track.shared_indexes(shared)

    # --- life ---------------------------------------------------------------------------------------------------------

    def layout(self) -> dict[str, Any]:
        """Where the states are in the arena, once the base states have been laid out."""
        return {
            "track": self.track.layout(),
            "tracks_made": self.ground.tracks_made,
            "floors": self._floors,
            "turns": self.turns,
            "groups": self.groups.layout() if self.groups else None,
            "open": self.open.layout() if self.open is not None else None,
            "sides": self.sides.layout() if self.sides else None,
        }

    def reopen(self, layout: Mapping[str, Any]) -> None:
        """Goes on where the layout was taken, with its plan or its migration; base states have been reopened before."""
        self.ground.tracks_made, self._floors = layout["tracks_made"], dict(layout["floors"])
        self.turns = dict(layout["turns"])
        self.track = reopened(self.ground, layout["track"])
        self._note_terms()
        if self.groups is not None:
            self.groups.reopen(layout["groups"])
        if self.open is not None:
            self.open.reopen(layout["open"])
        if self.sides is not None:
            self.sides.reopen(layout["sides"])

    def begin_restore(self, answered_before: int) -> None:
        """Notes the watermark up to which answers have been given, before rows are restored."""
        if self.groups is not None:
            self.groups.pass_watermark(answered_before)
        if self.open is not None:
            self.open.passed = answered_before
        if self.sides is not None:
            self.sides.begin_restore(answered_before)

    def begin_after(self, floors: Mapping[str, int]) -> None:
        """Begins with states that are filled as of these floors."""
        self._floors = dict(floors)

    @property
    def floors(self) -> Mapping[str, int]:
        """The floors of the last drop; none if nothing was ever dropped."""
        return self._floors

    def end_restore(self) -> None:
        """Forgets the counts of a restore: its rows belong to earlier steps."""
        if self.sides is not None:
            self.sides.end_restore()
        self.turns = {}
        self.meter.reset()

    # --- work ---------------------------------------------------------------------------------------------------------

    def take(self, relation: str, news: Combinations, *, wanted: bool) -> Iterator[Known]:
        """Passes new rows of a base state, not linked yet, through the plan and the sides.

        Yields the results that become known, each with the event time at which it does.
        """
        if self.sides is not None and relation not in self.ground.bases:
            yield from self.sides.take(relation, news, self.owns)
            return
        terms = self._terms.get(relation)
        if terms is not None:
            if terms.is_shorter:
                news = replace(news, deadline=terms.window.deadline(news.newest))
            news = self._tested(terms, news)
            if not len(news):
                return
        if relation in self._counted:
            # Rows that are counted and part of nothing, and those that others of their instant push out.
            news = keep(news, news.newest <= news.deadline)
            if not len(news):
                return
        self.turns[relation] = int(news.rows[relation][0])
        yield from self._finished(self.track.take(relation, news, wanted=wanted), (relation,))

    def take_shared(self, shared: Shared, block: Block, *, wanted: bool) -> Iterator[Known]:
        """Goes on with combinations that a shared join has found for new rows of a relation, not linked yet."""
        rest = self.ground.shared[shared].common.rests[self.ground.name]
        ends = isinstance(self.plan, Shared)
        found, mask = block.found, None
        if rest.shift is not None:
            found = replace(found, deadline=found.deadline - rest.shift)
            mask = found.newest <= found.deadline
        for terms in rest.terms:
            if terms.filter is not None:
                passed = evaluate_mask(terms.filter, block.read, len(found))
                self.meter.tested(terms.relation, len(found), int(passed.sum()))
                mask = passed if mask is None else mask & passed
        if ends and self.owns is not None:
            mine = block.owned(self.owns)
            mask = mine if mask is None else mask & mine
        has_windows = rest.shift is None and any(terms.is_shorter for terms in rest.terms)
        if ends and not has_windows and not rest.equalities and not rest.thetas and self.sides is None:
            # The quick way, for most results of most users: nothing needs the numbers of the rows any more.
            if wanted:
                chosen = block.chosen(mask, found.deadline)
                yield chosen, chosen.newest
            return
        found = found if mask is None else keep(found, mask)
        if has_windows:
            for terms in rest.terms:
                found = within(terms, found, self.bases)
        if len(found):
            several = self.track.take_shared(shared, found, wanted=wanted)
            yield from self._finished(several, shared.relations, owned=ends)

    def demanded(self, found: Combinations) -> Combinations:
        """Of combinations of linked rows, those that the query's terms leave."""
        return demanded(self._terms.values(), found, self.bases)

    def _finished(
        self, several: Iterator[Combinations], passed: Sequence[str], *, owned: bool = False
    ) -> Iterator[Known]:
        """Of finished combinations, those of this slot that the terms leave; `passed` are relations tested before."""
        owns = None if owned else self.owns
        others = [terms for terms in self._terms.values() if terms.relation not in passed]
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
        """Yields the results that the watermark makes known: those of combinations that met no row of a side.

        Of combinations with open deadlines, the groups get the time up to the watermark, in which they were valid.
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
            # By the rows of a result; one that met nothing becomes known later.
            wanted = found.newest >= self._since
            found, known = keep(found, wanted), known[wanted]
        if len(found):
            yield known, self._project(found, known)

    def group(self, found: Combinations) -> None:
        """Adds finished combinations to the pending groups."""
        assert self.groups is not None
        started = perf_counter()
        if len(found):
            self.groups.add(found.newest, found.deadline, self._reader(found), carried_by(self.groups.grouping, found))
        self.meter.spent("group", perf_counter() - started)

    def answer(self, watermark: int) -> Iterator[pa.RecordBatch]:
        """Partial aggregates of the boundaries that the watermark has passed; none unless the query is grouped."""
        if self.groups is not None:
            parts = self.groups.pass_watermark(watermark)
            self.meter.rows_out += parts.num_rows
            yield from parts.combine_chunks().to_batches()

    def drop(self, floors: Mapping[str, int]) -> None:
        """Drops intermediate results that no row still to come can complete; base states have dropped before."""
        floors = {name: floors[name] for name in self.ground.bases if name in floors}
        self.track.drop(floors)
        self._floors = floors
        settled = self.track.settled()
        if settled is not self.track:
            self._adopt(settled)

    def statistics(self) -> StepStatistics:
        """The work since the last call, without base states."""
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

        The strategy refuses what it cannot serve; then, and after a failure on the way, the old plan is at work.
        """
        if self._terms and not isinstance(plan, Mesh) and any(pre_groups(plan)):
            raise MigrationError(
                f"plan '{plan}' merges rows, and the query shares relations with others that keep more rows",
                detail="states would be computed from rows that the query itself has no use for",
                hint="give the shared relations another alias in this query, or start it with this plan",
            )
        try:
            track, migrated = self.changed(plan, strategy)
        except BaseException:
            self._retain_indexes()
            raise
        self.adopt(track, migrated)
        return migrated

    def changed(self, plan: Plan, strategy: MigrationStrategy) -> tuple[Track, Migrated]:
        """The track that a change of plan would leave at work, complete; nothing changes until it is adopted."""
        return change_plan(self.ground, self.track, plan, strategy, self._floors)

    def adopt(self, track: Track, migrated: Migrated) -> None:
        """Goes on with a track that `changed` has made."""
        self._adopt(track)
        self.meter.spent("migrate", migrated.seconds)

    def give_back(self, track: Track) -> None:
        """Gives back what a track that is not adopted has beyond the one at work."""
        for state in track.held:
            if all(state is not needed for needed in self.track.held):
                state.ring.release()

    def abort_migration(self) -> None:
        """Goes back to the old plan of the migration under way, between two steps."""
        self._adopt(self.track.aborted())

    def can_reach(self, plan: Plan) -> bool:
        """True when the query has the plan, or can change to it without being rebuilt."""
        return plan in (self.plan, self.track.leaving) or not self.is_migrating

    def _adopt(self, track: Track) -> None:
        """Leaves the track alone at work; gives back the states and indexes that only the one before needed."""
        before, self.track = self.track, track
        self._note_terms()
        for state in before.held:
            if all(state is not needed for needed in track.held):
                state.ring.release()
        self._retain_indexes()

    def _note_terms(self) -> None:
        plan = self.plan
        parts = () if isinstance(plan, Mesh) else shared_parts(plan)
        rests = [self.ground.shared[part].common.rests[self.ground.name] for part in parts]
        left = {terms.relation: terms for rest in rests for terms in rest.terms}
        self._terms = self._own_terms
        if parts and not isinstance(plan, Mesh) and not any(kept(plan)):
            inside = {name for part in parts for name in part.relations}
            self._terms = {name: terms for name, terms in self._own_terms.items() if name not in inside} | left
        # Else the plan's own states may hold combinations from another plan, or from the join when it had other users.

    def _retain_indexes(self) -> None:
        self.track.retain_indexes()
        self._retain()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _project(self, found: Combinations, known: Int64Array) -> pa.RecordBatch:
        started = perf_counter()
        read = self._reader(found)
        arrays = [evaluate(output.expression, read, len(found)) for output in self.query.outputs]
        schema = self.query.schema.to_arrow()
        if self._feeds:
            # By position, because a column of the query may have any name.
            arrays.append(pa.array(known))
            schema = schema.append(pa.field(EVENT_TIME, pa.int64(), nullable=False))
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        self.meter.rows_out += len(found)
        self.meter.spent("project", perf_counter() - started)
        return batch

    def _reader(self, found: Combinations) -> Callable[[Column], pa.Array]:
        return found.read or partial(read_column, self.bases, found=found)

    def _tested(self, terms: Terms, found: Combinations) -> Combinations:
        """New rows that pass the query's own filter; counted, as it tells how much of a shared join is of use."""
        kept = passing(terms, found, self.bases)
        if terms.filter is not None:
            self.meter.tested(terms.relation, len(found), len(kept))
        return kept
