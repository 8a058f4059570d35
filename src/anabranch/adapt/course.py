"""The course of a change of the table: at once, in parts over several batches, or on parallel tracks for a window.

*Moving state* (Zhu 2006, Chapter 22): the receiver takes over the rows of its new groups. A change within a limit of
rows takes some of the groups with each batch; between two parts the table is a table like any other, so a crash on the
way needs nothing. A group larger than the limit moves alone.

*Parallel track* (Zhu 2006, Chapter 21): nothing is taken over. From the mark on, an event time that no row has reached
yet, new rows of the groups that move go to both slots. Combinations with a row before the mark stay with the sender,
the others belong to the receiver. When no row before the mark can be part of a result any more, the sender is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from anabranch.adapt.facts import Moment
from anabranch.plan.partitioning import Partitioning

MoveStrategy: TypeAlias = Literal["moving-state", "parallel-track"]
STRATEGIES: tuple[MoveStrategy, ...] = ("moving-state", "parallel-track")


@dataclass(frozen=True)
class Course:
    """The way from the table in force to a target."""

    target: Partitioning
    by: str
    """Who asked for it."""
    strategy: MoveStrategy = "moving-state"
    most_rows: int | None = None
    """Rows that may be taken over with one batch; None for no limit."""
    group_rows: Sequence[float] = ()
    """Base rows that go with each group; needed where there is a limit."""

    @property
    def needs_counts(self) -> bool:
        """True when the rows of the groups have to be counted before the first part can move."""
        return self.most_rows is not None and not self.group_rows and self.strategy == "moving-state"

    def after(self, table: Partitioning, moment: Moment) -> Partitioning:
        """The table of the next batch."""
        if self.strategy == "parallel-track":
            if table.mark is not None:
                return self.target if moment.is_over(table.mark) else table
            # Without a row so far there is nothing to keep apart.
            return self.target if moment.newest is None else table.beside(self.target, moment.newest + 1)
        if self.most_rows is None or table.grid != self.target.grid:
            return self.target
        return self._part(table, self.most_rows)

    def _part(self, table: Partitioning, most: int) -> Partitioning:
        """The table with as many of the groups moved as the limit allows, and with one at least."""
        slots, taken = list(table.table), 0.0
        for group, (now, then) in enumerate(zip(table.table, self.target.table, strict=True)):
            if now != then and (not taken or taken + self.group_rows[group] <= most):
                slots[group] = then
                # An empty group costs nothing, but one group at least has moved.
                taken += max(self.group_rows[group], 1e-9)
        return table.with_table(slots)
