"""The plans that the driver sends to slots; shared by the packages that decide on plans and those that run them."""

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
    """How many slots a run may use: a fixed number, or as many as its load needs between two limits.

    Where the fewest are sought, the number is found between the limits before the run begins, and is fixed then.
    """

    least: int
    most: int
    first: int | None = None
    """How many it begins with; the least when None."""
    is_sought: bool = False
    """True while the number is still to be found: the fewest with which every slot keeps its limits."""

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise PlanError(
                f"{self.least} to {self.most} slots cannot run a query",
                hint="write slots: {least: 1, most: 8}, the least not above the most",
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
        """The nearest number in the range."""
        return max(self.least, min(self.most, wanted))

    def __str__(self) -> str:
        if self.is_sought:
            return f"the fewest of {self.least} to {self.most}"
        return f"{self.least} to {self.most}" if self.is_elastic else str(self.most)


ONE_SLOT = SlotRange.fixed(1)
FEWEST = SlotRange(1, 64, is_sought=True)
"""The fewest slots that keep the limits, of as many as a query has partition groups."""

SlotPlans: TypeAlias = Mapping[str, tuple[SlotPlan, ...]]
"""For each query the plans of all slots, in the order of the slots."""


@dataclass(frozen=True)
class Orders:
    """All that the driver decides for one batch."""

    plans: SlotPlans
    table: Partitioning
    """Which slot has which partition group."""
    counts_cells: bool = False
    """Whether slots report their rows by cell, so that the load of groups can be estimated."""


def most_frequent(plans: Sequence[SlotPlan]) -> Plan:
    """Return the plan that most slots run."""
    several = [each.plan for each in plans]
    return max(several, key=several.count)
