"""The plans that the driver sends to slots; shared by the packages that choose plans and those that run them.

Invariant: an order is immutable, and a slot applies it before its step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from anabranch.errors import PlanError
from anabranch.plan.mesh import Plan
from anabranch.plan.partitioning import Partitioning


@dataclass(frozen=True)
class SlotPlan:
    """The plan of a slot, and the migration strategy if the slot still runs another plan."""

    plan: Plan
    strategy: str = "moving-state"
    learns: bool = False
    """True if the slot profiles its operators on its youngest rows after the step, for a mesh search."""


@dataclass(frozen=True)
class SlotRange:
    """The number of slots a run may use: a fixed number, or as many as its load needs between two limits.

    If the fewest slots are sought, the number is determined between the limits before the run begins, and then fixed.
    """

    least: int
    most: int
    first: int | None = None
    """The initial number of slots; the least if None."""
    is_sought: bool = False
    """True until the number is determined: the fewest slots such that every slot keeps its limits."""

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise PlanError(
                f"{self.least} to {self.most} slots cannot run a query",
                hint="write slots: {least: 1, most: 8}, with least <= most",
            )

    @classmethod
    def fixed(cls, slots: int) -> SlotRange:
        return cls(slots, slots)

    @property
    def is_elastic(self) -> bool:
        """True if the number of slots may change while the query runs."""
        return self.least < self.most and not self.is_sought

    @property
    def start(self) -> int:
        """The number of slots to begin with."""
        return self.within(self.first or self.least)

    def within(self, wanted: int) -> int:
        """Returns the nearest number in the range."""
        return max(self.least, min(self.most, wanted))

    def __str__(self) -> str:
        if self.is_sought:
            return f"the fewest of {self.least} to {self.most}"
        return f"{self.least} to {self.most}" if self.is_elastic else str(self.most)


ONE_SLOT = SlotRange.fixed(1)
FEWEST = SlotRange(1, 64, is_sought=True)
"""The fewest slots that keep the limits, up to the number of partition groups of a query."""

SlotPlans: TypeAlias = Mapping[str, tuple[SlotPlan, ...]]
"""The plans of all slots for each query, in slot order."""


@dataclass(frozen=True)
class Orders:
    """The driver's decisions for one batch."""

    plans: SlotPlans
    table: Partitioning
    """The slot of each partition group."""
    counts_cells: bool = False
    """True if slots report their rows by cell, from which the load of groups is estimated."""
    kept: float = 1.0
    """The share of keys whose rows are kept; the others are shed."""


def most_frequent(plans: Sequence[SlotPlan]) -> Plan:
    """Returns the plan that most slots run."""
    several = [each.plan for each in plans]
    return max(several, key=several.count)
