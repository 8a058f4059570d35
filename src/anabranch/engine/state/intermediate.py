"""The results of an inner join of the plan: row numbers into base states and combined times, not the payload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from anabranch.engine.batch import Combinations
from anabranch.engine.compile import index_name
from anabranch.engine.kernels import Int64Array
from anabranch.engine.state.arena import Arena, Array
from anabranch.engine.state.base import combined
from anabranch.engine.state.ring import Ring

CodeReader: TypeAlias = Callable[[str, Combinations], Int64Array]
"""Reads a named code of some combinations."""


class IntermediateState:
    """Live combinations of several relations, with one hash index per combination of codes that some probe uses."""

    def __init__(
        self,
        arena: Arena,
        name: str,
        relations: tuple[str, ...],
        indexes: tuple[tuple[str, ...], ...],
        carried: Mapping[str, tuple[str, int]] | None = None,
    ) -> None:
        """`carried` are the columns, as (numpy kind, values per row), of what merged rows stand for."""
        self.relations = relations
        self.indexes = indexes
        self.compacted = 0
        """How many rows were left when merged rows were last merged anew."""
        self._carried = tuple(carried or ())
        columns = {f"row.{relation}": ("<i8", 1) for relation in relations} | dict(carried or {})
        self.ring = Ring(arena, name, columns, tuple(index_name(index) for index in indexes))

    def layout(self) -> dict[str, Any]:
        return {
            "name": self.ring.name,
            "indexes": self.indexes,
            "compacted": self.compacted,
            "ring": self.ring.layout(),
        }

    def reopen(self, layout: Mapping[str, Any]) -> None:
        self.indexes = tuple(tuple(index) for index in layout["indexes"])
        self.compacted = layout["compacted"]
        self.ring.reopen(layout["ring"])

    @property
    def bytes(self) -> int:
        return self.ring.bytes

    def require(self, indexes: tuple[tuple[str, ...], ...], code: CodeReader) -> None:
        """Keeps these indexes from now on; one that is new finds all live combinations."""
        for index in indexes:
            if index in self.indexes:
                continue
            self.ring.add_index(index_name(index))
            if self.ring.live:
                found = self.everything()
                codes = combined([code(name, found) for name in index], len(found))
                self.ring.link(index_name(index), self.ring.first, codes, found.newest, found.deadline)
            self.indexes = (*self.indexes, index)

    def retain(self, indexes: tuple[tuple[str, ...], ...]) -> None:
        """Keeps only these of its indexes."""
        for index in self.indexes:
            if index not in indexes:
                self.ring.remove_index(index_name(index))
        self.indexes = tuple(index for index in self.indexes if index in indexes)

    def everything(self) -> Combinations:
        """All live combinations. Base rows of those that can no longer be completed may be gone."""
        numbers = np.arange(self.ring.first, self.ring.next, dtype=np.int64)
        if not len(numbers):
            return Combinations(dict.fromkeys(self.relations, numbers), numbers, numbers)
        rows = {relation: self.rows(relation, numbers) for relation in self.relations}
        return Combinations(rows, *self.ring.times(numbers), self.carried(numbers))

    def insert(self, found: Combinations, code: CodeReader) -> None:
        """Adds combinations and makes them findable."""
        if not len(found):
            return
        # In order of deadline, so that what expires together leaves together.
        found = found.take(np.argsort(found.deadline, kind="stable"))
        columns = {f"row.{relation}": found.rows[relation] for relation in self.relations} | dict(found.carried)
        first = self.ring.append(columns, len(found))
        for index in self.indexes:
            codes = combined([code(name, found) for name in index], len(found))
            self.ring.link(index_name(index), first, codes, found.newest, found.deadline)

    def drop(self, low: int) -> int:
        return self.ring.drop(low)

    def rows(self, relation: str, numbers: Int64Array) -> Int64Array:
        """The relation's row numbers in the combinations of those numbers."""
        return self.ring.get(f"row.{relation}", numbers)

    def carried(self, numbers: Int64Array) -> dict[str, Array]:
        """What the merged rows in the combinations of those numbers stand for."""
        return {name: self.ring.get(name, numbers) for name in self._carried}
