"""The common part of the tracks of a migration: an old and a new plan over the same base states.

The plans share the states that have the same content in both; those that only the old plan has *retire*. In statistics,
retiring joins and states have separate names.

Limit: plans that use shared joins do not run side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from anabranch.engine.batch import Combinations
from anabranch.engine.expiry import out_of_reach
from anabranch.engine.meter import Meter, Size
from anabranch.engine.operators.join import WindowJoin
from anabranch.engine.state.intermediate import IntermediateState
from anabranch.engine.state.ring import Index
from anabranch.engine.tracks.mesh import MeshTrack
from anabranch.engine.tracks.plan import PlanTrack
from anabranch.engine.tracks.protocol import Departure, Track
from anabranch.errors import InvariantBroken
from anabranch.plan.mesh import Mesh, Plan
from anabranch.plan.physical import Shared
from anabranch.stats.step import StepStatistics, labelled, merge

RETIRING = "old "
"""The prefix of the old plan's joins and states in statistics."""


class TwoPlans:
    """The old and the new plan of a migration.

    `mesh` is the plan that an abort returns to if the migration leaves a mesh, which the old track represents.
    """

    def __init__(self, old: PlanTrack, new: PlanTrack, mesh: Mesh | None) -> None:
        self.old = old
        self.new = new
        self.plan = new.plan
        self._mesh = mesh
        self.retiring = {name: state for name, state in old.intermediates.items() if not is_among(state, new)}
        self._old_meter = Meter()

    @property
    def leaving(self) -> Plan | None:
        """The plan from before the migration."""
        return self._mesh or self.old.plan

    @property
    def intermediates(self) -> Mapping[str, IntermediateState]:
        return self.new.intermediates

    @property
    def held(self) -> Sequence[IntermediateState]:
        return (*self.new.held, *self.retiring.values())

    def aborted(self) -> Track:
        """Returns the track of the old plan."""
        return self.old if self._mesh is None else MeshTrack(self.old.context, self._mesh)

    def indexes(self, relation: str) -> tuple[Index, ...]:
        """The indexes of a base state that either plan probes."""
        return (*self.old.indexes(relation), *self.new.indexes(relation))

    def shared_indexes(self, shared: Shared) -> tuple[Index, ...]:
        """None: uses no shared join."""
        return ()

    def retain_indexes(self) -> None:
        """Keeps every index: both plans are running."""

    def departure(self) -> Departure:
        raise InvariantBroken("a migration cannot start while another is in progress", detail=f"towards '{self.plan}'")

    def take_shared(self, shared: Shared, found: Combinations, *, wanted: bool) -> Iterator[Combinations]:
        raise InvariantBroken(
            "plans that share a join cannot run side by side", detail=f"combinations of '{shared}' came"
        )

    def drop(self, floors: Mapping[str, int]) -> None:
        """Drops combinations that no future row can complete."""
        windows = self.new.context.query.pairwise
        self.new.expire(floors)
        for name, state in self.retiring.items():
            self._old_meter.dropped(name, state.drop(*out_of_reach(floors, state.relations, windows)))

    def finish(self, beside: Mapping[str, Size]) -> StepStatistics:
        """Returns statistics of both plans since the last call; retiring joins and states have separate names."""
        sizes = {name: (state.ring.live, state.bytes) for name, state in self.retiring.items()}
        return merge([self.new.finish(beside), labelled(self._old_meter.finish(sizes), RETIRING)])

    def _old_joins(self) -> dict[str, WindowJoin]:
        """The joins of the old plan, which are counted under separate names."""
        return {join.node.shape: self.old.join(join, self._old_meter) for join in self.old.program.joins}


def is_among(state: IntermediateState, track: PlanTrack) -> bool:
    return any(state is other for other in track.intermediates.values())
