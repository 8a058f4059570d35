"""The common part of tracks without intermediate states: nothing to drop, keep or wait for."""

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
    """A track over base states alone; subclasses define `take`, `indexes` and `layout`."""

    def __init__(self, context: PlanContext, plan: Mesh) -> None:
        self.context = context
        self.plan = plan
        self.leaving: Plan | None = None
        self.intermediates: Mapping[str, IntermediateState] = {}
        self.held: Sequence[IntermediateState] = ()

    def shared_indexes(self, shared: Shared) -> tuple[Index, ...]:
        """None: uses no shared join."""
        return ()

    def retain_indexes(self) -> None:
        """Does nothing: there is no intermediate state, and so no index."""

    def take_shared(self, shared: Shared, found: Combinations, *, wanted: bool) -> Iterator[Combinations]:
        raise InvariantBroken(f"'{self.plan}' has no shared join", detail=f"combinations of '{shared}' came")

    def drop(self, floors: Mapping[str, int]) -> None:
        """Does nothing: there are only base states."""

    def settled(self) -> Self:
        """Returns the track itself: no migration is running."""
        return self

    def aborted(self) -> Self:
        raise not_changing(self.plan)

    def departure(self) -> Departure:
        """Starts from the mjoin, which keeps no intermediate state either; from there it is an ordinary change."""
        return Departure(PlanTrack(self.context, mjoin(self.context.query.graph.names)), self.plan)

    def finish(self, beside: Mapping[str, Size]) -> StepStatistics:
        return self.context.meter.finish(beside)
