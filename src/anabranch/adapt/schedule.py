"""Changes of the table at batches that are known beforehand, for tests and rehearsals."""

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
    """Partition groups that move at a batch that is known beforehand."""

    at_batch: int
    to: int
    groups: int | tuple[int, ...]
    """The groups, or how many of the sender's groups."""
    sender: int | None = None
    """The slot that gives groups away; needed where a number of groups is named."""
    strategy: MoveStrategy = "moving-state"
    at_once: ClassVar[bool] = True
    """Whether it can be made whatever else the schedule does, and so can be checked beforehand."""

    def target(self, table: Partitioning) -> Partitioning:
        """The table after the move; PlanError when there are no such groups or slots."""
        table.require_slots(self.to, *(() if self.sender is None else (self.sender,)))
        if not isinstance(self.groups, int):
            return table.moved(self.groups, self.to)
        if self.sender is None:
            raise PlanError(f"{self.groups} groups are to move, from no slot", hint="name the slot that has them: from")
        return table.moved(table.groups_of(self.sender)[: self.groups], self.to)


@dataclass(frozen=True)
class ScheduledScale:
    """A number of slots that is used from a batch that is known beforehand."""

    at_batch: int
    slots: int
    strategy: MoveStrategy = "moving-state"
    at_once: ClassVar[bool] = True

    def target(self, table: Partitioning) -> Partitioning:
        """The table over that many slots, for groups of equal load."""
        require_count(table, self.slots)
        return rescale(table, even_loads(table), range(self.slots)).applied(table)


Scheduled: TypeAlias = ScheduledMove | ScheduledScale | ScheduledSplit
