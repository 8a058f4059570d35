"""The parallel-track strategy: both plans run side by side until no old row is left in any box's input.

It never pauses the query, and costs the new joins in addition to the old ones for one window. (`engine.tracks.parallel`
explains why it is exact.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch.errors import MigrationError
from anabranch.migrate.strategies.strategy import Change, Price, Track
from anabranch.plan.difference import boxes, match_states
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import PhysicalPlan

if TYPE_CHECKING:
    from anabranch.migrate.strategies.pricing import Difference


class InParallel:
    """Runs both plans; if nothing has to be joined again, changes at once."""

    name = "parallel-track"

    def check(self, old: PhysicalPlan, new: PhysicalPlan, graph: JoinGraph) -> None:
        if not match_states(old, new, graph.thetas).recomputed:
            return
        if graph.counted:
            raise MigrationError(
                f"strategy 'parallel-track' might never end for plan '{new}'",
                detail=f"a row of '{graph.counted[0]}' stays in its count window until enough later rows have arrived",
                hint="use 'moving-state'",
            )
        for box in boxes(old, new, graph.thetas):
            for names in (part.relations for part in box.inputs):
                if all(not graph.relation(name).window.is_bounded for name in names):
                    raise MigrationError(
                        f"strategy 'parallel-track' would never end for plan '{new}'",
                        detail=f"rows of '{' '.join(sorted(names))}' are kept forever, so old rows never expire",
                        hint="use 'moving-state'",
                    )

    def price(self, difference: Difference) -> Price | None:
        if not difference.matching.recomputed:
            return None
        window = difference.longest_window
        return Price(self.name, window * difference.joining, difference.memory, window)

    def begin(self, change: Change[Track]) -> Track:
        return change.side_by_side() if change.matching.recomputed else change.moved()
