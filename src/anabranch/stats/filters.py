"""What is known of the filters of single relations: how many rows pass, and what a check costs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SeenFilter:
    """A condition on one relation, the share of rows that pass it, and the seconds that a check takes."""

    relation: str
    condition: str
    share: float
    seconds: float
    """Of a row, in the engine."""
    early: float = 1.0
    """What a check costs before rows are sent, in checks of the engine."""
