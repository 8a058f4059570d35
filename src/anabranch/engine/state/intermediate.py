"""The results of an inner join of the plan: row numbers into base states and combined times, without payload.

Invariant: every combination refers to live base rows, or can no longer be completed. Limit: combinations leave in order
of insertion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from anabranch.engine.batch import CarriedColumn, Combinations
from anabranch.engine.kernels import Int64Array
from anabranch.engine.state.arena import Arena, Array
from anabranch.engine.state.base import combined
from anabranch.engine.state.indexed import Indexed
from anabranch.engine.state.kept import GONE, Kept
from anabranch.engine.state.ring import ANY_TIME, DEADLINE, Index, Ring

CodeReader: TypeAlias = Callable[[str, Combinations], Int64Array]
"""Reads a named code of some combinations."""


class IntermediateState(Indexed):
    """Live combinations of several relations, with one hash index per combination of codes that some probe uses."""

    def __init__(
        self,
        arena: Arena,
        name: str,
        relations: tuple[str, ...],
        indexes: tuple[Index, ...],
        carried: Mapping[CarriedColumn, tuple[str, int]] | None = None,
        beside: Mapping[str, tuple[str, int]] | None = None,
    ) -> None:
        """`carried` are the columns, as (numpy kind, values per row), with the weights and parts of merged rows.

        `beside` are extra columns of a subclass.
        """
        self.relations = relations
        self.compacted = 0
        """The number of rows after the last compaction of merged rows."""
        self._carried = tuple(carried or ())
        columns = {f"row.{relation}": ("<i8", 1) for relation in relations}
        columns |= {_carried(name): form for name, form in (carried or {}).items()}
        super().__init__(Ring(arena, name, columns | dict(beside or {}), indexes))

    def layout(self) -> dict[str, Any]:
        return {
            "name": self.ring.name,
            "compacted": self.compacted,
            "ring": self.ring.layout(),
        }

    def reopen(self, layout: Mapping[str, Any]) -> None:
        self.compacted = layout["compacted"]
        self.ring.reopen(layout["ring"])

    @property
    def bytes(self) -> int:
        return self.ring.bytes

    def require(self, indexes: tuple[Index, ...], code: CodeReader) -> None:
        """Maintains these indexes from now on; a new one finds all live combinations."""
        self.ring.require(indexes, lambda index: _codes(self.everything(), code, index))

    def everything(self) -> Combinations:
        """Returns all live combinations. Base rows of those that can no longer be completed may be gone."""
        numbers = self.ring.numbers
        if not len(numbers):
            return Combinations(dict.fromkeys(self.relations, numbers), numbers, numbers)
        return Combinations(self.bound(numbers), *self.ring.times(numbers), self.carried(numbers))

    def insert(self, found: Combinations, code: CodeReader, beside: Mapping[str, Array] | None = None) -> None:
        """Adds combinations and makes them findable; with `beside` columns, they must be in order of deadline."""
        if not len(found):
            return
        # In order of deadline, so that combinations that expire together are dropped together.
        found = found.take(np.argsort(found.deadline, kind="stable"))
        columns: dict[str, Array] = {f"row.{relation}": found.rows[relation] for relation in self.relations}
        columns |= {_carried(name): values for name, values in found.carried.items()}
        first = self.ring.append({**columns, DEADLINE: found.deadline, **(beside or {})}, len(found))
        self.ring.link(first, partial(_codes, found, code), found.newest)

    def keep(self, bases: Mapping[str, Kept]) -> None:
        """Keeps only the combinations of kept base rows, under their new numbers."""
        numbers = self.ring.numbers
        if not len(numbers):
            return
        rows = {relation: bases[relation].new(self.rows(relation, numbers)) for relation in self.relations}
        whole = np.logical_and.reduce([each != GONE for each in rows.values()])
        self.ring.keep(numbers[whole], {f"row.{relation}": each[whole] for relation, each in rows.items()})

    def drop(self, low: int, oldest: int = ANY_TIME) -> int:
        return self.ring.drop(low, oldest)

    def rows(self, relation: str, numbers: Int64Array) -> Int64Array:
        """Returns the relation's row numbers in the combinations with those numbers."""
        return self.ring.get(f"row.{relation}", numbers)

    def bound(self, numbers: Int64Array) -> dict[str, Int64Array]:
        """Returns the row numbers of all relations in the combinations with those numbers."""
        return {relation: self.rows(relation, numbers) for relation in self.relations}

    def carried(self, numbers: Int64Array) -> dict[CarriedColumn, Array]:
        """Returns the weights and parts of the merged rows in the combinations with those numbers."""
        return {name: self.ring.get(_carried(name), numbers) for name in self._carried}


def _carried(name: CarriedColumn) -> str:
    """Returns the name of a carried column.

    It begins with a relation's name, so the prefix sets it apart from row numbers.
    """
    return f"carried.{name}"


def _codes(found: Combinations, code: CodeReader, index: Index) -> Int64Array:
    return combined([code(name, found) for name in index], len(found))
