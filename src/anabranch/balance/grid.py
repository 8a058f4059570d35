"""Compares two grids by the rows that they send: a pure rule over measured rows per relation.

A row that the grid sends to several slots is shuffled, kept and indexed in each of them. When the rates of streams
change, the grid that sent the fewest rows may become the one that sends the most. A change saves the CPU time of the
copies that are no longer sent. It costs the transfer of nearly all state, because a new grid places every row anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.plan.partitioning import Partitioning


@dataclass(frozen=True)
class GridChange:
    """Another grid, and its expected effects."""

    now: Partitioning
    proposed: Partitioning
    sent: float
    """Rows sent over rows read, with the current grid."""
    expected: float
    """Rows sent over rows read, with the proposed grid."""
    gain: float
    """Bytes sent with the current grid over bytes sent with the proposed one."""
    saved: float
    """Seconds of one core that an average slot would save in a batch."""
    bytes: float
    """The bytes of state that an average slot would receive."""


def compare_grids(
    now: Partitioning,
    proposed: Partitioning,
    rows: Mapping[str, float],
    widths: Mapping[str, float],
    cpu: float,
    state_bytes: float,
) -> GridChange:
    """Compares two grids, given the rows of each relation in a batch and the bytes of a row of each.

    `cpu` are the seconds of one core that all slots together spent on inserting rows, without finding matches. They are
    assumed to be proportional to the bytes sent.
    """
    traffic = {name: count * widths[name] for name, count in rows.items()}
    before, after = now.sent(traffic), proposed.sent(traffic)
    saved = cpu * (before - after) / before / now.slots
    return GridChange(
        now, proposed, now.sent(rows), proposed.sent(rows), before / after, saved, state_bytes / now.slots
    )
