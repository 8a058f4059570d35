"""A condition that one input can decide alone is applied before its rows are kept or probed with."""

from __future__ import annotations

from anabranch.expr import conjunction, relations
from anabranch.plan.logical import Filter, Join, LogicalPlan, relation_names


def push_filter_below_join(plan: LogicalPlan) -> LogicalPlan | None:
    """Join predicates over one input become a Filter on it; those over none, a Filter on every input.

    Where a constant is not true, no input has to be looked at: what is written behind it may fail there.
    """
    if not isinstance(plan, Join):
        return None
    names = [frozenset(relation_names(child)) for child in plan.inputs]
    kept = tuple(p for p in plan.predicates if not any(relations(p) <= here for here in names))
    if kept == plan.predicates:
        return None
    filtered = []
    for child, here in zip(plan.inputs, names, strict=True):
        condition = conjunction(tuple(p for p in plan.predicates if relations(p) <= here))
        filtered.append(child if condition is None else Filter(child, condition))
    return Join(tuple(filtered), kept)
