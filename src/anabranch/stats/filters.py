"""What is known of the filters of single relations: how many rows pass, and what a check costs."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class SeenFilter:
    """A condition on one relation, the share of rows that pass it, and the seconds that a check takes."""

    relation: str
    condition: str
    share: float
    seconds: float
    """Of a row, in the engine."""
    early: float = 1.0
    """What a row costs that is checked before it is sent, in checks of the engine: by Spark, unless somebody says."""

    def checked_by(self, readers: int | None) -> SeenFilter:
        """The filter where so many slots each check all rows before they enter; None where Spark checks them."""
        return self if readers is None else replace(self, early=float(readers))
