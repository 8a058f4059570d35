"""Finds the smallest number of slots within limits: the first allocation method of Zhu 2006, Section 26.3.2.

More slots divide the work, but not evenly: a frequent key goes to one slot, and a grid over several keys sends copies.
So each number is judged by the expected work and state of its fullest slot, not by the average. Limit: state is assumed
to be distributed like work.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from anabranch.balance.first import FirstTable
from anabranch.cost.resources import NOTHING, Resources
from anabranch.errors import NoFeasiblePlan
from anabranch.lang.sizes import size_text
from anabranch.plan.slots import SlotRange


@dataclass(frozen=True)
class Allocation:
    """The smallest number of slots within the limits, and the limit that one slot less would exceed."""

    slots: int
    less: str | None = None
    """The limit that one slot less would exceed; None if no smaller number was allowed."""

    def __str__(self) -> str:
        reason = "no smaller number was requested" if self.less is None else f"with {self.slots - 1}, {self.less}"
        return f"{self.slots} slots are the fewest that keep the limits: {reason}"


def fewest_slots(allowed: SlotRange, objection: Callable[[int], str | None]) -> Allocation:
    """Returns the smallest allowed number of slots without an objection; calls `objection` for each in turn.

    Raises
    ------
    NoFeasiblePlan
        When no allowed number keeps the limits.
    """
    less = None
    for slots in range(allowed.least, allowed.most + 1):
        reason = objection(slots)
        if reason is None:
            return Allocation(slots, less)
        less = reason
    raise NoFeasiblePlan(
        f"no number of slots from {allowed.least} to {allowed.most} keeps the limits",
        detail=f"with {allowed.most}, {less}",
        hint="raise the limits, allow more slots (slots: {most: 128, fewest: true}), or shorten the windows",
    )


def over_limits(
    whole: Resources, table: FirstTable, cpu: float, memory: float, *, taken: Resources = NOTHING, room: float = 1.0
) -> str | None:
    """Returns the limit that the fullest slot exceeds if the table spreads a plan of that total cost; None if it keeps
    all.

    `cpu` and `memory` are the limits of a slot, in cores and bytes. `taken` is the host overhead of a slot, and `room`
    the bytes of memory per byte of state.
    """
    time = max(share / speed for share, speed in zip(table.shares, table.capacities, strict=True))
    cores, size = whole.cpu * time + taken.cpu, whole.memory * max(table.shares) * room + taken.memory
    if cpu < math.inf and cores > cpu:
        spark = f", {taken.cpu:.3g} of them for Spark" if taken.cpu else ""
        return f"the slowest slot needs {cores:.3g} of {cpu:.3g} cores{spark}"
    if memory < math.inf and size > memory:
        spark = f", {size_text(taken.memory)} of them for Spark" if taken.memory else ""
        return f"the fullest slot needs {size_text(size)} of {size_text(memory)}{spark}"
    return None
