"""Changes of heavy keys by hand and by a schedule, as tables; `balance.heavy` finds those a query makes by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from anabranch.adapt.course import MoveStrategy
from anabranch.errors import PlanError
from anabranch.plan.partitioning import Partitioning


@dataclass(frozen=True)
class SplitRequest:
    """A key value to be split, or united, at a batch, as a user writes it: the codes are known with the query."""

    at_batch: int
    value: Any
    key: str | None = None
    over: int | tuple[int, ...] | None = None
    unites: bool = False


@dataclass(frozen=True)
class ScheduledSplit:
    """A key value that is split, or united again, at a batch that is known beforehand."""

    at_batch: int
    code: str
    value: int
    over: int | tuple[int, ...] | None = None
    """The slots, or how many of them; all when None."""
    unites: bool = False
    uncut: frozenset[str] = frozenset()
    """The relations whose rows must not be cut."""
    strategy: ClassVar[MoveStrategy] = "moving-state"

    @property
    def at_once(self) -> bool:
        """A key can be united only after it was split."""
        return not self.unites

    def target(self, table: Partitioning) -> Partitioning:
        """The table after the change; PlanError when it cannot be made."""
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
    """The table in which a key value is split over some slots: those named, or as many as named, or all.

    Of a number of slots, those with the fewest groups are taken.
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
