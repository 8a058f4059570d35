"""A migration strategy: whether it can serve a change of plan, what that costs, and how it begins.

A strategy decides and builds nothing itself: the engine hands it a `Change`, through which it asks for the track that
is at work from then on.
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
    """The cost of one way of migrating beyond the running of the query."""

    strategy: str
    cpu: float
    """Seconds of one core in all."""
    memory: float
    """Bytes held beside the states while it lasts."""
    seconds: float
    """Event time from its beginning to its end."""
    steps: int = 1
    """Boxes that change one after another; 1 where all change at once."""
    pause: float = 0.0
    """Seconds of one core for which steps have to wait."""


class Change(Protocol[TrackOfEngine]):
    """A change of plan in the making (`engine.migration`): the tracks that a strategy can ask for."""

    @property
    def plan(self) -> PhysicalPlan:
        """The new plan."""

    @property
    def matching(self) -> StateMatching:
        """Which states of the old plan serve the new one."""

    def moved(self, matching: StateMatching | None = None) -> TrackOfEngine:
        """A complete track of the new plan: states that match are handed over, the others are computed."""

    def spread(self) -> TrackOfEngine:
        """A track of the old plan that fills the states of the new one step by step."""

    def side_by_side(self) -> TrackOfEngine:
        """A track of both plans; they share the states that mean the same to both."""


class Strategy(Protocol):
    """One way from one plan to another; the engine calls `check` and `begin`."""

    @property
    def name(self) -> str:
        """The name by which specs, calls and records know the strategy."""

    def check(self, old: PhysicalPlan, new: PhysicalPlan, graph: JoinGraph) -> None:
        """Refuses, by a MigrationError, a change between two plans of a query that the strategy cannot serve."""

    def price(self, difference: Difference) -> Price | None:
        """The cost of a change that the strategy can serve; None where another strategy does the same at least as well.

        `auto` takes the strategy with the lowest price.
        """

    def begin(self, change: Change[Track]) -> Track:
        """The track that is at work from now on."""
