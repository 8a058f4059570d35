"""Decides which keys are too heavy for one slot, over how many slots to split them, and when to unite them again.

A value of a key is heavy when it alone takes more CPU time than an average slot. Splitting divides its matches by the
number of slots; each slot processes a share of its rows that is larger, the more relations are split. So it is split
over the fewest slots for which its part in each is at most an average slot or, if no number achieves that, over the
best one. A heavy key whose work has fallen to a quarter of an average slot is united.

Limit: the work of a value is estimated from its number of occurrences in one batch, at the cost of rows and matches in
its slot.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from anabranch.balance.loads import Floats, Loads
from anabranch.errors import PlanError
from anabranch.plan.heavy import HeavyKey
from anabranch.plan.partitioning import Partitioning
from anabranch.stats.keys import KeyCounts

TOO_HEAVY = 1.05
"""A value with more than this multiple of the work of an average slot is split."""
LIGHT = 0.25
"""A heavy key with less than this multiple of the work of an average slot is united."""


@dataclass(frozen=True)
class Splitting:
    """A table with other heavy keys, and the resulting loads; it does not include the moves that they require."""

    table: Partitioning
    loads: Loads
    split: tuple[HeavyKey, ...] = ()
    united: tuple[HeavyKey, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.split or self.united)


@dataclass(frozen=True)
class _Work:
    """The work of one value of a key, in seconds of one core: for its rows, each processed once, and its matches."""

    code: str
    value: int
    rows: Mapping[str, int]
    by_row: float
    by_match: float

    @property
    def cpu(self) -> float:
        return self.by_row + self.by_match


def settle_heavy(
    table: Partitioning,
    loads: Loads,
    keys: Mapping[str, KeyCounts],
    rows: Mapping[str, Floats],
    available: Sequence[int] | None = None,
    uncut: frozenset[str] = frozenset(),
) -> Splitting:
    """Returns the table in which too heavy keys are split, and keys that are no longer heavy are united.

    `keys` and `rows` (by cell) are those of the batch in which the loads were measured. `available` are the slots that
    may have groups, all when None; rows of `uncut` relations must not be split.
    """
    usable = list(range(table.slots) if available is None else available)
    found = Splitting(table, loads)
    if len(usable) < 2:
        return found
    mean = float(loads.cpu.sum()) / len(usable)
    if mean <= 0:
        return found
    for key in table.heavy:
        number = found.table.heavy.index(key)
        region = slice(found.table.region(number), found.table.region(number + 1))
        if sum(found.loads.groups[region]) < LIGHT * mean:
            found = _unite(found, key, region)
    total = sum(sum(counts.rows.values()) for counts in keys.values()) or 1
    for work in _works(found.table, found.loads, keys):
        if work.cpu > TOO_HEAVY * mean:
            found = _split(found, work, mean, usable, rows, sum(work.rows.values()) / total, uncut)
    return found


def _works(table: Partitioning, loads: Loads, keys: Mapping[str, KeyCounts]) -> list[_Work]:
    """Returns the work of the frequent values that are not split yet, the heaviest first."""
    row_unit, match_unit = loads.units
    split = {(key.code, key.value) for key in table.heavy}
    found = []
    for code, counts in keys.items():
        dimension = table.dimension(code)
        for value, of_value in counts.frequent.items():
            if (code, value) in split:
                continue
            key = HeavyKey(code, value, tuple((name, 1) for name in sorted(dimension.relations)))
            slots = sorted({table.table[group] for group in groups_along(table, key)})
            pairs = sum(one * other for one, other in itertools.combinations(of_value.values(), 2))
            by_row = sum(of_value.values()) * float(np.mean([row_unit[slot] for slot in slots]))
            found.append(_Work(code, value, of_value, by_row, pairs * float(np.mean([match_unit[s] for s in slots]))))
    return sorted(found, key=lambda work: -work.cpu)


def groups_along(table: Partitioning, key: HeavyKey) -> list[int]:
    """Returns the groups of the grid with the coordinate of a key's value."""
    place = key.coordinate(table.dimension(key.code).share)
    along = table.coordinates_of_groups(key.code)
    return [group for group in range(table.region(0)) if along[group] == place]


