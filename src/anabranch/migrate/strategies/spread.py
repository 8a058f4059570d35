"""The spread strategy: fills the states of the new plan over several steps, while the old plan keeps running.

It computes what moving state computes and maintains the new states meanwhile, but no step waits for all of it. An abort
before the end loses nothing. (`engine.tracks.spread` explains why it is exact.)
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
    """Fills new states in every step, in proportion to the rows of the step."""

    name = "spread"

    def check(self, old: PhysicalPlan, new: PhysicalPlan, graph: JoinGraph) -> None:
        for plan in (old, new):
            if any(input_operators(plan)):
                raise MigrationError(
                    f"strategy 'spread' does not support plan '{plan}'",
                    detail="an operator processes an input before the join, such as merging rows",
                    hint="use 'moving-state'",
                )

    def price(self, difference: Difference) -> Price | None:
        if difference.matching.is_trivial or any(
            any(input_operators(plan)) for plan in (difference.old, difference.new)
        ):
            return None
        # A step backfills about as much work as new rows cause, so the change lasts as long as the old plan needs for
        # that amount of work.
        computing = difference.indexing + difference.computing
        seconds = computing / max(difference.running, 1e-9)
        return Price(self.name, computing + seconds * difference.joining, difference.memory, seconds)

    def begin(self, change: Change[Track]) -> Track:
        return change.spread()
