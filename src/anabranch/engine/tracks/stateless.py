"""The common part of tracks without intermediate states: nothing to drop, to keep or to wait for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Self

from anabranch.engine.batch import Combinations
from anabranch.engine.meter import Size
from anabranch.engine.state.intermediate import IntermediateState
from anabranch.engine.state.ring import Index
from anabranch.engine.tracks.plan import PlanTrack
from anabranch.engine.tracks.protocol import Departure, PlanContext, not_changing
from anabranch.errors import InvariantBroken
from anabranch.plan.mesh import Mesh, Plan
from anabranch.plan.physical import Shared, mjoin
from anabranch.stats.step import StepStatistics


class StatelessTrack:
    """A track over base states alone; `take`, `indexes` and `layout` are left to its kinds."""

    def __init__(self, ground: PlanContext, plan: Mesh) -> None:
        self.ground = ground
        self.plan = plan
        self.leaving: Plan | None = None
        self.intermediates: Mapping[str, IntermediateState] = {}
        self.held: Sequence[IntermediateState] = ()

    def shared_indexes(self, shared: Shared) -> tuple[Index, ...]:
        """Looks into no shared join."""
        return ()

    def retain_indexes(self) -> None:
        """Keeps no intermediate state, and so no index."""

    def take_shared(self, shared: Shared, found: Combinations, *, wanted: bool) -> Iterator[Combinations]:
        raise InvariantBroken(f"'{self.plan}' has no shared join", detail=f"combinations of '{shared}' came")

    def drop(self, floors: Mapping[str, int]) -> None:
        """Keeps nothing beside the base states."""

    def settled(self) -> Self:
        """The track itself: no migration is under way."""
        return self

    def aborted(self) -> Self:
        raise not_changing(self.plan)

    def departure(self) -> Departure:
        """The mjoin keeps no state beside the base states either: from there it is a change like any other."""
        return Departure(PlanTrack(self.ground, mjoin(self.ground.query.graph.names)), self.plan)

    def finish(self, beside: Mapping[str, Size]) -> StepStatistics:
        return self.ground.meter.finish(beside)