def _split(
    found: Splitting,
    work: _Work,
    mean: float,
    usable: list[int],
    rows: Mapping[str, Floats],
    frequency: float,
    uncut: frozenset[str],
) -> Splitting:
    """Splits one value over the fewest slots for which no slot gets more of it than an average slot's load."""
    table, loads = found.table, found.loads
    key = HeavyKey(work.code, work.value, tuple((name, 1) for name in sorted(table.dimension(work.code).relations)))
    homes = groups_along(table, key)
    whole = sum(loads.groups[group] for group in homes)
    share = min(1.0, work.cpu / whole) if whole > 0 else 0.0
    groups = list(loads.groups)
    held = list(loads.group_bytes)
    moved_bytes = 0.0
    row_share = min(1.0, sum(work.rows.values()) / max(1.0, _rows_of(table, homes, rows)))
    for group in homes:
        groups[group] *= 1 - share
        moved_bytes += held[group] * row_share
        held[group] *= 1 - row_share
    without = replace(loads, groups=tuple(groups), group_bytes=tuple(held)).on(table.table)
    order = sorted(usable, key=lambda slot: float(without.cpu[slot]))
    traffic = {name: float(work.rows.get(name, 0)) for name in table.relations}
    traffic |= {name: float(np.sum(rows.get(name, 0.0))) for name in table.relations if name not in work.rows}
    best: tuple[float, Partitioning, float] | None = None
    for count in range(2, len(order) + 1):
        try:
            split = table.split(work.code, work.value, order[:count], traffic, frequency, uncut)
        except PlanError:
            continue
        copies = _copies(split, work.rows)
        each = (work.by_match + work.by_row * copies) / count
        if best is None or each < best[0]:
            best = each, split, copies
        if each <= mean:
            break
    if best is None:
        return found
    each, split, copies = best
    parts = split.groups - table.groups
    cpu = work.by_match + work.by_row * copies
    after = replace(
        loads,
        groups=(*groups, *[cpu / parts] * parts),
        group_bytes=(*held, *[moved_bytes * copies / parts] * parts),
    ).on(split.table)
    return replace(found, table=split, loads=after, split=(*found.split, split.heavy[-1]))


def _copies(split: Partitioning, rows: Mapping[str, int]) -> float:
    """Returns the average number of slots that a row of the latest heavy key goes to."""
    total = sum(rows.values())
    number = len(split.heavy) - 1
    sent = 0.0
    for name, count in rows.items():
        cells = split.slots_of(name)[split.first_cell(name, number) : split.first_cell(name, number + 1)]
        sent += count * sum(map(len, cells)) / len(cells)
    return sent / total if total else 1.0


def _rows_of(table: Partitioning, groups: Sequence[int], rows: Mapping[str, Floats]) -> float:
    """Returns how many rows of the relations fall into the cells of some groups."""
    count = 0.0
    for name, counts in rows.items():
        needs = table.cells_of_groups(name)
        cells = sorted({cell for group in groups for cell in needs[group]})
        count += float(np.asarray(counts, dtype=np.float64)[cells].sum())
    return count


def _unite(found: Splitting, key: HeavyKey, region: slice) -> Splitting:
    table, loads = found.table, found.loads
    cpu, held = sum(loads.groups[region]), sum(loads.group_bytes[region])
    groups = [*loads.groups[: region.start], *loads.groups[region.stop :]]
    kept = [*loads.group_bytes[: region.start], *loads.group_bytes[region.stop :]]
    homes = groups_along(table, key)
    for group in homes:
        groups[group] += cpu / len(homes)
        kept[group] += held / len(homes)
    united = table.united(key.code, key.value)
    after = replace(loads, groups=tuple(groups), group_bytes=tuple(kept)).on(united.table)
    return replace(found, table=united, loads=after, united=(*found.united, key))
