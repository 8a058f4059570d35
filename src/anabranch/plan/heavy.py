"""Heavy keys: single key values whose rows are spread by a hash of the row, over a sub-grid of their own.

All rows with one key value are in one partition group, so a value with much work overloads its slot wherever groups are
moved. A heavy key takes such a value out of the grid: its rows get a *region* of groups that is appended to the table.
The axes of a region are the other dimensions of the grid, and one axis for each relation that has the key, along which
the rows of the relation are spread by a hash of the row (as in SharesSkew: Afrati, Ullman and Vasilakopoulos 2015;
without other dimensions it is the grid of Okcan and Riedewald 2011).

Invariant: a combination belongs to the region of the first heavy key whose value it has, else to the grid. So a row
with the key of a region is needed there if it has the value and no earlier heavy value. A row without the key is needed
in the region as well as in the grid, unless it has an earlier heavy value itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_MASK = (1 << 64) - 1
_PRIMES = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
_SEED = 42
FINER = 2
"""Rows of a heavy key are cut into this multiple of the parts that its slots need, so that parts can move."""


@dataclass(frozen=True)
class HeavyKey:
    """One value of a key, by its code, and the number of parts for the rows of each relation that has the key."""

    code: str
    """The code of the dimension."""
    value: int
    shares: tuple[tuple[str, int], ...]
    """The number of parts of each relation of the dimension, ordered by name."""
    frequency: float = field(default=0.0, compare=False)
    """The fraction of all rows with this value when it was split; estimates of copies are weighted by it."""

    @property
    def name(self) -> str:
        """A hash of the value, for displays that must not reveal the value."""
        return f"{self.code}#{xxhash64_long(self.value) & _MASK:016x}"

    @property
    def parts(self) -> int:
        return math.prod(share for _, share in self.shares)

    def share(self, relation: str) -> int | None:
        """Returns the number of parts of a relation; None if it does not have the key."""
        return dict(self.shares).get(relation)

    def coordinate(self, share: int) -> int:
        """Returns the coordinate of the value along its dimension."""
        return xxhash64_long(self.value) % share

    def to_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "value": self.value,
            "shares": dict(self.shares),
            "frequency": self.frequency,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> HeavyKey:
        shares = tuple(sorted(value["shares"].items()))
        return cls(value["code"], value["value"], shares, value["frequency"])


def xxhash64_long(value: int) -> int:
    """Computes Spark SQL's `xxhash64` of one bigint, signed; the engine's kernels compute the same for arrays.

    >>> xxhash64_long(0)
    -5252525462095825812
    """
    one, two, three, four, five = _PRIMES
    state = _SEED + five + 8 & _MASK
    mixed = _rotated((value & _MASK) * two & _MASK, 31) * one & _MASK
    state = _rotated(state ^ mixed, 27) * one + four & _MASK
    state = (state ^ state >> 33) * two & _MASK
    state = (state ^ state >> 29) * three & _MASK
    state ^= state >> 32
    return state - (1 << 64) if state >> 63 else state


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _MASK


def choose_cuts(
    relations: frozenset[str], others: Sequence[tuple[frozenset[str], int]], slots: int, traffic: Mapping[str, float]
) -> tuple[tuple[int, ...], dict[str, int]] | None:
    """Returns the cuts of a region that send the fewest rows: factors of the other dimensions, and parts of relations.

    `others` has the relations and the share of each other dimension. Returns None if no cut fits the slots.
    """
    names = sorted(relations)
    axes = [*others, *((frozenset([name]), slots) for name in names)]
    best: tuple[tuple[float, int], tuple[int, ...]] | None = None
    for factors in factorings(slots, len(axes)) if axes else ():
        if any(factor > most for factor, (_, most) in zip(factors, axes, strict=True)):
            continue
        amount = sum(
            size * math.prod(f for f, (members, _) in zip(factors, axes, strict=True) if name not in members)
            for name, size in traffic.items()
        )
        if best is None or (amount, max(factors)) < best[0]:
            best = (amount, max(factors)), factors
    if best is None:
        return None
    cuts = zip(names, best[1][len(others) :], strict=True)
    return best[1][: len(others)], {name: factor * FINER for name, factor in cuts if factor > 1}


def factorings(number: int, parts: int) -> list[tuple[int, ...]]:
    """Returns all ways to write a number as an ordered product.

    >>> factorings(4, 2)
    [(1, 4), (2, 2), (4, 1)]
    """
    if parts == 1:
        return [(number,)]
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    return [(d, *rest) for d in divisors for rest in factorings(number // d, parts - 1)]
