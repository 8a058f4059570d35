"""Scheduled changes of the table of partition groups: each names the batch with which it begins.

Limit: a schedule is for tests and trial runs; it knows no loads, so all groups count as equally loaded. Only a key
whose rows may be cut can be split; `Partitioning.split` refuses any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from anabranch.adapt.course import MoveStrategy
from anabranch.adapt.loads import even_loads
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


@dataclass(frozen=True)
class SplitRequest:
    """A key value to be split or united at a batch, as written by the user; `run.keys` computes its code."""

    at_batch: int
    value: Any
    key: str | None = None
    over: int | tuple[int, ...] | None = None
    unites: bool = False


@dataclass(frozen=True)
class ScheduledSplit:
    """A key value, by its code, that is split or united at a given batch."""

    at_batch: int
    code: str
    value: int
    over: int | tuple[int, ...] | None = None
    """The slots, or their number; None for all."""
    unites: bool = False
    uncut: frozenset[str] = frozenset()
    """The relations whose rows must not be divided among slots."""
    strategy: ClassVar[MoveStrategy] = "moving-state"

    @property
    def at_once(self) -> bool:
        """False for uniting a key, which depends on an earlier split."""
        return not self.unites

    def target(self, table: Partitioning) -> Partitioning:
        """Returns the table after the change; raises a PlanError if it is impossible."""
        if self.unites:
            return table.united(self.code, self.value)
        return split_over(table, self.code, self.value, self.over, self.uncut)


Scheduled: TypeAlias = ScheduledMove | ScheduledScale | ScheduledSplit


def split_over(
    table: Partitioning,
    code: str,
    value: int,
    over: int | Sequence[int] | None = None,
    uncut: frozenset[str] = frozenset(),
) -> Partitioning:
    """Returns the table in which a key value is split over the given slots, a number of slots, or all.

    A number means the slots with the fewest groups.
    """
    if over is None or isinstance(over, int):
        count = table.slots if over is None else over
        if not 2 <= count <= table.slots:
            raise PlanError(
                f"a key cannot be split over {count} of {table.slots} slots",
                hint="use two slots or more of those there are",
            )
        slots = sorted(range(table.slots), key=lambda slot: (len(table.groups_of(slot)), slot))[:count]
    else:
        slots = list(over)
    return table.split(code, value, slots, uncut=uncut)
