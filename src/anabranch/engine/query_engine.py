"""One query at work over base states that it does not own: its plan track, its groups, its projection, its statistics.

The engine of a slot has one query engine for each query of its set. It appends new rows to a base state once, lets them
pass through every query engine that reads the relation (`take`), and links them once. A query engine says which indexes
of the base states its track looks into; the engine keeps the union.

Terms: where a query demands more of a shared relation than all queries do (a shorter window, a filter of its own), the
query engine applies the demand to new rows before they probe, and to the combinations that the plan has finished. In
between, the plan may see rows that the query alone would not have kept.

Law: the results are those that the query would have alone. A refused or failed change of plan leaves the old plan at
work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.engine.batch import Combinations
from anabranch.engine.evaluate.expression import evaluate, evaluate_mask
from anabranch.engine.fabric.track import MeshTrack
from anabranch.engine.kernels import Int64Array
from anabranch.engine.meter import Meter
from anabranch.engine.moving_state import fill
from anabranch.engine.operators.group_by import GroupState
from anabranch.engine.operators.join import keep, read_column
from anabranch.engine.operators.pregroup import carried_by, carried_columns
from anabranch.engine.ownership import Ownership
from anabranch.engine.parallel_track import ParallelTrack
from anabranch.engine.state.arena import Arena
from anabranch.engine.state.base import BaseState
from anabranch.engine.state.intermediate import IntermediateState
from anabranch.engine.state.ring import Index
from anabranch.engine.track import PlanTrack
from anabranch.errors import MigrationError
from anabranch.plan.difference import Content, Strategy, check_migration, contents, match_states
from anabranch.plan.mesh import Mesh, Plan, check_mesh, parse_mesh
from anabranch.plan.physical import PhysicalPlan, kept, mjoin
from anabranch.plan.query_set import Member, Terms
from anabranch.plan.text import parse
from anabranch.stats.report import Migrated
from anabranch.stats.step import StepStatistics, merge

GROUPS = "group by"
"""The name of the state of pending groups in statistics; no relation can have such a name."""


class QueryEngine:
    """The plan of one query over its base states.

    `retain` tells the engine that this query has stopped to look into some index of a base state.
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
    ) -> None:
        self.query = member.query
        self.owns = owns
        self.meter = Meter()
        self.bases = {name: bases[name] for name in member.query.graph.names}
        self.turns: dict[str, int] = {}
        """The number of the first row that each relation took in last; empty before the first step."""
        self._terms = {terms.relation: terms for terms in member.terms}
        self._arena = arena
        self._retain = retain
        self._tracks_made = 0
        self._floors: dict[str, int] = {}
        self.track: PlanTrack | ParallelTrack | MeshTrack = self._make_track(plan)
        grouping = member.query.grouping
        self.groups = GroupState(arena, grouping) if grouping is not None else None

    @property
    def plan(self) -> Plan:
        """The plan at work; during a migration, the new plan."""
        return self.track.plan

    @property
    def is_migrating(self) -> bool:
        return isinstance(self.track, ParallelTrack)

    def indexes(self, relation: str) -> tuple[Index, ...]:
        """The indexes of a base state that this query looks into."""
        return self.track.indexes(relation) if relation in self.bases else ()

    # --- life ---------------------------------------------------------------------------------------------------------

    def layout(self) -> dict[str, Any]:
        """Where the states are in the arena, once the base states have been laid out."""
        return {
            "track": self.track.layout(),
            "tracks_made": self._tracks_made,
            "floors": self._floors,
            "turns": self.turns,
            "groups": self.groups.layout() if self.groups else None,
        }

    def reopen(self, layout: Mapping[str, Any]) -> None:
        """Goes on where the layout was taken, with its plan or its migration; base states have been reopened before."""
        self._tracks_made, self._floors = layout["tracks_made"], dict(layout["floors"])
        self.turns = dict(layout["turns"])
        self.track = self._reopened(layout["track"])
        if self.groups is not None:
            self.groups.reopen(layout["groups"])

    def end_restore(self) -> None:
        """Forgets the counts of a restore: its rows belong to earlier steps."""
        self.turns = {}
        self.meter.reset()

    # --- work ---------------------------------------------------------------------------------------------------------

    def take(self, relation: str, news: Combinations, *, wanted: bool) -> Iterator[Combinations]:
        """Passes new rows of a base state, not linked yet, through the plan; yields the combinations they finish."""
        terms = self._terms.get(relation)
        if terms is not None:
            news = self._passing(terms, replace(news, deadline=news.newest + terms.range))
            if not len(news):
                return
        self.turns[relation] = int(news.rows[relation][0])
        others = [other for other in self._terms.values() if other.relation != relation]
        for found in self.track.take(relation, news, wanted=wanted):
            if self.owns is not None:
                found = keep(found, self.owns.holds(found, self.bases))
            for other in others:
                found = self._passing(other, self._within(other, found))
            yield found

    def results(self, found: Combinations) -> Iterator[tuple[Int64Array, pa.RecordBatch]]:
        """Projects finished combinations, with their newest times; a grouped query adds them to its groups instead."""
        if not len(found):
            return
        if self.groups is not None:
            self.group(found)
        else:
            yield found.newest, self._project(found)

    def group(self, found: Combinations) -> None:
        """Adds finished combinations to the pending groups."""
        assert self.groups is not None
        started = perf_counter()
        if len(found):
            read = partial(read_column, self.bases, found=found)
            self.groups.add(found.newest, found.deadline, read, carried_by(self.groups.grouping, found))
        self.meter.spent("group", perf_counter() - started)

    def answer(self, watermark: int) -> Iterator[pa.RecordBatch]:
        """Partial aggregates of the boundaries that the watermark has passed; none unless the query is grouped."""
        if self.groups is not None:
            parts = self.groups.pass_watermark(watermark)
            self.meter.rows_out += parts.num_rows
            yield from parts.combine_chunks().to_batches()

    def drop(self, floors: Mapping[str, int]) -> None:
        """Drops intermediate results that no row still to come can complete; base states have dropped before."""
        floors = {name: floors[name] for name in self.bases}
        self.track.drop(floors, self.meter)
        self._floors = floors
        self._end_if_over()
        if isinstance(self.track, PlanTrack):
            self.track.compact(floors)

    def statistics(self) -> StepStatistics:
        """The work since the last call, without base states."""
        sizes = {name: (state.ring.live, state.bytes) for name, state in self.track.intermediates.items()}
        if self.groups is not None:
            sizes[GROUPS] = (self.groups.rows, self.groups.bytes)
        step = self.meter.finish(sizes)
        return merge([step, self.track.retiring_statistics()]) if isinstance(self.track, ParallelTrack) else step

    # --- migration ----------------------------------------------------------------------------------------------------

    def migrate(self, plan: Plan, strategy: Strategy) -> Migrated:
        """Changes to another plan between two steps: at once or, on parallel tracks, while steps go on.

        What cannot be done is refused, and then, as after a failure on the way, the plan is as it was. A mesh has no
        state that could be missing, so a change to one is made at once whatever the strategy.
        """
        if isinstance(plan, Mesh):
            return self._change_to_mesh(plan)
        mesh = self.track
        if not isinstance(mesh, MeshTrack):
            return self._migrate(plan, strategy)
        # The mjoin keeps no state beside the base states either: from there on it is a change like any other.
        self.track = self._make_plan_track(mjoin(self.query.graph.names))
        try:
            migrated = self._migrate(plan, strategy)
        except BaseException:
            self._replace_track(mesh, ())
            raise
        if isinstance(self.track, ParallelTrack):
            self.track.mesh = mesh.plan
        return migrated

    def _change_to_mesh(self, mesh: Mesh) -> Migrated:
        old = self.track
        if isinstance(old, ParallelTrack):
            raise self._already_changing(old, mesh)
        started = perf_counter()
        check_mesh(mesh, self.query.graph)
        if isinstance(old, MeshTrack):
            old.replace(mesh)
            self._retain_indexes()
        else:
            self._replace_track(self._make_mesh_track(mesh), old.intermediates.values())
        seconds = perf_counter() - started
        self.meter.spent("migrate", seconds)
        return Migrated("none", (), {}, seconds)

    def _migrate(self, plan: PhysicalPlan, strategy: Strategy) -> Migrated:
        old = self.track
        assert not isinstance(old, MeshTrack)
        if isinstance(old, ParallelTrack):
            raise self._already_changing(old, plan)
        check_migration(old.plan, plan, self.query.graph, strategy, self.query.grouping)
        started = perf_counter()
        matching = match_states(old.plan, plan, self.query.graph.thetas)
        side_by_side = strategy == "parallel-track" and bool(matching.recomputed)
        made = contents(plan, self.query.graph.thetas)
        # Two plans at work must mean the same by a state; what one has filtered and the other not they cannot share.
        moved = old.states if side_by_side else {made[to]: old.intermediates[name] for name, to in matching.moved}
        recomputed: dict[str, int] = {}
        try:
            new = self._make_plan_track(plan, moved)
            try:
                if side_by_side:
                    self.track = ParallelTrack(old, new, self.meter)
                    self._end_if_over()
                else:
                    recomputed = fill(new, matching, old, self._floors)
                    self._replace_track(new, [old.intermediates[name] for name in matching.discarded])
            except BaseException:
                for state in new.intermediates.values():
                    if all(state is not shared for shared in moved.values()):
                        state.ring.release()
                raise
        except BaseException:
            self._retain_indexes()
            raise
        seconds = perf_counter() - started
        self.meter.spent("migrate", seconds)
        handed = tuple(
            shape for shape, state in new.intermediates.items() if any(state is one for one in moved.values())
        )
        filtered = () if side_by_side else tuple(state.new for state in matching.filtered)
        return Migrated(strategy, handed, recomputed, seconds, filtered)

    def abort_migration(self) -> None:
        """Goes back to the old plan of the migration under way, between two steps."""
        if not isinstance(self.track, ParallelTrack):
            raise MigrationError(
                f"plan '{self.plan}' is not changing", hint="only a migration under way can be aborted"
            )
        self.track.end()
        mesh, useless = self.track.mesh, self.track.arriving.values()
        self._replace_track(self.track.old if mesh is None else self._make_mesh_track(mesh), useless)

    def _already_changing(self, track: ParallelTrack, plan: Plan) -> MigrationError:
        return MigrationError(
            f"plan '{track.leaving}' is already changing into '{track.plan}'",
            hint=f"wait until that has ended, or abort it, before changing to '{plan}'",
        )

    def _make_track(self, plan: Plan) -> PlanTrack | MeshTrack:
        return self._make_mesh_track(plan) if isinstance(plan, Mesh) else self._make_plan_track(plan)

    def _make_mesh_track(self, mesh: Mesh) -> MeshTrack:
        return MeshTrack(self.query.graph, mesh, self.bases, self.meter)

    def _make_plan_track(
        self, plan: PhysicalPlan, states: Mapping[Content, IntermediateState] | None = None
    ) -> PlanTrack:
        self._tracks_made += 1
        return PlanTrack(
            self.query, plan, self.bases, self._arena, self.meter, self._tracks_made, states, owns=self.owns
        )

    def _replace_track(self, track: PlanTrack | MeshTrack, useless: Iterable[IntermediateState]) -> None:
        """Leaves the track alone at work; gives back the states and indexes that only others needed."""
        self.track = track
        for state in useless:
            state.ring.release()
        self._retain_indexes()

    def _retain_indexes(self) -> None:
        self.track.retain_indexes()
        self._retain()

    def _end_if_over(self) -> None:
        if isinstance(self.track, ParallelTrack) and self.track.is_over:
            self._replace_track(self.track.new, self.track.retiring.values())

    def _reopened(self, layout: Mapping[str, Any]) -> PlanTrack | ParallelTrack | MeshTrack:
        if "lottery" in layout:
            track = self._make_mesh_track(parse_mesh(layout["plan"]))
            track.reopen(layout)
            return track
        states: dict[str, IntermediateState] = {}

        def reopened(part: Mapping[str, Any]) -> PlanTrack:
            plan = parse(part["plan"])
            mine: dict[Content, IntermediateState] = {}
            made = contents(plan, self.query.graph.thetas)
            for inner in kept(plan):
                found = part["intermediates"][inner.shape]
                name = found["name"]
                if name not in states:
                    columns = carried_columns(self.query, inner)
                    states[name] = IntermediateState(self._arena, name, inner.relations, (), columns)
                    states[name].reopen(found)
                mine[made[inner.shape]] = states[name]
            return PlanTrack(self.query, plan, self.bases, self._arena, self.meter, states=mine, owns=self.owns)

        new = reopened(layout)
        if "old" not in layout:
            return new
        mesh = None if layout["mesh"] is None else parse_mesh(layout["mesh"])
        return ParallelTrack(reopened(layout["old"]), new, self.meter, layout["marks"], mesh)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _project(self, found: Combinations) -> pa.RecordBatch:
        started = perf_counter()
        arrays = [
            evaluate(output.expression, lambda column: read_column(self.bases, column, found), len(found))
            for output in self.query.outputs
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.query.schema.to_arrow())
        self.meter.rows_out += len(found)
        self.meter.spent("project", perf_counter() - started)
        return batch

    def _within(self, terms: Terms, found: Combinations) -> Combinations:
        """The combinations that are valid by the query's own window of a relation whose rows stay for longer."""
        if not terms.is_shorter or not len(found):
            return found
        times, _ = self.bases[terms.relation].ring.times(found.rows[terms.relation])
        deadline = np.minimum(found.deadline, times + terms.range)
        return keep(replace(found, deadline=deadline), found.newest <= deadline)

    def _passing(self, terms: Terms, found: Combinations) -> Combinations:
        """The combinations that pass the query's own filter of a relation."""
        if terms.filter is None or not len(found):
            return found
        return keep(
            found, evaluate_mask(terms.filter, lambda column: read_column(self.bases, column, found), len(found))
        )
