"""Where the thetas of a query are checked in a physical plan: as early as they can be, or put off to a join above.

A theta that the plan does not name is checked by the first probe that binds all its relations; a late filter, by the
first probe that its relation takes part in. A join that names it (`#0`) checks it on what the join makes, after the
last of its probes. What lies below, back to where it could have been checked, holds combinations that it will reject.

Law: a state of relations S in which the thetas A were checked holds every valid combination of S that passes all
thetas, and none that fails one of A. Both halves are all that joins above rely on: they find whatever can become a
result, and what they do not check again has been checked. Nothing else is promised: of the combinations that pass A
and fail a theta checked above, a state may hold all, some or none. (A band, for one, is looked up by bucket even where
its check is put off.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from anabranch.expr import Expr, can_fail, columns
from anabranch.plan.join_graph import JoinGraph, Theta
from anabranch.plan.physical import JoinNode, Leaf, PhysicalPlan, nodes


def put_off(plan: PhysicalPlan) -> dict[int, frozenset[str]]:
    """The thetas that a plan names, by position, with the relations of the join that checks them."""
    return {position: frozenset(node.relations) for node in nodes(plan) for position in node.checks}


def still_unchecked(plan: PhysicalPlan, thetas: Sequence[Theta], late: Mapping[int, frozenset[str]]) -> frozenset[int]:
    """The thetas over relations of a part of a plan that its combinations have not passed yet; `late` is `put_off`."""
    relations = frozenset(plan.relations)
    if isinstance(plan, Leaf):
        return frozenset(position for position, theta in enumerate(thetas) if theta.relations == relations)
    return frozenset(position for position, above in late.items() if thetas[position].relations <= relations < above)


def guarded_by(condition: Expr, others: Iterable[Expr]) -> Expr | None:
    """The first of other expressions that the condition may keep from failing: it can fail, and reads the same."""
    read = set(columns(condition))
    return next((other for other in others if can_fail(other) and read & set(columns(other))), None)


def checked_by_probe(
    node: JoinNode,
    bound: frozenset[str],
    target: frozenset[str],
    graph: JoinGraph,
    late: Mapping[int, frozenset[str]],
) -> tuple[int, ...]:
    """The thetas that a probe of a join checks, by position: those that become checkable, last those put off to it."""
    early = tuple(position for position in graph.checkable(bound, target) if position not in late)
    return (*early, *node.checks) if bound | target == frozenset(node.relations) else early


def checked_in(node: JoinNode, graph: JoinGraph, late: Mapping[int, frozenset[str]]) -> tuple[int, ...]:
    """The thetas that a join checks in all, by position."""
    sides = [frozenset(child.relations) for child in node.inputs]
    here = frozenset(node.relations)

    def is_first(theta: Theta) -> bool:
        if len(theta.relations) == 1:
            return theta.relations in sides
        return theta.relations <= here and not any(theta.relations <= side for side in sides)

    return tuple(
        position
        for position, theta in enumerate(graph.thetas)
        if (position in node.checks if position in late else is_first(theta))
    )
