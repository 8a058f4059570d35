"""A migration strategy: whether it can serve a change of plan, what that costs, and how it begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from anabranch.engine.migration import Change
from anabranch.engine.tracks.protocol import Track
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import PhysicalPlan

if TYPE_CHECKING:
    from anabranch.migrate.strategies.pricing import Difference


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


class Strategy(Protocol):
    """One way from one plan to another; the engine calls `check` and `begin` (`engine.migration`)."""

    @property
    def name(self) -> str:
        """The name by which specs, calls and records know the strategy."""

    def check(self, old: PhysicalPlan, new: PhysicalPlan, graph: JoinGraph) -> None:
        """Refuses, by a MigrationError, a change between two plans of a query that the strategy cannot serve."""

    def price(self, difference: Difference) -> Price | None:
        """The cost of a change that the strategy can serve; None where another strategy does the same at least as well.

        `auto` takes the strategy with the lowest price.
        """

    def begin(self, change: Change) -> Track:
        """The track that is at work from now on."""
