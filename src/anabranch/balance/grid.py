"""Whether another grid would send fewer rows: a pure rule over measured rows per relation.

A row that the grid sends to several slots is shuffled, kept and indexed in each of them. When the rates of streams
change, the grid that sent the least may become the one that sends the most. What a change saves is the CPU time of the
copies that fall away; what it costs is taking nearly all state over, because a new grid gives every row a new place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.plan.partitioning import Partitioning


@dataclass(frozen=True)
class GridChange:
    """Another grid, and what it would change."""

    now: Partitioning
    proposed: Partitioning
    sent: float
    """Rows sent over rows read, by the grid in force."""
    expected: float
    """The same by the proposed grid."""
    gain: float
    """Bytes sent by the grid in force over bytes sent by the proposed one."""
    saved: float
    """Seconds of one core that an average slot would save in a batch."""
    bytes: float
    """State that an average slot would have to take over."""


def compare_grids(
    now: Partitioning,
    proposed: Partitioning,
    rows: Mapping[str, float],
    widths: Mapping[str, float],
    cpu: float,
    state_bytes: float,
) -> GridChange:
    """Compare two grids for the rows of each relation in a batch, and the bytes of a row of each.

    `cpu` are the seconds of one core that all slots together took to take rows in, without finding matches. They are
    taken to be in proportion to the bytes that were sent.
    """
    traffic = {name: count * widths[name] for name, count in rows.items()}
    before, after = now.sent(traffic), proposed.sent(traffic)
    saved = cpu * (before - after) / before / now.slots
    return GridChange(
        now, proposed, now.sent(rows), proposed.sent(rows), before / after, saved, state_bytes / now.slots
    )
