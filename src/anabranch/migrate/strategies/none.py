"""The strategy 'none': both plans keep the same states, so only references change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch.errors import MigrationError
from anabranch.migrate.strategies.strategy import Change, Price, Track
from anabranch.plan.difference import match_states
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import PhysicalPlan

if TYPE_CHECKING:
    from anabranch.migrate.strategies.pricing import Difference


class NoStrategy:
    """Refuses every change that requires computing or filtering a state."""

    name = "none"

    def check(self, old: PhysicalPlan, new: PhysicalPlan, graph: JoinGraph) -> None:
        matching = match_states(old, new, graph.thetas)
        if not matching.is_trivial:
            lacking = [f"'{name}' does not exist and would have to be computed" for name in matching.recomputed]
            lacking += [f"'{state.old}' would have to be filtered" for state in matching.filtered]
            raise MigrationError(
                f"strategy 'none' cannot change plan '{old}' into '{new}'",
                detail=f"the state {lacking[0]}",
                hint="use 'moving-state' or 'parallel-track'",
            )

    def price(self, difference: Difference) -> Price | None:
        return Price(self.name, difference.indexing, 0.0, 0.0)

    def begin(self, change: Change[Track]) -> Track:
        return change.moved()
