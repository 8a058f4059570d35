"""The price of a move of partition groups by each strategy, in seconds of one core.

*Moving state* transfers the live rows of the groups: each costs its receiver as much as a new row, without the results
that it finds. A *parallel track* transfers no rows, but for one window both slots process the new rows of the groups,
and the load of the sender does not fall yet. So moving state is cheaper while rates are steady, because one window of
new rows is as many as are live; a parallel track is cheaper once rates have fallen and states are still large.

Invariant: both prices come from the batch in which the slots counted their rows. Limit: they do not include the delay
of results by a longer batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.balance.loads import Loads
from anabranch.balance.rule import Rebalancing


@dataclass(frozen=True)
class MovePrices:
    """The cost of a move by each strategy, in seconds of one core."""

    moving_state: float
    parallel_track: float


def price_moves(found: Rebalancing, loads: Loads, window: float) -> MovePrices | None:
    """Returns the prices of a move, given the batches in a window; None if rows were not counted."""
    if not loads.group_rows or not loads.units[0]:
        return None
    moved = [(group, move.sender) for move in found.moves for group in move.groups]
    taking_over = sum(loads.group_rows[group] * loads.units[0][sender] for group, sender in moved)
    double = sum(loads.groups[group] for group, _ in moved)
    return MovePrices(taking_over, window * (double + max(found.saved, 0.0)))
