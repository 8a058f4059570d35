"""The partitioning of a query over slots: a grid of partition groups and a table from groups to slots.

Every key class is a possible dimension of the grid; a relation that is in no class gets its own dimension, along which
its rows are spread by a hash of the row. A row has a coordinate in each dimension it is a member of and is needed in
every group that agrees with those: a *hypercube* if there are several classes (Shares: Afrati & Ullman 2010), a grid if
there is no equality at all (1-Bucket-Theta: Okcan & Riedewald 2011). Rows are sent once per slot, not once per group.

Invariant: a finished combination has all coordinates and belongs to the one slot that holds its group.

The table is immutable. Moving a group to another slot creates a new table, which determines the slots that need a row.
The groups of *heavy keys* (`plan.heavy`) follow those of the grid. Rows are looked up by their *cell*: a number per
relation, first of the cells of the grid, then of those of each heavy key that the relation has.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from anabranch.errors import PlanError
from anabranch.lang.expr import Expr, columns
from anabranch.lang.window import CountWindow, SessionWindow
from anabranch.plan.heavy import FINER, HeavyKey, choose_cuts, factorings
from anabranch.plan.join_graph import JoinGraph, KeyClass

ROW = "row."
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
    """The old table during a move on parallel tracks; it owns combinations with a row before the mark."""
    mark: int | None = None
    """The event time from which rows belong to the new table of such a move; None if no move is in progress."""
    heavy: tuple[HeavyKey, ...] = ()
    """Keys whose rows are spread over their own groups; these follow the groups of the grid."""

    def __post_init__(self) -> None:
        _require_slots(self.slots)
        for key in self.heavy:
            if dict(key.shares).keys() != self.dimension(key.code).relations:
                raise PlanError(f"heavy key {key.name} does not name the relations that have it")
        for table in (self.table, self.leaving or self.table):
            if len(table) != self.groups or not all(0 <= slot < self.slots for slot in table):
                raise PlanError(f"a table of {len(table)} entries does not fit {self.groups} partition groups")
        if (self.leaving is None) != (self.mark is None):
            raise PlanError("a move on parallel tracks needs the table that it leaves, and a mark")

    @cached_property
    def groups(self) -> int:
        return self.region(len(self.heavy))

    def region(self, number: int) -> int:
        """Returns the first group of the region of a heavy key; the grid comes before all regions."""
        whole = math.prod(dimension.share for dimension in self.dimensions)
        return whole + sum(whole // self.dimension(k.code).share * k.parts for k in self.heavy[:number])

    @property
    def grid(self) -> tuple[tuple[Dimension, ...], tuple[HeavyKey, ...]]:
        """Everything but the slots of groups; tables with the same grid differ only in where groups are."""
        return self.dimensions, self.heavy

    def dimension(self, code: str) -> Dimension:
        """Returns the dimension of a code."""
        found = next((dimension for dimension in self.dimensions if dimension.code == code), None)
        if found is None:
            raise PlanError(f"the grid has no dimension '{code}'", hint=f"it has {', '.join(self.shares)}")
        return found

    @property
    def shares(self) -> dict[str, int]:
        """The length of each dimension, by its code."""
        return {dimension.code: dimension.share for dimension in self.dimensions}

    @cached_property
    def working(self) -> tuple[int, ...]:
        """The slots that have groups, or still have combinations of groups that are moving away."""
        return tuple(sorted({*self.table, *(self.leaving or ())}))

    def beside(self, target: Partitioning, mark: int) -> Partitioning:
        """Returns the table of a move on parallel tracks: combinations with a row before the mark stay here."""
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
        """True for a slot that gives or receives groups on parallel tracks."""
        pairs = zip(self.table, self.leaving or self.table, strict=True)
        return any(new != old and slot in (new, old) for new, old in pairs)

    def with_table(self, table: Iterable[int]) -> Partitioning:
        """Returns the grid with another table from groups to slots."""
        return replace(self, table=tuple(table))

    def moved(self, groups: Iterable[int], to: int) -> Partitioning:
        """Returns the table after some groups have moved to a slot."""
        chosen = frozenset(groups)
        if unknown := sorted(group for group in chosen if not 0 <= group < self.groups):
            raise PlanError(
                f"partition group {unknown[0]} does not exist", hint=f"groups are numbered 0 to {self.groups - 1}"
            )
        self.require_slots(to)
        return self.with_table(to if group in chosen else slot for group, slot in enumerate(self.table))

    def groups_of(self, slot: int) -> tuple[int, ...]:
        """Returns the groups of a slot."""
        return tuple(group for group, at in enumerate(self.table) if at == slot)

    def require_slots(self, *slots: int) -> None:
        """Raises PlanError for slots that do not exist."""
        for slot in slots:
            if not 0 <= slot < self.slots:
                raise PlanError(f"slot {slot} does not exist", hint=f"slots are numbered 0 to {self.slots - 1}")

    def members(self, relation: str) -> tuple[Dimension, ...]:
        """Returns the dimensions in which a relation's rows have a coordinate."""
        return tuple(dimension for dimension in self.dimensions if relation in dimension.relations)

    @cached_property
    def is_partition(self) -> bool:
        """True if no row is needed in two slots."""
        return self.slots == 1 or all(self._has_one_home(name) for name in self.relations)

    def finds_once(self, relations: Iterable[str]) -> bool:
        """True if only one slot can find each combination, because no other slot has rows of all the relations.

        The slot that owns a combination always has its rows.
        """
        return self.slots == 1 or _finds_once(self, frozenset(relations))

    @property
    def relations(self) -> frozenset[str]:
        return frozenset(name for dimension in self.dimensions for name in dimension.relations)

    def _has_one_home(self, relation: str) -> bool:
        return all(len(slots) == 1 for slots in self.slots_of(relation))

    def copies(self, relations: Iterable[str]) -> float:
        """Returns the mean number of slots that hold a row of the relation, or a combination of the relations.

        Rows of heavy keys count by the frequency that the keys had when they were split.
        """
        bound = frozenset(relations)
        places: dict[int | None, dict[tuple[int, ...], set[int]]] = {None: {}}
        touched = [position for position, d in enumerate(self.dimensions) if d.relations & bound]
        whole = [range(d.share) for d in self.dimensions]
        for group, place in enumerate(itertools.product(*whole)):
            places[None].setdefault(tuple(place[i] for i in touched), set()).update(self._slots_at(group))
        for number, key in enumerate(self.heavy):
            members = self.dimension(key.code).relations & bound
            for group, place, cut in self._region_groups(number):
                own = tuple(place[i] for i in touched if place[i] >= 0)
                if members:
                    own += tuple(cut[name] for name in sorted(members))
                places.setdefault(number if members else None, {}).setdefault(own, set()).update(self._slots_at(group))
        means = {part: sum(map(len, found.values())) / len(found) for part, found in places.items()}
        heavy = {number: self.heavy[number].frequency for number in means if number is not None}
        rest = max(0.0, 1.0 - sum(heavy.values()))
        return rest * means[None] + sum(share * means[number] for number, share in heavy.items())

    def sent(self, traffic: Mapping[str, float]) -> float:
        """Returns the ratio of data sent to slots to data read, for an amount of rows or bytes per relation."""
        read = sum(traffic.values())
        return sum(amount * self.copies([name]) for name, amount in traffic.items()) / read if read else 1.0

    def slots_of(self, relation: str) -> tuple[tuple[int, ...], ...]:
        """Returns the slots of a row for every cell of the relation."""
        needed: list[set[int]] = [set() for _ in range(self.cells(relation))]
        for group, cells in enumerate(self.cells_of_groups(relation)):
            for cell in cells:
                needed[cell] |= self._slots_at(group)
        return tuple(tuple(sorted(slots)) for slots in needed)

    def _slots_at(self, group: int) -> set[int]:
        """Returns the slot of a group; while the group moves on parallel tracks, both slots."""
        return {self.table[group]} if self.leaving is None else {self.table[group], self.leaving[group]}

    def cells(self, relation: str) -> int:
        """Returns how many cells the relation has."""
        return self.first_cell(relation, len(self.heavy))

    def first_cell(self, relation: str, number: int) -> int:
        """Returns the first cell of the relation's rows with the value of a heavy key."""
        members = self.members(relation)
        whole = math.prod(d.share for d in members)
        return whole + sum(
            whole // self.dimension(key.code).share * (key.share(relation) or 1)
            for key in self.heavy[:number]
            if key.share(relation) is not None
        )

    def cells_of_groups(self, relation: str) -> list[tuple[int, ...]]:
        """Returns for each group the cells of the relation whose rows it needs."""
        whole = [range(d.share) for d in self.dimensions]
        own = [position for position, d in enumerate(self.dimensions) if relation in d.relations]
        found: list[tuple[int, ...]] = [(self._mixed(place, own),) for place in itertools.product(*whole)]
        for number, key in enumerate(self.heavy):
            share = key.share(relation)
            for _, place, cut in self._region_groups(number):
                if share is not None:
                    kept = [i for i in own if self.dimensions[i].code != key.code]
                    found.append(
                        (self.first_cell(relation, number) + self._mixed(place, kept) * share + cut[relation],)
                    )
                else:
                    found.append((self._mixed(place, own), *self._later_cells(relation, number, place, own)))
        return found

    def coordinates_of_groups(self, code: str) -> list[int]:
        """Returns the coordinate of each group along a dimension; -1 for the groups of its heavy keys."""
        position = list(self.shares).index(code)
        found = [place[position] for place in itertools.product(*(range(d.share) for d in self.dimensions))]
        return found + [place[position] for n in range(len(self.heavy)) for _, place, _ in self._region_groups(n)]

    def _later_cells(self, relation: str, number: int, place: tuple[int, ...], own: list[int]) -> list[int]:
        """Returns the cells of rows with the value of a later heavy key that a group of a region needs as well."""
        cells: list[int] = []
        for later in range(number + 1, len(self.heavy)):
            key = self.heavy[later]
            share = key.share(relation)
            if share is None:
                continue
            along = next(i for i in own if self.dimensions[i].code == key.code)
            if place[along] == key.coordinate(self.dimensions[along].share):
                first = self.first_cell(relation, later) + self._mixed(place, [i for i in own if i != along]) * share
                cells += range(first, first + share)
        return cells

    def _region_groups(self, number: int) -> Iterator[tuple[int, tuple[int, ...], dict[str, int]]]:
        """Returns the groups of a region: number, coordinates (-1 along the key's own dimension), parts by relation."""
        key = self.heavy[number]
        ranges = [range(-1, 0) if d.code == key.code else range(d.share) for d in self.dimensions]
        names = [name for name, _ in key.shares]
        cuts = [range(share) for _, share in key.shares]
        group = self.region(number)
        for place in itertools.product(*ranges):
            for parts in itertools.product(*cuts):
                yield group, place, dict(zip(names, parts, strict=True))
                group += 1

    def _mixed(self, place: tuple[int, ...], own: Iterable[int]) -> int:
        """Returns coordinates along some dimensions as one number in mixed radix."""
        cell = 0
        for position in own:
            cell = cell * self.dimensions[position].share + place[position]
        return cell

    # --- heavy keys ---------------------------------------------------------------------------------------------------

    def split(
        self,
        code: str,
        value: int,
        over: Sequence[int],
        traffic: Mapping[str, float] | None = None,
        frequency: float = 0.0,
        uncut: frozenset[str] = frozenset(),
    ) -> Partitioning:
        """Returns the table in which the rows of one key value are spread over some slots; rows of `uncut` are copied.

        `traffic` has for each relation the amount that goes to the region: for relations with the key the rows with the
        value, for others all rows. Without it, all relations count the same.
        """
        dimension = self.dimension(code)
        if code.startswith(ROW):
            raise PlanError(
                f"rows of '{code.removeprefix(ROW)}' are spread by a hash of the row, not by a key",
                hint="only a value of a key can be split",
            )
        if any((key.code, key.value) == (code, value) for key in self.heavy):
            raise PlanError("the key is already split", hint="undo the split first, then split the key again")
        self.require_slots(*over)
        if len(set(over)) < 2 or len(set(over)) != len(over):
            raise PlanError(
                f"a key is split over two different slots or more, not over {len(set(over))}", hint="name other slots"
            )
        others = [(d.relations, d.share) for d in self.dimensions if d is not dimension]
        amounts = {name: (traffic or {}).get(name, 0.0 if traffic else 1.0) for name in self.relations}
        cuts = choose_cuts(dimension.relations - uncut, others, len(over), amounts)
        if cuts is None:
            raise PlanError(
                f"the rows of {', '.join(sorted(dimension.relations))} cannot be cut into {len(over)} parts",
                detail="rows of outer joins must be whole wherever they may be met",
                hint="only keys that two relations of the inner joins share, and none of a full join, can be split",
            )
        factors, parts = cuts
        key = HeavyKey(
            code, value, tuple((name, parts.get(name, 1)) for name in sorted(dimension.relations)), frequency
        )
        along = [*factors, *(parts[name] // FINER if parts.get(name, 1) > 1 else 1 for name, _ in key.shares)]
        places = block_table([*(share for _, share in others), *(share for _, share in key.shares)], along)
        return replace(self, table=(*self.table, *(over[place] for place in places)), heavy=(*self.heavy, key))

    def united(self, code: str, value: int) -> Partitioning:
        """Returns the table in which the rows of a heavy key are back in the grid."""
        for number, key in enumerate(self.heavy):
            if (key.code, key.value) == (code, value):
                table = (*self.table[: self.region(number)], *self.table[self.region(number + 1) :])
                return replace(self, table=table, heavy=(*self.heavy[:number], *self.heavy[number + 1 :]))
        raise PlanError("the key is not split", hint="only a split key can be united")

    def slots_of_heavy(self, number: int) -> tuple[int, ...]:
        """Returns the slots over which a heavy key is split."""
        return tuple(sorted(set(self.table[self.region(number) : self.region(number + 1)])))

    def to_json(self) -> dict[str, Any]:
        return {
            "dimensions": [
                {"code": d.code, "relations": sorted(d.relations), "share": d.share} for d in self.dimensions
            ],
            "slots": self.slots,
            "table": list(self.table),
            **({} if self.leaving is None else {"leaving": list(self.leaving), "mark": self.mark}),
            **({"heavy": [key.to_json() for key in self.heavy]} if self.heavy else {}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Partitioning:
        return cls(
            tuple(Dimension(d["code"], frozenset(d["relations"]), d["share"]) for d in value["dimensions"]),
            value["slots"],
            tuple(value["table"]),
            tuple(value["leaving"]) if "leaving" in value else None,
            value.get("mark"),
            tuple(HeavyKey.from_json(key) for key in value.get("heavy", ())),
        )


@lru_cache(maxsize=64)
def _finds_once(partitioning: Partitioning, relations: frozenset[str]) -> bool:
    slots = {name: [frozenset(each) for each in partitioning.slots_of(name)] for name in relations}
    if any(all(len(each) == 1 for each in several) for several in slots.values()):
        return True
    cells = [[(name, each) for each in partitioning.cells_of_groups(name)] for name in sorted(relations)]
    for needed in set(zip(*cells, strict=True)):
        choices = [[slots[name][cell] for cell in several] for name, several in needed]
        if any(len(frozenset.intersection(*together)) > 1 for together in itertools.product(*choices)):
            return False
    return True


def row_code(relation: str) -> str:
    """Returns the name of the code that partitions the rows of a relation without a key."""
    return f"{ROW}{relation}"


def choose_partitioning(
    graph: JoinGraph,
    slots: int,
    groups: int = GROUPS,
    traffic: Mapping[str, float] | None = None,
    spread: Iterable[str] | None = None,
) -> Partitioning:
    """Chooses the grid that sends the least data, and an even table over it.

    `traffic` has for each relation the amount read per unit of time, in rows or bytes; without it, relations count as
    equally large. First the slots are factored over the dimensions to minimise the sum over relations of traffic x
    (slots a row is sent to): the optimum of Shares in integers. Then every dimension that is cut is cut finer until
    there are enough groups for balancing.

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

    factors = min(factorings(slots, len(axes)), key=sent)
    # Cut only dimensions that are cut anyway: a longer axis elsewhere would replicate rows needlessly.
    cut = [i for i, factor in enumerate(factors) if factor > 1] or [0]
    finer = math.ceil((max(groups, slots) / math.prod(factors)) ** (1 / len(cut)))
    shares = tuple(factor * finer if i in cut else 1 for i, factor in enumerate(factors))
    dimensions = tuple(Dimension(code, members, share) for (code, members), share in zip(axes, shares, strict=True))
    return Partitioning(dimensions, slots, block_table(shares, factors))


def axes_of(graph: JoinGraph, spread: Iterable[str] | None = None) -> list[tuple[str, frozenset[str]]]:
    """Returns the possible dimensions of a grid: a code each, and the relations with that code.

    A slot counts the rows of a count window itself, so it needs all rows of the window or of some partitions. Only a
    column of its PARTITION BY may spread them.
    """
    axes = [
        (key.name, frozenset(name for name in key.relations if _may_spread(graph, key, name))) for key in graph.keys
    ]
    by_rows = [name for name in (graph.names if spread is None else spread) if name not in graph.counted]
    return [axis for axis in axes if axis[1]] + [
        (row_code(name), frozenset([name])) for name in by_rows if not graph.keys_of([name])
    ]


def _may_spread(graph: JoinGraph, key: KeyClass, relation: str) -> bool:
    window = graph.relation(relation).window
    if isinstance(window, SessionWindow):
        # Its only key is the one that keeps each session in one slot.
        return True
    return not isinstance(window, CountWindow) or agrees_in_parts(key.expression(relation), window)


def agrees_in_parts(member: Expr, window: CountWindow | SessionWindow) -> bool:
    """True if an expression has a single value in each partition of a count window or a session window."""
    read = {column.name for column in columns(member)}
    return bool(read) and read <= set(window.partition)


def block_table(shares: Sequence[int], factors: Sequence[int]) -> tuple[int, ...]:
    """Returns a table of contiguous blocks: each dimension is cut into as many pieces as its factor says."""
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
