"""Where a physical plan checks the thetas of a query: as early as possible, or deferred to a join above.

A theta that the plan does not name is checked by the first probe that binds all its relations; a deferred filter by the
first probe of its relation. A join that names a theta (`#0`) checks it on its results, after its last probe. The states
below, down to the first possible join, hold combinations that the theta will reject.

Invariant: a state of relations S in which the thetas A were checked holds every valid combination of S that passes all
thetas, and none that fails one of A. Joins above rely only on this: they find every combination that can become a
result, and need not check A again. A state may hold all, some or none of the combinations that pass A and fail a theta
checked above. (A band, for example, is probed by bucket even if its check is deferred.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from anabranch.lang.expr import Expr, can_fail_in_join, columns
from anabranch.plan.join_graph import JoinGraph, Theta
from anabranch.plan.physical import JoinNode, Leaf, PhysicalPlan, nodes


def deferred_thetas(plan: PhysicalPlan) -> dict[int, frozenset[str]]:
    """Returns the deferred thetas of a plan, by position, with the relations of the join that checks each."""
    return {position: frozenset(node.relations) for node in nodes(plan) for position in node.checks}


def still_unchecked(
    plan: PhysicalPlan, thetas: Sequence[Theta], deferred: Mapping[int, frozenset[str]]
) -> frozenset[int]:
    """Returns the thetas over relations of a part of a plan that its combinations have not passed yet."""
    relations = frozenset(plan.relations)
    if isinstance(plan, Leaf):
        return frozenset(position for position, theta in enumerate(thetas) if theta.relations == relations)
    return frozenset(
        position for position, above in deferred.items() if thetas[position].relations <= relations < above
    )


def guarded_by(condition: Expr, others: Iterable[Expr]) -> Expr | None:
    """Returns the first expression that the condition may guard: it can fail and reads a column of the condition."""
    read = set(columns(condition))
    return next((other for other in others if can_fail_in_join(other) and read & set(columns(other))), None)


def checked_by_probe(
    node: JoinNode,
    bound: frozenset[str],
    target: frozenset[str],
    graph: JoinGraph,
    deferred: Mapping[int, frozenset[str]],
) -> tuple[int, ...]:
    """Returns the thetas that a probe checks, by position: those that become checkable, then those deferred to it."""
    early = tuple(position for position in graph.checkable(bound, target) if position not in deferred)
    return (*early, *node.checks) if bound | target == frozenset(node.relations) else early


def checked_in(node: JoinNode, graph: JoinGraph, deferred: Mapping[int, frozenset[str]]) -> tuple[int, ...]:
    """Returns all thetas that a join checks, by position."""
    sides = [frozenset(child.relations) for child in node.inputs]
    here = frozenset(node.relations)

    def is_first(theta: Theta) -> bool:
        if len(theta.relations) == 1:
            return theta.relations in sides
        return theta.relations <= here and not any(theta.relations <= side for side in sides)

    return tuple(
        position
        for position, theta in enumerate(graph.thetas)
        if (position in node.checks if position in deferred else is_first(theta))
    )
