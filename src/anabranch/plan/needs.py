"""Which slots need a row under two tables that may differ in their heavy keys.

Rows are distinguished by their heavy values under either table, by their coordinates, and by their parts in the regions
of those values.

Limit: all combinations of parts are listed, including pairs that no row has.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from anabranch.plan.partitioning import Partitioning

Slots = tuple[int, ...]


def places_of_both(before: Partitioning, after: Partitioning, relation: str) -> Iterator[tuple[Slots, Slots]]:
    """Yields the slots that need a row of the relation under two tables with equal dimensions, per kind of row."""
    one, other = before.slots_of(relation), after.slots_of(relation)
    if before.heavy == after.heavy:
        yield from zip(one, other, strict=True)
        return
    members = before.members(relation)
    values: list[list[int | None]] = [
        [None, *dict.fromkeys(key.value for key in (*before.heavy, *after.heavy) if key.code == dimension.code)]
        for dimension in members
    ]
    coordinates = {
        (key.code, key.value): key.coordinate(before.dimension(key.code).share) for key in (*before.heavy, *after.heavy)
    }
    for having in itertools.product(*values):
        had = {dimension.code: value for dimension, value in zip(members, having, strict=True)}
        ranges = [
            range(dimension.share)
            if (at := had[dimension.code]) is None
            else range(coordinates[dimension.code, at], coordinates[dimension.code, at] + 1)
            for dimension in members
        ]
        for place in itertools.product(*ranges):
            coordinate = {dimension.code: each for dimension, each in zip(members, place, strict=True)}
            first, second = _cells(before, relation, had, coordinate), _cells(after, relation, had, coordinate)
            yield from ((one[i], other[j]) for i in first for j in second)


def _cells(table: Partitioning, relation: str, had: dict[str, int | None], coordinate: dict[str, int]) -> range:
    """Returns the cells of rows with those heavy values and coordinates."""
    members = table.members(relation)
    for number, key in enumerate(table.heavy):
        share = key.share(relation)
        if share is not None and had[key.code] == key.value:
            place = 0
            for dimension in members:
                if dimension.code != key.code:
                    place = place * dimension.share + coordinate[dimension.code]
            first = table.first_cell(relation, number) + place * share
            return range(first, first + share)
    place = 0
    for dimension in members:
        place = place * dimension.share + coordinate[dimension.code]
    return range(place, place + 1)
