"""The partitioning of a query over slots: a grid of partition groups and a table from groups to slots.

Every key class is a possible dimension of the grid; a relation that is in no class gets a dimension of its own, along
which its rows are spread by a hash of the row. A row has a coordinate in each dimension it is a member of and is
needed in every group that agrees with those: a *hypercube* when there are several classes (Shares: Afrati & Ullman
2010), a grid when there is no equality at all (1-Bucket-Theta: Okcan & Riedewald 2011). Rows are sent once per slot,
not once per group; a finished combination has all coordinates and belongs to the one slot that holds its group.

The table is a value. Moving a group to another slot is a new table; which slots need a row follows from it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from anabranch.errors import PlanError
from anabranch.plan.join_graph import JoinGraph

GROUPS = 64
"""The minimum number of partition groups of a query; a group is the unit of balancing."""


NO_CODE = "none"
"""The name of the code of an axis that no relation has."""


@dataclass(frozen=True)
class Dimension:
    """An axis of the grid: the code that gives the coordinate, the relations with that code, and its length."""

    code: str
    relations: frozenset[str]
    share: int


@dataclass(frozen=True)
class Partitioning:
    """A grid of groups and the slot of each, groups numbered with the last dimension running fastest."""

    dimensions: tuple[Dimension, ...]
    slots: int
    table: tuple[int, ...]
    leaving: tuple[int, ...] | None = None
    """While groups move on parallel tracks: the table of combinations with a row before the mark."""
    mark: int | None = None
    """The event time from which rows are new to such a move; None while there is none."""

    def __post_init__(self) -> None:
        _require_slots(self.slots)
        for table in (self.table, self.leaving or self.table):
            if len(table) != self.groups or not all(0 <= slot < self.slots for slot in table):
                raise PlanError(f"a table of {len(table)} entries does not fit {self.groups} partition groups")
        if (self.leaving is None) != (self.mark is None):
            raise PlanError("a move on parallel tracks needs the table that it leaves, and a mark")

    @property
    def groups(self) -> int:
        return math.prod(dimension.share for dimension in self.dimensions)

    @property
    def shares(self) -> dict[str, int]:
        """The length of each dimension, by its code."""
        return {dimension.code: dimension.share for dimension in self.dimensions}

    @cached_property
    def working(self) -> tuple[int, ...]:
        """The slots that have groups, or still have combinations of groups that leave."""
        return tuple(sorted({*self.table, *(self.leaving or ())}))

    def beside(self, target: Partitioning, mark: int) -> Partitioning:
        """The table of a move to a target on parallel tracks: combinations with a row before the mark stay here."""
        return replace(target, leaving=self.table, mark=mark)

    @property
    def settled(self) -> Partitioning:
        """The table that a move on parallel tracks leads to."""
        return replace(self, leaving=None, mark=None)

    @property
    def before(self) -> Partitioning:
        """The table that a move on parallel tracks leaves."""
        return self if self.leaving is None else replace(self, table=self.leaving, leaving=None, mark=None)

    def is_on_track(self, slot: int) -> bool:
        """True for a slot that gives or takes groups on parallel tracks."""
        pairs = zip(self.table, self.leaving or self.table, strict=True)
        return any(new != old and slot in (new, old) for new, old in pairs)

    def with_table(self, table: Iterable[int]) -> Partitioning:
        """The grid with another table from groups to slots."""
        return replace(self, table=tuple(table))

    def moved(self, groups: Iterable[int], to: int) -> Partitioning:
        """The table after some groups have moved to a slot."""
        chosen = frozenset(groups)
        if unknown := sorted(group for group in chosen if not 0 <= group < self.groups):
            raise PlanError(
                f"partition group {unknown[0]} does not exist", hint=f"groups are numbered 0 to {self.groups - 1}"
            )
        self.require_slots(to)
        return self.with_table(to if group in chosen else slot for group, slot in enumerate(self.table))

    def groups_of(self, slot: int) -> tuple[int, ...]:
        """The groups that a slot has."""
        return tuple(group for group, at in enumerate(self.table) if at == slot)

    def require_slots(self, *slots: int) -> None:
        """Refuses slots that do not exist."""
        for slot in slots:
            if not 0 <= slot < self.slots:
                raise PlanError(f"slot {slot} does not exist", hint=f"slots are numbered 0 to {self.slots - 1}")

    def members(self, relation: str) -> tuple[Dimension, ...]:
        """Return the dimensions in which a relation's rows have a coordinate."""
        return tuple(dimension for dimension in self.dimensions if relation in dimension.relations)

    @cached_property
    def is_partition(self) -> bool:
        """True if no row is needed in two slots."""
        return self.slots == 1 or all(self._has_one_home(name) for name in self.relations)

    def finds_once(self, relations: Iterable[str]) -> bool:
        """True if only one slot can find each combination: rows of some relation are needed in one slot each."""
        return self.slots == 1 or any(self._has_one_home(name) for name in relations)

    @property
    def relations(self) -> frozenset[str]:
        return frozenset(name for dimension in self.dimensions for name in dimension.relations)

    def _has_one_home(self, relation: str) -> bool:
        return all(len(slots) == 1 for slots in self.slots_of(relation))

    def copies(self, relations: Iterable[str]) -> float:
        """Return the mean number of slots that hold a row of the relation, or a combination of the relations."""
        needed = self._slots_by_place(frozenset(relations))
        return sum(len(slots) for slots in needed.values()) / len(needed)

    def sent(self, traffic: Mapping[str, float]) -> float:
        """Return what is sent to slots over what is read, for an amount of rows or bytes per relation."""
        read = sum(traffic.values())
        return sum(amount * self.copies([name]) for name, amount in traffic.items()) / read if read else 1.0

    def slots_of(self, relation: str) -> tuple[tuple[int, ...], ...]:
        """Return the slots of a row for every coordinate, in mixed radix over its dimensions."""
        needed = self._slots_by_place(frozenset([relation]))
        return tuple(tuple(sorted(needed[key])) for key in sorted(needed))

    def _slots_by_place(self, relations: frozenset[str]) -> dict[tuple[int, ...], set[int]]:
        """Return the slots of the groups with each combination of coordinates in the relations' dimensions."""
        ranges = [range(dimension.share) for dimension in self.dimensions]
        own = [position for position, d in enumerate(self.dimensions) if d.relations & relations]
        needed: dict[tuple[int, ...], set[int]] = {}
        for group, coordinates in enumerate(itertools.product(*ranges)):
            slots = needed.setdefault(tuple(coordinates[i] for i in own), set())
            slots.add(self.table[group])
            if self.leaving is not None:
                slots.add(self.leaving[group])
        return needed

    def to_json(self) -> dict[str, Any]:
        return {
            "dimensions": [
                {"code": d.code, "relations": sorted(d.relations), "share": d.share} for d in self.dimensions
            ],
            "slots": self.slots,
            "table": list(self.table),
            **({} if self.leaving is None else {"leaving": list(self.leaving), "mark": self.mark}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Partitioning:
        return cls(
            tuple(Dimension(d["code"], frozenset(d["relations"]), d["share"]) for d in value["dimensions"]),
            value["slots"],
            tuple(value["table"]),
            tuple(value["leaving"]) if "leaving" in value else None,
            value.get("mark"),
        )


def row_code(relation: str) -> str:
    """Return the name of the code that partitions the rows of a relation without a key."""
    return f"row.{relation}"


def choose_partitioning(
    graph: JoinGraph,
    slots: int,
    groups: int = GROUPS,
    traffic: Mapping[str, float] | None = None,
    spread: Iterable[str] | None = None,
) -> Partitioning:
    """Choose the grid that sends the least, and an even table over it.

    `traffic` has for each relation how much of it is read in some time, in rows or bytes; without it, relations count
    as equally large. First the slots are factored over the dimensions so that the sum over relations of traffic x
    (slots a row is sent to) is least: the optimum of Shares in whole numbers. Then every dimension that is cut is cut
    finer until there are enough groups to balance with.

    Relations in no class are spread by their rows; if `spread` is given, only those that it names. A grid without any
    axis has one group.
    """
    _require_slots(slots)
    if not graph.names:
        raise PlanError("a join graph without relations cannot be partitioned")
    axes = axes_of(graph, spread)
    if not axes:
        return Partitioning((Dimension(NO_CODE, frozenset(), 1),), slots, (0,))
    amounts = {name: (traffic or {}).get(name, 0.0 if traffic else 1.0) for name in graph.names}

    def sent(factors: tuple[int, ...]) -> tuple[float, int, tuple[int, ...]]:
        amount = 0.0
        for name in graph.names:
            apart = (f for f, (_, members) in zip(factors, axes, strict=True) if name not in members)
            amount += amounts[name] * math.prod(apart)
        return amount, max(factors), tuple(-factor for factor in factors)

    factors = min(_factorings(slots, len(axes)), key=sent)
    # Only dimensions that are cut anyway are cut finer: a longer axis elsewhere would replicate rows needlessly.
    cut = [i for i, factor in enumerate(factors) if factor > 1] or [0]
    finer = math.ceil((max(groups, slots) / math.prod(factors)) ** (1 / len(cut)))
    shares = tuple(factor * finer if i in cut else 1 for i, factor in enumerate(factors))
    dimensions = tuple(Dimension(code, members, share) for (code, members), share in zip(axes, shares, strict=True))
    return Partitioning(dimensions, slots, block_table(shares, factors))


def axes_of(graph: JoinGraph, spread: Iterable[str] | None = None) -> list[tuple[str, frozenset[str]]]:
    """Return the possible dimensions of a grid: a code each, and the relations with that code."""
    axes = [(key.name, key.relations) for key in graph.keys]
    by_rows = graph.names if spread is None else tuple(spread)
    return axes + [(row_code(name), frozenset([name])) for name in by_rows if not graph.keys_of([name])]


def block_table(shares: Sequence[int], factors: Sequence[int]) -> tuple[int, ...]:
    """Return a table of contiguous blocks: each dimension is cut into as many pieces as its factor says."""
    table = []
    for coordinates in itertools.product(*(range(share) for share in shares)):
        slot = 0
        for coordinate, share, factor in zip(coordinates, shares, factors, strict=True):
            slot = slot * factor + coordinate * factor // share
        table.append(slot)
    return tuple(table)


def _require_slots(slots: int) -> None:
    if slots < 1:
        raise PlanError(f"{slots} slots cannot run a query", hint="use at least one slot")


def _factorings(number: int, parts: int) -> list[tuple[int, ...]]:
    """Return all ways to write a number as an ordered product.

    >>> _factorings(4, 2)
    [(1, 4), (2, 2), (4, 1)]
    """
    if parts == 1:
        return [(number,)]
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    return [(d, *rest) for d in divisors for rest in _factorings(number // d, parts - 1)]
