"""One change of plan between two steps: the tools of a migration strategy, and the transaction around it.

A strategy (`migrate.strategies`) checks whether it supports a change and begins it. It builds tracks through `Change`.
Invariant: the old track is unchanged until the strategy has returned the new one. If the strategy fails, the states
that it built are released and the old plan keeps running.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from time import perf_counter
from typing import Protocol

from anabranch.engine.moving_state import fill
from anabranch.engine.state.intermediate import IntermediateState
from anabranch.engine.tracks.make import make_track
from anabranch.engine.tracks.parallel import ParallelTrack
from anabranch.engine.tracks.plan import PlanTrack
from anabranch.engine.tracks.protocol import PlanContext, Track
from anabranch.engine.tracks.spread import SpreadTrack
from anabranch.errors import MigrationError
from anabranch.plan.check import validate
from anabranch.plan.content import Content
from anabranch.plan.difference import StateMatching, contents, match_states
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.mesh import Mesh, Plan, check_mesh
from anabranch.plan.physical import PhysicalPlan
from anabranch.stats.report import Migrated

AT_ONCE = "none"
"""The strategy reported for a change to a mesh: no state is missing, so the requested strategy does not matter."""


class MigrationStrategy(Protocol):
    """The engine's part of a migration strategy."""

    @property
    def name(self) -> str: ...

    def check(self, old: PhysicalPlan, new: PhysicalPlan, graph: JoinGraph) -> None:
        """Raises a MigrationError for a change that the strategy does not support."""

    def begin(self, change: Change) -> Track:
        """Builds and returns the track that runs from now on."""


class Change:
    """A change of plan in progress; `undo` releases what a strategy builds if it fails."""

    def __init__(
        self, context: PlanContext, track: Track, plan: PhysicalPlan, floors: Mapping[str, int], undo: ExitStack
    ) -> None:
        departure = track.departure()
        self.old = departure.track
        self.plan = plan
        self.matching = match_states(self.old.plan, plan, context.query.graph.thetas)
        self.recomputed: dict[str, int] = {}
        """States computed so far, by shape, with their row counts."""
        self._context = context
        self._mesh = departure.mesh
        self._floors = floors
        self._undo = undo

    def new_track(self, states: Mapping[Content, IntermediateState]) -> PlanTrack:
        """Creates a track of the new plan that reuses states of the old one, by content; the others start empty."""
        track = PlanTrack(self._context, self.plan, states)
        for state in track.held:
            if not _is_among(state, self.old):
                self._undo.callback(state.ring.release)
        return track

    def moved(self, matching: StateMatching | None = None) -> Track:
        """Creates a complete track of the new plan: hands matching states over and computes the others."""
        matching = matching or self.matching
        made = contents(self.plan, self._context.query.graph.thetas)
        track = self.new_track({made[to]: self.old.intermediates[name] for name, to in matching.moved})
        self.recomputed |= fill(track, matching, self.old, self._floors)
        return track

    def side_by_side(self) -> Track:
        """Creates a track that runs both plans; they share the states that have the same content."""
        return ParallelTrack(self.old, self.new_track(self.old.states), mesh=self._mesh)

    def spread(self) -> Track:
        """Creates a track of the old plan that fills the states of the new one step by step."""
        made = contents(self.plan, self._context.query.graph.thetas)
        states = {made[to]: self.old.intermediates[name] for name, to in self.matching.moved}
        return SpreadTrack(self.old, self.new_track(states), self._mesh)


def change_plan(
    context: PlanContext, track: Track, plan: Plan, strategy: MigrationStrategy, floors: Mapping[str, int]
) -> tuple[Track, Migrated]:
    """Returns the new track and a record of the change; after a refusal or a failure the old track is unchanged.

    A mesh has no states to fill, so a change to a mesh happens at once, whatever the strategy.
    """
    if track.leaving is not None:
        raise MigrationError(
            f"plan '{track.leaving}' is already changing into '{track.plan}'",
            hint=f"wait until that has ended, or abort it, before changing to '{plan}'",
        )
    started = perf_counter()
    if isinstance(plan, Mesh):
        check_mesh(plan, context.query.graph)
        return make_track(context, plan), Migrated(AT_ONCE, (), {}, perf_counter() - started)
    validate(plan, context.query.graph, context.query.merging)
    with ExitStack() as undo:
        change = Change(context, track, plan, floors, undo)
        strategy.check(change.old.plan, plan, context.query.graph)
        after = strategy.begin(change)
        undo.pop_all()
    handed = tuple(shape for shape, state in after.intermediates.items() if _is_among(state, change.old))
    filtered = tuple(state.new for state in change.matching.filtered if state.new in change.recomputed)
    done = Migrated(strategy.name, handed, change.recomputed, 0.0, filtered)
    return after.settled(), replace(done, seconds=perf_counter() - started)


def _is_among(state: IntermediateState, track: PlanTrack) -> bool:
    return any(state is other for other in track.intermediates.values())
