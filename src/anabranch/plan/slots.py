"""The plans that the driver sends to slots: values below every room that decides on plans or runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from anabranch.plan.mesh import Plan


@dataclass(frozen=True)
class SlotPlan:
    """The plan that a slot is to run, and how the slot migrates to it where it still runs another."""

    plan: Plan
    strategy: str = "moving-state"
    learns: bool = False
    """After the step the slot reports what its operators do to its youngest rows, for the search of a mesh."""


SlotPlans: TypeAlias = Mapping[str, tuple[SlotPlan, ...]]
"""For each query the plans of all slots, in the order of the slots."""


def most_frequent(plans: Sequence[SlotPlan]) -> Plan:
    """The plan that most of the slots have."""
    several = [each.plan for each in plans]
    return max(several, key=several.count)
