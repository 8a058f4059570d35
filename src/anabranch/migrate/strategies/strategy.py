"""A migration strategy: whether it supports a change of plan, what that costs, and how it begins.

A strategy builds nothing itself: the engine passes it a `Change`, from which it requests the track that runs from then
on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from anabranch.plan.difference import StateMatching
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import PhysicalPlan

if TYPE_CHECKING:
    from anabranch.migrate.strategies.pricing import Difference

Track = TypeVar("Track")
"""The engine's track of a plan."""
TrackOfEngine = TypeVar("TrackOfEngine", covariant=True)


@dataclass(frozen=True)
class Price:
    """The cost of one migration, beyond that of running the query."""

    strategy: str
    cpu: float
    """Seconds of one core in total."""
    memory: float
    """Bytes held in addition to the states during the migration."""
    seconds: float
    """Event time from beginning to end."""
    steps: int = 1
    """Boxes that change one after another; 1 if all change at once."""
    pause: float = 0.0
    """Seconds of one core for which steps have to wait."""


class Change(Protocol[TrackOfEngine]):
    """A change of plan in progress (`engine.migration`): the tracks that a strategy can request."""

    @property
    def plan(self) -> PhysicalPlan:
        """The new plan."""

    @property
    def matching(self) -> StateMatching:
        """The states of the old plan that the new one can use."""

    def moved(self, matching: StateMatching | None = None) -> TrackOfEngine:
        """Creates a complete track of the new plan: hands matching states over and computes the others."""

    def spread(self) -> TrackOfEngine:
        """Creates a track of the old plan that fills the states of the new one step by step."""

    def side_by_side(self) -> TrackOfEngine:
        """Creates a track of both plans; they share the states that have the same content."""


class Strategy(Protocol):
    """One way to change plans; the engine calls `check` and `begin`."""

    @property
    def name(self) -> str:
        """The name of the strategy in specs, calls and records."""

    def check(self, old: PhysicalPlan, new: PhysicalPlan, graph: JoinGraph) -> None:
        """Raises a MigrationError for a change between two plans of a query that the strategy does not support."""

    def price(self, difference: Difference) -> Price | None:
        """Returns the cost of a supported change; None if another strategy does the same at least as well.

        `auto` takes the strategy with the lowest price.
        """

    def begin(self, change: Change[Track]) -> Track:
        """Returns the track that runs from now on."""
