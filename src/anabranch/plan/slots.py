"""The plans that the driver sends to slots; shared by the packages that decide on plans and those that run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from anabranch.plan.mesh import Plan
from anabranch.plan.partitioning import Partitioning


@dataclass(frozen=True)
class SlotPlan:
    """The plan of a slot, and the migration strategy if the slot still runs another plan."""

    plan: Plan
    strategy: str = "moving-state"
    learns: bool = False
    """True if the slot profiles its operators on its youngest rows after the step, for a mesh search."""


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
