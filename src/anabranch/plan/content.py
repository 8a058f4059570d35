"""The content of a state: what tells the intermediate states of two plans apart.

A state holds combinations of some relations that pass the predicates checked so far, whatever the shape of the joins
below. So its identity is its relations, the inputs that were merged on the way (grouped queries alone), and the
predicates over its relations that are deferred to a join above.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from anabranch.plan.physical import JoinNode, Leaf, PhysicalPlan, PreGroup


@dataclass(frozen=True)
class Content:
    """The identity of a state, or of an input or output of a box."""

    relations: frozenset[str]
    merged: frozenset[frozenset[str]] = frozenset()
    """The inputs whose rows were merged, each by its relations."""
    unchecked: frozenset[int] = frozenset()
    """Positions of the predicates that a join above checks."""

    @classmethod
    def of(cls, relations: Iterable[str]) -> Content:
        """Combinations of some relations, without merged inputs, all predicates checked."""
        return cls(frozenset(relations))


def content(plan: PhysicalPlan) -> Content:
    """The content of a plan, apart from deferred predicates.

    >>> found = content(JoinNode((PreGroup(JoinNode((Leaf("b"), Leaf("a")))), Leaf("c"))))
    >>> sorted(found.relations), [sorted(several) for several in found.merged]
    (['a', 'b', 'c'], [['a', 'b']])
    """
    match plan:
        case Leaf(relation=name):
            return Content.of([name])
        case PreGroup():
            # What was merged further below is merged again here.
            return Content(frozenset(plan.relations), frozenset({frozenset(plan.relations)}))
        case JoinNode(inputs=several):
            below = [content(child) for child in several]
            merged = frozenset[frozenset[str]]().union(*(part.merged for part in below))
            return Content(frozenset(plan.relations), merged)
