"""The engine of one slot: states, joins and grouping of one plan, advanced one batch at a time.

Law: the multiset of everything `step` ever returns depends on the rows alone. It does not depend on how they were cut
into batches, on the plan, or on whether the engine was rebuilt from its base rows in between.

A step costs its new rows plus their matches. A batch that spans much more time than the windows is cut into slices by
time; by the law above the cut is free.

The caller gives *floors*: for each relation the event time below which no row will be admitted any more. A row may go
when its deadline lies before the floors of all others; in a grouped query, before its own as well, so that pending
groups can be recomputed from what is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from time import perf_counter
from typing import Any

import pyarrow as pa

from anabranch.engine.batch import Combinations, RelationBatch, joined
from anabranch.engine.evaluate.expression import evaluate
from anabranch.engine.execution import Entrance, in_order
from anabranch.engine.fabric.track import MeshTrack
from anabranch.engine.kernels import Int64Array
from anabranch.engine.meter import Meter
from anabranch.engine.moving_state import Migrated, fill
from anabranch.engine.operators.group_by import GroupState
from anabranch.engine.operators.join import keep, read_column
from anabranch.engine.operators.pregroup import carried_by, carried_columns
from anabranch.engine.ownership import Ownership
from anabranch.engine.parallel_track import ParallelTrack
from anabranch.engine.slices import floors_after, in_time_order, slices
from anabranch.engine.state.arena import Arena, ProcessArena
from anabranch.engine.state.base import BaseState
from anabranch.engine.state.intermediate import IntermediateState
from anabranch.engine.track import PlanTrack
from anabranch.errors import InvariantBroken, MigrationError
from anabranch.plan.bundle import Bundle
from anabranch.plan.difference import Content, Strategy, check_migration, contents, match_states
from anabranch.plan.execution import DEFAULT_EXECUTION, ExecutionModel, rows_wait
from anabranch.plan.mesh import Mesh, Plan, check_mesh, parse_mesh
from anabranch.plan.physical import PhysicalPlan, kept, mjoin
from anabranch.plan.query import Query
from anabranch.plan.text import parse
from anabranch.stats.step import StepStatistics, merge
from anabranch.window import FOREVER

GROUPS, WAITING = "group by", "waiting rows"
"""States beside those of relations and joins, in statistics; no relation can have such a name."""


class Engine:
    """One plan of one query over its states; base states that it is given it shares with others."""

    def __init__(
        self,
        query: Query,
        plan: Plan,
        *,
        arena: Arena | None = None,
        codes: Mapping[str, tuple[str, ...]] | None = None,
        owns: Ownership | None = None,
        execution: ExecutionModel = DEFAULT_EXECUTION,
        bases: Mapping[str, BaseState] | None = None,
    ) -> None:
        self.query = query
        self.owns = owns
        self.execution = execution
        self.meter = Meter()
        self.arena = arena or ProcessArena()
        self.bases = bases or {
            name: BaseState(self.arena, query.graph, name, (codes or key_codes_of(query))[name])
            for name in query.graph.names
        }
        self._tracks_made = 0
        self._floors: dict[str, int] = {}
        self.turns: dict[str, int] = {}
        """The number of the first row that each relation took in last; nothing while no step has been made."""
        self._is_stepping = False
        self.track: PlanTrack | ParallelTrack | MeshTrack = self._make_track(plan)
        self.groups = GroupState(self.arena, query.grouping) if query.grouping is not None else None
        self.entrance = Entrance(self.arena) if rows_wait(execution) else None

    @property
    def plan(self) -> Plan:
        """The plan at work; during a migration, the one that is to be."""
        return self.track.plan

    @property
    def is_migrating(self) -> bool:
        return isinstance(self.track, ParallelTrack)

    # --- life ---------------------------------------------------------------------------------------------------------

    def layout(self) -> dict[str, Any]:
        """What is needed, beside the arena's contents, to find the states again."""
        return {"bases": {name: state.layout() for name, state in self.bases.items()}, **self.layout_above()}

    def layout_above(self) -> dict[str, Any]:
        """The same for what stands on the base states."""
        return {
            "track": self.track.layout(),
            "tracks_made": self._tracks_made,
            "floors": self._floors,
            "turns": self.turns,
            "groups": self.groups.layout() if self.groups else None,
            "entrance": self.entrance.layout() if self.entrance is not None else None,
        }

    def reopen(self, layout: Mapping[str, Any]) -> None:
        """Goes on where the layout was taken, with the plan or the migration that was under way there."""
        for name, state in self.bases.items():
            state.reopen(layout["bases"][name])
        self.reopen_above(layout)

    def reopen_above(self, layout: Mapping[str, Any]) -> None:
        """The same once the base states have been reopened."""
        self._tracks_made, self._floors = layout["tracks_made"], dict(layout["floors"])
        self.turns = dict(layout["turns"])
        self.track = self._reopened(layout["track"])
        if self.groups is not None:
            self.groups.reopen(layout["groups"])
        if self.entrance is not None:
            self.entrance.reopen(layout["entrance"])

    def export(self) -> dict[str, RelationBatch]:
        """The live base rows and those that wait: all that a checkpoint needs, and all that a rebuild carries."""
        waiting = self.entrance.rows if self.entrance is not None else {}
        return {
            name: joined([state.export(), *([waiting[name]] if name in waiting else [])])
            for name, state in self.bases.items()
        }

    def restore(self, rows: Mapping[str, RelationBatch], answered_before: int | None) -> None:
        """Takes base rows as already processed: states are rebuilt, no result is produced.

        A grouped query gets its pending groups back, for boundaries not below `answered_before`, the watermark up to
        which boundaries have been answered. Where rows wait for the watermark, those not below it wait again.
        """
        if self.groups is not None and answered_before is not None:
            self.groups.pass_watermark(answered_before)
        if self.entrance is not None:
            assert answered_before is not None
            rows = self.entrance.pass_through(rows, answered_before)
        ordered = {name: in_time_order(batch) for name, batch in rows.items()}
        for found in self._advance(ordered, wanted=self.groups is not None):
            self._group(found)
        self.turns = {}
        self.meter.reset()

    # --- work ---------------------------------------------------------------------------------------------------------

    def step(
        self, batches: Mapping[str, RelationBatch], floors: Mapping[str, int], watermark: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The results that the new rows complete; for a grouped query, parts of the boundaries the watermark passed.

        `floors` hold as of before the batch; `watermark` (for grouped queries, and where rows wait for it) as of after
        it. The iterator must be exhausted: states advance as it is read.
        """
        self._is_stepping = True
        if self.entrance is not None:
            assert watermark is not None
            # Rows that wait may be older than the floor of their relation.
            floors = dict.fromkeys(floors, min(floors.values()))
            batches = self.entrance.pass_through(batches, watermark)
        results = self._results(batches, floors)
        if self.execution == "un-synchronised":
            yield from (batch for _, batch in results)
        else:
            yield from in_order(results)
        if self.groups is not None and watermark is not None:
            parts = self.groups.pass_watermark(watermark)
            self.meter.rows_out += parts.num_rows
            yield from parts.combine_chunks().to_batches()
        self._is_stepping = False

    def _results(
        self, batches: Mapping[str, RelationBatch], floors: Mapping[str, int]
    ) -> Iterator[tuple[Int64Array, pa.RecordBatch]]:
        """The results that rows complete, with their newest times; a grouped query takes note of them instead."""
        self._drop(floors)
        ordered = {name: in_time_order(batch) for name, batch in batches.items()}
        for name, batch in ordered.items():
            self.meter.rows_in[name] += len(batch)
        for part in slices(ordered, self._longest_range()):
            for found in self._advance(part.rows, wanted=True):
                if self.groups is not None:
                    self._group(found)
                else:
                    yield found.newest, self.project(found)
            if not part.is_last:
                self._drop(floors_after(part, ordered, floors, self.query))

    def statistics(self) -> StepStatistics:
        """What happened since this was last asked."""
        sizes = {name: (state.ring.live, state.bytes) for name, state in self.bases.items()}
        sizes |= {name: (state.ring.live, state.bytes) for name, state in self.track.intermediates.items()}
        if self.groups is not None:
            sizes[GROUPS] = (self.groups.rows, self.groups.bytes)
        if self.entrance is not None:
            sizes[WAITING] = (len(self.entrance), self.entrance.bytes)
        step = self.meter.finish(sizes)
        return merge([step, self.track.retiring_statistics()]) if isinstance(self.track, ParallelTrack) else step

    def result_schema(self) -> pa.Schema:
        """The schema of what `step` returns."""
        if self.groups is not None:
            return self.groups.empty_parts().schema
        return self.query.schema.to_arrow()

    # --- migration ----------------------------------------------------------------------------------------------------

    def migrate(self, plan: Plan, strategy: Strategy) -> Migrated:
        """Changes to another plan between two steps: at once or, on parallel tracks, while steps go on.

        What cannot be done is refused, and then, as after a failure on the way, the plan is as it was. A mesh has no
        state that could be missing, so a change to one is made at once whatever the strategy.
        """
        self._require_rest()
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
            old.retain_indexes()
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
            old.retain_indexes()
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
        self._require_rest()
        if not isinstance(self.track, ParallelTrack):
            raise MigrationError(
                f"plan '{self.plan}' is not changing", hint="only a migration under way can be aborted"
            )
        self.track.end()
        mesh, useless = self.track.mesh, self.track.arriving.values()
        self._replace_track(self.track.old if mesh is None else self._make_mesh_track(mesh), useless)

    def _require_rest(self) -> None:
        if self._is_stepping:
            raise InvariantBroken("a plan can change only between two steps", detail=f"plan '{self.plan}' is in one")

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
            self.query, plan, self.bases, self.arena, self.meter, self._tracks_made, states, owns=self.owns
        )

    def _replace_track(self, track: PlanTrack | MeshTrack, useless: Iterable[IntermediateState]) -> None:
        """The track alone is at work from now on; states and indexes that only others needed are given back."""
        self.track = track
        for state in useless:
            state.ring.release()
        track.retain_indexes()

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
                    states[name] = IntermediateState(self.arena, name, inner.relations, (), columns)
                    states[name].reopen(found)
                mine[made[inner.shape]] = states[name]
            return PlanTrack(self.query, plan, self.bases, self.arena, self.meter, states=mine, owns=self.owns)

        new = reopened(layout)
        if "old" not in layout:
            return new
        mesh = None if layout["mesh"] is None else parse_mesh(layout["mesh"])
        return ParallelTrack(reopened(layout["old"]), new, self.meter, layout["marks"], mesh)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _advance(self, batches: Mapping[str, RelationBatch], *, wanted: bool) -> Iterator[Combinations]:
        """Takes new rows into the states, relation by relation, and yields the finished combinations if wanted."""
        for name, state in self.bases.items():
            batch = batches.get(name)
            if batch is None or not len(batch):
                continue
            started = perf_counter()
            news = state.append(batch)
            self.meter.spent("append", perf_counter() - started)
            yield from self.take(name, news, wanted=wanted)
            started = perf_counter()
            state.link(news)
            self.meter.spent("insert", perf_counter() - started)
            self.meter.inserted(name, len(batch))

    def take(self, relation: str, news: Combinations, *, wanted: bool) -> Iterator[Combinations]:
        """Rows that stand in their base state, not linked yet, pass through the plan; yields what they finish."""
        self.turns[relation] = int(news.rows[relation][0])
        for found in self.track.take(relation, news, wanted=wanted):
            yield found if self.owns is None else keep(found, self.owns.holds(found, self.bases))

    def project(self, found: Combinations) -> pa.RecordBatch:
        started = perf_counter()
        arrays = [
            evaluate(output.expression, lambda column: read_column(self.bases, column, found), len(found))
            for output in self.query.outputs
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.query.schema.to_arrow())
        self.meter.rows_out += len(found)
        self.meter.spent("project", perf_counter() - started)
        return batch

    def _group(self, found: Combinations) -> None:
        assert self.groups is not None
        started = perf_counter()
        if len(found):
            read = partial(read_column, self.bases, found=found)
            self.groups.add(found.newest, found.deadline, read, carried_by(self.groups.grouping, found))
        self.meter.spent("group", perf_counter() - started)

    def _drop(self, floors: Mapping[str, int]) -> None:
        """Drops what can no longer be part of any result; prefixes only, so this costs what is dropped."""
        started = perf_counter()
        lows = expiry(self.query, floors, self.execution)
        for name, state in self.bases.items():
            self.meter.dropped(name, state.drop(lows[name]))
        self.drop_above(floors)
        self.meter.spent("drop", perf_counter() - started)

    def drop_above(self, floors: Mapping[str, int]) -> None:
        """The same for what stands on the base states, once these have dropped their rows."""
        self.track.drop(floors, self.meter)
        self._floors = dict(floors)
        self._end_if_over()
        if isinstance(self.track, PlanTrack):
            self.track.compact(floors)

    def _longest_range(self) -> int:
        return max(state.range for state in self.bases.values())


def key_codes_of(query: Query) -> dict[str, tuple[str, ...]]:
    """The code names of each relation: one per key class it is a member of."""
    return {name: tuple(key.name for key in query.graph.keys_of([name])) for name in query.graph.names}


def expiry(query: Query, floors: Mapping[str, int], execution: ExecutionModel = DEFAULT_EXECUTION) -> dict[str, int]:
    """For each relation the time before which a row's deadline makes it useless; with nothing to meet, at once.

    Where rows wait for the watermark, so does what they may meet, and they themselves.
    """
    if isinstance(query, Bundle):
        # A row stays as long as the query that needs it longest.
        alone = [expiry(each.query, {name: floors[name] for name in each.query.graph.names}) for each in query.members]
        return {name: min(lows[name] for lows in alone if name in lows) for name in query.graph.names}
    if query.grouping is not None or rows_wait(execution):
        return dict.fromkeys(query.graph.names, min(floors.values()))
    return {
        name: min((floor for other, floor in floors.items() if other != name), default=2 * FOREVER - 1)
        for name in query.graph.names
    }
