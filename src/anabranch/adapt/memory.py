"""The statistics and plans that loops have learnt, as values; `host.memory` keeps them with a checkpoint.

A memory names its loops: `all` for a loop over all slots, `slot 3` for the loop of one slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from anabranch.adapt.knowledge import Knowledge
from anabranch.adapt.library import Library
from anabranch.plan.query_set import ALONE


@dataclass(frozen=True)
class LoopMemory:
    """The statistics and plans that one loop has learnt."""

    wishes: str
    """The limits, the objective and the hints that the plans were chosen by."""
    known: Knowledge
    library: Library

    def to_json(self) -> dict[str, Any]:
        return {"wishes": self.wishes, "known": self.known.to_json(), "library": self.library.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LoopMemory:
        """Reads a memory that was written; raises an error where the value is not one."""
        return cls(str(value["wishes"]), Knowledge.from_json(value["known"]), Library.from_json(value["library"]))


QueryMemory: TypeAlias = Mapping[str, LoopMemory]
"""The memories of the loops of one query, by loop."""


@dataclass(frozen=True)
class Memory:
    """The memories of all queries of a run, by query."""

    queries: Mapping[str, QueryMemory] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The JSON of a query that runs alone shows no name."""
        queries = {name: {loop: each.to_json() for loop, each in loops.items()} for name, loops in self.queries.items()}
        return queries.get(ALONE, queries)

    @classmethod
    def from_json(cls, value: Mapping[str, Any], *, is_named: bool) -> Memory:
        """Reads a memory that was written; `is_named` where several queries run together."""
        queries = value if is_named else {ALONE: value}
        return cls(
            {
                name: {loop: LoopMemory.from_json(each) for loop, each in loops.items()}
                for name, loops in queries.items()
            }
        )
