"""The results of an inner join of the plan: row numbers into base states and combined times, not the payload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from anabranch.engine.batch import Combinations
from anabranch.engine.compile import index_name
from anabranch.engine.kernels import Int64Array
from anabranch.engine.state.arena import Arena
from anabranch.engine.state.base import combined
from anabranch.engine.state.ring import Ring


class IntermediateState:
    """Live combinations of several relations, with one hash index per combination of codes that some probe uses."""

    def __init__(
        self, arena: Arena, name: str, relations: tuple[str, ...], indexes: tuple[tuple[str, ...], ...]
    ) -> None:
        self.relations = relations
        self.indexes = indexes
        columns = {f"row.{relation}": ("<i8", 1) for relation in relations}
        self.ring = Ring(arena, name, columns, tuple(index_name(index) for index in indexes))

    def layout(self) -> dict[str, Any]:
        return self.ring.layout()

    def reopen(self, layout: Mapping[str, Any]) -> None:
        self.ring.reopen(layout)

    @property
    def bytes(self) -> int:
        return self.ring.bytes

    def insert(self, found: Combinations, code: Callable[[str, Combinations], Int64Array]) -> None:
        """Adds combinations and makes them findable; `code` reads a named code of a combination."""
        if not len(found):
            return
        # In order of deadline, so that what expires together leaves together.
        order = np.argsort(found.deadline, kind="stable")
        newest, deadline = found.newest[order], found.deadline[order]
        rows = {relation: found.rows[relation][order] for relation in self.relations}
        first = self.ring.append({f"row.{relation}": numbers for relation, numbers in rows.items()}, len(order))
        sorted_found = Combinations(rows, newest, deadline)
        for index in self.indexes:
            codes = combined([code(name, sorted_found) for name in index], len(order))
            self.ring.link(index_name(index), first, codes, newest, deadline)

    def drop(self, low: int) -> int:
        return self.ring.drop(low)

    def rows(self, relation: str, numbers: Int64Array) -> Int64Array:
        """The relation's row numbers in the combinations of those numbers."""
        return self.ring.get(f"row.{relation}", numbers)
