"""The schedule of a change of the table: at once, in parts over several batches, or on parallel tracks for a window.

*Moving state* (Zhu 2006, Chapter 22): the receiver takes over the rows of its new groups. With a limit on rows, each
batch moves some of the groups. The table between two parts is an ordinary table, so a crash needs no special recovery.
A group larger than the limit moves alone.

*Parallel track* (Zhu 2006, Chapter 21): no rows are taken over. The change has a mark, an event time that no row has
reached yet. Rows from the mark on go to both slots. The sender finds the combinations with a row before the mark, the
receiver all others. The sender stops when no row before the mark can be part of a further result.

Limit: by moving state, a change to another grid is always made at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from anabranch.adapt.facts import Moment
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.slots import SlotRange

MoveStrategy: TypeAlias = Literal["moving-state", "parallel-track"]
STRATEGIES: tuple[MoveStrategy, ...] = ("moving-state", "parallel-track")


@dataclass(frozen=True)
class Course:
    """A change from the current table to a target."""

    target: Partitioning
    by: str
    """Who requested it."""
    strategy: MoveStrategy = "moving-state"
    most_rows: int | None = None
    """Rows that may be taken over with one batch; None for no limit."""
    group_rows: Sequence[float] = ()
    """The number of base rows of each group; required with a limit."""

    @property
    def needs_counts(self) -> bool:
        """True if the rows of the groups must be counted before the first part can move."""
        return self.most_rows is not None and not self.group_rows and self.strategy == "moving-state"

    def after(self, table: Partitioning, moment: Moment) -> Partitioning:
        """Returns the table of the next batch."""
        if self.strategy == "parallel-track":
            if table.mark is not None:
                return self.target if moment.is_over(table.mark) else table
            # Without any row so far, the tracks would not differ.
            return self.target if moment.newest is None else table.beside(self.target, moment.newest + 1)
        if self.most_rows is None or table.grid != self.target.grid:
            return self.target
        return self._part(table, self.most_rows)

    def _part(self, table: Partitioning, most: int) -> Partitioning:
        """Returns the table with as many groups moved as the limit allows, at least one."""
        slots, taken = list(table.table), 0.0
        for group, (now, then) in enumerate(zip(table.table, self.target.table, strict=True)):
            if now != then and (not taken or taken + self.group_rows[group] <= most):
                slots[group] = then
                # Not zero for an empty group, so that `taken` shows that a group has moved.
                taken += max(self.group_rows[group], 1e-9)
        return table.with_table(slots)


@dataclass(frozen=True)
class Table:
    """The grid and the table that a run begins with, and what is known about moves in it."""

    partitioning: Partitioning
    slots: SlotRange | None = None
    """How many slots may be used; those of the table when None."""
    no_tracks: str | None = None
    """Why groups cannot move on parallel tracks; None when they can."""
    rebuilds: str | None = None
    """Why a slot that loses groups is rebuilt whatever the table; None when it is not."""
    uncut: frozenset[str] = frozenset()
    """The relations whose rows with a heavy key must not be cut."""

    def objection(self, course: Course, now: Partitioning) -> str | None:
        """Returns why a change of the current table cannot keep its limit of rows; None if it can, or has none."""
        if course.most_rows is None or course.strategy == "parallel-track":
            return None
        if self.rebuilds is not None:
            return f"a move cannot be spread over several batches: {self.rebuilds}"
        if not (now.is_partition and course.target.is_partition):
            return "a move cannot be spread over several batches where rows go to several slots"
        return None
