"""The moving-state strategy: hands over the states that both plans have and computes the others at once.

It supports every change, and pauses the query while it computes. (`engine.moving_state` has the computation.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch.migrate.strategies.strategy import Change, Price, Track
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import PhysicalPlan

if TYPE_CHECKING:
    from anabranch.migrate.strategies.pricing import Difference


class MovingState:
    """Computes the states that only the new plan has: all live rows of the smallest input probe the others."""

    name = "moving-state"

    def check(self, old: PhysicalPlan, new: PhysicalPlan, graph: JoinGraph) -> None:
        """Accepts every change."""

    def price(self, difference: Difference) -> Price | None:
        if difference.matching.is_trivial:
            return None
        computing = difference.indexing + difference.computing
        return Price(self.name, computing, difference.memory, computing, pause=computing)

    def begin(self, change: Change[Track]) -> Track:
        return change.moved()
