"""A condition that one input can decide alone is applied before its rows are kept or probed with."""

from __future__ import annotations

from anabranch.expr import Expr, conjunction, relations
from anabranch.plan.logical import Filter, Join, LogicalPlan, relation_names


def push_filter_below_join(plan: LogicalPlan) -> LogicalPlan | None:
    """Join predicates over one input become a Filter on it; those over none, a Filter on the first input."""
    if not isinstance(plan, Join):
        return None
    owners = [_owner(plan, predicate) for predicate in plan.predicates]
    if all(owner is None for owner in owners):
        return None
    filtered = []
    for position, child in enumerate(plan.inputs):
        condition = conjunction(tuple(p for p, owner in zip(plan.predicates, owners, strict=True) if owner == position))
        filtered.append(child if condition is None else Filter(child, condition))
    kept = tuple(p for p, owner in zip(plan.predicates, owners, strict=True) if owner is None)
    return Join(tuple(filtered), kept)


def _owner(join: Join, predicate: Expr) -> int | None:
    read = relations(predicate)
    return next((i for i, child in enumerate(join.inputs) if read <= set(relation_names(child))), None)
