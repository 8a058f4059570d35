"""Scheduled changes of the table of partition groups: each names the batch with which it begins.

Limit: a schedule is for tests and trial runs; it knows no loads, so all groups count as equally loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from anabranch.adapt.course import MoveStrategy
from anabranch.adapt.measuring import even_loads
from anabranch.adapt.splitting import ScheduledSplit
from anabranch.balance.scaling import require_count, rescale
from anabranch.errors import PlanError
from anabranch.plan.partitioning import Partitioning


@dataclass(frozen=True)
class ScheduledMove:
    """A move of partition groups at a given batch."""

    at_batch: int
    to: int
    groups: int | tuple[int, ...]
    """The groups, or a number of groups of the sender."""
    sender: int | None = None
    """The slot that loses groups; required with a number of groups."""
    strategy: MoveStrategy = "moving-state"
    at_once: ClassVar[bool] = True
    """Whether the change is independent of the rest of the schedule, so that it can be checked at the start."""

    def target(self, table: Partitioning) -> Partitioning:
        """Returns the table after the move; raises a PlanError for an unknown group or slot."""
        table.require_slots(self.to, *(() if self.sender is None else (self.sender,)))
        if not isinstance(self.groups, int):
            return table.moved(self.groups, self.to)
        if self.sender is None:
            raise PlanError(
                f"{self.groups} groups are to move, from no slot", hint="name the slot that has them in 'from'"
            )
        return table.moved(table.groups_of(self.sender)[: self.groups], self.to)


@dataclass(frozen=True)
class ScheduledScale:
    """A change of the number of slots in use at a given batch."""

    at_batch: int
    slots: int
    strategy: MoveStrategy = "moving-state"
    at_once: ClassVar[bool] = True

    def target(self, table: Partitioning) -> Partitioning:
        """Returns the table over that number of slots, for groups of equal load."""
        require_count(table, self.slots)
        return rescale(table, even_loads(table), range(self.slots)).applied(table)


Scheduled: TypeAlias = ScheduledMove | ScheduledScale | ScheduledSplit
