"""The spread strategy: the states of the new plan are filled over several steps, while the old plan stays in force.

It computes what moving state computes, and keeps the new states up meanwhile, but no step waits for all of it. An abort
on the way loses nothing. (`engine.tracks.spread` has the argument for its exactness.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch.errors import MigrationError
from anabranch.migrate.strategies.strategy import Change, Price, Track
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import PhysicalPlan, input_operators

if TYPE_CHECKING:
    from anabranch.migrate.strategies.pricing import Difference


class Spread:
    """Fills new states with every step, as much as the step itself brings."""

    name = "spread"

    def check(self, old: PhysicalPlan, new: PhysicalPlan, graph: JoinGraph) -> None:
        for plan in (old, new):
            if any(input_operators(plan)):
                raise MigrationError(
                    f"strategy 'spread' does not serve plan '{plan}'",
                    detail="an input is worked on before it joins, as where rows are merged",
                    hint="use 'moving-state'",
                )

    def price(self, difference: Difference) -> Price | None:
        if difference.matching.is_trivial or any(
            any(input_operators(plan)) for plan in (difference.old, difference.new)
        ):
            return None
        # Steps bring as much as they catch up with, so it lasts about as long as the old plan takes for so much work.
        computing = difference.indexing + difference.computing
        seconds = computing / max(difference.running, 1e-9)
        return Price(self.name, computing + seconds * difference.joining, difference.memory, seconds)

    def begin(self, change: Change[Track]) -> Track:
        return change.spread()
