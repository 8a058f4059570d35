"""The moving state strategy: states that both plans have are handed over, the others are computed at once.

It serves every change, and pauses the query for as long as it computes. (`engine.moving_state` has the computation.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch.migrate.strategies.strategy import Change, Price, Track
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import PhysicalPlan

if TYPE_CHECKING:
    from anabranch.migrate.strategies.pricing import Difference


class MovingState:
    """Computes the states that only the new plan has: all live parts of the smallest input look up the others."""

    name = "moving-state"

    def check(self, old: PhysicalPlan, new: PhysicalPlan, graph: JoinGraph) -> None:
        """Serves every change."""

    def price(self, difference: Difference) -> Price | None:
        if difference.matching.is_trivial:
            return None
        computing = difference.indexing + difference.computing
        return Price(self.name, computing, difference.memory, computing, pause=computing)

    def begin(self, change: Change[Track]) -> Track:
        return change.moved()
