"""The content of a state: the identity of an intermediate state across plans.

A state holds combinations of some relations that pass the predicates checked so far, regardless of the join tree that
produced it. Its identity is its relations, the input operators applied below it, and the predicates over its relations
that are deferred to a join above. `PhysicalPlan.content` returns the content of a part of a plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class Applied(NamedTuple):
    """An input operator that was applied: its kind, and the relations of its input."""

    kind: str
    relations: frozenset[str]


@dataclass(frozen=True)
class Content:
    """The identity of a state, or of an input or output of a box."""

    relations: frozenset[str]
    applied: frozenset[Applied] = frozenset()
    unchecked: frozenset[int] = frozenset()
    """Positions of the predicates that a join above checks."""

    @classmethod
    def of(cls, relations: Iterable[str]) -> Content:
        """Returns the content of some relations with no operator applied and all predicates checked."""
        return cls(frozenset(relations))
