"""Proposes moves of partition groups, another number of slots, and another grid.

The advisor looks at the loads of the latest batches (`adapt.loads`). If they are uneven, the slots count one batch by
cell, and the rules of `balance` compute moves from it; another grid needs no such count. A change that the user asked
for need not pay. Invariant: the advisor is a frozen value, and its methods change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from anabranch.adapt.course import Course, Table
from anabranch.adapt.loads import CountedBatch, LoadHistory
from anabranch.adapt.naming import NameKey, by_hash
from anabranch.adapt.records import BalanceDecided, GridDecided
from anabranch.balance.heavy import settle_heavy
from anabranch.balance.rule import even_out
from anabranch.balance.scaling import rescale, spread_over
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.slots import SlotRange

ChooseGrid: TypeAlias = Callable[[Mapping[str, float]], Partitioning]
"""Returns the grid that fits the traffic of relations, over all slots."""


@dataclass(frozen=True)
class Count:
    """A batch in which the slots count their rows by cell, and what for."""

    trigger: str | None = None
    """Why the query decides by itself; None when the user asked for it."""
    available: tuple[int, ...] | None = None
    """The slots that shall be used afterwards, if these are to change."""
    course: Course | None = None
    """A change that only waits for the rows of its groups to be counted."""


@dataclass(frozen=True)
class BalanceAdvisor:
    """Proposes changes of the table of a set of queries."""

    start: Table
    limits: SlotRange
    grids: ChooseGrid | None = None
    """None to keep the grid."""
    names: NameKey = by_hash
    """Names heavy keys in records."""

    def wants(self, loads: LoadHistory, table: Partitioning, available: tuple[int, ...]) -> Count | None:
        """Returns the count that the loads call for, if the query should move groups or use other slots by itself."""
        other = loads.other_number(available, self.limits) if self.limits.is_elastic else None
        if other is not None:
            return Count(other[1], tuple(range(other[0])))
        reason = loads.stands_out(available)
        if reason is None and table.heavy and loads.is_long_since:
            reason = "heavy keys are looked at again"
        return None if reason is None else Count(reason)

    def other_grid(
        self, batch: int, loads: LoadHistory, table: Partitioning, available: tuple[int, ...], *, asked: bool
    ) -> tuple[GridDecided, Course | None] | None:
        """Returns the decision on another grid, and the change; None if the rates suggest no other."""
        grids = self.grids
        if grids is None:
            return None
        found = loads.other_grid(table, lambda traffic: _over(grids(traffic), available))
        if found is None:
            return None
        refused = None if asked else loads.settings.objection(found.saved, found.bytes)
        course = Course(found.proposed, "user" if asked else "balance") if refused is None else None
        return GridDecided(batch, found, refused), course

    def propose(
        self, batch: int, count: Count, counted: CountedBatch, history: LoadHistory, available: tuple[int, ...]
    ) -> tuple[BalanceDecided, Course | None]:
        """Returns the decision on moves over the available slots for a counted batch, and the change."""
        settings, table = history.settings, counted.table
        loads = before = counted.loads(history.load_of)
        speeds, copying = history.speeds(table.slots), counted.price_of_copies(loads)
        settled = settle_heavy(table, loads, counted.keys, counted.rows, available, self.start.uncut)
        if settled:
            # The price of copies is not known where those of the cells of another table are not.
            table, loads, copying = settled.table, settled.loads, lambda _: 0.0
        if count.available is not None:
            found = rescale(table, loads, available, copying, settings.bytes, speeds)
        else:
            found = even_out(
                table,
                loads,
                speeds=speeds,
                available=available,
                copying=copying,
                least_bytes=settings.bytes,
                most_skew=settings.ratio,
            )
        refused: str | None = None
        if settled:
            held = tuple(slot.bytes for slot in before.slots)
            found = replace(found, before=tuple(before.cpu.tolist()), held_before=held)
        elif not found.moves:
            refused = "no group can move without making another slot the slowest"
        if refused is None and count.trigger is not None and count.available is None and not settled.united:
            refused = settings.objection_to(found)
        course = Course(found.applied(table), "user" if count.trigger is None else "balance")
        if not settled:
            course = replace(course, strategy=settings.strategy, most_rows=settings.rows, group_rows=loads.group_rows)
        refused = refused or self.start.objection(course, counted.table)
        split, united = (tuple(map(self.names, keys)) or None for keys in (settled.split, settled.united))
        measured = tuple(round(each, 3) for each in speeds) if speeds and settings.measures_speeds else None
        trigger = count.trigger or "asked for"
        decided = BalanceDecided(batch, trigger, found, refused, split, united, measured)
        return decided, course if refused is None else None


def _over(grid: Partitioning, available: tuple[int, ...]) -> Partitioning:
    """Returns a grid over the slots that may have groups."""
    if len(available) == grid.slots:
        return grid
    blocks = spread_over(grid, len(available))
    return blocks.with_table(available[slot] for slot in blocks.table)
