"""Requested and scheduled changes of heavy keys, as tables; automatic changes are those of `balance.heavy`.

Limit: only a key whose rows may be cut can be split; `Partitioning.split` refuses any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from anabranch.adapt.course import MoveStrategy
from anabranch.errors import PlanError
from anabranch.plan.partitioning import Partitioning


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
